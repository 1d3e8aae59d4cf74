"""Ctrl-C in every long command: the exit code, and what one is told to go on with."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import tamis
from tamis.cli import interruption
from tamis.cli.main import app
from tamis.training.models import mlp

MLP = "tamis.training.models:mlp"
DATA, TEST = "digits:train[:40]", "digits:test[:20]"
SWEEP = f"model: {MLP}\ndata: {{train: '{DATA}', test: '{TEST}'}}\nrecipe: {{steps: [{{step: quantize}}]}}\ntrials: 1\n"
LAYER_BY_LAYER = ["--calibration", DATA, "-o", "small.tamis"]
TRAINS = ["--data", DATA, "--epochs", "1"]
# Command, the call in its module that takes long, and what that has left when it is interrupted: a file, or nothing.
LONG: dict[str, tuple[list[str], str, str | None]] = {
    "quantize": ([MLP, *LAYER_BY_LAYER], "quantize_network", "small.tamis.partial/layer_0000.pt"),
    "prune": ([MLP, "--amount", "0.5", "--by", "obs", *LAYER_BY_LAYER], "prune_network", None),
    "repair": ([MLP, "before.tamis", *LAYER_BY_LAYER], "repair_network", "small.tamis.partial/layer_0000.pt"),
    "train": ([MLP, *TRAINS, "--directory", "d", "-o", "w.safetensors"], "train_module", "d/checkpoint.pt"),
    "search": ([MLP, *TRAINS, "--sparsity", "0.5", "-o", "a.architecture"], "search_architecture", None),
    "compress": (
        [MLP, "--recipe", "ternary", "--data", DATA, "--test", TEST, "-o", "out"],
        "compress_model",
        "out/.tamis-compress/lock.yaml",
    ),
    "sweep": (["sweep.yaml", "-o", "out"], "sweep", "out/sweep.db"),
    "certify": ([MLP, "before.tamis", "--data", TEST, "-o", "c.json"], "certify_network", None),
    "online": (["--data", TEST, "--space", "dense", "--rounds", "2", "-o", "out"], "run_online", "out/rounds.journal"),
}


def interrupted_after(file: str | None) -> Callable[..., Any]:
    def run(*_: object, **__: object) -> None:
        if file is not None:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).touch()
        raise KeyboardInterrupt

    return run


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)


@pytest.fixture(scope="module")
def small() -> tamis.Compressed:
    return tamis.prune(tamis.trace(mlp(), torch.zeros(1, 1, 8, 8)), 0.5, by="magnitude")


@pytest.mark.parametrize("command", LONG)
def test_one_is_told_how_to_go_on(command: str, small: tamis.Compressed, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, call, file = LONG[command]
    small.save("before.tamis")
    module = importlib.import_module(f"tamis.cli.{command}")
    assert hasattr(module, call)
    monkeypatch.setattr(module, call, interrupted_after(file))
    result = CliRunner().invoke(app, [command, *arguments])
    assert result.exit_code == 130, result.output
    *_, said, again = result.stderr.strip().splitlines()
    assert shlex.split(again) == ["tamis", command, *arguments]
    folder = "small.tamis.partial" if file is None else str(Path(file).parent)
    if file is None:
        assert said == "interrupted, and nothing was written; the same command begins anew:"
        assert not Path(folder).exists()
    else:
        assert said == f"interrupted; what is finished lies in {folder}, and the same command goes on from there:"


def test_a_file_that_is_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("w.safetensors").touch()
    interruption.begin()
    interruption.writes(Path("w.safetensors"))
    assert "nothing was written" in interruption.explain_how_to_go_on()
    save_file({"x": torch.zeros(3)}, "w.safetensors")
    assert interruption.explain_how_to_go_on() == "interrupted; w.safetensors is written"
    interruption.begin()
    assert interruption.explain_how_to_go_on().startswith("interrupted; the same command begins anew:")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert interruption.explain_how_to_go_on() == "interrupted; the same command begins anew: start it as before"
