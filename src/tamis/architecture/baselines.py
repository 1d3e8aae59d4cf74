"""What a search has to beat: as many connections at random, or those that iterative magnitude pruning leaves.

Iterative magnitude pruning itself is `tamis.prune.iterative.prune_iteratively`; its masks make an architecture:

    amount = amount_per_round(sparsity=0.9, rounds=10)
    rounds = prune_iteratively(model, data, settings, "out", rounds=10, amount=amount, rewind=0, halve_final=False)
    found = Architecture(rounds[-1].compressed.masks)
"""

from __future__ import annotations

import torch
from torch import nn

from tamis.architecture.architecture import Architecture, connections_kept, keep_largest
from tamis.architecture.layers import maskable_weights
from tamis.errors import InvalidInput
from tamis.graph.selection import Patterns, lasting


def random_architecture(
    model: nn.Module, sparsity: float, seed: int, include: Patterns = None, exclude: Patterns = None
) -> Architecture:
    """So many connections of a model, each as likely as any other (section 3.2, "Rnd").

    Args:
        model: only names and shapes of its weights count.
        sparsity: the fraction of connections that goes, exact to one connection.
        seed: the same one gives the same masks, on any device.
        include, exclude: as `tamis.architecture.TwoTemperature` takes them.

    Example:
        >>> random_architecture(model, sparsity=0.9, seed=0).sparsity
        0.9

    Reference: colombo2021architecture.
    """
    shapes = {
        name: model.get_parameter(name).shape for name in maskable_weights(model, lasting(include), lasting(exclude))
    }
    generator = torch.Generator().manual_seed(seed)
    scores = {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    keep = connections_kept(sparsity, sum(score.numel() for score in scores.values()))
    return Architecture(keep_largest(scores, keep))


def amount_per_round(sparsity: float, rounds: int) -> float:
    """The fraction p of the remaining weights to prune in each round to end at a sparsity: (1 − p)^rounds = 1 − s.

    Each round rounds to whole weights, in each layer: the sparsity it ends at can differ by a few of them.

    Example:
        >>> amount_per_round(sparsity=0.75, rounds=2)
        0.5

    Reference: colombo2021architecture.
    """
    if not (type(rounds) is int and rounds >= 1):
        raise InvalidInput(f"rounds={rounds!r} must be a whole number ≥ 1")
    if isinstance(sparsity, bool) or not 0.0 <= sparsity < 1.0:
        raise InvalidInput(f"sparsity={sparsity!r} must be a fraction from 0 to less than 1")
    return 1 - (1 - sparsity) ** (1 / rounds)
