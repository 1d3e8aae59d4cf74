"""Theorem 3.3.1 attacked: by chance, by ascent on the pair of inputs, and in closed form."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from draws import normal
from torch import Tensor, nn

import tamis
from tamis.bounds.lipschitz_input import lipschitz_input
from tamis.citations import CITATIONS
from tamis.errors import InvalidInput, UnsupportedOp

NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)), (4,)),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
        ),
        (1, 6, 6),
    ),
}


@cache
def graph(name: str) -> tamis.Network:
    model, shape = NETWORKS[name]
    return tamis.trace(model.eval(), torch.zeros(1, *shape)).to(torch.float64)


def traced(name: str, seed: int = 0) -> tamis.Network:
    generator, net = torch.Generator().manual_seed(seed), graph(name)
    return net.with_params({key: normal(generator, *net.params[key].shape) for key in sorted(net.trainable)})


def slope(net: tamis.Network, x: Tensor, y: Tensor, r: float) -> Tensor:
    """‖R(x) − R(y)‖_r / ‖x − y‖_∞ for each pair."""
    apart = torch.linalg.vector_norm((net(x) - net(y)).flatten(1), r, dim=1)
    return apart / (x - y).flatten(1).abs().amax(1)


@pytest.mark.parametrize("r", [0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_pair_of_inputs_is_steeper(name: str, r: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for seed in range(2):
        net = traced(name, seed)
        bound = lipschitz_input(net, r)
        shape = (160, *net.input_shapes[0][1:])
        x, y = (3 * normal(generator, *shape) for _ in range(2))
        assert float(slope(net, x, y, r).max()) <= bound.value * (1 + 1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_ascent_on_the_inputs_does_not_get_beyond(name: str) -> None:
    net = traced(name)
    bound = lipschitz_input(net).value
    generator = torch.Generator().manual_seed(2)
    shape = (16, *net.input_shapes[0][1:])
    x, y = (normal(generator, *shape).requires_grad_() for _ in range(2))
    climber = torch.optim.Adam([x, y], lr=0.05)
    for _ in range(40):
        climber.zero_grad()
        (-slope(net, x, y, 1.0).sum()).backward()
        climber.step()
        with torch.no_grad():
            assert float(slope(net, x, y, 1.0).max()) <= bound * (1 + 1e-9)


def test_a_linear_layer_attains_it() -> None:
    net = tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3))
    weight = net.params["weight"].double()
    bound = lipschitz_input(net, math.inf)
    assert bound.value == pytest.approx(float(weight.abs().sum(1).max()))
    row = weight[weight.abs().sum(1).argmax()]
    x = row.sign()[None].float()
    assert float((net(x) - net(-x)).abs().max() / 2) == pytest.approx(bound.value, rel=1e-5)


def test_biases_cancel() -> None:
    net = traced("perceptron")
    shifted = net.with_params({"4.bias": 100 + net.params["4.bias"], "0.bias": 100 * net.params["0.bias"]})
    assert lipschitz_input(shifted).value == pytest.approx(lipschitz_input(net).value, rel=1e-12)
    assert lipschitz_input(net).terms["log_path_norm"] > lipschitz_input(net).log_value
    assert lipschitz_input(net).value == pytest.approx(tamis.path_norm(net, part="input"))


def test_it_does_not_depend_on_scales_and_never_overflows() -> None:
    net = traced("perceptron")
    assert lipschitz_input(tamis.rescale(net, seed=3)).log_value == pytest.approx(lipschitz_input(net).log_value)
    huge = net.with_params({key: 1e150 * value for key, value in net.params.items()})
    bound = lipschitz_input(huge)
    assert bound.value == math.inf and bound.log_value == pytest.approx(
        lipschitz_input(net).log_value + 3 * math.log(1e150)
    )
    assert bound.informative and bound.citation in CITATIONS
    nothing = lipschitz_input(net.with_params({key: 0 * value for key, value in net.params.items()}))
    assert nothing.value == 0 and nothing.log_value == -math.inf


def test_errors() -> None:
    with pytest.raises(InvalidInput, match="got r = 0"):
        lipschitz_input(traced("perceptron"), r=0)
    with pytest.raises(UnsupportedOp, match=r"aten\.tanh"):
        lipschitz_input(tamis.trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.zeros(1, 2)))
