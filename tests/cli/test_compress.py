"""`tamis compress` and `tamis recipes` as a user calls them: what they print, what they leave, what they refuse."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import tamis
import tamis.reports.comparison
from tamis.cli.command_line import quote_as_written
from tamis.cli.compress import make_tries_table
from tamis.cli.main import app
from tamis.cli.options import ModelChoice
from tamis.recipes import list_shipped, recipe_of
from tamis.training.models import MODELS

MLP, CNN = "tamis.training.models:mlp", "tamis.training.models:digits_cnn"
DATA, TEST = "digits:train[:150]", "digits:test[:100]"
QUICK = ("--data", DATA, "--test", TEST, "-o", "out")
RECIPE = """steps:
- {step: prune, amount: 50%}
- {step: quantize, levels: 3, c_alpha: 2.0}
"""
LONG = """data: {train: digits, test: digits:test}
steps:
- {step: prune, amount: 50%}
- {step: retrain, epochs: 12, learning_rate: 0.01}
- {step: quantize, levels: 3}
- {step: repair}
"""


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)
    Path("mine.yaml").write_text(RECIPE)


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_a_recipe_runs_and_says_what_that_cost() -> None:
    result = invoke("compress", MLP, "--recipe", "mine.yaml", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "step 1 of 2: prune\nstep 2 of 2: quantize\n" in result.stderr
    assert "With 95% confidence" in result.stdout
    assert "certificate.json, recipe.lock.yaml, report.html, small.tamis" in result.stdout
    assert "stayed float  74 weights of linear1, linear2, linear3: a bias, " in result.stdout
    assert f"warning: the weights of '{MLP}' were just initialised at random" in result.stderr
    small = tamis.load("out/small.tamis", MODELS["mlp"]())
    assert [step["step"] for step in small.recipe] == ["prune", "quantize"]
    for option, rate, code, word in (("accuracy-drop", "100%", 0, "PASS"), ("disagreement", "0.01%", 3, "FAIL")):
        # Certified again, without a step run again: after levels, nothing is searched for.
        required = invoke("compress", MLP, "--recipe", "mine.yaml", *QUICK, f"--max-{option}", rate)
        assert required.exit_code == code and required.stdout.startswith(f"{word}\n") and "step" not in required.stderr
    certificate = tamis.Certificate.load("out/certificate.json").content
    assert certificate["network"]["name"] == MLP and certificate["data"]["name"] == TEST
    assert certificate["network"]["just_initialised"] and "just initialised" in certificate["notes"][0]
    assert certificate["command"].startswith(f"tamis compress {MLP} --recipe mine.yaml")
    verified = invoke("verify", "out/certificate.json", "out/small.tamis", MLP, "--data", TEST)
    assert verified.exit_code == 0, verified.stderr
    again = invoke("compress", MLP, "--recipe", "out/recipe.lock.yaml", "-o", "again", "--json")
    assert again.exit_code == 3, again.stderr  # as the last one, for the lock says what was required
    shown = json.loads(again.stdout)
    assert shown["lock"]["result"]["sha256"] == json.loads(Path("out/certificate.json").read_text())["file"]["sha256"]
    assert shown["lock"]["model"]["name"] == MLP and shown["met"] is False
    assert shown["lock"]["requirements"] == {"max_disagreement": 0.0001}
    assert [each["layer"] for each in shown["stayed_float"]] == ["linear1", "linear2", "linear3"]
    assert Path("again/small.tamis").read_bytes() == Path("out/small.tamis").read_bytes()


def test_the_command_that_repeats_a_run_can_be_pasted() -> None:
    assert quote_as_written(ModelChoice(MLP)) == MLP
    for name in ("plain.safetensors", "my weights.safetensors", "it's <b>$HOME</b>.safetensors"):
        written = shlex.split(quote_as_written(ModelChoice(MLP, Path(name), "1,8,8", trust=True)))
        assert written == [MLP, "--weights", name, "--shape", "1,8,8", "--trust"]


def test_the_search_says_what_won_and_how_each_try_did() -> None:
    tried = [
        {"start": "as it is", "bytes": 4100, "different": 1, "moved": 0.0123, "chosen": False},
        {"start": "prune", "layers": "3 levels ×2", "bytes": 2900, "different": 4, "moved": None, "chosen": True},
    ]
    out = Console(file=io.StringIO(), width=100)
    out.print(make_tries_table(tried, 50))
    heading, _, first, second = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert heading.split() == ["tried", "layers", "bytes", "differs,", "of", "50", "held", "out", "outputs", "moved"]
    assert first.split() == ["won", "prune", "3", "levels", "×2", "2,900", "4", "(8.00%)", "–"]
    assert second.split() == ["as", "it", "is", "–", "4,100", "1", "(2.00%)", "0.0123"]


@pytest.mark.slow
def test_a_budget_that_is_not_met_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # A search that believes anything.
    monkeypatch.setattr("tamis.recipes.budget_search.predict_bound", lambda different, *_: 0.0)
    result = invoke("compress", MLP, "--max-disagreement", "1%", *QUICK)
    assert result.exit_code == 3
    assert result.stdout.startswith("FAIL\n  FAIL  different answers: at most 1% required, at most ")
    (won,) = [line for line in result.stdout.splitlines() if line.startswith("won ")]
    assert f"{Path('out/small.tamis').stat().st_size:,}" in won


@pytest.mark.slow
def test_a_program() -> None:
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(MODELS["mlp"](), (torch.zeros(2, 1, 8, 8),), dynamic_shapes=(batch,))
    torch.export.save(program, "m.pt2")
    result = invoke("compress", "m.pt2", "--recipe", "mine.yaml", *QUICK)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        (MLP, {"--recipe": None}, "compress needs --recipe, --target-bytes or --max-disagreement"),
        (MLP, {"--recipe": "tenary"}, "there is no recipe 'tenary'; did you mean ternary or "),
        (MLP, {"--recipe": "bad.yaml"}, "bad.yaml:3:3: steps[0].amont: there is no key 'amont' here; did you mean"),
        (MLP, {"--data": None, "--test": None}, "mine.yaml:1:1: data.train: no training data is named"),
        (MLP, {"--test": DATA}, "samples in common"),
        (MLP, {"--target-bytes": "2 KM"}, "--target-bytes must be a number of bytes"),
        (MLP, {"-o": "mine.yaml"}, "-o must be a folder, and 'mine.yaml' is a file"),
        (MLP, {"--weights": "small.tamis"}, "'small.tamis' is compressed already"),
        ("mlp", {}, "did you mean tamis.training.models:mlp?"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(model: str, options: dict[str, Any], part: str) -> None:
    Path("bad.yaml").write_text("steps:\n- step: prune\n  amont: 0.5\n  amount: 0.5\n")
    if "--weights" in options:
        tamis.Compressed(tamis.trace(MODELS["mlp"](), torch.zeros(1, 1, 8, 8))).save("small.tamis")
    before = sorted(path.name for path in Path().iterdir())
    given = {"--recipe": "mine.yaml", "--data": DATA, "--test": TEST, "-o": "out", **options}
    words = [word for option, value in given.items() if value is not None for word in (option, value)]
    result = invoke("compress", model, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == before


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_recipes_are_listed_and_printed() -> None:
    listing = invoke("recipes").stdout
    assert all(entry.name in listing for entry in list_shipped())
    printed = invoke("recipes", "ternary")
    assert printed.stdout == next(entry for entry in list_shipped() if entry.name == "ternary").path.read_text()
    for given in (["ternery"], ["mine.yaml"], ["ternary", "--schema"]):
        assert invoke("recipes", *given).exit_code == 2


def test_recipes_for_machines() -> None:
    listing = json.loads(invoke("recipes", "--json").stdout)
    assert [entry["name"] for entry in listing] == [entry.name for entry in list_shipped()]
    (one,) = [entry for entry in listing if entry["name"] == "ternary"]
    assert json.loads(invoke("recipes", "ternary", "--json").stdout) == one
    assert recipe_of(one["recipe"]).steps[0].chosen_settings()["levels"] == 3  # a recipe that compress takes as it is


def test_the_schema_is_json() -> None:
    schema = json.loads(invoke("recipes", "--schema").stdout)
    assert "steps" in schema["properties"] and "Prune" in schema["$defs"]


# -- kills -------------------------------------------------------------------------------------------------------------


def started(out: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tamis", "compress", CNN, "--recipe", "long.yaml", "-o", out]
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def what_is_left(out: str) -> tuple[bytes, dict[str, Any], bytes]:
    """The file, the certificate but for its day and its command, which names the folder, and the lock."""
    certificate = json.loads(Path(out, "certificate.json").read_text())
    plain = {name: value for name, value in certificate.items() if name not in ("date", "command", "digest")}
    left = [path.name for path in Path(out).iterdir() if path.suffix != ".part"]  # a kill may leave such
    assert sorted(left)[:3] == [
        "certificate.json",
        "recipe.lock.yaml",
        "report.html",
    ]
    return Path(out, "small.tamis").read_bytes(), plain, Path(out, "recipe.lock.yaml").read_bytes()


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing() -> None:
    Path("long.yaml").write_text(LONG.replace("train: digits,", "train: digits:train,"))
    began = time.monotonic()
    assert started("whole").wait() == 0
    seconds = time.monotonic() - began
    expected = what_is_left("whole")
    draw, kills, folder = random.Random(0), 0, 0
    while kills < 10:
        process = started(f"out{folder}")
        try:
            assert process.wait(timeout=draw.uniform(0.25, 0.9) * seconds) == 0
            assert what_is_left(f"out{folder}") == expected  # it was finished before the moment came
            folder += 1
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            ended = process.wait()
            assert ended in (0, -signal.SIGKILL)  # 0: it was faster than the signal
            kills += ended != 0
    assert started(f"out{folder}").wait() == 0
    assert what_is_left(f"out{folder}") == expected
