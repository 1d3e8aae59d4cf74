"""`tamis prune` as a user calls it: what it prints, what it writes, what it refuses."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.cli.model_argument import load_network
from tamis.cli.prune import as_plain_data, pruning
from tamis.cli.setting_values import parse_amount
from tamis.errors import InvalidInput
from tamis.layerwise.journal import LayerJournal
from tamis.training.models import MODELS

MLP = "tamis.training.models:mlp"
SIZES = {"linear1.weight": 64 * 32, "linear2.weight": 32 * 32, "linear3.weight": 32 * 10}
TOTAL = sum(SIZES.values())


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["prune", *map(str, arguments)], catch_exceptions=False)


def run_prune(*arguments: object) -> str:
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def pruned_as_json(*arguments: object) -> dict[str, Any]:
    return json.loads(run_prune(*arguments, "--json"))


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return load_network(MLP).network


def assert_same(small: tamis.Compressed, other: tamis.Compressed) -> None:
    assert small.params.keys() == other.params.keys() and small.masks.keys() == other.masks.keys()
    assert all(torch.equal(value, other.params[name]) for name, value in small.params.items())
    assert all(torch.equal(mask, other.masks[name]) for name, mask in small.masks.items())
    assert small.recipe == other.recipe


# -- amounts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "amount"),
    [
        (["0.8"], 0.8),
        ([".8"], 0.8),
        (["80%"], 0.8),
        (["12.5%"], 0.125),
        (["1."], 1.0),
        (["100%"], 1.0),
        (["0"], 0),
        (["1"], 1),
        (["1000"], 1000),
        (["fc=100"], {"fc": 100}),
        (["conv1=0.5", "fc=100", "layer*=20%"], {"conv1": 0.5, "fc": 100, "layer*": 0.2}),
    ],
)
def test_amounts(entries: list[str], amount: Any) -> None:
    parsed = parse_amount(entries)
    assert parsed == amount
    numbers = parsed.values() if isinstance(parsed, dict) else [parsed]
    expected = amount.values() if isinstance(amount, dict) else [amount]
    assert [type(number) for number in numbers] == [type(number) for number in expected]  # 1 is a count, 1.0 is all


@pytest.mark.parametrize("text", ["", "most", "-1", "-0.5", "1e3", "nan", "inf", "0,8", "5 %", "%", ".", "fc=", "fc=x"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^--amount must be a fraction \(0\.8\), .*; got '{text}'"):
        parse_amount([text])


@pytest.mark.parametrize("text", ["1.5", "120%", "fc=1.01"])
def test_amounts_beyond_everything(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"--amount '{text}' is more than all there is; a whole number is a count"):
        parse_amount([text])


def test_amounts_that_contradict_each_other() -> None:
    with pytest.raises(InvalidInput, match=r"got '0\.5' among 2 of them"):
        parse_amount(["fc=0.5", "0.5"])
    with pytest.raises(InvalidInput, match="got '=3'"):
        parse_amount(["=3"])
    with pytest.raises(InvalidInput, match="--amount names 'fc' twice"):
        parse_amount(["fc=0.5", "fc=3"])


# -- what is pruned ----------------------------------------------------------------------------------------------------


def test_magnitude_sets_the_smallest_weights_to_zero(net: tamis.Network) -> None:
    run_prune(MLP, "--amount", 1000, "--by", "magnitude", "-o", "small.tamis")
    magnitudes = torch.cat([net.params[name].abs().flatten() for name in SIZES])
    threshold = magnitudes.sort().values[1000]
    small = tamis.load("small.tamis", MODELS["mlp"]())
    for name in SIZES:
        expected = torch.where(net.params[name].abs() < threshold, 0.0, net.params[name])
        assert torch.equal(small.params[name], expected)
    assert small.masks.pruned == 1000


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--amount", "80%"], {"amount": 0.8}),
        (["--amount", "0.5", "--by", "random", "--seed", "3"], {"amount": 0.5, "by": "random", "seed": 3}),
        (["--amount", "0.5", "--scope", "layer", "--biases"], {"amount": 0.5, "scope": "layer", "biases": True}),
        (["--amount", "0.5", "--halve-final"], {"amount": 0.5, "halve_final": True}),
        (
            ["--amount", "9", "--include", "linear1", "--include", "linear2", "--exclude", "*2.*"],
            {"amount": 9, "include": ["linear1", "linear2"], "exclude": ["*2.*"]},
        ),
        (
            ["--amount", "linear1=0.5", "--amount", "linear3=100"],
            {"amount": {"linear1": 0.5, "linear3": 100}},
        ),
    ],
)
def test_options_are_those_of_the_library(net: tamis.Network, options: list[str], arguments: dict[str, Any]) -> None:
    run_prune(MLP, *options, "-o", "small.tamis")
    assert_same(tamis.load("small.tamis", MODELS["mlp"]()), tamis.prune(net, **arguments))


def test_pruning_again_leaves_pruned_what_is(net: tamis.Network) -> None:
    run_prune(MLP, "--amount", "50%", "-o", "half.tamis")
    shown = pruned_as_json(
        MLP, "--amount", "50%", "--by", "magnitude", "--weights", "half.tamis", "-o", "quarter.tamis"
    )
    half, quarter = (tamis.load(f"{name}.tamis", MODELS["mlp"]()) for name in ("half", "quarter"))
    assert_same(quarter, tamis.prune(tamis.prune(net, 0.5), 0.5, by="magnitude"))
    assert quarter.masks.pruned == TOTAL * 3 // 4 == shown["total"]["weights"] - shown["total"]["left"]
    assert not any((mask & ~half.masks[name]).any() for name, mask in quarter.masks.items())
    assert [step["by"] for step in shown["recipe"]] == ["phi", "magnitude"]
    assert shown["weights"] == f"half.tamis, {TOTAL // 2:,} of {TOTAL:,} weights pruned"
    # The bound speaks of the network that was given, not of the one before that.
    assert shown["bound"]["value"] == pytest.approx(tamis.path_metric(half.network, quarter.network), rel=1e-12)


def test_a_pt2_file_pruned_twice() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.export.save(torch.export.export(model, (torch.zeros(1, 3),)), "m.pt2")
    run_prune("m.pt2", "--amount", 5, "-o", "small.tamis")
    assert_same(tamis.load("small.tamis", model), tamis.prune(model, 5, example=torch.zeros(1, 3)))
    assert pruned_as_json("m.pt2", "--amount", 5, "--weights", "small.tamis", "-o", "s.tamis")["total"]["left"] == 10


# -- by data -----------------------------------------------------------------------------------------------------------


def test_pruning_by_data_is_that_of_the_library(net: tamis.Network) -> None:
    options = ("--by", "obs", "--amount", "70%", "--scope", "layer", "--calibration", "digits:train[:150]")
    result = invoke(MLP, *options, "-o", "small.tamis")
    assert result.exit_code == 0
    assert all(line.startswith("prune ") for line in result.stderr.splitlines())  # how far it is
    expected = tamis.prune(net, 0.7, by="obs", scope="layer", calibration="digits:train[:150]", progress=False)
    assert_same(tamis.load("small.tamis", MODELS["mlp"]()), expected)
    rows = {words[0]: words[1:] for words in map(str.split, result.stdout.splitlines()) if words}
    for name, size in SIZES.items():
        left, error = int(expected.masks[name].sum()), expected.recipe[-1]["layers"][name]["error"]
        assert rows[name] == [f"{size:,}", f"{left:,}", f"{1 - left / size:.1%}", f"{error:.3g}"]
    assert "max(‖x‖∞, 1)" in result.stdout  # the bound asks for no equal signs
    assert [path.name for path in Path().iterdir()] == ["small.tamis"]


def test_pruning_by_data_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (MLP, "--by", "obs", "--amount", "0.5", "--calibration", "digits:train[:150]", "--json")
    original = LayerJournal.record

    def record(journal: LayerJournal, number: int, *rest: Any) -> None:
        original(journal, number, *rest)
        if number == 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LayerJournal, "record", record)
        assert invoke(*arguments, "-o", "small.tamis").exit_code == 130
    result = invoke(*arguments, "-o", "small.tamis")
    assert result.stderr.startswith("going on from small.tamis.partial, where 1 layer is finished\n")
    whole = json.loads(invoke(*arguments, "-o", "whole.tamis").stdout)
    assert json.loads(result.stdout) == {**whole, "file": "small.tamis"}
    assert all(layer["error"] > 0 for layer in whole["layers"])
    assert Path("small.tamis").read_bytes() == Path("whole.tamis").read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["small.tamis", "whole.tamis"]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_table_and_the_totals(net: tamis.Network) -> None:
    arguments = (MLP, "--amount", "80%", "-o", "out/new/small.tamis")
    text = run_prune(*arguments)
    assert "in place of" not in text and "small.tamis, in place of the one that was there" in run_prune(*arguments)
    small = tamis.prune(net, 0.8)
    rows = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    for name, size in SIZES.items():
        left = int(small.masks[name].sum())
        assert rows[name] == [f"{size:,}", f"{left:,}", f"{(size - left) / size:.1%}"]
    assert rows["total"] == [f"{TOTAL:,}", f"{TOTAL - small.masks.pruned:,}", "80.0%"]
    assert f"{small.masks.pruned:,} of {TOTAL:,} weights" in text
    stored, floats = Path("out/new/small.tamis").stat().st_size, 4 * (TOTAL + 32 + 32 + 10)
    assert f"{stored:,} on disk, {stored / floats:.1%} of the {floats:,} of its floats" in text
    bound = tamis.path_metric(net, small.network)
    assert f"‖R(x) − R'(x)‖₁ ≤ {bound:,.{4 - math.floor(math.log10(bound))}f} · max(‖x‖∞, 1)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_says_the_same(net: tamis.Network) -> None:
    shown = pruned_as_json(MLP, "--amount", "80%", "-o", "small.tamis")
    small = tamis.prune(net, 0.8)
    bound = tamis.path_metric(net, small.network)
    assert [layer["name"] for layer in shown["layers"]] == [*SIZES]  # as in the model
    for layer in shown["layers"]:
        left = int(small.masks[layer["name"]].sum())
        assert (layer["weights"], layer["left"]) == (SIZES[layer["name"]], left)
        assert layer["pruned"] == pytest.approx(1 - left / layer["weights"])
    assert shown["total"] == {"weights": TOTAL, "left": TOTAL - round(0.8 * TOTAL), "pruned": small.masks.sparsity}
    assert shown["bytes"] == Path("small.tamis").stat().st_size
    assert shown["bound"] == pytest.approx({"value": bound, "log": math.log(bound)}, rel=1e-12)
    assert (shown["model"], shown["file"], shown["refusal"]) == (MLP, "small.tamis", None)
    assert shown["recipe"] == [{"step": "prune", "by": "phi", "scope": "global", "amount": 0.8, "seed": 0}]


def test_pruning_nothing_is_bounded_by_zero() -> None:
    assert pruned_as_json(MLP, "--amount", 0, "-o", "same.tamis")["bound"] == {"value": 0.0, "log": None}
    assert "≤ 0 · max" in run_prune(MLP, "--amount", 0, "-o", "same.tamis")


def test_a_bound_beyond_float64_is_valid_json() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(12)])
    huge = tamis.trace(model, torch.zeros(1, 2))
    huge = huge.with_params({name: torch.full_like(value, 1e30) for name, value in huge.params.items()})
    bound = as_plain_data(pruning(huge, tamis.prune(huge, 1)))["bound"]
    assert bound["value"] is None and bound["log"] > 12 * math.log(1e30)


def test_a_network_that_is_not_homogeneous_has_no_bound() -> None:
    arguments = ["tamis.training.models:vit_tiny_test", "--amount", "50%", "--by", "magnitude", "-o", "vit.tamis"]
    text = run_prune(*arguments)
    assert "No bound: path_metric needs" in text and "'aten.layer_norm' at blocks.0.norm1 is not" in text
    assert "max(‖x‖∞, 1)" not in text
    shown = pruned_as_json(*arguments)
    assert (shown["bound"], shown["refusal"]["op"]) == (None, "aten.layer_norm")
    assert shown["total"]["pruned"] == pytest.approx(0.5)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([MLP, "--amount", "most", "-o", "s.tamis"], "--amount must be a fraction (0.8), a percentage (80%)"),
        ([MLP, "--amount", str(TOTAL + 1), "-o", "s.tamis"], f"between 0 and {TOTAL:,} weights"),
        ([MLP, "--amount", "linear9=0.5", "-o", "s.tamis"], "'linear9', which matches no parameter to prune"),
        ([MLP, "--amount", "0.5", "-o", "s.safetensors"], "-o must end in .tamis, got 's.safetensors'"),
        ([MLP, "--amount", "0.5", "-o", "taken.tamis"], "is a directory: taken.tamis"),
        ([MLP, "--amount", "0.5", "-o", "file/s.tamis"], "file exists: file"),
        ([MLP, "--amount", "0.5", "-o", "s.tamis", "--by", "size"], "--by size is not a criterion"),
        ([MLP, "--amount", "0.5", "-o", "s.tamis", "--scope", "both"], "--scope both must be one of: global, layer"),
        ([MLP, "--amount", "0.5", "-o", "s.tamis", "--exclude", "conv"], "'conv' matches no parameter"),
        (
            [MLP, "--amount", "10", "-o", "s.tamis", "--halve-final"],
            "--halve-final halves a rate, and --amount 10 is a",
        ),
        ([MLP, "--amount", "0.5", "-o", "s.tamis", "--weights", "x.tamis"], "no such file or directory: x.tamis"),
        (["mlp", "--amount", "0.5", "-o", "s.tamis"], "tamis.training.models:mlp"),
        ([MLP, "--amount", "0.5", "-o", "s.tamis", "--by", "obs"], "--by obs chooses weights by what data makes"),
        ([MLP, "--amount", "0.5", "-o", "s.tamis", "--calibration", "digits"], "--by phi looks at no data"),
        (
            [MLP, "--shape", "64", "--amount", "0.5", "-o", "s.tamis", "--by", "obs", "--calibration", "digits"],
            f"{MLP} takes inputs of shape (batch, 64); those of 'digits' have shape (batch, 1, 8, 8)",
        ),
        (["tamis.training.models:vit_tiny_test", "--amount", "0.5", "-o", "s.tamis"], "'aten.layer_norm' at blocks.0"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(arguments: list[str], part: str) -> None:
    Path("taken.tamis").mkdir()
    Path("file").write_text("")
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["file", "taken.tamis"]
