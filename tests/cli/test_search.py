"""`tamis search` as a user calls it: the library's search, what it shows and writes, going on, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ddp_search
import pytest
from every_setting import EVERY_SETTING, options_of_every_setting
from torchrun import team_of
from typer.testing import CliRunner

import tamis
from tamis.architecture import Architecture
from tamis.architecture import search as search_architecture
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.training import Settings, load_data, train

MLP = "tamis.training.models:mlp"
DATA = "digits:train[:150]"
QUICK = ("--data", DATA, "--sparsity", 0.8, "--epochs", 6, "--batch", 30, "--mask-rate", 0.1)
# What the command runs in a process of its own, and what ends it as soon as the checkpoint of an epoch is written.
KILLED_AFTER_AN_EPOCH = """
import os, signal
from tamis.cli.main import main
from tamis.training.checkpoint import RunDirectory
write = RunDirectory.write
def write_and_die(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
RunDirectory.write = write_and_die
main()
"""


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["search", *map(str, arguments)], catch_exceptions=False)


def run_search(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert all(line.startswith("training ") for line in result.stderr.splitlines())
    return str(result.stdout)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def expected(**options: Any) -> Architecture:
    """What the library finds when it is called by hand."""
    model = options.pop("model", None) or load_module(MLP).module
    settings = options.pop("settings", Settings(epochs=6, batch=30))
    return search_architecture(model, load_data(DATA), 0.8, settings, progress=False, **{"mask_rate": 0.1, **options})


# -- what it shows and writes ------------------------------------------------------------------------------------------


def test_it_finds_what_the_library_finds_and_shows_every_layer() -> None:
    text = run_search(MLP, *QUICK, "-o", "new/found.architecture")
    found = Architecture.load("new/found.architecture")
    assert found == expected()
    assert [path.name for path in Path("new").iterdir()] == ["found.architecture"]
    kept = {name: int(mask.sum()) for name, mask in found.masks.items()}
    rows = [line.split() for line in text.splitlines()]
    assert ["linear1.weight", "2,048", str(kept["linear1.weight"]), f"{kept['linear1.weight'] / 2048:.1%}"] in rows
    assert ["total", "3,392", "678", "20.0%"] in rows and sum(kept.values()) == 678
    for part in (f"{DATA}, 150 examples", "seed 0", "sparsity 80.0%", "saved new/found.architecture, "):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


def test_json() -> None:
    told = json.loads(run_search(MLP, *QUICK, "-o", "found.architecture", "--json"))
    found = Architecture.load("found.architecture")
    assert told["total"] == {"connections": 3392, "kept": 678, "density": 678 / 3392}
    assert [layer["name"] for layer in told["layers"]] == ["linear1.weight", "linear2.weight", "linear3.weight"]
    assert {layer["name"]: layer["density"] for layer in told["layers"]} == found.densities
    assert told["sparsity"] == found.sparsity and told["settings"]["epochs"] == 6
    assert (told["model"], told["data"], told["file"]) == (MLP, DATA, "found.architecture")
    assert told["bytes"] == Path("found.architecture").stat().st_size


def test_every_option_of_the_search_reaches_it() -> None:
    given = ("--t-l", 50, "--t-s", 2.5, "--gamma", 0.05, "--mask-rate", 0.3, "--exclude", "linear3")
    run_search(MLP, *QUICK, *given, "-o", "found.architecture")
    how: dict[str, Any] = {"t_l": 50.0, "t_s": 2.5, "gamma": 0.05, "mask_rate": 0.3, "exclude": "linear3"}
    assert Architecture.load("found.architecture") == expected(**how)
    run_search(MLP, *QUICK, "--include", "linear1", "--include", "linear2", "-o", "some.architecture")
    assert Architecture.load("some.architecture") == expected(exclude="linear3")


def test_every_setting_of_training_has_an_option() -> None:
    wanted, given = EVERY_SETTING, options_of_every_setting()
    run_search(
        MLP, "--data", DATA, "--sparsity", 0.8, "--mask-rate", 0.1, *given, "--dir", "kept", "-o", "found.architecture"
    )
    question = json.loads(Path("kept/search.json").read_text())
    assert {name: question[name] for name in asdict(wanted)} == {**asdict(wanted), "milestones": [1, 2]}
    model = load_module(MLP, seed=5).module
    assert Architecture.load("found.architecture") == expected(model=model, settings=wanted)


def test_it_begins_with_given_weights() -> None:
    dense = train(load_module(MLP).module, load_data(DATA), Settings(epochs=2, batch=30), progress=False).model
    tamis.prune(dense, 0, by="magnitude", example=load_data(DATA).example).save("dense.tamis")
    text = run_search(MLP, *QUICK, "--mask-rate", 2, "--weights", "dense.tamis", "-o", "found.architecture")
    assert "dense.tamis" in text
    assert Architecture.load("found.architecture") == expected(model=dense, mask_rate=2.0) != expected(mask_rate=2.0)


def test_what_is_left_out_is_as_the_library_has_it() -> None:
    options = ("--data", DATA, "--sparsity", 0, "--epochs", 1, "--dir", "kept", "-o", "found.architecture")
    run_search(MLP, *options)
    search_architecture(
        load_module(MLP).module, load_data(DATA), 0, Settings(epochs=1), directory="by_hand", progress=False
    )
    assert Path("kept/search.json").read_bytes() == Path("by_hand/search.json").read_bytes()


def test_what_the_masks_do_not_reach_is_said_in_one_line() -> None:
    result = invoke(MLP, *QUICK, "--gamma", 1e-9, "--mask-rate", 1e-6, "-o", "found.architecture")
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("training ")]
    assert line.startswith("warning: after 6 epochs the masks are at a sparsity of 0.0000, short of 0.8")
    assert Architecture.load("found.architecture").masks.pruned == round(0.8 * 3392)


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_it_goes_on_to_the_same_bytes() -> None:
    arguments = [MLP, *map(str, QUICK), "-o", "found.architecture"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AFTER_AN_EPOCH, "search", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in Path().iterdir()] == ["found.architecture.partial"]
    text = run_search(*arguments)
    assert "of found.architecture.partial, after epoch 1" in text
    assert [path.name for path in Path().iterdir()] == ["found.architecture"]
    expected().save("by_hand.architecture")
    assert Path("found.architecture").read_bytes() == Path("by_hand.architecture").read_bytes()


def test_a_directory_of_the_users_stays_and_is_read_again() -> None:
    run_search(MLP, *QUICK, "--directory", "kept", "-o", "one.architecture")
    assert {"search.json", "found.architecture"} <= {path.name for path in Path("kept").iterdir()}
    run_search(MLP, *QUICK, "--directory", "kept", "-o", "two.architecture")
    assert Path("one.architecture").read_bytes() == Path("two.architecture").read_bytes()
    result = invoke(MLP, *QUICK, "--seed", 1, "--directory", "kept", "-o", "one.architecture")
    assert result.exit_code == 2
    assert "error: kept holds another search: seed was 0, now it is 1" in result.stderr


def test_what_is_not_ours_stays_where_it_is() -> None:
    Path("found.architecture.partial").mkdir()
    Path("found.architecture.partial/notes.txt").write_text("mine")
    run_search(MLP, *QUICK, "-o", "found.architecture")
    assert [path.name for path in Path("found.architecture.partial").iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_a_team_finds_one_architecture(tmp_path: Path) -> None:
    done = team_of(2, tmp_path, script=Path(ddp_search.__file__), seconds=120)
    assert done.returncode == 0, done.stdout
    first, second = (Path(f"{rank}.architecture").read_bytes() for rank in range(2))
    assert first == second == Path("written.architecture").read_bytes()
    assert Architecture.load("written.architecture").masks.pruned == round(0.8 * 3392)
    assert done.stdout.count("saved ") == 1 and not Path("written.architecture.partial").exists()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        (MLP, {"-o": "found.tamis"}, "-o must end in .architecture, got 'found.tamis'"),
        (MLP, {"--sparsity": 1.0}, "--sparsity 1.0 must be a fraction from 0 to less than 1"),
        (MLP, {"--sparsity": 0.9999}, "--sparsity 0.9999 keeps none of 3,392 connections"),
        (MLP, {"--t-s": 1000}, "--t-s 1000.0 must not be greater than --t-l 100.0"),
        (MLP, {"--gamma": -1}, "--gamma -1.0 must be a number > 0"),
        (MLP, {"--mask-rate": 0}, "--mask-rate 0.0 must be a number > 0"),
        (MLP, {"--exclude": "linear9"}, "'linear9' matches no weight that can be masked"),
        (MLP, {"--epochs": 0}, "epochs must be a whole number ≥ 1, got 0"),
        (MLP, {"--data": "no_such_data"}, "there is no dataset 'no_such_data:train'"),
        (MLP, {"--weights": "none.tamis"}, "no such file or directory: none.tamis"),
        ("m.pt2", {}, "search needs package.module:factory; 'm.pt2' is a program"),
        ("tamis.training.models:resnet20", {}, "resnet20 does not take 'digits:train[:150]'"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(model: str, options: dict[str, object], part: str) -> None:
    given = {"--data": DATA, "--sparsity": 0.8, "--epochs": 2, "-o": "found.architecture", **options}
    result = invoke(model, *(word for option in given.items() for word in option))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert not [*Path().iterdir()]


@pytest.mark.parametrize("command", ["search", "transfer", "train"])
def test_help_names_the_options_of_training(command: str) -> None:
    """That no help imports torch is seen of all commands in test_main.py."""
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0 and "--warmup-epochs" in shown.stdout
