"""The k smallest of many scores are found exactly, without sorting them or copying them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

SAMPLED = 257  # one in so many scores is looked at to guess the threshold; a prime, to be in step with no layout
SPREAD = 5.0  # standard deviations of the sample's rank that the guess allows for
INFINITY = float("inf")

Visitor = Callable[[str, Tensor], None]
Sweep = Callable[[Visitor], None]


def keep_all_but_smallest(sweep: Sweep, counts: Mapping[tuple[str, ...], int]) -> dict[str, Tensor]:
    """Return masks that are False for so many of the smallest scores in each group of parameters, True for the others.

    Of equal scores, those of the alphabetically first name go first, and within it those of the lowest index.

    One sweep over the scores takes a sample, which brackets each group's threshold; a second one compares every score
    with the bracket and gathers what lies inside. So no more than one parameter's scores need to exist at a time.

    Args:
        sweep: shows every parameter's scores, in any order, to the function that it is called with.
        counts: how many scores go in each group, by the names of its parameters; no parameter is in two.

    Example:
        >>> def sweep(visit):
        ...     visit("b", torch.tensor([1.0, 2.0]))
        ...     visit("a", torch.tensor([3.0, 1.0]))
        >>> keep_all_but_smallest(sweep, {("a", "b"): 1})
        {'a': tensor([ True, False]), 'b': tensor([True, True])}
    """
    groups = [_Group(names, count) for names, count in counts.items()]
    group_of = {name: group for group in groups for name in group.names}
    sweep(lambda name, score: group_of[name].sample(name, score))
    for group in groups:
        group.guess()
    while any(group.missed for group in groups):  # once, but where a sample misleads
        sweep(lambda name, score: group_of[name].gather(name, score))
        for group in groups:
            group.widen()
    return {name: mask for group in groups for name, mask in group.find_masks().items()}


class _Group:
    """A group holds the scores of some parameters around the `count`-th smallest of them."""

    def __init__(self, names: Sequence[str], count: int) -> None:
        self.names, self.count = sorted(names), count
        self.samples: dict[str, Tensor] = {}
        self.total, self.low, self.high = 0, -INFINITY, INFINITY
        self.missed = True
        self.below: dict[str, int] = {}  # how many scores are less than `low`
        self.above: dict[str, Tensor] = {}  # which are greater than `high`
        self.places: dict[str, Tensor] = {}  # where the others are,
        self.inside: dict[str, Tensor] = {}  # and what

    def sample(self, name: str, score: Tensor) -> None:
        """Take a sample of one parameter's scores."""
        self.samples[name] = score.flatten()[::SAMPLED].clone().cpu()  # a mere view would keep all of them
        self.total += score.numel()

    def guess(self) -> None:
        """Guess from the sample a bracket that very likely holds the threshold."""
        assert 0 <= self.count <= self.total, f"{self.count} of {self.total} scores"
        sample = torch.cat([self.samples.pop(name) for name in self.names])
        # Comparing across dtypes would round the threshold.
        self.dtype = torch.promote_types(sample.dtype, torch.float32)
        if self.count == 0:
            self.high = -INFINITY
            return
        fraction = self.count / self.total
        # The rank of the threshold in the sample is about binomial; + 1 covers samples of a few scores. A bracket that
        # misses costs another sweep, never a wrong mask: `widen` counts exactly.
        rank, spread = fraction * len(sample), SPREAD * (len(sample) * fraction * (1 - fraction)) ** 0.5 + 1
        ordered, low, high = sample.to(self.dtype).sort().values, int(rank - spread), int(rank + spread)
        self.low = float(ordered[low]) if low >= 0 else -INFINITY
        self.high = float(ordered[high]) if high < len(ordered) else INFINITY

    def gather(self, name: str, score: Tensor) -> None:
        """Compare one parameter's scores with the bracket."""
        if not self.missed:
            return
        score = score.to(self.dtype).contiguous()  # laid out in the order of the index
        self.above[name], inside = score > self.high, score >= self.low
        self.below[name] = score.numel() - int(inside.count_nonzero())
        self.places[name] = inside.logical_xor_(self.above[name]).flatten().nonzero()[:, 0]
        self.inside[name] = score.flatten()[self.places[name]]

    def widen(self) -> None:
        """Open the bracket on the side on which it missed the threshold, if it did."""
        if not self.missed:
            return
        # Exact counts: the threshold is inside if fewer than `count` scores lie below and at least `count` not above.
        below = sum(self.below.values())
        too_high = self.count > 0 and below >= self.count
        too_low = below + sum(inside.numel() for inside in self.inside.values()) < self.count
        self.low, self.high = -INFINITY if too_high else self.low, INFINITY if too_low else self.high
        self.missed = too_high or too_low

    def find_masks(self) -> dict[str, Tensor]:
        """Return the masks of what is left when the smallest are gone."""
        if self.count == 0:
            return {name: torch.ones_like(self.above[name]) for name in self.names}
        inside = torch.cat([self.inside[name] for name in self.names])
        rank = self.count - sum(self.below.values())
        threshold = inside.kthvalue(rank).values
        # Among scores equal to the threshold only so many go; taken in the order of names and indices, the choice does
        # not depend on the order of the sweep.
        ties = rank - int((inside < threshold).count_nonzero())
        for name in self.names:
            equal = (self.inside[name] == threshold).nonzero()[:, 0]
            stays = self.inside[name] > threshold
            stays[equal[ties:]] = True  # of those that are equal, the first go
            ties = max(ties - len(equal), 0)
            self.above[name].view(-1)[self.places[name]] = stays
        return {name: self.above[name] for name in self.names}
