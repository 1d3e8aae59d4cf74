"""`Evidence` holds what two networks did on the same inputs, sample by sample, and counts what claims rest on."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tamis.graph import Array


@dataclass(frozen=True)
class Evidence:
    """Evidence is what was measured of both networks; its tensors have one entry for each sample.

    Rounding differs between machines. Where the best two scores of a network are closer than a few times the rounding
    of their range, another machine may see another answer: such an answer is in doubt, and claims count it as the worse
    of the two. `width` says how many times the rounding; 0 takes the answers as they are.

    Where samples were given several times, as many count as there are distinct inputs, and of all that were given the
    worst: those that count against the small network stay, as often as they came, and the best are left out. What
    follows then holds if the copies are one draw that somebody repeated, and also if they are many draws from a
    distribution that has few values, for a bound from all draws, or from the distinct ones, is never larger. (But for
    one case: the bound of a change of accuracy from 15 samples or fewer may be smaller than one from more, by 0.0071.)

    Attributes:
        samples: how many count.
        given: how many there are.
        digests: the digest of each sample that was given.
        inputs, labels: the sha256 of the data; of labels None where there are none.
        first: the first inputs, where the network is.
        largest_input: the largest magnitude of an entry of an input.
        largest_score: the largest magnitude of an output of either network.
        distances: ‖R_θ(x) − R_θ'(x)‖_∞.
        answers: of the original and of the small network; zeros where the outputs are not scores of classes.
        margins: by how much the best score is above the second, as a part of their range, of both networks.
        known: the labels, if there are any.
        rounding: how far outputs may be off on another machine, relative to how large they are.
    """

    samples: int
    given: int
    digests: Array
    inputs: str
    labels: str | None
    first: tuple[Tensor, ...]
    largest_input: float
    largest_score: float
    distances: Tensor
    answers: tuple[Tensor, Tensor]
    margins: tuple[Tensor, Tensor]
    known: Tensor | None
    rounding: float

    def different(self, width: float) -> int:
        """Count the samples in which the answers differ, or may."""
        return self._count_worst((self.answers[0] != self.answers[1]) | self._find_doubtful(width))

    def errors(self, width: float) -> int:
        """Count the samples in which the small network is wrong, or may be."""
        return self._count_worst(self._find_wrong(1) | self._is_in_doubt(1, width))

    def right(self, network: int, width: float = 0) -> tuple[int, int]:
        """Count the samples given in which the original (0) or the small network (1) is right: at least, and at most.

        Both are the same where no answer is in doubt; for `width` 0, always.
        """
        right, doubtful = ~self._find_wrong(network), self._is_in_doubt(network, width)
        return int((right & ~doubtful).sum()), int((right | doubtful).sum())

    def most_frequent(self) -> int:
        """Count the samples given that are of the most frequent class."""
        assert self.known is not None
        return int(self.known.bincount().max())

    def worse(self, width: float) -> int:
        """Count the samples in which the small network alone is wrong, or may be."""
        return self._count_worst((self._find_wrong(1) & ~self._find_wrong(0)) | self._find_doubtful(width))

    def better(self, width: float) -> int:
        """Count the samples in which the original alone is wrong, beyond doubt."""
        found = int((self._find_wrong(0) & ~self._find_wrong(1) & ~self._find_doubtful(width)).sum())
        # These speak for the small network, so that copies are taken from them first; and a sample that counts as
        # worse cannot count as better as well.
        return max(0, min(found - (self.given - self.samples), self.samples - self.worse(width)))

    def largest_distances(self) -> Tensor:
        """Return the distances that count: the largest, where copies are left out."""
        return self.distances.topk(self.samples).values if self.samples < self.given else self.distances

    def _count_worst(self, bad: Tensor) -> int:
        """Count the bad ones among the samples that count, of which the best are left out."""
        return min(self.samples, int(bad.sum()))

    def _find_wrong(self, network: int) -> Tensor:
        assert self.known is not None
        return self.answers[network] != self.known

    def _find_doubtful(self, width: float) -> Tensor:
        """Return where an answer of either network is in doubt; equal outputs are equal on every machine."""
        return (self._is_in_doubt(0, width) | self._is_in_doubt(1, width)) & (self.distances > 0)

    def _is_in_doubt(self, network: int, width: float) -> Tensor:
        return (
            self.margins[network] < 2 * width * self.rounding
        )  # either of the two scores may be off, towards the other
