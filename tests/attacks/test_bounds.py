"""Every bound on networks against exact rational arithmetic, at every scale that a float has."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import mpmath
import pytest
import torch
from attacks.attack_size import DEVICE, TIMES
from attacks.exact_networks import ExactNetwork, draw_dead_chain, draw_network, draw_number, draw_other
from torch import Tensor

import tamis
from tamis.bounds import box_deviation, layer_product, lipschitz_input, lipschitz_parameters, phi_pruning
from tamis.bounds.interval import Interval, interval
from tamis.errors import TamisError

PAIRS = 24  # pairs of networks in one attack
INPUTS = 24  # for each of them
MOST_PATHS = 3000
Pair = tuple[ExactNetwork, ExactNetwork]


def log_of(value: Fraction) -> mpmath.mpf:
    """The natural logarithm of a rational number, to sixty digits."""
    if not value:
        return mpmath.mpf("-inf")
    return mpmath.log(mpmath.mpf(value.numerator)) - mpmath.log(mpmath.mpf(value.denominator))


def assert_above(log_bound: float, exact: Fraction, what: str) -> None:
    """An upper bound is one, to the last digit; zero only where the exact value is zero."""
    assert not math.isnan(log_bound), what
    with mpmath.workdps(60):
        assert mpmath.mpf(log_bound) >= log_of(exact), f"{what}: log {log_bound} is below {log_of(exact)}"


def distance(mine: list[Fraction], theirs: list[Fraction]) -> Fraction:
    """The ℓ¹ distance of two vectors."""
    return sum((abs(a - b) for a, b in zip(mine, theirs, strict=True)), Fraction(0))


def draw_inputs(draw: random.Random, network: ExactNetwork, count: int) -> Tensor:
    """Inputs at several scales, the first of them ordinary."""
    scales = ["ordinary"] + [draw.choice(["ordinary", "wide", "subnormal"]) for _ in range(count - 1)]
    rows = [[draw_number(draw, scale, network.dtype) for _ in range(network.width)] for scale in scales]
    return torch.tensor(rows, dtype=network.dtype, device=DEVICE)


def draw_pairs(seed: int, count: int) -> Iterator[tuple[random.Random, Pair, tuple[tamis.Network, tamis.Network]]]:
    """Pairs of networks of one graph, exactly and as tamis has them."""
    draw = random.Random(seed)
    for number in range(count):
        pair = draw_dead_chain(draw) if number % 6 == 5 else _ordinary_pair(draw)
        example = torch.zeros(1, pair[0].width, dtype=pair[0].dtype)
        net = tamis.trace(pair[0].module(), example)
        other = net.with_params(dict(pair[1].module().named_parameters()))
        yield draw, pair, (net.to(DEVICE), other.to(DEVICE))


def _ordinary_pair(draw: random.Random) -> Pair:
    while True:
        network = draw_network(draw)
        inputs, biases = network.paths()
        if sum(map(len, inputs)) + sum(map(len, biases)) <= MOST_PATHS:
            return network, draw_other(draw, network)


def is_listed(network: ExactNetwork) -> bool:
    """Whether the network's paths are few enough to be listed, and are those that tamis speaks of.

    tamis folds a batch-norm into the layer before it, which makes one path of two that start at biases.
    """
    return len(network.steps) <= 8 and not any(step.kind == "norm" for step in network.steps)


def bounded(compute: Callable[[], float]) -> float:
    """What a bound says; a refusal by name says nothing, which is never wrong."""
    try:
        return compute()
    except TamisError:
        return math.inf


SEEDS = [pytest.param(seed, marks=pytest.mark.slow) if seed else seed for seed in range(1 + 3 * TIMES)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_below_what_it_bounds(seed: int) -> None:
    for draw, (exact, forged), (net, other) in draw_pairs(seed, PAIRS if seed else 3):
        inputs = draw_inputs(draw, exact, INPUTS if seed else 8)
        check_outputs(exact, forged, net, other, inputs)
        check_boxes(draw, exact, forged, net, other, inputs.double())
        if is_listed(exact):
            check_liftings(exact, forged, net, other)
            check_costs(draw, exact, net, inputs.double())


def check_outputs(
    exact: ExactNetwork, forged: ExactNetwork, net: tamis.Network, other: tamis.Network, inputs: Tensor
) -> None:
    """What is said of outputs by path-liftings."""
    logs = tamis.path_metric(net, other, inputs, log=True)
    assert isinstance(logs, Tensor)
    radius = float(inputs.double().abs().max())
    apart = bounded(lambda: lipschitz_parameters(net, other, radius).log_value)
    for x, log_bound in zip(inputs.double().tolist(), logs.tolist(), strict=True):
        difference = distance(exact.outputs(x), forged.outputs(x))
        assert_above(log_bound, difference, f"path_metric at x = {x}")
        assert_above(apart, difference, f"lipschitz_parameters at x = {x}")


def check_liftings(exact: ExactNetwork, forged: ExactNetwork, net: tamis.Network, other: tamis.Network) -> None:
    """What is said of the path-liftings themselves."""
    (inputs, biases), (others, other_biases) = exact.paths(), forged.paths()
    apart = sum(distance(a + b, c + d) for a, b, c, d in zip(inputs, biases, others, other_biases, strict=True))
    assert_above(float(tamis.path_metric(net, other, log=True)), Fraction(apart), "path_metric")
    from_inputs = sum((abs(each) for row in inputs for each in row), Fraction(0))
    norm = from_inputs + sum((abs(each) for row in biases for each in row), Fraction(0))
    assert_above(lipschitz_input(net).log_value, from_inputs, "lipschitz_input")
    assert_above(bounded(lambda: layer_product(net).log_value), norm, "layer_product")
    found = tamis.path_norm(net, log=True)
    with mpmath.workdps(60):
        expected = log_of(norm)
        assert found == expected or abs(found - expected) <= 1e-9, (found, expected)


def check_boxes(
    draw: random.Random,
    exact: ExactNetwork,
    forged: ExactNetwork,
    net: tamis.Network,
    other: tamis.Network,
    inputs: Tensor,
) -> None:
    """What is said of every input in a box."""
    radius = draw.choice([0.0, 0.5, 1e-300, 5e-324, 1e30])
    nets = net.to(torch.float64), other.to(torch.float64)
    bounds = box_deviation(nets[0], nets[1], inputs, radius)
    outputs = bounded_outputs(nets[0], Interval(inputs - radius, inputs + radius).widen())
    for number, (x, bound) in enumerate(zip(inputs.tolist(), bounds, strict=True)):
        for _ in range(3):
            point = [draw_inside(draw, each, radius) for each in x]
            mine, theirs = exact.outputs(point), forged.outputs(point)
            apart = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
            assert_above(bound.log_value, apart, f"box_deviation at {point}, radius {radius}")
            assert bound.value == math.inf or Fraction(bound.value) >= apart
            if outputs is not None:
                assert_inside(mine, outputs, number)


def draw_inside(draw: random.Random, centre: float, radius: float) -> float:
    """A float within the box, often at its end."""
    end = centre + draw.choice([-1, 1, draw.uniform(-1, 1)]) * radius
    return end if abs(Fraction(end) - Fraction(centre)) <= Fraction(radius) else centre


def bounded_outputs(net: tamis.Network, boxes: Interval) -> Interval | None:
    """The interval of the outputs; None where float64 ends, which must be said by name."""
    try:
        return interval(net, boxes)[0]
    except (OverflowError, TamisError) as reason:
        assert str(reason)
        return None


def assert_inside(outputs: list[Fraction], boxes: Interval, number: int) -> None:
    for value, low, high in zip(outputs, boxes.low[number].tolist(), boxes.high[number].tolist(), strict=True):
        assert low == -math.inf or Fraction(low) <= value, (value, low)
        assert high == math.inf or value <= Fraction(high), (value, high)


def check_costs(draw: random.Random, exact: ExactNetwork, net: tamis.Network, inputs: Tensor) -> None:
    """What is said of pruning by the sum of the costs of what goes."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    masks = {name: torch.rand(net.params[name].shape, generator=generator) < 0.6 for name in sorted(net.trainable)}
    radius = float(inputs.abs().max())
    there = {name: mask.to(DEVICE) for name, mask in masks.items()}
    bound = bounded(lambda: phi_pruning(net, there, radius).log_value)
    pruned = prune_exactly(exact, masks)
    for x in inputs.tolist():
        assert_above(bound, distance(exact.outputs(x), pruned.outputs(x)), "phi_pruning")


def prune_exactly(network: ExactNetwork, masks: dict[str, Tensor]) -> ExactNetwork:
    """The network with what the masks do not keep set to zero."""
    steps = []
    for number, step in enumerate(network.steps):
        if step.kind == "linear":
            weight = torch.tensor(step.weight, dtype=torch.float64) * masks[f"step{number}.weight"]
            bias = torch.tensor(step.bias, dtype=torch.float64) * masks[f"step{number}.bias"]
            step = replace(step, weight=weight.tolist(), bias=bias.tolist())
        steps.append(step)
    return network.with_weights(steps)
