"""`tamis kronecker` as a user calls it: suggestions, times of every backend, layers replaced, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import tamis
from tamis.cli import kronecker_bench
from tamis.cli.kronecker_patterns import parse_budget, parse_chains, parse_family
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.errors import InvalidInput
from tamis.kronecker import (
    BACKENDS,
    KroneckerLinear,
    Pattern,
    block_butterfly,
    butterfly,
    kaleidoscope,
    low_rank,
    monarch,
    replace,
    suggest,
)

MLP = "tamis.training.models:mlp"


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["kronecker", *map(str, arguments)], catch_exceptions=False)


def run(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- suggest -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["time", "energy"])
def test_suggestions_are_those_of_the_library_in_their_order(target: str) -> None:
    options = ("suggest", 24, 36, "--budget", "50%", "--target", target, "--factors", 3)
    told, text = json.loads(run(*options, "--json")), run(*options)
    expected = suggest(24, 36, 0.5, target, 3)
    assert told["suggestions"] == [
        {"patterns": [list(p.shape) for p in each.patterns], "weights": each.weights, "ratio": each.ratio}
        for each in expected
    ]
    lines = text.splitlines()
    assert ("d(b+c)/bc" in lines[0]) == (target == "energy") and max(map(len, lines[:22])) <= 100
    for line, each in zip(lines[2:], expected, strict=False):
        assert "  ".join(map(str, each.patterns)) in line and f"{each.weights / (24 * 36):.1%}" in line


# -- bench -------------------------------------------------------------------------------------------------------------


def test_every_backend_is_timed_and_the_choice_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker_bench, "SECONDS", 0.01)
    options = ("bench", "1,4,6,2", "2,3,2,1", "--batch", 8, "--layout", "batch_last", "--dtype", "float64")
    told = json.loads(run(*options, "--json"))
    assert {name: told[name] for name in ("batch", "dtype", "layout", "device", "tuned")} == {
        "batch": 8,
        "dtype": "float64",
        "layout": "batch_last",
        "device": "cpu",
        "tuned": False,
    }
    for pattern, each in zip(([1, 4, 6, 2], [2, 3, 2, 1]), told["patterns"], strict=True):
        assert each["pattern"] == pattern and all(ms > 0 for ms in each["milliseconds"].values())
        assert each["milliseconds"].keys() | each["not_run"].keys() == BACKENDS.keys()
        assert {"reference", "bmm", "dense", "elementwise"} <= each["milliseconds"].keys()
        x, weight = torch.zeros(each["pattern"][0] * pattern[2] * pattern[3], 8).double(), torch.zeros(pattern).double()
        why = tamis.kronecker.multiply(x, weight, pattern, "batch_last", explain=True)[1]
        assert each["why"] == why and why.startswith(f"{each['chosen']}:")
    text = run(*options)
    assert text.count("× the fastest") == 2 and "(1, 4, 6, 2): 8 × 12, 48 weights; batch 8, float64" in text
    assert f"runs {told['patterns'][0]['why']}" in text and "1.00" in text


def test_energy_is_measured_or_not_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker_bench, "SECONDS", 0.01)
    monkeypatch.setattr("tamis.kernels.energy.POWERCAP", Path("nothing"))
    text = run("bench", "1,2,2,2", "--batch", 2, "--energy")
    assert "not measured" in text and "energy: no counter of a processor under nothing" in text
    (each,) = json.loads(run("bench", "1,2,2,2", "--batch", 2, "--energy", "--json"))["patterns"]
    assert set(each["joules"].values()) == {None} and each["energy"].startswith("no counter")


def test_a_matrix_too_large_to_be_made_dense_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker_bench, "SECONDS", 0.01)
    monkeypatch.setattr(kronecker_bench, "LARGEST_DENSE", 63)
    assert "dense is not run: the whole matrix has 64 entries" in run("bench", "4,2,2,1", "--batch", 2)


def test_tuning_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker_bench, "SECONDS", 0.01)
    asked: list[tuple[Any, ...]] = []

    class Tuning:
        @staticmethod
        def tune(*arguments: Any) -> None:
            asked.append(arguments)

    monkeypatch.setattr(kronecker_bench, "find_spec", lambda name: object())
    monkeypatch.setattr(kronecker_bench, "import_module", lambda name: Tuning)
    assert json.loads(run("bench", "1,2,2,2", "--batch", 2, "--tune", "--json"))["tuned"]
    assert asked == [(Pattern(1, 2, 2, 2), 2, torch.float32, torch.device("cpu"), "batch_first")]
    monkeypatch.setattr(kronecker_bench, "find_spec", lambda name: None)
    assert "--tune: there is nothing to tune" in invoke("bench", "1,2,2,2", "--tune").stderr


# -- replace -----------------------------------------------------------------------------------------------------------


def test_the_file_holds_what_the_library_makes_and_is_read_with_its_recipe() -> None:
    options = ("replace", MLP, "--family", "monarch:2", "--keep", "linear3")
    told = json.loads(run(*options, "-o", "new/small.tamis", "--json"))
    model = load_module(MLP).module
    expected = replace(model, lambda M, N: monarch(M, N, 2), keep="linear3")
    layers, state = told["recipe"]["layers"], expected.state_dict()
    sizes = {"linear1": 64, "linear2": 32}
    assert layers == {name: [list(p.shape) for p in monarch(32, inputs, 2)] for name, inputs in sizes.items()}
    small = tamis.load("new/small.tamis", replace(model, layers, begin="scratch"))
    assert small.recipe[0]["step"] == "kronecker" and small.recipe[0]["begin"] == "factorized"
    assert small.params.keys() == state.keys() and all(torch.equal(small.params[name], state[name]) for name in state)
    text = run(*options, "-o", "new/small.safetensors")
    for row, name in zip(told["layers"], layers, strict=True):
        before, after = model.get_parameter(f"{name}.weight").detach(), expected.get_submodule(name)
        assert isinstance(after, KroneckerLinear)
        error = float((before - after.dense_weight().detach()).norm() / before.norm())
        assert row["name"] == name and row["relative_error"] == pytest.approx(error, rel=1e-4)
        assert f"{error:.2%}" in text and row["dense_weights"] == 32 * sizes[name]
    assert "saved new/small.safetensors" in text and max(map(len, text.splitlines())) <= 100


def test_weights_alone_drawn_anew_with_a_seed() -> None:
    product = "1,16,16,2/2,16,16,1"
    options = ("replace", MLP, "--patterns", product, "--begin", "scratch", "--seed", 3)
    assert "drawn" in run(*options, "-o", "out.safetensors")
    chain = [(1, 16, 16, 2), (2, 16, 16, 1)]
    expected = replace(load_module(MLP, seed=3).module, chain, begin="scratch", seed=3).state_dict()
    found = load_file("out.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_what_would_be_lost_is_refused() -> None:
    tamis.prune(load_module(MLP).module, 0.5, by="magnitude", example=torch.zeros(1, 1, 8, 8)).save("pruned.tamis")
    result = invoke("replace", MLP, "--weights", "pruned.tamis", "--family", "monarch:2", "-o", "x.tamis")
    assert result.exit_code == 2 and "'pruned.tamis' has pruned or quantized weights" in result.stderr


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_families() -> None:
    assert parse_family("monarch:4")(16, 8) == monarch(16, 8, 4)
    assert parse_family("low_rank:3")(16, 8) == low_rank(16, 8, 3)
    assert parse_family("butterfly")(8, 8) == butterfly(8) and parse_family("butterfly")(8, 4) is None
    assert parse_family("kaleidoscope")(8, 8) == kaleidoscope(8)
    assert parse_family("block_butterfly:3")(24, 24) == block_butterfly(24, 3)
    assert parse_family("suggest:0.5")(24, 24) == suggest(24, 24, 0.5)[0].patterns
    assert parse_chains(["1,4,2,2/2,2,4,1", "(1,3,3,1)"])(3, 3) == (Pattern(1, 3, 3, 1),)
    assert parse_chains(["1,4,2,2"])(5, 5) is None
    assert (parse_budget(".5"), parse_budget("12")) == (0.5, 12)


BAD: dict[str, tuple[tuple[object, ...], str]] = {
    "budget": (("suggest", 8, 8, "--budget", "some"), "--budget must be a share (0.25), a percentage (25%) or"),
    "too much": (("suggest", 8, 8, "--budget", "1.5"), "got 1.5"),
    "target": (("suggest", 8, 8, "--budget", "0.5", "--target", "speed"), "target must be one of time, energy"),
    "pattern": (("bench", "1,2,3"), "a pattern is four whole numbers a,b,c,d such as 1,192,48,2; got '1,2,3'"),
    "zero": (("bench", "1,2,0,3"), "got c = 0"),
    "layout": (("bench", "1,2,2,3", "--layout", "rows"), "layout must be one of batch_first, batch_last, got 'rows'"),
    "dtype": (("bench", "1,2,2,3", "--dtype", "int8"), "--dtype must be one of float32, float16"),
    "batch": (("bench", "1,2,2,3", "--batch", 0), "--batch must be at least 1, got 0"),
    "neither": (("replace", MLP, "-o", "x.tamis"), "give the products with --patterns, or with --family"),
    "both": (("replace", MLP, "-o", "x.tamis", "--family", "butterfly", "--patterns", "1,2,2,1"), "not with both"),
    "family": (("replace", MLP, "-o", "x.tamis", "--family", "monarch"), "--family must be monarch:P, low_rank:R"),
    "fits": (("replace", MLP, "-o", "x.tamis", "--family", "monarch:4"), "'linear3', of 10 × 32, has no patterns"),
    "twice": (
        ("replace", MLP, "-o", "x.tamis", "--patterns", "1,2,2,1", "--patterns", "2,1,1,1"),
        "--patterns has two products of 2 × 2",
    ),
    "program": (("replace", "x.pt2", "-o", "x.tamis", "--family", "butterfly"), "needs package.module:factory"),
    "out": (("replace", MLP, "-o", "x.txt", "--family", "butterfly"), "-o must end in .tamis or .safetensors"),
    "kept": (("replace", MLP, "-o", "x.tamis", "--family", "butterfly", "--keep", "head"), "'head', which matches no"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    arguments, message = BAD[case]
    result = invoke(*arguments)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1
    assert not list(Path().iterdir())


def test_parsers_repeat_what_they_were_given() -> None:
    with pytest.raises(InvalidInput, match="got 'butterfly:2'"):
        parse_family("butterfly:2")
    with pytest.raises(InvalidInput, match="do not fit"):
        parse_chains(["1,2,2,2/1,2,2,1"])
