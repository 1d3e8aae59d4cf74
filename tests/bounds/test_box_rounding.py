"""Intervals and boxes against exact rational arithmetic, at every scale that float64 has: not one violation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import mpmath
import pytest
import torch
from bounds.box_attacks import ARCHITECTURES, FUNCTIONS, drawn
from bounds.exact_networks import (
    ORDINARY,
    POINTWISE,
    SCALES,
    Array,
    Scales,
    draw_change,
    draw_network,
    draw_tensor,
    evaluate,
    exact,
    points,
)
from torch import Tensor, nn

import tamis
from tamis.bounds.box_deviation import box_deviation
from tamis.bounds.interval import Interval, interval
from tamis.bounds.joint_interval import Joint, _apply_pointwise, joint_interval
from tamis.bounds.linear_relaxation import linear_relaxation
from tamis.errors import InvalidInput
from tamis.graph import Node
from tamis.graph.network import op_name


@dataclass(frozen=True)
class Case:
    """Two networks, inputs, and how far each entry of them may move."""

    net: tamis.Network
    other: tamis.Network
    x: Tensor
    radius: Tensor

    @property
    def box(self) -> Interval:
        """Of float64 numbers, which is what intervals are asked for; the true ends may lie between two of them."""
        return Interval(self.x - self.radius, self.x + self.radius)


def draw_case(name: str, scales: Scales, seed: int, boxes: int) -> tuple[random.Random, Case]:
    random_ = random.Random(f"{name} {scales} {seed}")
    net = draw_network(random_, name, scales)
    drawn = [draw_box(random_, torch.zeros(net.input_shapes[0]), scales if i % 2 else ORDINARY) for i in range(boxes)]
    x, radius = (torch.cat(each) for each in zip(*drawn, strict=True))
    return random_, Case(net, draw_change(random_, net, scales), x, radius)


def draw_box(random_: random.Random, like: Tensor, scales: Scales) -> tuple[Tensor, Tensor]:
    """An input, and how far it may move: nowhere, a little, or far, but not out of float64."""
    x = draw_tensor(random_, like, scales)
    far = draw_tensor(random_, like, scales).abs().clamp(max=1e307)
    return x, random_.choice((torch.zeros_like(x), torch.full_like(x, 2.0**-1074), x.abs() / 3, far))


def check_intervals(random_: random.Random, case: Case, relaxed: int, count: int = 3) -> None:
    """`interval` and `joint_interval` on all boxes at once, `linear_relaxation` on the first of them."""
    box = case.box
    first = Interval(box.low[:relaxed], box.high[:relaxed])
    alone, joint = interval(case.net, box), joint_interval(case.net, case.other, box)
    linear = linear_relaxation(case.net, case.other, first) if relaxed else []
    for i in range(len(box.low)):
        for point in points(random_, exact(box.low[i : i + 1]), exact(box.high[i : i + 1]), count):
            mine, apart = outputs(case, point)
            assert holds(alone, i, mine)
            assert holds(joint, i, apart)
            assert i >= relaxed or holds(linear, i, apart)


def check_deviation(random_: random.Random, case: Case) -> None:
    """`box_deviation` on the last box as it is meant, whose ends float64 may not have."""
    x, radius = case.x[-1:], case.radius[-1:]
    (bound,) = box_deviation(case.net, case.other, x, radius)
    for point in points(random_, exact(x) - exact(radius), exact(x) + exact(radius), 3):
        largest = max(map(abs, outputs(case, point)[1]))
        for method, value in bound.terms.items():
            assert value == torch.inf or largest <= Fraction(value), method
        assert largest == 0 or mpmath.log(mpmath.mpf(largest.numerator) / largest.denominator) <= bound.log_value


def outputs(case: Case, point: Array) -> tuple[list[Fraction], list[Fraction]]:
    """What a network gives, and how far another one is from that."""
    mine = evaluate(case.net, point)
    return mine, [b - a for a, b in zip(mine, evaluate(case.other, point), strict=True)]


def holds(claim: list[Interval], i: int, truth: list[Fraction]) -> bool:
    """Whether the outputs for one input of a batch lie in the intervals that are claimed of them."""
    low, high = (torch.cat([getattr(each, end)[i].flatten() for each in claim]) for end in ("low", "high"))
    return inside(Interval(low, high), truth)


def inside(claim: Interval, truth: list[Fraction]) -> bool:
    """Whether numbers lie in their intervals; an infinite end claims nothing."""
    ends = zip(claim.low.flatten().tolist(), claim.high.flatten().tolist(), strict=True)
    return all(
        (a == -torch.inf or Fraction(a) <= value) and (b == torch.inf or value <= Fraction(b))
        for (a, b), value in zip(ends, truth, strict=True)
    )


EVERY_SCALE = pytest.mark.parametrize("scales", SCALES)
EVERY_NETWORK = pytest.mark.parametrize("name", ARCHITECTURES)
# Fractions take their time in convolutions; the functions of one neuron are taken through all scales below.
FEW = {"max-pool": ("subnormal",), "avg-pool": ("small and large",)}
FEW |= {name: tuple(SCALES)[place::4] for place, name in enumerate(("tanh", "sigmoid", "hardtanh", "elu"))}
QUICK = [(name, each) for name in ARCHITECTURES for each in FEW.get(name, SCALES)]


@pytest.mark.parametrize(("name", "scales"), QUICK)
def test_no_interval_leaves_the_exact_value_out(name: str, scales: str) -> None:
    random_, case = draw_case(name, SCALES[scales], 0, boxes=2)
    check_intervals(random_, case, relaxed=0, count=2)


@EVERY_SCALE
def test_no_linear_bound_is_below_the_exact_value(scales: str) -> None:
    random_, case = draw_case("residual", SCALES[scales], 1, boxes=1)
    check_intervals(random_, case, relaxed=1)


@pytest.mark.slow
@EVERY_SCALE
@EVERY_NETWORK
def test_no_bound_of_a_network_is_below_the_exact_value(name: str, scales: str) -> None:
    random_, case = draw_case(name, SCALES[scales], 2, boxes=3)
    check_intervals(random_, case, relaxed=1)
    check_deviation(random_, case)


@pytest.mark.parametrize("node", FUNCTIONS, ids=lambda node: f"{op_name(node.target)}{node.args[1:]}")
def test_no_function_of_one_neuron_leaves_its_interval(node: Node) -> None:
    """Its values, and how far apart they are in two networks, against 760 digits."""
    random_, function = random.Random(op_name(node.target)), POINTWISE[node.target](node.arguments)
    for scales in SCALES.values():
        ends = [draw_tensor(random_, torch.zeros(4), scales).sort()[0] for _ in range(2)]
        mine, other = (Interval(each[:2], each[2:]) for each in ends)
        found = _apply_pointwise(node, Joint(mine, other, other - mine))
        for _ in range(2):
            z, z_other = (
                [random_.choice((Fraction(a), Fraction(b), (Fraction(a) + Fraction(b)) / 2)) for a, b in pairs(x)]
                for x in (mine, other)
            )
            value, value_other = ([function(each) for each in numbers] for numbers in (z, z_other))
            assert inside(found.mine, value) and inside(found.other, value_other)
            assert inside(found.apart, [b - a for a, b in zip(value, value_other, strict=True)])


def pairs(x: Interval) -> list[tuple[float, float]]:
    return list(zip(x.low.tolist(), x.high.tolist(), strict=True))


def test_subnormal_weights_of_a_batch_norm_are_covered() -> None:
    """γ/√(σ² + ε) times a weight is not what float64 has; here it underflows, and later weights bring it back."""
    net = drawn("max-pool", 0)
    tiny = {"norm.weight": torch.full((3,), 3 * 2.0**-1074, dtype=torch.float64)}
    back = {name: torch.full_like(net.params[name], 2.0**600) for name in ("second.weight", "head.weight")}
    small = net.with_params({**tiny, **back, **{n: 0 * net.params[n] for n in ("norm.bias", "second.bias")}})
    x = torch.ones(net.input_shapes[0], dtype=torch.float64)
    (found,) = interval(small, Interval(x, x))
    assert inside(found, evaluate(small, exact(x)))


def test_weights_that_float64_computes_to_be_equal_are_not_taken_for_equal() -> None:
    """γ and its neighbour give one folded weight, and two networks; what is equal gives exactly zero."""
    net = drawn("avg-pool", 0)
    near = net.with_params(
        {"norm.running_var": torch.nextafter(net.params["norm.running_var"], torch.tensor(9.0).double())}
    )
    x = torch.ones(net.input_shapes[0], dtype=torch.float64)
    apart = [b - a for a, b in zip(evaluate(net, exact(x)), evaluate(near, exact(x)), strict=True)]
    for bound in (joint_interval, linear_relaxation):
        assert inside(bound(net, near, Interval(x, x))[0], apart)
        assert float(bound(net, net, Interval(x, x))[0].size.max()) == 0.0


def test_a_large_bias_hides_no_product_that_underflows() -> None:
    """2^−600 · 2^−600 is lost in float64 and brought back later; beside it stands a bias of 2^600."""
    net, x = drawn("mlp", 0), torch.ones(1, 4, dtype=torch.float64)
    scales = {"0.weight": -600, "2.weight": -600, "4.weight": 600}
    small = {n: torch.full_like(net.params[n], 2.0**e) for n, e in scales.items()}
    biases = {n: torch.zeros_like(net.params[n]) for n in ("0.bias", "2.bias", "4.bias")}
    biases["2.bias"][0] = -(2.0**600)
    net = net.with_params({**small, **biases})
    other = net.with_params({"4.weight": 2 * small["4.weight"]})
    truth, apart = outputs(Case(net, other, x, 0 * x), exact(x))
    assert min(truth) > 0 and inside(interval(net, Interval(x, x))[0], truth)
    for bound in (joint_interval, linear_relaxation):
        assert inside(bound(net, other, Interval(x, x))[0], apart)


@cache
def weighted_sigmoid() -> tamis.Network:
    model = nn.Sequential(nn.Sigmoid(), nn.Linear(1, 1, bias=False)).double()
    model[1].weight.data.fill_(1e308)
    return tamis.trace(model, torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("x", [-709.0, -709.79, -710.0, -720.0, -744.0, -745.0])
def test_a_sigmoid_far_out_is_small_and_not_zero(x: float) -> None:
    """1/(1 + e^−x) overflows on the way, and a large weight brings back what was lost."""
    net, at = weighted_sigmoid(), torch.tensor([[x]], dtype=torch.float64)
    other = net.with_params({"1.weight": torch.zeros(1, 1, dtype=torch.float64)})
    exact = mpmath.mpf(1e308) / (1 + mpmath.exp(-mpmath.mpf(x)))
    assert box_deviation(net, other, at, 0.0)[0].value >= exact
    assert float(interval(net, Interval(at, at))[0].high) >= exact


def test_odd_boxes() -> None:
    net = drawn("mlp", 0)
    empty = Interval(torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64))
    (found,) = linear_relaxation(net, net, empty)
    assert found.low.shape == joint_interval(net, net, empty)[0].low.shape
    with pytest.raises(InvalidInput, match="the radius must be a number or a tensor, got 'wide'"):
        box_deviation(net, net, torch.zeros(1, 4, dtype=torch.float64), "wide")  # type: ignore[arg-type]


def test_a_box_beyond_float64_says_so() -> None:
    net = drawn("sigmoid", 0)
    x = torch.full(net.input_shapes[0], 1e308, dtype=torch.float64)
    (bound,) = box_deviation(net, draw_change(random.Random(0), net, ORDINARY), x, 1e308)
    assert bound.value < 100  # a sigmoid brings anything back
    residual = drawn("turned", 0)
    (bound,) = box_deviation(residual, draw_change(random.Random(0), residual, ORDINARY), x, 1e308)
    assert bound.value == bound.log_value == torch.inf and not bound.informative
    assert "joint interval says nothing: values leave float64's range" in bound.checked


def test_what_nobody_reads_may_be_infinite() -> None:
    """An entry without end, times a weight of zero, is zero; a sum that overflows is no number, and says nothing."""
    net = drawn("mlp", 0)
    weight = net.params["0.weight"].clone()
    weight[:, 0] = 0.0
    blind, x = net.with_params({"0.weight": weight}), torch.zeros(1, 4, dtype=torch.float64)
    far = Interval(torch.tensor([[-torch.inf, 0, 0, 0]]).double(), torch.tensor([[torch.inf, 0, 0, 0]]).double())
    (found,), (near,) = interval(blind, far), interval(blind, Interval(x, x))
    torch.testing.assert_close(found.size, near.size)
    other = blind.with_params({"4.bias": blind.params["4.bias"] + 1})
    assert float(linear_relaxation(blind, other, far)[0].size.max()) == pytest.approx(1.0)
    huge = net.with_params({n: v.sign() * 1.7e308 for n, v in net.params.items()})
    for claim in (interval(huge, far), joint_interval(huge, net, far), linear_relaxation(huge, net, far)):
        assert not bool((claim[0].low.isnan() | claim[0].high.isnan()).any()) and bool(claim[0].size.isinf().any())
