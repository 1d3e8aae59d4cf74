"""Theorem 3.4.1 attacked by ascent on the input, for pruned, rounded, flipped and unrelated parameters."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tamis
from tamis.bounds.lipschitz_parameters import lipschitz_parameters
from tamis.errors import InvalidInput

MODEL = nn.Sequential(
    nn.Conv2d(1, 3, 3),
    nn.BatchNorm2d(3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(12, 6),
    nn.ReLU(),
    nn.Linear(6, 2),
)
SMALL = tamis.trace(nn.Linear(2, 1), torch.zeros(1, 2))
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "pruned": lambda w: w * (w.abs() > 0.5),
    "rounded": lambda w: (w * 4).round() / 4,
    "flipped": lambda w: w * torch.where(torch.arange(w.numel()).view(w.shape) % 5 == 0, -1.0, 1.0),
    "replaced": lambda w: w.flip(0) + 0.1,
}


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    generator = torch.Generator().manual_seed(0)
    traced = tamis.trace(MODEL.eval(), torch.zeros(1, 1, 6, 6)).to(torch.float64)
    return traced.with_params(
        {name: normal(generator, *traced.params[name].shape) for name in sorted(traced.trainable)}
    )


def changed(net: tamis.Network, change: str) -> tamis.Network:
    return net.with_params({name: CHANGES[change](net.params[name]) for name in net.trainable})


@pytest.mark.parametrize(
    ("change", "radius"), [("pruned", 0.3), ("rounded", 1.0), ("flipped", 4.0), ("replaced", 4.0), ("replaced", 0.3)]
)
def test_no_input_of_the_box_drives_outputs_further_apart(net: tamis.Network, change: str, radius: float) -> None:
    other = changed(net, change)
    bound = lipschitz_parameters(net, other, radius)
    generator = torch.Generator().manual_seed(1)
    free = normal(generator, 24, 1, 6, 6).requires_grad_()
    climber = torch.optim.Adam([free], lr=0.1)
    for _ in range(40):
        climber.zero_grad()
        x = radius * free.tanh()
        apart = (net(x) - other(x)).abs().sum(1)
        assert float(apart.detach().max()) <= bound.value * (1 + 1e-9)
        (-apart.sum()).backward()
        climber.step()


def test_the_value_and_its_terms(net: tamis.Network) -> None:
    other = changed(net, "pruned")
    bound = lipschitz_parameters(net, other, radius=3.0)
    assert bound.value == pytest.approx(3 * tamis.path_metric(net, other))
    assert math.exp(bound.terms["log_trivial"]) == pytest.approx(3 * (tamis.path_norm(net) + tamis.path_norm(other)))
    assert lipschitz_parameters(net, other, radius=0.1).value == pytest.approx(float(tamis.path_metric(net, other)))
    # A pruned network is dominated: its distance is a difference of norms, and below their sum.
    assert bound.informative and not lipschitz_parameters(net, other, trivial=bound.value / 4).informative
    assert lipschitz_parameters(net, other, trivial=bound.value).informative
    same = lipschitz_parameters(net, net)
    assert same.value == 0 and same.log_value == -math.inf and same.informative


def test_what_is_known_without_path_norms() -> None:
    saturating = tamis.trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.zeros(1, 2))
    other = saturating.with_params({"0.weight": saturating.params["0.weight"] * 0.5})
    bound = lipschitz_parameters(saturating, other)
    assert bound.value > 0 and not bound.informative and "log_trivial" not in bound.terms
    assert lipschitz_parameters(saturating, other, trivial=1e6).informative


def test_nothing_overflows(net: tamis.Network) -> None:
    pair = (net, changed(net, "pruned"))
    huge = [each.with_params({name: 1e90 * each.params[name] for name in net.trainable}) for each in pair]
    bound = lipschitz_parameters(*huge)
    assert bound.value == math.inf and 600 < bound.log_value < math.inf


@settings(deadline=None, max_examples=15)
@given(st.floats(0, 50), st.floats(0, 50))
def test_it_grows_with_the_radius(first: float, second: float) -> None:
    other = SMALL.with_params({"weight": torch.zeros(1, 2)})
    low, high = (lipschitz_parameters(SMALL, other, radius).value for radius in sorted((first, second)))
    assert low <= high


def test_errors(net: tamis.Network) -> None:
    with pytest.raises(InvalidInput, match="radius = -1"):
        lipschitz_parameters(net, net, radius=-1)
    with pytest.raises(InvalidInput, match="trivial bound ≥ 0, got nan"):
        lipschitz_parameters(net, net, trivial=math.nan)
    with pytest.raises(InvalidInput, match="one and the same graph"):
        lipschitz_parameters(net, tamis.trace(nn.Linear(2, 1), torch.zeros(1, 2)))
