"""Linear bounds carried backward: closed forms of affine networks, lines that hold, attacks, and what they gain."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from bounds.box_attacks import (
    ARCHITECTURES,
    CHANGES,
    FUNCTIONS,
    around,
    attacked,
    barely_moved,
    drawn,
    exact_output,
    holds,
    inputs,
    one_of_each_kind,
    pruned,
    rounded,
    unrelated,
)
from draws import normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.bounds import box_backward
from tamis.bounds import linear_relaxation as module
from tamis.bounds.box_lines import lines
from tamis.bounds.interval import Interval
from tamis.bounds.interval_pointwise import find_pointwise
from tamis.bounds.joint_interval import Joint, Pair, _apply_pointwise, joint_interval
from tamis.bounds.linear_relaxation import linear_relaxation
from tamis.graph import Node
from tamis.graph.network import op_name
from tamis.training.models import gcn


def test_an_affine_network_gives_the_exact_range() -> None:
    """R_θ'(x) − R_θ(x) = (W₂'W₁' − W₂W₁) x + …, largest at a corner of the box."""
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double(), torch.zeros(1, 4, dtype=torch.float64))
    other = net.with_params({n: v + 0.1 * torch.randn_like(v) for n, v in net.params.items()})

    def whole(each: tamis.Network) -> tuple[Tensor, Tensor]:
        first, b, second, c = (each.params[n] for n in ("0.weight", "0.bias", "1.weight", "1.bias"))
        return second @ first, second @ b + c

    (weight, bias), (other_weight, other_bias) = whole(net), whole(other)
    x, radius = inputs(net, 0), 0.7
    centre = x @ (other_weight - weight).T + other_bias - bias
    reach = radius * (other_weight - weight).abs().sum(1)
    (found,) = linear_relaxation(net, other, around(x, radius))
    torch.testing.assert_close(found.low, centre - reach, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.high, centre + reach, rtol=1e-9, atol=1e-9)
    (joint,) = joint_interval(net, other, around(x, radius))
    assert bool((joint.size > found.size).all())  # intervals lose what cancels between layers


