"""Weights of particles: how many of them count, how far an increment can go at once, and resampling."""

from __future__ import annotations

import torch
from torch import Tensor

HALVINGS = 60  # of an interval: below the spacing of float64


def effective_size(log_weights: Tensor) -> float:
    """(Σ w)² / Σ w², the effective sample size: from 1, where one particle has all, to their number."""
    return float(torch.exp(2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)))


def largest_part(log_weights: Tensor, increment: Tensor, least: float, rest: float = 1.0) -> float:
    """The largest φ ≤ rest for which weights · exp(−φ increment) keep an effective size of at least `least`.

    Args:
        log_weights: (N,), before the increment.
        increment: (N,), in the exponent.
        least: the effective size to keep.
        rest: how much of the increment is left.
    """
    if effective_size(log_weights - rest * increment) >= least:
        return rest
    low, high = 0.0, rest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if effective_size(log_weights - middle * increment) >= least:
            low = middle
        else:
            high = middle
    return high if low == 0.0 else low  # not 0, so that there is always progress


def systematic(log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """Which particle takes each of N places: N evenly spaced points, shifted by one random number, in the weights' sum.

    A particle of weight w takes ⌊Nw⌋ or ⌈Nw⌉ places, and Nw of them on average.
    """
    count = len(log_weights)
    sums = torch.softmax(log_weights, 0).cpu().cumsum(0)
    points = (torch.arange(count) + torch.rand((), generator=generator, dtype=torch.float64)) / count
    return torch.searchsorted(sums / sums[-1], points, right=True).clamp(max=count - 1)
