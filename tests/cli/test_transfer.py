"""`tamis transfer` as a user calls it: the library's training, the file that others read, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tamis
from tamis.architecture import Architecture, random_architecture
from tamis.architecture import transfer as transfer_architecture
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.training import Settings, evaluate, load_data
from tamis.training.loop import TrainingRun
from tamis.training.models import MODELS

MLP = "tamis.training.models:mlp"
DATA, TEST = "digits:train[:150]", "digits:test"
QUICK = ("--data", DATA, "--test", TEST, "--epochs", 2, "--batch", 30)


def invoke(*arguments: object, command: str = "transfer") -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [command, *map(str, arguments)], catch_exceptions=False)


def run(*arguments: object, command: str = "transfer") -> str:
    result = invoke(*arguments, command=command)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Architecture:
    """Half of the connections, in half.architecture, the only file of an empty directory."""
    monkeypatch.chdir(tmp_path)
    kept = random_architecture(MODELS["mlp"](), 0.5, seed=0)
    kept.save("half.architecture")
    return kept


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


# -- what it writes ----------------------------------------------------------------------------------------------------


def test_the_network_is_the_one_that_the_library_trains(kept: Architecture) -> None:
    text = run(MLP, "half.architecture", *QUICK, "-o", "small.tamis")
    data, settings = load_data(DATA), Settings(epochs=2, batch=30)
    trained = transfer_architecture(load_module(MLP).module, kept, data, settings, progress=False).model
    small = tamis.load("small.tamis", MODELS["mlp"]())
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in small.state_dict().items())
    assert set(small.masks) == set(kept.masks)
    for name, mask in kept.masks.items():
        assert torch.equal(small.masks[name], mask) and torch.equal(small.params[name] != 0, mask)
    (step,) = small.recipe
    assert step == {"step": "transfer", "architecture": "half.architecture", "data": DATA, **settings.in_effect}
    assert files() == ["half.architecture", "small.tamis"]
    accuracy = evaluate(small.apply_to(MODELS["mlp"]()), load_data(TEST))
    for part in (f"test accuracy {accuracy:.1%} after 2 epochs", "fresh", f"{TEST}, 360 examples", "saved small.tamis"):
        assert part in text
    assert re.search(r"^total +3,392 +1,696 +50\.0%$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100


def test_json(kept: Architecture) -> None:
    told = json.loads(run(MLP, "half.architecture", *QUICK, "-o", "small.tamis", "--json"))
    assert {layer["name"]: layer["density"] for layer in told["layers"]} == kept.densities
    small = tamis.load("small.tamis", MODELS["mlp"]())
    assert told["accuracy"]["test"] == evaluate(small.apply_to(MODELS["mlp"]()), load_data(TEST))
    assert told["recipe"] == list(small.recipe) and told["bytes"] == Path("small.tamis").stat().st_size


def test_other_commands_read_the_file() -> None:
    train = ("--data", DATA, "--epochs", 2, "--directory", "dense", "-o", "dense.safetensors")
    run(MLP, *train, command="train")
    run(MLP, "half.architecture", *QUICK, "-o", "small.tamis")
    shown = run(MLP, "--weights", "small.tamis", command="inspect")
    assert "1,696 of 3,392 weights pruned" in shown
    certify = ("--weights", "dense.safetensors", "--data", TEST, "-o", "certificate.json")
    assert "answers differently" in run(MLP, "small.tamis", *certify, command="certify")


def test_from_a_search_to_a_small_network() -> None:
    run(MLP, "--data", DATA, "--sparsity", 0.8, "--epochs", 6, "--batch", 30, "-o", "x.architecture", command="search")
    run(MLP, "x.architecture", *QUICK, "--seed", 3, "-o", "small.tamis")
    assert tamis.load("small.tamis", MODELS["mlp"]()).masks.pruned == round(0.8 * 3392)


# -- going on ----------------------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TrainingRun.run_epoch

    def epoch(training: Any, number: int) -> Any:
        if number == 2:
            raise KeyboardInterrupt
        return original(training, number)

    with monkeypatch.context() as patch:
        patch.setattr("tamis.training.loop.TrainingRun.run_epoch", epoch)
        assert invoke(MLP, "half.architecture", *QUICK, "-o", "broken.tamis").exit_code == 130
    assert files() == ["broken.tamis.partial", "half.architecture"]
    text = run(MLP, "half.architecture", *QUICK, "-o", "broken.tamis")
    assert "of broken.tamis.partial, after epoch 1" in text
    run(MLP, "half.architecture", *QUICK, "--directory", "kept", "-o", "whole.tamis")
    assert Path("broken.tamis").read_bytes() == Path("whole.tamis").read_bytes()
    assert files() == ["broken.tamis", "half.architecture", "kept", "whole.tamis"]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "architecture", "options", "part"),
    [
        (
            "tamis.training.models:digits_cnn",
            "half.architecture",
            {},
            "this architecture is of another network: it masks 'linear1.weight', which DigitsCNN does not have",
        ),
        (MLP, "narrow.architecture", {}, "'linear1.weight' has shape (8, 64) in it and (32, 64) in Sequential"),
        (MLP, "none.architecture", {}, "no such file or directory: none.architecture"),
        (MLP, "damaged.architecture", {}, "damaged.architecture is damaged"),
        (MLP, "half.architecture", {"-o": "w.safetensors"}, "-o must end in .tamis, got 'w.safetensors'"),
        (MLP, "half.architecture", {"--test": "digits:test[9:9]"}, "'digits:test[9:9]' is empty"),
        ("m.pt2", "half.architecture", {}, "transfer needs package.module:factory; 'm.pt2' is a program"),
    ],
)
def test_errors_are_one_line_and_come_before_training(
    model: str, architecture: str, options: dict[str, object], part: str
) -> None:
    random_architecture(MODELS["mlp"]((64, 8, 10)), 0.5, seed=0).save("narrow.architecture")
    damaged = Path("half.architecture").read_bytes()[:-1]
    Path("damaged.architecture").write_bytes(damaged)
    before = files()
    given = {"--data": DATA, "--epochs": 2, "-o": "small.tamis", **options}
    result = invoke(model, architecture, *(word for option in given.items() for word in option))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert files() == before
