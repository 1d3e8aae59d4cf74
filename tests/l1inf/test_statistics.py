"""The norms and zeros of a model's layers, against loops and against the constants that the bounds read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tamis
from tamis.bounds.l1inf_class import l1inf_constants
from tamis.errors import InvalidInput
from tamis.l1inf import statistics


def by_hand(weight: list[list[float]], bias: list[float]) -> list[float]:
    return [sum(map(abs, row)) + abs(offset) for row, offset in zip(weight, bias, strict=True)]


def test_norms_zeros_and_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        model[0].weight[:, 1] = 0
        model[0].bias.zero_()
        model[2].weight[0, :4] = 0
    found = statistics(model)
    expected = [by_hand(model[i].weight.tolist(), model[i].bias.tolist()) for i in (0, 2, 4)]
    assert [layer.name for layer in found.layers] == ["0", "2"] and found.k == 2
    assert [layer.norm for layer in found.layers] == pytest.approx([max(expected[0]), max(expected[1])], rel=1e-14)
    assert found.o == pytest.approx(expected[2], rel=1e-14)
    assert found.c == max(layer.norm for layer in found.layers)
    assert [(layer.zeros, layer.weights) for layer in found.layers] == [(6, 24), (4, 30)]
    assert found.layers[0].sparsity == 0.25 and found.sparsity == 10 / 54


def test_they_are_the_constants_of_the_bounds() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 2))
    constants = l1inf_constants(tamis.trace(model, torch.zeros(1, 2, 4, 4)))
    found = statistics(model)
    assert found.k == constants.k
    assert found.c == pytest.approx(constants.c, rel=1e-12)
    assert found.o == pytest.approx(constants.o, rel=1e-12)


def test_layers_that_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    assert [layer.name for layer in statistics(model, exclude=["0", "2"]).layers] == ["1"]
    everything = statistics(model, exclude=())
    assert everything.k == 3 and everything.o == ()


def test_weights_without_a_norm_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(InvalidInput, match="layer '0'"):
        statistics(model)
