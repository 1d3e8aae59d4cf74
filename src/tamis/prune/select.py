"""The k smallest of many scores, exactly, without sorting them or copying them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

SAMPLED = 257  # one in so many scores is looked at to guess the threshold; a prime, to be in step with no layout
SPREAD = 5.0  # standard deviations of the sample's rank that the guess allows for
INFINITY = float("inf")


def keep_all_but_smallest(scores: Mapping[str, Tensor], names: Iterable[str], count: int) -> dict[str, Tensor]:
    """False for the `count` smallest of the scores named, True for the others.

    Of equal scores, those of the alphabetically first name go first, and within it those of the lowest index.

    A sample brackets the `count`-th smallest score; one pass counts what lies below the bracket and gathers what lies
    inside, another compares every score with the threshold. So `scores` may compute its tensors when they are asked
    for, and needs to hold only one at a time.

    Example:
        >>> keep_all_but_smallest({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([1.0, 2.0])}, "ab", 1)
        {'a': tensor([ True, False]), 'b': tensor([True, True])}
    """
    if count == 0:
        return {name: torch.ones_like(scores[name], dtype=torch.bool) for name in names}
    bracketed = _Bracketed(scores, names, count)
    threshold, ties = bracketed.threshold()
    kept = {}
    for name in bracketed.names:
        score, equal = bracketed.score(name), int((bracketed.inside[name] == threshold).count_nonzero())
        kept[name] = score > threshold
        if equal > ties:  # the first of them go, the others stay
            kept[name].view(-1)[(score == threshold).flatten().nonzero()[ties:, 0]] = True
        ties = max(ties - equal, 0)
    return kept


class _Bracketed:
    """Scores around the `count`-th smallest: how many lie `below` a bracket, and which lie `inside` it, by name."""

    def __init__(self, scores: Mapping[str, Tensor], names: Iterable[str], count: int) -> None:
        self.scores, self.names, self.count = scores, sorted(names), count
        sample, total = self._sample()
        assert 0 < count <= total, f"{count} of {total} scores"
        # Comparing across dtypes would round the threshold.
        self.dtype = torch.promote_types(sample.dtype, torch.float32)
        low, high = _guess(sample, count / total)
        self._gather(low, high)
        if self.below >= count:
            self._gather(-INFINITY, high)
        if self.below + sum(inside.numel() for inside in self.inside.values()) < count:
            self._gather(low, INFINITY)

    def score(self, name: str) -> Tensor:
        """The scores of one parameter in the dtype in which all are compared, laid out in the order of their index."""
        return self.scores[name].to(self.dtype).contiguous()

    def threshold(self) -> tuple[Tensor, int]:
        """The `count`-th smallest score, and how many scores equal to it are among the `count` smallest."""
        inside = torch.cat([self.inside[name] for name in self.names])
        rank = self.count - self.below
        threshold = inside.kthvalue(rank).values
        return threshold, rank - int((inside < threshold).count_nonzero())

    def _sample(self) -> tuple[Tensor, int]:
        parts, total = [], 0
        for name in self.names:
            score = self.scores[name].flatten()
            parts.append(score[::SAMPLED].cpu())
            total += score.numel()
        return torch.cat(parts), total

    def _gather(self, low: float, high: float) -> None:
        self.below = 0
        self.inside: dict[str, Tensor] = {}
        for name in self.names:
            score = self.score(name)
            self.below += int((score < low).count_nonzero())
            self.inside[name] = score[(score >= low) & (score <= high)]


def _guess(sample: Tensor, fraction: float) -> tuple[float, float]:
    """Where the quantile of all scores lies, very likely, judging by a sample of them."""
    rank, spread = fraction * len(sample), SPREAD * (len(sample) * fraction * (1 - fraction)) ** 0.5 + 1
    ordered = sample.to(torch.promote_types(sample.dtype, torch.float32)).sort().values
    low, high = int(rank - spread), int(rank + spread)
    return (
        float(ordered[low]) if low >= 0 else -INFINITY,
        float(ordered[high]) if high < len(ordered) else INFINITY,
    )
