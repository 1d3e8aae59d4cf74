"""The bound over a box: attacked, exact where it should be, monotone, with reasons; and a pretrained network."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from bounds.box_attacks import (
    CHANGES,
    around,
    attacked,
    barely_moved,
    difference,
    drawn,
    inputs,
    mlp,
    noise,
    one_of_each_kind,
    pruned,
    rounded,
    traced,
    two_changes,
)
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrained import pretrained
from torch import Tensor, nn

import tamis
from tamis.bounds.box_deviation import box_deviation
from tamis.bounds.interval import Interval
from tamis.bounds.linear_relaxation import linear_relaxation
from tamis.errors import InvalidInput, UnsupportedOp

METHODS = {"joint interval", "linear relaxation", "path metric"}


def found_by_attack(net: tamis.Network, other: tamis.Network, box: Interval) -> list[float]:
    low, high = attacked(net, other, box)
    largest: list[float] = torch.maximum(low.abs(), high.abs()).amax(1).tolist()
    return largest


# One of each kind: the intervals that these bounds are made of are attacked in all architectures by their own tests.
ATTACKED = ["mlp", "sigmoid", "residual", "avg-pool", "turned"]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=[] if seed == place % 4 else pytest.mark.slow)  # each change is met
        for place, name in enumerate(ATTACKED)
        for seed in range(4)
    ],
)
def test_no_attack_exceeds_the_bound_of_any_method(name: str, seed: int) -> None:
    net = drawn(name, seed)
    other, x, radius = CHANGES[seed](net), inputs(net, seed, 1 + seed // 2), (0.01, 0.1, 1.0)[seed % 3]
    box = around(x, radius)
    slack = noise(net, other, box)
    bounds = box_deviation(net, other, x, radius)
    for bound, largest in zip(bounds, found_by_attack(net, other, box), strict=True):
        assert all(bound.terms[method] >= largest - slack for method in bound.terms)
        assert bound.value == min(bound.terms[method] for method in METHODS & bound.terms.keys())
        assert bound.log_value == pytest.approx(math.log(bound.value))


@one_of_each_kind
def test_radius_zero_is_the_difference_itself(name: str) -> None:
    net = drawn(name, 0)
    _, change = two_changes(name)[-1]
    other, x = change(net), inputs(net, 0, 1)
    true = difference(net, other, x).abs().amax(1).tolist()
    for bound, value in zip(box_deviation(net, other, x, 0.0), true, strict=True):
        assert bound.value == pytest.approx(value, rel=1e-6, abs=1e-10)


@one_of_each_kind
def test_equal_networks_never_differ(name: str) -> None:
    net = drawn(name, 0)
    for bound in box_deviation(net, net, inputs(net, 0, 1), 2.0):
        assert bound.value == 0.0 and bound.log_value == -math.inf and bound.informative


def test_an_affine_network_gives_the_exact_maximum() -> None:
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double(), torch.zeros(1, 4, dtype=torch.float64))
    other, x = barely_moved(net), inputs(net, 0)
    weight = [each.params["1.weight"] @ each.params["0.weight"] for each in (net, other)]
    reach = 0.5 * (weight[1] - weight[0]).abs().sum(1)
    true = (difference(net, other, x).abs() + reach).amax(1).tolist()
    for bound, value in zip(box_deviation(net, other, x, 0.5), true, strict=True):
        assert bound.value == pytest.approx(value, rel=1e-9)
        assert bound.source == "zhang2018crown, backward linear bounds"


@given(seed=st.integers(0, 99), inner=st.floats(0, 1), grown=st.floats(0, 1))
@settings(deadline=None, max_examples=8)
def test_a_larger_radius_has_a_larger_bound(seed: int, inner: float, grown: float) -> None:
    """Of intervals and the path-metric. Linear bounds choose their lines anew, and only cover the smaller box."""
    net = drawn("residual", seed)
    other, x = CHANGES[seed % 4](net), inputs(net, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["tamis.bounds.box_deviation"], "CARRIED", 0)  # nothing is said of linear bounds here
        both = box_deviation(net, other, x.repeat(2, 1), torch.tensor([[inner]] * 2 + [[inner + grown]] * 2).double())
    for small, large in zip(both[:2], both[2:], strict=True):
        for name in ("joint interval", "path metric", "separate intervals"):
            assert small.terms[name] <= large.terms[name] * (1 + 1e-9) + 1e-12


def test_informative_where_it_beats_the_two_networks_apart() -> None:
    net = drawn("mlp", 0)
    x = inputs(net, 0)
    assert all(bound.informative for bound in box_deviation(net, barely_moved(net), x, 0.1))
    flat = net.with_params({"4.weight": torch.zeros(3, 8, dtype=torch.float64)})
    (bound,) = box_deviation(flat, flat.with_params({"4.bias": flat.params["4.bias"] + 1}), x[:1], 0.1)
    assert bound.value == pytest.approx(1.0) and bound.terms["separate intervals"] == pytest.approx(1.0)


def test_each_method_can_be_the_smallest() -> None:
    net = drawn("mlp", 1)
    x = inputs(net, 1, 1)
    assert {bound.citation for bound in box_deviation(net, rounded(net), x, 0.1)} == {"zhang2018crown"}
    only_last = net.with_params({"4.bias": net.params["4.bias"] + 1})
    for bound in box_deviation(net, only_last, x, 0.1):
        assert bound.value == pytest.approx(1.0) and bound.citation == "paulsen2020reludiff"
    # The same function with other scales: only the path-metric sees it.
    for bound in box_deviation(net, tamis.rescale(net, seed=3), x, 0.5):
        assert bound.citation == "gonon2024thesis" and bound.value < 1e-6 * bound.terms["linear relaxation"]


def test_the_path_metric_is_left_out_where_it_does_not_apply() -> None:
    net = drawn("sigmoid", 0)
    (bound,) = box_deviation(net, rounded(net), inputs(net, 0, 1), 0.1)
    assert "path metric" not in bound.terms
    (note,) = [note for note in bound.checked if "left out" in note]
    assert note.startswith("path metric left out: path_metric needs 1-Lipschitz operations with f(0) = 0: 'aten.sigm")


def test_linear_bounds_are_left_out_of_networks_too_large_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    net = drawn("mlp", 0)
    monkeypatch.setattr(sys.modules["tamis.bounds.box_deviation"], "CARRIED", 10)
    (bound,) = box_deviation(net, rounded(net), inputs(net, 0, 1), 0.1)
    assert "linear relaxation" not in bound.terms
    assert any(note.startswith("linear relaxation left out: outputs × neurons is") for note in bound.checked)


def test_beyond_float64_the_path_metric_still_has_a_logarithm() -> None:
    net = drawn("deep mlp", 0)
    huge = net.with_params({n: 1e70 * v for n, v in net.params.items()})
    (bound,) = box_deviation(
        huge, pruned(huge).with_params({"0.bias": huge.params["0.bias"] * 2}), inputs(net, 0, 1), 1.0
    )
    assert bound.value == math.inf and 700 < bound.log_value < 2000 and bound.citation == "gonon2024thesis"


def test_radii_of_each_entry_and_a_range_of_inputs() -> None:
    net = drawn("mlp", 2)
    other = rounded(net)
    x = torch.tensor([[0.0, 0.5, 1.0, 0.98]], dtype=torch.float64)
    radius = torch.tensor([0.1, 0.0, 0.1, 0.1], dtype=torch.float64)
    (bound,) = box_deviation(net, other, x, radius, within=(0, 1))
    box = Interval((x - radius).clamp(0, 1), (x + radius).clamp(0, 1))
    (linear,) = linear_relaxation(net, other, box)
    assert bound.terms["linear relaxation"] == pytest.approx(float(linear.size.max()), rel=1e-9)
    assert bound.value < box_deviation(net, other, x, 0.1)[0].value
    assert bound.value >= found_by_attack(net, other, box)[0]


def test_a_network_of_single_precision_is_bounded_in_double() -> None:
    net = traced("mlp")
    single = net.to(torch.float32)
    x = inputs(net, 0).float()
    other = single.with_params({n: v * 1.01 for n, v in single.params.items()})
    bounds = box_deviation(single, other, x, 0.0)
    true = difference(single.to(torch.float64), other.to(torch.float64), x.double()).abs().amax(1).tolist()
    assert [bound.value for bound in bounds] == pytest.approx(true, rel=1e-9)


def test_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.last = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            hidden = (self.left(x) - self.right(y)).relu()
            return self.last(hidden), hidden.amax(1, keepdim=True)

    torch.manual_seed(0)
    example = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    net = tamis.trace(Two().double(), example)
    other, generator = rounded(net), torch.Generator().manual_seed(0)
    x, y = normal(generator, 2, 3), normal(generator, 2, 2)
    bounds = box_deviation(net, other, (x, y), (0.1, 0.2))
    largest = torch.zeros(2, dtype=torch.float64)
    for _ in range(200):
        moved = x + 0.1 * normal(generator, 2, 3).sign(), y + 0.2 * normal(generator, 2, 2).sign()
        gaps = [(a - b).abs().amax(1) for a, b in zip(net(*moved), other(*moved), strict=True)]
        largest = torch.stack([largest, *gaps]).amax(0)
    assert all(bound.value >= value for bound, value in zip(bounds, largest.tolist(), strict=True))
    with pytest.raises(InvalidInput, match="takes 2 inputs, got 3 radii"):
        box_deviation(net, other, (x, y), (0.1, 0.2, 0.3))


def test_no_inputs_have_no_bounds() -> None:
    net = drawn("mlp", 0)
    assert box_deviation(net, rounded(net), inputs(net, 0, 0), 0.1) == []


def test_what_is_refused() -> None:
    net = drawn("mlp", 0)
    other, x = rounded(net), inputs(net, 0)
    with pytest.raises(InvalidInput, match=r"'\w+' has 8 entries where x is not finite or the radius not a number ≥ 0"):
        box_deviation(net, other, x, -0.1)
    with pytest.raises(InvalidInput, match=r"broadcast to '\w+' of shape \(2, 4\), got \(3,\)"):
        box_deviation(net, other, x, torch.ones(3))
    with pytest.raises(InvalidInput, match=r"farther than the radius from the range within=\(5, 6\)"):
        box_deviation(net, other, x, 0.1, within=(5, 6))
    with pytest.raises(InvalidInput, match=r"low ≤ high, got \(1, 0\)"):
        box_deviation(net, other, x, 0.1, within=(1, 0))
    with pytest.raises(InvalidInput, match=r"floating-point numbers, .* torch\.int64"):
        box_deviation(net, other, x.long(), 0.1)
    with pytest.raises(InvalidInput, match="one and the same graph"):
        box_deviation(net, drawn("deep mlp", 0), x, 0.1)
    gelu = tamis.trace(mlp(3, 4, 2, activation=nn.GELU), torch.zeros(1, 3))
    with pytest.raises(UnsupportedOp, match=r"joint_interval needs .*'aten\.gelu' at 1 is not"):
        box_deviation(gelu, gelu, torch.zeros(1, 3), 0.1)


@pytest.mark.slow
def test_a_pretrained_resnet_and_its_pruned_copy() -> None:
    """No attack exceeds the bound at any radius; deep intervals explode, so that only radius zero is near the truth."""
    net = tamis.trace(pretrained("resnet20"), torch.zeros(1, 3, 32, 32)).to(torch.float64)
    small = tamis.prune(net, 0.1, by="magnitude").network
    x = normal(torch.Generator().manual_seed(0), 1, 3, 32, 32)
    true = float(difference(net, small, x).abs().max())
    (at_x,) = box_deviation(net, small, x, 0.0)
    assert true * (1 - 1e-9) <= at_x.value <= 20 * true
    (bound,) = box_deviation(net, small, x, 1e-6)
    low, high = attacked(net, small, around(x, 1e-6), steps=1)
    assert float(torch.maximum(low.abs(), high.abs()).max()) <= bound.value < bound.terms["separate intervals"]
    assert box_deviation(net, net, x, 1e-3)[0].value == 0.0
