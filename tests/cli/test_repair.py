"""`tamis repair` as a user calls it: the library's repair, what it prints, how it goes on, what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.cli.model_argument import load_network
from tamis.layerwise.journal import LayerJournal
from tamis.training import load_data
from tamis.training.models import MODELS

MLP = "tamis.training.models:mlp"
SIZES = {"linear1.weight": 64 * 32, "linear2.weight": 32 * 32, "linear3.weight": 32 * 10}
TOTAL = sum(SIZES.values())
DATA, TEST = "digits:train[:150]", "digits:test[:100]"
QUICK = (MLP, "half.tamis", "--calibration", DATA, "-o", "repaired.tamis")


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["repair", *map(str, arguments)], catch_exceptions=False)


def run_repair(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert all(line.startswith("repair ") for line in result.stderr.splitlines())  # how far it is
    return result.stdout


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return load_network(MLP).network


@pytest.fixture(scope="module")
def half(net: tamis.Network) -> tamis.Compressed:
    return tamis.prune(net, 0.5, by="magnitude")


@pytest.fixture(scope="module")
def repaired(net: tamis.Network, half: tamis.Compressed) -> tamis.Compressed:
    return tamis.repair(net, half, DATA, progress=False)


@pytest.fixture(autouse=True)
def in_a_directory_with_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: tamis.Compressed) -> None:
    monkeypatch.chdir(tmp_path)
    half.save("half.tamis")


def assert_same(small: tamis.Compressed, other: tamis.Compressed) -> None:
    assert small.params.keys() == other.params.keys() and small.masks.keys() == other.masks.keys()
    assert all(torch.equal(value, other.params[name]) for name, value in small.params.items())
    assert all(torch.equal(mask, other.masks[name]) for name, mask in small.masks.items())
    assert list(small.recipe) == json.loads(json.dumps(list(other.recipe)))


def distance(net: tamis.Network, small: tamis.Compressed) -> float:
    inputs = load_data(DATA).normalised()
    return float((net(inputs) - small.network(inputs)).norm())


# -- what is repaired --------------------------------------------------------------------------------------------------


def test_the_file_is_what_the_library_repairs(
    net: tamis.Network, half: tamis.Compressed, repaired: tamis.Compressed
) -> None:
    run_repair(*QUICK)
    found = tamis.load("repaired.tamis", MODELS["mlp"]())
    assert_same(found, repaired)
    assert [step["step"] for step in found.recipe] == ["prune", "repair"]
    assert distance(net, found) < 0.5 * distance(net, half)
    assert sorted(path.name for path in Path().iterdir()) == ["half.tamis", "repaired.tamis"]


def test_the_file_may_take_the_place_of_the_one_before(net: tamis.Network, half: tamis.Compressed) -> None:
    text = run_repair(MLP, "half.tamis", "--calibration", DATA, "--damping", 0.5, "-o", "half.tamis")
    assert "half.tamis, in place of the one that was there" in text
    found = tamis.load("half.tamis", MODELS["mlp"]())
    assert_same(found, tamis.repair(net, half, DATA, damping=0.5, progress=False))


def test_codes_stay_and_scales_move(net: tamis.Network) -> None:
    small = tamis.quantize(net, DATA, method="msq", progress=False)
    small.save("ternary.tamis")
    run_repair(MLP, "ternary.tamis", "--calibration", DATA, "-o", "repaired.tamis")
    found = tamis.load("repaired.tamis", MODELS["mlp"]())
    for name, code in small.codes.items():
        assert torch.equal(found.codes[name].indices, code.indices)
        assert not torch.equal(found.codes[name].scales, code.scales)
    assert distance(net, found) < distance(net, small)


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_table_and_the_totals(repaired: tamis.Compressed) -> None:
    text = run_repair(*QUICK, "--data", TEST)
    rows = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    for name, size in SIZES.items():
        zeros, error = int((repaired.params[name] == 0).sum()), repaired.recipe[-1]["layers"][name]["error"]
        assert rows[name] == [f"{size:,}", "–", f"{zeros / size:.1%}", f"{error:.3g}"]
    assert f"{TOTAL // 2:,} of {TOTAL:,} weights" in text and "quantized" not in text
    assert f"{Path('repaired.tamis').stat().st_size:,} on disk" in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_says_the_same(net: tamis.Network, half: tamis.Compressed, repaired: tamis.Compressed) -> None:
    shown = json.loads(run_repair(*QUICK, "--data", TEST, "--json"))
    figures = repaired.recipe[-1]["layers"]
    assert {layer["name"]: layer["error"] for layer in shown["layers"]} == {n: figures[n]["error"] for n in SIZES}
    assert all(layer["levels"] is None for layer in shown["layers"])
    test = load_data(TEST)
    networks = {"original": net, "before": half.network, "after": repaired.network}
    right = {name: each(test.normalised()).argmax(1) == test.labels for name, each in networks.items()}
    assert shown["accuracy"] == {"data": TEST, **{name: float(each.double().mean()) for name, each in right.items()}}
    assert (shown["small"], shown["file"]) == ("half.tamis", "repaired.tamis")
    assert shown["bytes"] == Path("repaired.tamis").stat().st_size


# -- going on ----------------------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LayerJournal.record

    def record(journal: LayerJournal, number: int, *arguments: Any) -> None:
        original(journal, number, *arguments)
        if number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LayerJournal, "record", record)
        assert invoke(*QUICK).exit_code == 130
    result = invoke(*QUICK)
    assert result.stderr.startswith("going on from repaired.tamis.partial, where 2 layers are finished\n")
    run_repair(MLP, "half.tamis", "--calibration", DATA, "-o", "whole.tamis")
    assert Path("repaired.tamis").read_bytes() == Path("whole.tamis").read_bytes()
    assert not Path("repaired.tamis.partial").exists()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([*QUICK, "-o", "r.safetensors"], "-o must end in .tamis, got 'r.safetensors'"),
        ([*QUICK, "--damping", "0"], "--damping 0.0 must be a positive number"),
        ([*QUICK, "--calibration", "no_such_data"], "there is no dataset 'no_such_data:train'"),
        ([*QUICK, "--calibration", "large.npz"], "those of 'large.npz' have shape (batch, 1, 9, 9)"),
        ([*QUICK, "--data", "large.npz"], f"{MLP} does not take 'large.npz', of shape (1, 1, 9, 9)"),
        ([MLP, "none.tamis", *QUICK[2:]], "no such file or directory: none.tamis"),
        ([MLP, "large.npz", *QUICK[2:]], "large.npz"),
        (["tamis.training.models:digits_cnn", *QUICK[1:]], "half.tamis"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(arguments: list[str], part: str) -> None:
    np.savez("large.npz", x=np.zeros((9, 9, 9), np.uint8), y=np.arange(9))
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["half.tamis", "large.npz"]
