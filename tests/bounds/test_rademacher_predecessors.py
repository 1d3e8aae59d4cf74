"""Rows of Table 4.1: each formula where its architecture is given, a refusal by name where it is not."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import tamis
from tamis.bounds.cross_entropy_gap import cross_entropy_gap
from tamis.bounds.rademacher_arguments import UP_TO_CONSTANTS
from tamis.bounds.rademacher_predecessors import (
    PREDECESSORS,
    barron_klusowski,
    e_ma_wu,
    golowich,
    kakade,
    neyshabur,
    rademacher_predecessors,
)
from tamis.errors import AssumptionViolated, InvalidInput


def network(*widths: int, bias: bool = False) -> tamis.Network:
    layers = [nn.Linear(i, o, bias) for i, o in pairwise(widths)]
    model = nn.Sequential(*[m for layer in layers[:-1] for m in (layer, nn.ReLU())], layers[-1])
    return tamis.trace(model, torch.zeros(1, widths[0]))


def test_one_layer() -> None:
    net = network(5, 1)
    expected = tamis.path_norm(net) * 3 * math.sqrt(math.log(5))
    assert kakade(net, 3.0).value == pytest.approx(expected)
    assert neyshabur(net, 3.0).value == pytest.approx(2 * expected)
    with pytest.raises(AssumptionViolated, match=r"e_ma_wu needs 2 layer\(s\), this network has 1"):
        e_ma_wu(net, 3.0)


def test_several_layers() -> None:
    net = network(5, 7, 4, 1)
    norm, product = tamis.path_norm(net), tamis.product_norm(net)
    assert neyshabur(net, 2.0).value == pytest.approx(norm * 2 * 8 * math.sqrt(math.log(5)))
    assert golowich(net, 2.0).value == pytest.approx(product * 2 * math.sqrt(3 + math.log(5)))
    assert barron_klusowski(net, 2.0).value == pytest.approx(norm * 2 * math.sqrt(3 + math.log(5)))
    assert sorted(rademacher_predecessors(net, 2.0)) == ["barron_klusowski", "golowich", "neyshabur"]


def test_two_layers() -> None:
    net = network(5, 7, 1)
    assert e_ma_wu(net, 2.0).value == pytest.approx(tamis.path_norm(net) * 2 * math.sqrt(math.log(5)))


def test_none_is_ever_informative_and_each_cites_its_own_work() -> None:
    nets = [network(5, 1), network(5, 7, 1), network(5, 7, 4, 1)]
    rows = [row for net in nets for row in rademacher_predecessors(net, 1e-9).values()]
    assert {row.citation for row in rows} == {
        "kakade2008complexity",
        "e2022barron",
        "neyshabur2015norm",
        "golowich2018size",
        "barron2019complexity",
    }
    for row in rows:
        assert not row.informative and UP_TO_CONSTANTS in row.assumptions
        with pytest.raises(AssumptionViolated, match="two classes at least"):
            cross_entropy_gap(row, 100)


@pytest.mark.parametrize("name", PREDECESSORS)
@pytest.mark.parametrize(
    ("net", "why"),
    [
        (network(5, 7, 1, bias=True), "without biases"),
        (network(5, 7, 2), "one output"),
        (network(1, 7, 1), "two inputs"),
    ],
    ids=["biases", "outputs", "inputs"],
)
def test_common_conditions(name: str, net: tamis.Network, why: str) -> None:
    with pytest.raises(AssumptionViolated, match=f"{name} .*{why}"):
        PREDECESSORS[name](net, 1.0)


def test_other_architectures() -> None:
    pooled = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.MaxPool1d(2), nn.Linear(3, 1, bias=False))
    net = tamis.trace(pooled, torch.zeros(1, 1, 4))
    with pytest.raises(AssumptionViolated, match=r"neyshabur needs a graph of ReLU neurons.* 1 pooling layer"):
        neyshabur(net, 1.0)
    with pytest.raises(AssumptionViolated, match=r"golowich needs a layered fully connected.*aten\.max_pool1d"):
        golowich(net, 1.0)
    assert rademacher_predecessors(net, 1.0) == {}


def test_errors() -> None:
    with pytest.raises(InvalidInput, match="sigma = -1"):
        rademacher_predecessors(network(5, 1), -1.0)
    with pytest.raises(InvalidInput, match="sigma = 0"):
        kakade(network(5, 1), 0.0)
