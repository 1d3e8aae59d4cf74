"""Resampling works on the weights of particles: how many count, how large an increment may be, and which to copy.

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
    """Compute the effective sample size (Σ w)² / Σ w², from 1, where one particle has all weight, to their number."""
    return float(torch.exp(2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)))


def normalise_log_weights(log_weights: Tensor) -> Tensor:
    """Normalise log-weights so that the weights sum to 1.

    Of numbers as large as 10⁶, log Σ exp is rounded by more than weights may be off: what is left over is taken again.
    """
    logs = log_weights - log_weights.logsumexp(0)
    left = logs.logsumexp(0)
    return logs if abs(float(left)) < ROUNDING else logs - left


def find_largest_part(enough: Callable[[float], bool], rest: float = 1.0) -> float:
    """Find the largest φ ≤ rest of an increment that enough particles survive, by bisection.

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


def resample_systematically(log_weights: Tensor, generator: torch.Generator, count: int | None = None) -> Tensor:
    """Draw the particle for each place by systematic resampling: evenly spaced points with one random shift.

    Of n places, a particle of weight w takes ⌊nw⌋ or ⌈nw⌉, and nw on average.

    Args:
        log_weights: (N,).
        generator: of the random number.
        count: n; N where None is given.
    """
    count = len(log_weights) if count is None else count
    # On the CPU, so that the same seed resamples alike on any device; divided by the last sum, which rounding leaves
    # a little off 1, and clamped for a point that rounds to 1.
    sums = torch.softmax(log_weights, 0).cpu().cumsum(0)
    points = (torch.arange(count) + torch.rand((), generator=generator, dtype=torch.float64)) / count
    return torch.searchsorted(sums / sums[-1], points, right=True).clamp(max=len(log_weights) - 1)


def group_by_structure(structures: Tensor) -> list[Tensor]:
    """List the places of the particles of each structure that has any, from the (N,) structures of all."""
    of_each = structures.cpu()
    return [(of_each == number).nonzero()[:, 0] for number in of_each.unique().tolist()]


class Strata:
    """Strata group particles by structure, with the weight of each structure and the number of its places.

    Of N places, each of the S structures that have particles gets about N((1 − spread) w + spread/S), w being its share
    of the weight, and one at least.

    Args:
        members: the places of the particles of each structure, as `group_by_structure` returns them.
        log_weights: (N,).
        spread: from 0 to 1.
    """

    def __init__(self, members: Sequence[Tensor], log_weights: Tensor, spread: float) -> None:
        logs = normalise_log_weights(log_weights).cpu()
        self.members = members
        self.log_weights = logs
        self.log_shares = torch.stack([logs[each].logsumexp(0) for each in members])
        self.places = _allot_places(self.log_shares.exp(), len(logs), spread)

    @property
    def relative_size(self) -> float:
        """Return the effective sample size, as a share of its value after a resampling."""
        # After resampling, the n_s places of a structure share its weight W_s evenly: Σ w² is Σ_s W_s² / n_s.
        within = (2 * self.log_shares - self.places.double().log()).logsumexp(0)
        return float(torch.exp(within - (2 * self.log_weights).logsumexp(0)))

    def resample(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw which particle takes each of N places, and also return the logarithm of its weight there.

        A particle's weight over all places that it takes is on average what it was, and a structure's always.
        """
        chosen, logs = [], []
        for members, share, count in zip(self.members, self.log_shares, self.places.tolist(), strict=True):
            chosen.append(members[resample_systematically(self.log_weights[members], generator, count)])
            logs.append((share - torch.tensor(count).double().log()).expand(count))
        return torch.cat(chosen), torch.cat(logs)


def _allot_places(shares: Tensor, count: int, spread: float) -> Tensor:
    """Allot `count` places to structures, to each its due share, rounded, and at least one."""
    due = count * ((1 - spread) * shares + spread / len(shares))
    # Rounding down leaves places over, and the minimum of one may take too many: either is settled one by one.
    dealt = due.floor().clamp(min=1).long()
    while int(dealt.sum()) != count:
        few = int(dealt.sum()) < count
        lacking = due - dealt
        place = lacking.argmax() if few else torch.where(dealt > 1, lacking, float("inf")).argmin()
        dealt[place] += 1 if few else -1
    return dealt
