"""The product of layers' norms: closed form, never below the path-norm, equal to it once normalized."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from draws import normal
from torch import nn

import tamis
from tamis.bounds.layer_product import layer_product
from tamis.bounds.lipschitz_input import lipschitz_input
from tamis.errors import InvalidInput

WIDTHS = (4, 6, 5, 3)


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    layers = [nn.Linear(i, o, bias=False) for i, o in pairwise(WIDTHS)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    return tamis.trace(model, torch.zeros(1, 4)).to(torch.float64)


def randomized(net: tamis.Network, seed: int) -> tamis.Network:
    generator = torch.Generator().manual_seed(seed)
    return net.with_params({name: normal(generator, *net.params[name].shape) for name in sorted(net.trainable)})


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_product_of_the_norms_of_the_layers(net: tamis.Network, seed: int) -> None:
    net = randomized(net, seed)
    *hidden, last = (net.params[f"{i}.weight"].abs() for i in (0, 2, 4))
    product = math.prod(float(weight.sum(1).max()) for weight in hidden)
    assert layer_product(net, r=math.inf).value == pytest.approx(product * float(last.sum(1).max()))
    assert layer_product(net).value == pytest.approx(product * float(last.sum()))


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_it_is_never_below_the_path_norm_and_meets_it_when_normalized(net: tamis.Network, seed: int, q: float) -> None:
    net = randomized(net, seed)
    bound = layer_product(net, q)
    assert bound.log_value > bound.terms["log_path_norm"] and not bound.informative
    assert bound.terms["log_path_norm"] == pytest.approx(tamis.path_norm(net, q, log=True))
    unit = layer_product(tamis.normalize(net, q), q)
    assert unit.informative and unit.log_value == pytest.approx(bound.terms["log_path_norm"])


def test_it_depends_on_scales(net: tamis.Network) -> None:
    net = randomized(net, 0)
    uneven = tamis.rescale(net, seed=1)
    assert layer_product(uneven).log_value > layer_product(net).log_value + 1
    assert layer_product(uneven).log_value > lipschitz_input(uneven).log_value


def test_errors(net: tamis.Network) -> None:
    with pytest.raises(InvalidInput, match="got q = inf"):
        layer_product(net, q=math.inf)
