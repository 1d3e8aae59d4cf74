"""--device: what it may be, what is said where there is no GPU, and that all tensors follow it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tamis.cli.data_argument import accuracy, load_test
from tamis.cli.device_argument import join_team_exactly, parse_device
from tamis.cli.main import app
from tamis.cli.model_argument import load_network
from tamis.errors import InvalidInput

MLP = "tamis.training.models:mlp"


@pytest.mark.parametrize("text", ["gpu", "meta", "mps", "", "cuda:x"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"--device must be cpu or cuda, got '{text}'"):
        parse_device(text)


@pytest.mark.parametrize(
    ("text", "found", "message"),
    [
        ("cuda", 0, "--device cuda needs a GPU, and torch .* finds none here: leave it out"),
        ("cuda:2", 2, "--device cuda:2 needs a GPU, and torch .* finds 2 here"),
    ],
)
def test_a_gpu_that_is_not_there(text: str, found: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(InvalidInput, match=message):
        parse_device(text)


def test_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_device("cuda:1") == torch.device("cuda", 1) and parse_device("cpu") == torch.device("cpu")


def test_sums_on_a_gpu_are_those_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert join_team_exactly("cpu").device.type == "cpu" and torch.backends.cudnn.allow_tf32
    assert join_team_exactly("cuda:0").device == torch.device("cuda", 0) and not torch.backends.cudnn.allow_tf32


DEVICE = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_all_tensors_follow(device: str) -> None:
    loaded = load_network(MLP, device=device)
    assert loaded.module is not None
    tensors = [*loaded.network.params.values(), *loaded.module.parameters()]
    assert {value.device.type for value in tensors} == {device}
    test = load_test("digits:test[:50]", loaded.network, MLP)
    assert test is not None and accuracy(loaded.network, test) == accuracy(load_network(MLP).network, test)


COMMANDS = {
    "certify": ["certify", MLP, "small.tamis", "--data", "digits:test", "-o", "small.json"],
    "verify": ["verify", "small.json", "small.tamis", MLP],
    "quantize": ["quantize", MLP, "--calibration", "digits:train[:50]", "-o", "small.tamis"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_that_there_is_none(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = CliRunner().invoke(app, [*COMMANDS[command], "--device", "cuda"])
    assert result.exit_code == 2 and "error: --device cuda needs a GPU" in result.stderr, result.output
    assert not any(tmp_path.iterdir())
