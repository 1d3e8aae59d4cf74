"""A quantized network: its parameters are what its codes say, through every step, and back from its file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from any_tensors import FLOATS, any_codes, same, same_codes
from torch import Tensor, nn

import tamis
from tamis.artifact.codes import Codes
from tamis.errors import InvalidParameters
from tamis.graph import Network

STEP = {"step": "quantize", "levels": 3}


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).to(dtype)


@cache
def network(dtype: torch.dtype = torch.float32) -> Network:
    return tamis.trace(model(dtype), torch.zeros(1, 6, dtype=dtype))


def codes_for(dtype: torch.dtype = torch.float32) -> dict[str, Codes]:
    return {
        "0.weight": any_codes(dtype, 3, (5, 6), (5, 1), seed=1),
        "2.weight": any_codes(dtype, 16, (4, 5), (1, 1), seed=2),
    }


def assert_sound(small: tamis.Compressed) -> None:
    """Parameters are what codes and masks say, pruned entries have the index 0, and the constructor agrees."""
    for name, code in small.codes.items():
        mask = small.masks.get(name, torch.ones(code.indices.shape, dtype=torch.bool))
        assert same(small.params[name].contiguous(), code.values(mask)) and not code.indices[~mask].any()
    again = tamis.Compressed(small.network, small.masks, small.recipe, small.codes)
    assert again.codes.keys() == small.codes.keys()
    assert all(same_codes(again.codes[name], small.codes[name]) for name in small.codes)


@pytest.mark.parametrize(
    ("pruned", "dtype"),
    [("not", torch.float32), ("before", torch.float16), ("after", torch.bfloat16)]
    + [("twice", dtype) for dtype in FLOATS],
    ids=str,
)
def test_quantized_saved_and_loaded(dtype: torch.dtype, pruned: str, tmp_path: Path) -> None:
    net, codes = network(dtype), codes_for(dtype)
    small = tamis.Compressed(net)
    kept = {"0.weight": torch.arange(30).reshape(5, 6) % 3 > 0, "2.bias": torch.tensor([True, False, True, True])}
    later = {"0.weight": torch.arange(30).reshape(5, 6) > 4, "2.weight": torch.arange(20).reshape(4, 5) % 2 > 0}
    if pruned in ("before", "twice"):
        small = small.pruned(kept, {"step": "prune"})
    small = small.changed({}, codes, STEP)
    if pruned in ("after", "twice"):
        small = small.pruned(later, {"step": "prune"})
    assert small.recipe[1 if pruned in ("before", "twice") else 0] == STEP
    assert set(small.codes) == {"0.weight", "2.weight"}
    assert_sound(small)
    path = tmp_path / "small.tamis"
    small.save(path)
    assert path.stat().st_size == small.nbytes
    for like in (model(dtype), net):
        loaded = tamis.load(path, like)
        assert all(same_codes(loaded.codes[name], small.codes[name]) for name in codes)
        assert all(same(loaded.params[name], value) for name, value in small.params.items())
        assert_sound(loaded)
        assert repr(loaded) == repr(small) and loaded.summary() == small.summary()
        loaded.save(tmp_path / "again.tamis")
        assert (tmp_path / "again.tamis").read_bytes() == path.read_bytes()
    applied = small.apply_to(model(dtype))
    assert all(same(value, small.params[name]) for name, value in applied.state_dict().items())


def test_nothing_that_was_passed_changes_and_nothing_inside_can() -> None:
    net, codes = network(), codes_for()
    before = tamis.Compressed(net).pruned({"0.weight": torch.eye(5, 6) == 0}, {"step": "prune"})
    values = {name: value.clone() for name, value in before.params.items()}
    whole = codes["0.weight"].indices.clone()
    small = before.changed({}, codes, STEP)
    assert torch.equal(codes["0.weight"].indices, whole) and not before.codes
    assert all(same(before.params[name], value) for name, value in values.items())
    with pytest.raises(TypeError, match="does not support item assignment"):
        small.codes["0.weight"] = codes["0.weight"]  # type: ignore[index]
    own = tamis.Compressed(small.network, small.masks, codes=small.codes)
    small.codes["2.weight"].indices.zero_()
    assert own.codes["2.weight"].indices.any(), "the constructor copies codes"


def test_other_parameters_change_along() -> None:
    net = network()
    keep = {"0.bias": torch.tensor([True, False, True, True, True]), "0.weight": torch.eye(5, 6) == 1}
    first = tamis.Compressed(net).pruned(keep, {"step": "prune"}).changed({}, codes_for(), STEP)
    changes = {"0.bias": torch.full((5,), 7.0), "0.weight": torch.full((5, 6), -2.0)}
    second = first.changed(changes, {}, {"step": "refit"})
    assert set(second.codes) == {"2.weight"}, "a changed parameter has no codes any more"
    assert second.params["0.bias"].tolist() == [7, 0, 7, 7, 7]
    assert torch.equal(second.params["0.weight"], torch.eye(5, 6) * -2) and second.masks is first.masks
    assert not second.params["0.weight"][0, 1].signbit()
    assert [step["step"] for step in second.recipe] == ["prune", "quantize", "refit"]
    changes["0.bias"].zero_()
    assert second.params["0.bias"][0] == 7
    assert_sound(second)
    third = second.changed({}, {"0.weight": codes_for()["0.weight"]}, STEP)
    assert set(third.codes) == {"0.weight", "2.weight"}
    assert_sound(third)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.embedding(tokens).sum(1)))


def test_any_name_of_a_tied_parameter(tmp_path: Path) -> None:
    net = tamis.trace(Tied(), torch.tensor([[1, 2, 3]]))
    codes = any_codes(torch.float32, 3, (7, 4), (7, 1), seed=0)
    small = tamis.Compressed(net).changed({}, {"out.weight": codes}, STEP)
    assert set(small.codes) == {"embedding.weight"}
    assert same(small.state_dict()["out.weight"], codes.values())
    small.save(tmp_path / "small.tamis")
    assert same_codes(tamis.load(tmp_path / "small.tamis", Tied()).codes["embedding.weight"], codes)
    assert set(tamis.Compressed(small.network, codes={"out.weight": codes}).codes) == {"embedding.weight"}
    assert not small.changed({"out.weight": torch.ones(7, 4)}, {}, STEP).codes
    with pytest.raises(InvalidParameters, match=r"'out\.weight' and another name of the same tied parameter"):
        small.changed({}, {"embedding.weight": codes, "out.weight": codes}, STEP)
    with pytest.raises(InvalidParameters, match=r"embedding\.weight: there are both codes and new values"):
        small.changed({"out.weight": torch.ones(7, 4)}, {"embedding.weight": codes}, STEP)


def test_codes_must_be_true() -> None:
    net, codes = network(), codes_for()
    small = tamis.Compressed(net).changed({}, codes, STEP)
    right = small.params["2.weight"]
    wrong = right.clone()
    wrong[1, 3] += 1
    expected = f"its entry [1, 3] is {float(wrong[1, 3])}, and {float(right[1, 3])} by its codes"
    with pytest.raises(InvalidParameters, match=rf"the codes of '2\.weight' .*{re.escape(expected)}"):
        tamis.Compressed(small.network.with_params({"2.weight": wrong}), codes=codes)
    ternary = Codes(torch.ones(5, 6, dtype=torch.uint8), torch.tensor([-1.0, 0, 1]), torch.ones(1, 1))
    with pytest.raises(InvalidParameters, match=r"its entry \[0, 0\] is -0\.0, and 0\.0 by its codes"):
        tamis.Compressed(net.with_params({"0.weight": torch.full((5, 6), -0.0)}), codes={"0.weight": ternary})
    pruned = small.pruned({"2.weight": torch.eye(4, 5) == 0}, {"step": "prune"}).network
    with pytest.raises(InvalidParameters, match=r"'2\.weight' .* entry \[0, 0\] is 0\.0, and"):
        tamis.Compressed(pruned, codes=codes)  # which codes would say with the mask, and do not without


@pytest.mark.parametrize("call", ["constructor", "quantized"])
def test_codes_that_do_not_fit(call: str) -> None:
    net = network()

    def given(codes: dict[str, Codes]) -> Any:
        if call == "constructor":
            return tamis.Compressed(net, codes=codes)
        return tamis.Compressed(net).changed({}, codes, STEP)

    with pytest.raises(InvalidParameters, match=r"no parameter 'fc\.weight'; it has 0\.weight, 0\.bias"):
        given({"fc.weight": codes_for()["0.weight"]})
    with pytest.raises(InvalidParameters, match=r"'0\.weight' are for torch\.float32 of shape \(4, 5\), .* \(5, 6\)"):
        given({"0.weight": codes_for()["2.weight"]})
    with pytest.raises(InvalidParameters, match=r"'0\.weight' are for torch\.float16 of shape \(5, 6\), .*float32"):
        given({"0.weight": codes_for(torch.float16)["0.weight"]})


def test_changes_that_do_not_fit() -> None:
    small = tamis.Compressed(network())
    with pytest.raises(InvalidParameters, match=r"no parameter 'fc\.bias'"):
        small.changed({"fc.bias": torch.zeros(5)}, {}, STEP)
    with pytest.raises(InvalidParameters, match=r"parameter '0\.bias' has shape \(5,\), got \(6,\)"):
        small.changed({"0.bias": torch.zeros(6)}, {}, STEP)
    with pytest.raises(
        InvalidParameters, match=r"values of '0\.bias' are torch\.float64, the parameter is torch\.float32"
    ):
        small.changed({"0.bias": torch.zeros(5).double()}, {}, STEP)


# -- words ---------------------------------------------------------------------------------------------------------


def test_the_summary_of_a_quantized_network() -> None:
    ternary = Codes((torch.arange(30).reshape(5, 6) % 3).byte(), torch.tensor([-1.0, 0, 1]), torch.ones(5, 1))
    finer = Codes((torch.arange(20).reshape(4, 5) % 4).byte(), torch.tensor([1.0, 2, 3, 4]), torch.ones(1, 1))
    step = {**STEP, "layers": {"0.weight": {"error": 0.123456}, "2.weight": {"error": 1e-5, "time": 3}, "x": {}}}
    small = tamis.Compressed(network()).changed({}, {"0.weight": ternary, "2.weight": finer}, step)
    header, *rows, total, stayed, _, size = small.summary().splitlines()
    assert stayed.startswith("stayed float: 9 weights of 0, 2: a bias")
    assert header.split() == ["parameter", "weights", "levels", "bits", "zeros", "error"]
    assert [row.split() for row in rows] == [
        ["0.weight", "30", "3", "1.58", "33.3%", "0.123"],
        ["2.weight", "20", "4", "2.00", "0.0%", "1e-05"],
    ]
    assert total == "50 weights quantized to 1.75 bits on average, 20.0% of them zero, in 2 parameters"
    assert size.startswith(f"{small.nbytes:,} bytes in a file")
    assert repr(small) == "Compressed(50 weights quantized; 'quantize')"
    assert len({len(line) for line in (header, *rows)}) == 1

    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[0] = False
    pruned = small.pruned({"0.weight": mask, "0.bias": torch.ones(5, dtype=torch.bool)}, {"step": "prune"})
    header, *rows, first, second, stayed, _, _ = pruned.summary().splitlines()
    assert stayed.startswith("stayed float: 4 weights of 2: a bias")
    assert header.split() == ["parameter", "weights", "left", "levels", "bits", "zeros"]
    assert [row.split() for row in rows] == [
        ["0.weight", "30", "24", "3", "1.58", "46.7%"],
        ["0.bias", "5", "5", "–", "–", "0.0%"],
        ["2.weight", "20", "–", "4", "2.00", "0.0%"],
    ]
    assert first == "6 of 35 weights pruned (17.14%) in 2 parameters"
    assert second == "50 weights quantized to 1.75 bits on average, 28.0% of them zero, in 2 parameters"
    assert repr(pruned) == "Compressed(6 of 35 weights pruned, 50 weights quantized; 'quantize', 'prune')"


@pytest.mark.parametrize(
    "layers", [3, [], {"0.weight": 1}, {"0.weight": {"error": "x"}}, {"0.weight": {"error": 10**400}}]
)
def test_a_recipe_that_says_something_else_of_its_layers(layers: Any) -> None:
    small = tamis.Compressed(network()).changed({}, codes_for(), {**STEP, "layers": layers})
    assert "error" not in small.summary()
