"""`tamis train --l1inf` as a user calls it: what it trains, says and writes, how it goes on, what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.cli.train import parse_radii
from tamis.errors import InvalidInput
from tamis.l1inf import L1InfConstraint, statistics
from tamis.training import Settings, load_data, train
from tamis.training.loop import TrainingRun
from tamis.training.models import MODELS

MLP = "tamis.training.models:mlp"
DATA = "digits:train[:150]"
QUICK = ("--data", DATA, "--epochs", 2, "--batch", 32, "--directory", "run")


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)


def run_train(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def expected(constraint: L1InfConstraint, **options: Any) -> nn.Module:
    """What the library trains when it is called by hand."""
    model = options.pop("model", None) or load_module(MLP).module
    settings = Settings(epochs=2, batch=32)
    return train(model, load_data(DATA), settings, constraint=constraint, progress=False, **options).model


def assert_same(state: Any, other: Any) -> None:
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in state.items())


# -- what it trains, says and writes -----------------------------------------------------------------------------------


def test_it_trains_within_the_ball_and_says_what_came_of_it() -> None:
    text = run_train(MLP, *QUICK, "--l1inf", 0.5, "-o", "w.safetensors")
    model = expected(L1InfConstraint(0.5))
    assert_same(load_file("w.safetensors"), model.state_dict())
    found = statistics(model)
    assert 0.2 < found.sparsity < 1 and found.c <= 0.5 * (1 + 1e-6)
    assert "‖T_l‖₁,∞ ≤ 0.5 in linear1, linear2" in text
    said = re.search(r"(\S+)% of 3,072 weights are 0 in linear1, linear2; the largest ‖T_l‖₁,∞ is (\S+)", text)
    assert said is not None
    assert float(said[1]) == round(100 * found.sparsity, 1) and float(said[2]) == pytest.approx(found.c, rel=1e-5)


def test_a_tamis_file_is_smaller_for_its_zeros_and_says_how_it_was_trained() -> None:
    run_train(MLP, *QUICK, "--l1inf", 0.5, "-o", "small.tamis")
    run_train(MLP, "--data", DATA, "--epochs", 2, "--batch", 32, "--directory", "dense", "-o", "dense.tamis")
    small, model = tamis.load("small.tamis", MODELS["mlp"]()), expected(L1InfConstraint(0.5))
    assert_same(small.state_dict(), model.state_dict())
    assert set(small.masks) == {"linear1.weight", "linear2.weight"}
    for name, mask in small.masks.items():
        assert torch.equal(mask, model.get_parameter(name) != 0)
    assert small.recipe[-1]["step"] == "train" and small.recipe[-1]["l1inf"] == {"c": 0.5}
    assert Path("small.tamis").stat().st_size < Path("dense.tamis").stat().st_size - 2000


def test_single_layers_have_radii_of_their_own() -> None:
    text = run_train(MLP, *QUICK, "--l1inf", "linear1=0.25", "--l1inf", "linear3=1", "-o", "w.tamis")
    small = tamis.load("w.tamis", MODELS["mlp"]())
    assert_same(small.state_dict(), expected(L1InfConstraint({"linear1": 0.25, "linear3": 1.0})).state_dict())
    assert small.recipe[-1]["l1inf"] == {"c": {"linear1": 0.25, "linear3": 1.0}}
    assert "‖T_l‖₁,∞ ≤ 0.25 in linear1, ‖T_l‖₁,∞ ≤ 1 in linear3" in text
    assert "of 2,368 weights are 0 in linear1, linear3; the largest ‖T_l‖₁,∞ is 1" in text


def test_what_is_pruned_stays_pruned() -> None:
    pruned = tamis.prune(load_module(MLP).module, 0.5, example=torch.zeros(1, 1, 8, 8))
    pruned.save("pruned.tamis")
    run_train(MLP, *QUICK, "--weights", "pruned.tamis", "--l1inf", 0.5, "-o", "small.tamis")
    small = tamis.load("small.tamis", MODELS["mlp"]())
    model = pruned.apply_to(MODELS["mlp"]())
    assert_same(small.state_dict(), expected(L1InfConstraint(0.5), model=model, masks=pruned.masks).state_dict())
    for name, mask in pruned.masks.items():
        assert not small.params[name][~mask].any() and not small.masks[name][~mask].any()
    assert small.masks.pruned > pruned.masks.pruned
    assert [step["step"] for step in small.recipe] == ["prune", "train"]


def test_tied_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine_tied_within.py").write_text(
        "from torch import nn\n"
        "def model():\n"
        "    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))\n"
        "    made[3].weight = made[1].weight\n"
        "    return made\n"
    )
    run_train("mine_tied_within:model", *QUICK, "--l1inf", 0.5, "-o", "w.tamis")
    model = load_module("mine_tied_within:model").module
    small = tamis.load("w.tamis", model)
    assert len(small.masks) == 1 and statistics(small.apply_to(model)).c <= 0.5 * (1 + 1e-6)


# -- going on ----------------------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TrainingRun.run_epoch

    def epoch(training: Any, number: int) -> Any:
        if number == 2:
            raise KeyboardInterrupt
        return original(training, number)

    with monkeypatch.context() as patch:
        patch.setattr("tamis.training.loop.TrainingRun.run_epoch", epoch)
        assert invoke(MLP, *QUICK, "--l1inf", 0.5, "-o", "broken.tamis").exit_code == 130
    assert "of run, after epoch 1" in run_train(MLP, *QUICK, "--l1inf", 0.5, "-o", "broken.tamis")
    other = ("--data", DATA, "--epochs", 2, "--batch", 32, "--directory", "other")
    run_train(MLP, *other, "--l1inf", 0.5, "-o", "whole.tamis")
    assert Path("broken.tamis").read_bytes() == Path("whole.tamis").read_bytes()


def test_another_radius_is_another_training() -> None:
    run_train(MLP, *QUICK, "--l1inf", 0.5, "-o", "w.tamis")
    result = invoke(MLP, *QUICK, "--l1inf", 0.25, "-o", "w.tamis")
    assert result.exit_code == 2
    assert "l1inf was {'c': 0.5}, now it is {'c': 0.25}" in result.stderr


@pytest.mark.slow
def test_two_processes_write_one_file_within_the_ball() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tamis"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    arguments = map(str, ["train", MLP, *QUICK, "--l1inf", 0.5, "-o", "w.safetensors"])
    finished = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("the largest ‖T_l‖₁,∞ is 0.5") == 1
    state = load_file("w.safetensors")
    for name, value in expected(L1InfConstraint(0.5)).state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-5)
    model = MODELS["mlp"]()
    model.load_state_dict(state)
    assert statistics(model).c <= 0.5 * (1 + 1e-6)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (["-1"], "--l1inf must be a number ≥ 0 (0.1), or NAME= and one for each layer (linear1=0.1); got '-1'"),
        (["much"], "got 'much'"),
        (["nan"], "got 'nan'"),
        (["inf"], "got 'inf'"),
        (["linear1="], "got 'linear1='"),
        (["=0.1"], "got '=0.1'\n"),
        (["0.1", "0.2"], "got '0.1' among 2 of them"),
        (["linear1=1", "linear1=2"], "--l1inf names 'linear1' twice"),
        (["linear9=1"], "--l1inf names 'linear9', which is no layer; these are: linear1, linear2, linear3"),
    ],
)
def test_errors_are_one_line_and_come_before_training(given: list[str], part: str) -> None:
    result = invoke(MLP, *QUICK, "-o", "w.tamis", *(f"--l1inf={each}" for each in given))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert not [*Path().iterdir()]


def test_numbers_and_names() -> None:
    assert parse_radii(["1e-1"]) == 0.1
    assert parse_radii(["a.b=0.5", "c=2"]) == {"a.b": 0.5, "c": 2.0}
    with pytest.raises(InvalidInput, match="got 'x=y'"):
        parse_radii(["x=y"])
