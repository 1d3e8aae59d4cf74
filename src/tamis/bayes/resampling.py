"""Weights of particles: how many of them count, how far an increment can go at once, and resampling.

Particles are of different structures, and are resampled among those of their own. A structure takes places by its
share of the weight, and some for being there, so that it does not die of a few bad rounds: where no jump would bring
it back, chance would decide which structure is left. What it takes beyond its share is made up for by lighter weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

HALVINGS = 60  # of an interval: below the spacing of float64
ROUNDING = 1e-9  # by how much the sum of all weights may be off 1


def effective_size(log_weights: Tensor) -> float:
    """(Σ w)² / Σ w², the effective sample size: from 1, where one particle has all, to their number."""
    return float(torch.exp(2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)))


def normalised(log_weights: Tensor) -> Tensor:
    """Logarithms of weights that sum to 1.

    Of numbers as large as 10⁶, log Σ exp is rounded by more than weights may be off: what is left over is taken again.
    """
    logs = log_weights - log_weights.logsumexp(0)
    left = logs.logsumexp(0)
    return logs if abs(float(left)) < ROUNDING else logs - left


def largest_part(enough: Callable[[float], bool], rest: float = 1.0) -> float:
    """The largest φ ≤ rest of an increment of which enough particles survive, to within the spacing of numbers.

    Args:
        enough: whether they do for a part φ; more of them do for a smaller one.
        rest: how much of the increment is left.
    """
    if enough(rest):
        return rest
    low, high = 0.0, rest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if enough(middle):
            low = middle
        else:
            high = middle
    return high if low == 0.0 else low  # not 0, so that there is always progress


def systematic(log_weights: Tensor, generator: torch.Generator, count: int | None = None) -> Tensor:
    """Which particle takes each place: evenly spaced points, shifted by one random number, in the weights' sum.

    Of n places, a particle of weight w takes ⌊nw⌋ or ⌈nw⌉, and nw on average.

    Args:
        log_weights: (N,).
        generator: of the random number.
        count: n; N where None is given.
    """
    count = len(log_weights) if count is None else count
    sums = torch.softmax(log_weights, 0).cpu().cumsum(0)
    points = (torch.arange(count) + torch.rand((), generator=generator, dtype=torch.float64)) / count
    return torch.searchsorted(sums / sums[-1], points, right=True).clamp(max=len(log_weights) - 1)


def by_structure(structures: Tensor) -> list[Tensor]:
    """The places of the particles of each structure that has any, by the (N,) structures of all."""
    of_each = structures.cpu()
    return [(of_each == number).nonzero()[:, 0] for number in of_each.unique().tolist()]


class Strata:
    """Particles by structure: what each structure weighs, and how many places it gets.

    Of N places, each of the S structures that have particles gets about N((1 − spread) w + spread/S), w being its share
    of the weight, and one at least.

    Args:
        members: the places of the particles of each structure, as `by_structure` gives them.
        log_weights: (N,).
        spread: from 0 to 1.
    """

    def __init__(self, members: Sequence[Tensor], log_weights: Tensor, spread: float) -> None:
        logs = normalised(log_weights).cpu()
        self.members = members
        self.log_weights = logs
        self.log_shares = torch.stack([logs[each].logsumexp(0) for each in members])
        self.places = _dealt(self.log_shares.exp(), len(logs), spread)

    @property
    def alive(self) -> float:
        """The effective sample size, as a part of what it would be after a resampling."""
        within = (2 * self.log_shares - self.places.double().log()).logsumexp(0)
        return float(torch.exp(within - (2 * self.log_weights).logsumexp(0)))

    def resampled(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which particle takes each of N places, and the logarithm of its weight there.

        A particle's weight over all places that it takes is on average what it was, and a structure's always.
        """
        chosen, logs = [], []
        for members, share, count in zip(self.members, self.log_shares, self.places.tolist(), strict=True):
            chosen.append(members[systematic(self.log_weights[members], generator, count)])
            logs.append((share - torch.tensor(count).double().log()).expand(count))
        return torch.cat(chosen), torch.cat(logs)


def _dealt(shares: Tensor, count: int, spread: float) -> Tensor:
    """How many places each structure gets, that sum to their number: what is due, rounded, and one at least."""
    due = count * ((1 - spread) * shares + spread / len(shares))
    dealt = due.floor().clamp(min=1).long()
    while int(dealt.sum()) != count:
        few = int(dealt.sum()) < count
        lacking = due - dealt
        place = lacking.argmax() if few else torch.where(dealt > 1, lacking, float("inf")).argmin()
        dealt[place] += 1 if few else -1
    return dealt
