"""Differential intervals: the tightest ones of a neuron by enumeration, exact zero, attacks, exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from bounds.box_attacks import (
    ARCHITECTURES,
    CHANGES,
    around,
    drawn,
    exact_output,
    holds,
    inputs,
    two_changes,
    unrelated,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.bounds.interval import Interval, interval
from tamis.bounds.interval_pointwise import PiecewiseLinear, find_pointwise
from tamis.bounds.joint_interval import Joint, _apply_pointwise, joint_interval
from tamis.errors import InvalidInput
from tamis.graph import Node, Ref

aten = torch.ops.aten
RISING = [
    Node("f", aten.relu.default, (Ref("x"),)),
    Node("f", aten.relu6.default, (Ref("x"),)),
    Node("f", aten.leaky_relu.default, (Ref("x"), 0.25)),
    Node("f", aten.clamp.default, (Ref("x"), -1, 2)),
]


def ends(low: int, width: int) -> Interval:
    low_end = torch.tensor([low / 4], dtype=torch.float64)
    return Interval(low_end, low_end + width / 4)


@pytest.mark.parametrize("node", RISING, ids=lambda node: node.op)
@given(
    mine=st.tuples(st.integers(-12, 28), st.integers(0, 20)),
    other=st.tuples(st.integers(-12, 28), st.integers(0, 20)),
    apart=st.tuples(st.integers(-12, 12), st.integers(0, 16)),
)
@settings(deadline=None, max_examples=40)
def test_the_tightest_interval_of_a_difference(
    node: Node, mine: tuple[int, int], other: tuple[int, int], apart: tuple[int, int]
) -> None:
    """On a grid that holds all kinks and ends, where enumeration is exact."""
    x = Joint(ends(*mine), ends(*other), ends(*apart))
    function = find_pointwise(node)
    assert isinstance(function, PiecewiseLinear)
    z, z_other = torch.meshgrid(*[torch.arange(-80, 121, dtype=torch.float64) / 4] * 2, indexing="ij")
    inside = torch.ones_like(z, dtype=torch.bool)
    for values, interval_of in ((z, x.mine), (z_other, x.other), (z_other - z, x.apart)):
        inside &= (values >= interval_of.low) & (values <= interval_of.high)
    if not bool(inside.any()):
        return
    gaps = (function.run(z_other) - function.run(z))[inside]
    found = _apply_pointwise(node, x).apart
    assert float(found.low) == pytest.approx(float(gaps.min()), abs=1e-12)
    assert float(found.high) == pytest.approx(float(gaps.max()), abs=1e-12)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_attack_leaves_the_intervals(name: str) -> None:
    for seed, change in two_changes(name):
        net = drawn(name, seed)
        other, x = change(net), inputs(net, seed)
        for radius in (0.0, 0.5) if seed > 1 else (0.02,):
            box = around(x, radius)
            assert holds(net, other, box, joint_interval(net, other, box)), (name, change, radius)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_equal_networks_give_exactly_zero(name: str) -> None:
    net = drawn(name, 1)
    copy = net.with_params({n: v.clone() for n, v in net.params.items()})
    for found in joint_interval(net, copy, around(inputs(net, 1), 3.0)):
        assert float(found.size.max()) == 0.0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_never_wider_than_separate_intervals_and_the_same_from_both_sides(name: str) -> None:
    for seed, change in two_changes(name):
        net = drawn(name, seed)
        other, box = change(net), around(inputs(net, seed), 0.3)
        (found,), (reverse,) = joint_interval(net, other, box), joint_interval(other, net, box)
        (mine,), (theirs,) = interval(net, box), interval(other, box)
        apart = theirs - mine
        slack = 1e-12 * (1 + apart.size)
        assert bool((found.low >= apart.low - slack).all()) and bool((found.high <= apart.high + slack).all())
        torch.testing.assert_close(found.low, -reverse.high, rtol=1e-9, atol=1e-9)


@given(seed=st.integers(0, 99), inner=st.floats(0, 1), grown=st.floats(0, 1))
@settings(deadline=None, max_examples=6)
def test_a_larger_box_has_larger_intervals(seed: int, inner: float, grown: float) -> None:
    net = drawn("residual", seed)
    other, x = CHANGES[seed % 4](net), inputs(net, seed)
    (small,), (large,) = (joint_interval(net, other, around(x, r)) for r in (inner, inner + grown))
    slack = 1e-12 * (1 + large.size)
    assert bool((large.low <= small.low + slack).all()) and bool((small.high <= large.high + slack).all())


@pytest.mark.parametrize("change", [1e-15, 1e-9, 0.1])
def test_rounding_is_covered_in_exact_arithmetic(change: float) -> None:
    """At single points, where intervals are as narrow as rounding lets them be, without any tolerance."""
    for seed in range(8):
        net = drawn("deep mlp", seed)
        moved = unrelated(net)
        other = net.with_params({n: v + change * moved.params[n] for n, v in net.params.items()})
        x = inputs(net, seed, 1)
        point = [Fraction(value) for value in x[0].tolist()]
        true = [b - a for a, b in zip(exact_output(net, point), exact_output(other, point), strict=True)]
        (found,) = joint_interval(net, other, Interval(x, x))
        for low, value, high in zip(found.low[0].tolist(), true, found.high[0].tolist(), strict=True):
            assert Fraction(low) <= value <= Fraction(high)
            assert high - low <= 1e-9 * change * 1e3 + 1e-9 * abs(float(value))


def test_two_graphs_are_refused() -> None:
    net = drawn("mlp", 0)
    box = around(inputs(net, 0), 0.1)
    with pytest.raises(InvalidInput, match=r"one and the same graph, got Network\(.*with_params"):
        joint_interval(net, drawn("deep mlp", 0), box)
    with pytest.raises(InvalidInput, match="needs two Networks, the second is dict"):
        joint_interval(net, dict(net.params), box)  # type: ignore[arg-type]
