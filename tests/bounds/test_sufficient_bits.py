"""So many bits are enough: networks are rounded as stated and attacked; with one bit fewer the bound says otherwise."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import dags
from torch import Tensor, nn

import tamis
from tamis.bounds.coordinates import path_coordinates
from tamis.bounds.sufficient_bits import MOST_SEARCHED, _moves, sufficient_bits, sufficient_bits_by_paths
from tamis.errors import AssumptionViolated, InvalidInput, InvalidParameters, UnsupportedOp


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x)))
        return self.last((F.max_pool1d(h, 2) + h[:, :, ::2]).flatten(1))


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "two layers": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,)),
    "three layers": (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), (2,)),
    "residual": (Residual(), (1, 4)),
}


@cache
def graph(name: str) -> tamis.Network:
    model, shape = MODELS[name]
    return tamis.trace(model.eval(), torch.zeros(1, *shape)).to(torch.float64)


def network(name: str, seed: int, scale: float = 1.0) -> tamis.Network:
    generator, net = torch.Generator().manual_seed(seed), graph(name)
    return net.with_params({key: scale * normal(generator, *net.params[key].shape) for key in sorted(net.trainable)})


def rounded(net: tamis.Network, bits: int) -> tamis.Network:
    """Each tensor to the nearest multiple of A/(2^(b−1) − 1), A its largest magnitude."""

    def nearest(value: Tensor) -> Tensor:
        step = value.abs().max() / (2 ** (bits - 1) - 1)
        return (value / step).round() * step if step > 0 else value

    names = [name for name in path_coordinates(net) if net.params[name].numel()]
    return net.with_params({name: nearest(net.params[name].double()) for name in names})


def on_a_grid(net: tamis.Network, log2_step: float) -> tamis.Network:
    step = 2.0**log2_step
    return net.with_params({name: (net.params[name] / step).round() * step for name in net.trainable})


def furthest(net: tamis.Network, other: tamis.Network, radius: float, order: float, steps: int = 15) -> float:
    """The largest distance of outputs that ascent over the box finds."""
    free = normal(torch.Generator().manual_seed(0), 16, *net.input_shapes[0][1:]).requires_grad_()
    climber, found = torch.optim.Adam([free], lr=0.2), 0.0
    for _ in range(steps):
        climber.zero_grad()
        x = radius * free.tanh()
        apart = torch.linalg.vector_norm((net(x) - other(x)).flatten(1), order, dim=1)
        found = max(found, float(apart.detach().max()))
        (-apart.sum()).backward()
        climber.step()
    return found


# -- by paths -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from(sorted(MODELS)),
    st.integers(0, 2**20),
    st.floats(-3, 2).map(lambda exponent: 10**exponent),
    st.floats(0.1, 10),
)
def test_rounding_to_so_many_bits_is_accurate_enough(name: str, seed: int, epsilon: float, radius: float) -> None:
    net = network(name, seed)
    bound = sufficient_bits_by_paths(net, epsilon, radius)
    assert furthest(net, rounded(net, int(bound.value)), radius, 1.0) <= epsilon * (1 + 1e-9)
    assert bound.terms["log_error"] <= math.log(epsilon) + 1e-12
    assert bound.log_value == pytest.approx(math.log(bound.value))
    assert bound.informative == (bound.value < 64)


@settings(deadline=None, max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(dags(), st.floats(0.01, 10))
def test_any_graph(dag: Any, epsilon: float) -> None:
    net = tamis.trace(dag, dag.example())
    bits = int(sufficient_bits_by_paths(net, epsilon).value)
    assert furthest(net, rounded(net, bits), 1.0, 1.0, steps=5) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_error_is_the_difference_of_two_path_norms(name: str) -> None:
    """By its definition, for radius 1; and one bit fewer is too few."""
    net = network(name, 1)
    bound = sufficient_bits_by_paths(net, 0.05)

    def error(bits: int) -> float:
        changes = {}
        for key in path_coordinates(net):
            value = net.params[key]
            half = value.abs().max() / (2 ** (bits - 1) - 1) / 2
            changes[key] = value + torch.minimum(half, value.abs()).copysign(value)
        return tamis.path_norm(net.with_params(changes)) - tamis.path_norm(net)

    bits = int(bound.value)
    assert error(bits) == pytest.approx(math.exp(bound.terms["log_error"]), rel=1e-5)
    assert error(bits) <= 0.05 < error(bits - 1)


@settings(deadline=None, max_examples=5)
@given(st.floats(-6, 3), st.floats(0, 4), st.floats(0, 10), st.floats(0, 10))
def test_more_accuracy_or_larger_inputs_need_more_bits(at: float, more: float, radius: float, further: float) -> None:
    net = network("two layers", 3)
    bits = sufficient_bits_by_paths(net, 10**at, radius).value
    assert bits <= sufficient_bits_by_paths(net, 10 ** (at - more), radius).value
    assert bits <= sufficient_bits_by_paths(net, 10**at, radius + further).value


def test_beyond_the_bits_that_float64_resolves() -> None:
    net = network("two layers", 4)
    bits = [sufficient_bits_by_paths(net, 2.0**-k).value for k in range(4, 80, 8)]
    assert bits[-1] > 64 > MOST_SEARCHED and all(6 <= b - a <= 10 for a, b in pairwise(bits))
    assert not sufficient_bits_by_paths(net, 2.0**-76).informative
    vast = network("two layers", 4, scale=1e170)
    assert sufficient_bits_by_paths(vast, 1.0).value > 1000


def test_zeros_stay_and_cost_nothing() -> None:
    net = network("three layers", 5)
    pruned = tamis.prune(net, 0.5, by="magnitude").network
    assert sufficient_bits_by_paths(pruned, 1e-3).value <= sufficient_bits_by_paths(net, 1e-3).value
    nothing = net.with_params({name: 0 * net.params[name] for name in net.trainable})
    assert sufficient_bits_by_paths(nothing, 1e-9).value == 2


def test_batch_norm_is_left_alone() -> None:
    net = network("residual", 6)
    assert path_coordinates(net) == {"conv.weight", "last.weight", "last.bias"}
    assert sufficient_bits_by_paths(net, 0.1).terms["coordinates"] == 6 + 8 + 2


# -- by layers ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=6)
@given(
    st.sampled_from(["two layers", "three layers"]), st.integers(0, 2**20), st.floats(0.01, 0.49), st.floats(0.1, 10)
)
def test_theorem_6_1_1(name: str, seed: int, epsilon: float, radius: float) -> None:
    net = network(name, seed)
    bound = sufficient_bits(net, epsilon, radius)
    coarse = on_a_grid(net, bound.terms["log2_step"])
    assert furthest(net, coarse, radius, math.inf) <= epsilon
    # The accuracy in ℓ¹ implies that in the sup-norm, with far fewer bits.
    assert sufficient_bits_by_paths(net, epsilon, radius).value < bound.value


def test_theorem_6_1_1_by_hand() -> None:
    net = graph("two layers").with_params(
        {name: torch.full_like(graph("two layers").params[name], 3.0) for name in graph("two layers").trainable}
    )
    bound = sufficient_bits(net, epsilon=0.25, radius=2.0)
    # max(‖θ‖, W, L) = 4 = ε^−1: k = 1; m = 2·1·2 + 1 + 1 + 1 = 7; η = 2^−14; 2·4·2^14 + 1 points.
    assert (bound.terms["k"], bound.terms["m"], bound.terms["log2_step"]) == (1, 7, -14)
    assert bound.value == 18 and bound.informative
    assert (bound.terms["width"], bound.terms["layers"]) == (4, 2)
    larger = net.with_params({"0.weight": torch.full_like(net.params["0.weight"], 4.1)})
    assert sufficient_bits(larger, epsilon=0.25).terms["k"] == 2


def test_powers_of_two_are_told_apart() -> None:
    """−log₂ ε of an ε just below 2^−10 is 10 in float64, and above 10; the step must be the smaller one."""
    net = network("two layers", 0)
    at, below = (sufficient_bits(net, epsilon).terms for epsilon in (2.0**-10, math.nextafter(2.0**-10, 0)))
    assert at["log2_step"] / at["m"] == -10 and below["log2_step"] / below["m"] == -11
    wide = (
        sufficient_bits(net, 0.25, radius=2.0**60).terms["m"],
        sufficient_bits(net, 0.25, radius=2.0**60 + 2**9).terms["m"],
    )
    assert wide[1] == wide[0] + 1


def test_steps_that_underflow_are_not_zero() -> None:
    """Half of the smallest number moves entries, though float64 has no such step; the largest cannot move further."""
    values = torch.tensor([3 * 2.0**-1074, 2.0**-1074], dtype=torch.float64)
    assert [2.0**-1074 * k for k in (2, 1)] <= _moves(values, 2, capped=True).tolist()
    net = network("two layers", 0).to(torch.float64)
    huge = net.with_params({"0.weight": torch.full_like(net.params["0.weight"], 1.7e308)})
    with pytest.raises(InvalidParameters, match=r"the largest of \|0\.weight\| is 1\.7e\+308"):
        sufficient_bits_by_paths(huge, 0.1)


def test_errors() -> None:
    net = network("two layers", 0)
    for epsilon in (0.0, 0.5, -1.0):
        with pytest.raises(AssumptionViolated, match=f"0 < epsilon < 1/2, got epsilon = {epsilon}"):
            sufficient_bits(net, epsilon)
    with pytest.raises(AssumptionViolated, match="two layers at least, this network has 1"):
        sufficient_bits(tamis.trace(nn.Linear(2, 2), torch.zeros(1, 2)), 0.1)
    with pytest.raises(AssumptionViolated, match=r"layered fully connected.*aten.conv1d.* at conv"):
        sufficient_bits(graph("residual"), 0.1)
    with pytest.raises(InvalidInput, match="radius = -1"):
        sufficient_bits(net, 0.1, radius=-1)
    with pytest.raises(InvalidInput, match="epsilon = 0"):
        sufficient_bits_by_paths(net, 0.0)
    with pytest.raises(InvalidInput, match="radius = inf"):
        sufficient_bits_by_paths(net, 0.1, radius=math.inf)
    with pytest.raises(InvalidInput, match="needs a Network, got Residual"):
        sufficient_bits_by_paths(Residual(), 0.1)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOp, match=r"aten\.gelu"):
        sufficient_bits_by_paths(tamis.trace(nn.Sequential(nn.Linear(2, 2), nn.GELU()), torch.zeros(1, 2)), 0.1)