def test_neurons_that_never_change_sides_cost_nothing() -> None:
    """With all ReLUs on, an MLP is affine on the box: the attack's corner is the bound."""
    for seed in range(2):
        net = drawn("mlp", seed)
        on = net.with_params({n: v + 50.0 for n, v in net.params.items() if n in ("0.bias", "2.bias")})
        box = around(inputs(net, seed, 1), 0.01)
        other = rounded(on)
        (found,), (low, high) = linear_relaxation(on, other, box), attacked(on, other, box)
        torch.testing.assert_close(found.low, low, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.high, high, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("node", FUNCTIONS, ids=lambda node: f"{op_name(node.target)}{node.args[1:]}")
def test_lines_lie_above_and_below(node: Node) -> None:
    """For 200 neurons at once, each with intervals of its own and 400 points in them."""
    generator = torch.Generator().manual_seed(0)

    def some(low: float, high: float, *often: float) -> Tensor:
        """A number for each neuron, every other one of which is one of those that are met often."""
        drawn = low + (high - low) * torch.rand(200, 1, generator=generator, dtype=torch.float64)
        which = torch.randint(2 * len(often), (200, 1), generator=generator)
        for place, value in enumerate(often):
            drawn[which == place] = value
        return drawn

    def points(start: Tensor, width: Tensor) -> Tensor:
        inner = torch.rand(200, 400, generator=generator, dtype=torch.float64)
        inner[:, :4] = torch.tensor([0.0, 0.0, 1.0, 1.0])
        return start + width * inner

    starts, widths = ([some(-4, 4, -1.0, 0.0, 1.0) for _ in range(2)], [some(0, 4, 0.0, 1.0) for _ in range(2)])
    z = points(starts[0], widths[0])
    shuffled = points(starts[1], widths[1])[:, torch.randperm(400, generator=generator)]
    d = some(0, 1, 0.0, 1e-9, 1.0) * (shuffled - z)
    function = find_pointwise(node)
    assert function is not None

    def around_all(values: Tensor) -> Interval:
        return Interval(values.amin(1, keepdim=True), values.amax(1, keepdim=True))

    x = Joint(around_all(z), around_all(z + d), around_all(d).widen())
    bounds = lines(function, x, _apply_pointwise(node, x))
    value, gap = function.run(z), function.run(z + d) - function.run(z)
    slack = 1e-13 * (1 + z.abs() + d.abs())
    assert bool((bounds.below.at(z, d) <= value + slack).all()) and bool((value <= bounds.above.at(z, d) + slack).all())
    assert bool((bounds.apart_below.at(z, d) <= gap + slack).all())
    assert bool((gap <= bounds.apart_above.at(z, d) + slack).all())


def test_rounding_is_covered_in_exact_arithmetic() -> None:
    """Corners of tiny boxes and of large ones, without any tolerance."""
    for seed in (0, 4, 8):  # each change and each radius
        net = drawn("deep mlp", seed)
        moved = unrelated(net)
        change, radius = (1e-15, 1e-9, 0.1)[seed % 3], (0.0, 1e-12, 0.1)[seed // 3]
        other = net.with_params({n: v + change * moved.params[n] for n, v in net.params.items()})
        box = around(inputs(net, seed, 1), radius)
        (found,) = linear_relaxation(net, other, box)
        for corner in range(8):
            ends = [(box.high if corner >> i & 1 else box.low)[0, i].item() for i in range(3)]
            point = [Fraction(value) for value in ends]
            true = [b - a for a, b in zip(exact_output(net, point), exact_output(other, point), strict=True)]
            for low, value, high in zip(found.low[0].tolist(), true, found.high[0].tolist(), strict=True):
                assert Fraction(low) <= value <= Fraction(high)


def no_wider(found: list[Interval], joint: list[Interval]) -> bool:
    """But for rounding, which depends on how many boxes are passed together."""
    return all(bool((a.size <= b.size * (1 + 1e-9)).all()) for a, b in zip(found, joint, strict=True))


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=[] if seed == place % 4 else pytest.mark.slow)  # each change is met often
        for place, name in enumerate(ARCHITECTURES)
        for seed in range(4)
    ],
)
def test_no_attack_leaves_the_intervals(name: str, seed: int) -> None:
    net = drawn(name, seed)
    other, box = CHANGES[seed](net), around(inputs(net, seed, 1), (0.02, 0.5)[seed // 2])
    found = linear_relaxation(net, other, box)
    assert holds(net, other, box, found)
    assert no_wider(found, joint_interval(net, other, box))


@one_of_each_kind
def test_equal_networks_give_exactly_zero(name: str) -> None:
    net = drawn(name, 1)
    for found in linear_relaxation(net, net, around(inputs(net, 1, 1), 3.0)):
        assert float(found.size.max()) == 0.0


@pytest.mark.parametrize(
    ("name", "seed", "gain"), [("mlp", 0, 1.1), ("residual", 1, 1.2), ("avg-pool", 0, 1.4), ("max-pool", 0, 1.3)]
)
def test_tighter_than_intervals_on_compressed_networks(name: str, seed: int, gain: float) -> None:
    ratios = []
    for change in (pruned, rounded, barely_moved):
        net = drawn(name, seed)
        box = around(inputs(net, seed, 1), 0.05)
        (found,), (joint,) = (method(net, change(net), box) for method in (linear_relaxation, joint_interval))
        ratios.append(float((joint.size.amax(1) / found.size.amax(1)).mean()))
    assert sorted(ratios)[len(ratios) // 2] > gain


def test_tightening_by_backward_passes_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    net = drawn("deep mlp", 2)
    other, box = rounded(net), around(inputs(net, 2, 1), 0.1)
    (tightened,) = linear_relaxation(net, other, box)
    monkeypatch.setattr(module, "TIGHTENING", 0)
    (plain,) = linear_relaxation(net, other, box)
    assert holds(net, other, box, [plain])
    assert float(tightened.size.max()) < 0.9 * float(plain.size.max())


@pytest.mark.parametrize("name", [pytest.param("mlp", marks=pytest.mark.slow), "turned"])
def test_one_function_at_a_time_and_in_parts_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = drawn(name, 0)
    other, box = unrelated(net), around(inputs(net, 0, 1), 0.2)
    (together,) = linear_relaxation(net, other, box)
    monkeypatch.setattr(box_backward, "AT_A_TIME", 30)
    (parts,) = linear_relaxation(net, other, box)
    monkeypatch.setattr(module, "find_batch_axes", lambda *_: None)
    (single,) = linear_relaxation(net, other, box)
    for found in (parts, single):
        torch.testing.assert_close(found.low, together.low, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.high, together.high, rtol=1e-9, atol=1e-9)


def test_the_samples_of_a_perceptron_lie_along_the_first_axis_of_every_tensor() -> None:
    net = drawn("mlp", 0)
    axes = box_backward.find_batch_axes(Pair.of(net, net), {net.inputs[0]: around(inputs(net, 0, 1), 0.2)})
    assert axes == dict.fromkeys([*net.inputs, *(node.name for node in net.data_nodes)], 0)


def test_a_network_without_a_batch_dimension() -> None:
    torch.manual_seed(0)
    net = tamis.trace(gcn(6, 4, 5, 2).double(), torch.zeros(6, 4, dtype=torch.float64))
    assert not net.batched
    generator = torch.Generator().manual_seed(1)
    other, x = rounded(net), normal(generator, 6, 4)
    (found,), (joint,) = (method(net, other, around(x, 0.05)) for method in (linear_relaxation, joint_interval))
    for _ in range(50):
        y = x + 0.05 * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1).sign()
        gap = other(y) - net(y)
        assert bool((gap >= found.low - 1e-12).all()) and bool((gap <= found.high + 1e-12).all())
    assert bool((found.size <= joint.size).all())


@given(dag=dags(), seed=st.integers(0, 10), radius=st.sampled_from([0.01, 0.3]))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks(dag: Dag, seed: int, radius: float) -> None:
    check_dag(dag, seed, radius)


@pytest.mark.slow
@given(dag=dags(8), seed=st.integers(0, 10), radius=st.sampled_from([0.0, 0.01, 0.3, 2.0]))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_networks(dag: Dag, seed: int, radius: float) -> None:
    check_dag(dag, seed, radius)


def check_dag(dag: Dag, seed: int, radius: float) -> None:
    x = dag.example()
    net = tamis.trace(dag, x)
    other: Any = CHANGES[seed % len(CHANGES)](net)
    if not net.batched:
        return
    box = around(x, radius)
    found, joint = linear_relaxation(net, other, box), joint_interval(net, other, box)
    assert holds(net, other, box, joint) and holds(net, other, box, found)
    assert no_wider(found, joint)


def test_boxes_of_a_batch_do_not_meet() -> None:
    net = drawn("max-pool", 3)
    other, x = rounded(net), inputs(net, 3, 2)
    (together,) = linear_relaxation(net, other, around(x, 0.1))
    alone = [linear_relaxation(net, other, around(x[i : i + 1], 0.1))[0].high for i in range(2)]
    torch.testing.assert_close(together.high, torch.cat(alone), rtol=0, atol=0)


def test_consecutive_layers_of_one_network_stay_finite() -> None:
    torch.manual_seed(0)
    widths = [3] * 9
    layers = [m for i, o in pairwise(widths) for m in (nn.Linear(i, o), nn.ReLU())]
    net = tamis.trace(nn.Sequential(*layers).double(), torch.zeros(1, 3, dtype=torch.float64))
    (found,) = linear_relaxation(net, rounded(net), around(inputs(net, 0, 1), 0.1))
    assert bool(torch.isfinite(found.size).all())
