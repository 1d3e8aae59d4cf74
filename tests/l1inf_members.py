"""Networks of the class SN_{c,o}, many at once, for tests that attack its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "shifted sigmoid": lambda x: torch.sigmoid(x) - 0.5,
}


def draw(widths: Sequence[int], many: int, generator: torch.Generator) -> list[Tensor]:
    """Weights with biases (many, outputs, 1 + inputs) of each layer, sparse as often as not."""
    layers = []
    for before, after in pairwise(widths):
        values = torch.randn(many, after, before + 1, generator=generator, dtype=torch.float64)
        layers.append(values * values.abs() ** 2)
    return layers


def within(layers: Sequence[Tensor], c: float, o: float) -> list[Tensor]:
    """The same networks with each neuron's weights on the sphere ‖·‖₁ = c, or o for the outputs.

    The largest value of a convex function over a ball is on its sphere.
    """
    limits = [c] * (len(layers) - 1) + [o]
    return [v * (limit / v.abs().sum(2, keepdim=True)) for v, limit in zip(layers, limits, strict=True)]


def outputs(layers: Sequence[Tensor], x: Tensor, activation: str) -> Tensor:
    """f(x) for inputs (many or 1, n, m): (many, n, outputs)."""
    values = x
    for position, layer in enumerate(layers):
        if position:
            values = ACTIVATIONS[activation](values)
        values = values @ layer[:, :, 1:].mT + layer[:, None, :, 0]
    return values


def ascend(layers: list[Tensor], objective: Callable[[list[Tensor]], Tensor], steps: int = 60) -> None:
    """Gradient ascent of each network's objective (many,), in place."""
    for layer in layers:
        layer.requires_grad_()
    optimizer = torch.optim.Adam(layers, lr=0.05, maximize=True)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(layers).sum().backward()
        optimizer.step()
    for layer in layers:
        layer.requires_grad_(False)
