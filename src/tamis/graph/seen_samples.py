"""A network remembers the samples it was made with, by digests: they cannot say how it does on new data.

A sample is what the network is fed: one input of it, its numbers as the network takes them. So the same sample has the
same digest whatever batch, loader, dataset or dtype it comes in, as long as it is normalised by the same arithmetic.
A network that was cast to bfloat16, or to float64 and is given more digits, is fed other numbers: to it they are other
samples. Digests of training data are those before augmentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
Purpose = Literal["training", "calibration", "search"]

DIGEST_BITS = 64
CELL_BITS = 40  # of a digest that are remembered: 10,000 new samples hit one of 50,000 by chance once in 2,200 times
CELLS = 2**CELL_BITS
PURPOSES: tuple[Purpose, ...] = ("training", "calibration", "search")
ATTRIBUTE = "_tamis_seen_samples"  # of a module
# Of numpy's dtypes by their kinds, those that hold all others exactly: a number has the same bytes in a network of
# float32, and in one of float64 that was made of it.
WIDEST = {"f": np.float64, "c": np.complex128, "i": np.int64, "u": np.int64, "b": np.int64}


def sample_digests(inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype], batched: bool = True) -> Array:
    """Return a 64-bit number for each sample of a batch, the same wherever the sample stands.

    Args:
        inputs: of a network, the first dimension running over samples.
        dtypes: those that the network takes them in.
        batched: if False, the inputs are one sample.

    Example:
        >>> sample_digests((torch.zeros(2, 3),), (torch.float32,)).shape
        (2,)
    """
    as_fed = [
        _convert_as_fed(value if batched else value[None], dtype) for value, dtype in zip(inputs, dtypes, strict=True)
    ]
    wide = [WIDEST[value.dtype.kind] for value in as_fed]
    kinds = (f"{dtype.__name__} {value.shape[1:]}" for dtype, value in zip(wide, as_fed, strict=True))
    start = hashlib.sha256("; ".join(kinds).encode())
    found = np.empty(len(as_fed[0]), dtype=np.uint64)
    for place, parts in enumerate(zip(*as_fed, strict=True)):
        digest = start.copy()
        for part, dtype in zip(parts, wide, strict=True):
            digest.update(np.ascontiguousarray(part, dtype).data)  # a sample at a time: a batch would fill the memory
        found[place] = int.from_bytes(digest.digest()[: DIGEST_BITS // 8], "little")
    return found


def _convert_as_fed(value: Tensor, dtype: torch.dtype) -> Array:
    """Return the numbers that the network takes, on the CPU, with +0.0 for −0.0 and at least one number per sample."""
    value = value.detach().to("cpu", dtype)
    if dtype.is_floating_point or dtype.is_complex:
        value = value + 0.0
    if dtype.is_floating_point and dtype.itemsize < 4:  # numpy has no bfloat16
        value = value.float()
    return value.numpy() if value[:1].numel() else np.zeros((len(value), 1), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SeenSamples:
    """A set of seen samples is stored as cells, which are the first 40 bits of their digests.

    Where there is no room for all of them, those in the first cells are remembered, which is as good as a choice at
    random, for digests are.

    Attributes:
        cells: of the samples, ascending, each once, and all below the limit.
        limit: up to here all are remembered, and nothing from here on.
        purposes: what they were seen for.

    Example:
        >>> images = torch.arange(30.0).reshape(10, 3)
        >>> seen = SeenSamples.of(sample_digests((images,), (torch.float32,)), "calibration")
        >>> seen.count(sample_digests((images[:7],), (torch.float32,)))
        7
    """

    cells: Array
    limit: int = CELLS
    purposes: tuple[Purpose, ...] = ()

    @classmethod
    def of(cls, digests: Array, purpose: Purpose) -> SeenSamples:
        """Make the set of the samples with these digests."""
        return cls(np.unique(_find_cells(digests)), purposes=(purpose,)) if len(digests) else NOTHING_SEEN

    def __bool__(self) -> bool:
        return len(self.cells) > 0

    def __or__(self, other: SeenSamples) -> SeenSamples:
        """Return the union below the lower limit of the two sets, since beyond it much is forgotten."""
        limit = min(self.limit, other.limit)
        cells = np.union1d(self.cells, other.cells)
        purposes = tuple(each for each in PURPOSES if each in self.purposes + other.purposes)
        return SeenSamples(cells[cells < limit], limit, purposes)

    @property
    def share(self) -> float:
        """Return the share of all samples that is remembered."""
        return self.limit / CELLS

    @property
    def chance(self) -> float:
        """Return the probability that a sample which was never seen is taken for a seen one."""
        return len(self.cells) / CELLS

    def count(self, digests: Array) -> int:
        """Return how many of these samples are remembered, each counted once."""
        # By whole digests, not by cells: two samples that share a cell count as two.
        wanted = _find_cells(np.unique(digests))
        return int(np.isin(wanted, self.cells).sum())

    def first(self, count: int) -> SeenSamples:
        """Return a set with at most this many samples."""
        if count >= len(self.cells):
            return self
        # The first cell that is dropped becomes the limit, so that all samples below it are still remembered.
        return SeenSamples(self.cells[:count], int(self.cells[count]), self.purposes)


NOTHING_SEEN = SeenSamples(np.empty(0, dtype=np.int64))


def _find_cells(digests: Array) -> Array:
    return (digests >> np.uint64(DIGEST_BITS - CELL_BITS)).astype(np.int64)


def seen_by(model: nn.Module) -> SeenSamples:
    """Return the samples that a module, or a part of it, remembers having seen."""
    found = (SeenSamples(*vars(part)[ATTRIBUTE]) for part in model.modules() if ATTRIBUTE in vars(part))
    return reduce(SeenSamples.__or__, found, NOTHING_SEEN)


def remember(model: nn.Module, seen: SeenSamples) -> None:
    """Let one of our modules remember more samples, as its copies then do, too.

    It is kept as plain data, so that a module which is pickled needs no tamis to be read.
    """
    if seen:
        both = seen_by(model) | seen
        setattr(model, ATTRIBUTE, (both.cells, both.limit, both.purposes))
