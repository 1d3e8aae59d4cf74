"""Three codings write which entries of a tensor are kept, in C order, as bytes; each is short for other masks.

    bitmask  a bit per entry, 1: kept; the first entry in the highest bit of the first byte; the last byte filled with 0
    gaps     for each kept entry, how many pruned ones stand between it and the kept one before it
    runs     lengths of runs, in turn of pruned and of kept entries; the first may be 0, the last is of kept ones

All entries after the last kept one are pruned. Gaps and runs are written as naturals.py says.

A natural n takes ⌊n / 255⌋ + 1 bytes: at most n + 1, and at most n unless it is 0. A gap of n stands for n + 1 entries,
so gaps never take more bytes than there are entries; of runs only the first may be 0, so they never take more than one
byte beyond that. Longer ones are refused unread, and others are read block by block: whatever a file says, reading a
mask takes little more memory than the mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.encodings import naturals
from tamis.artifact.encodings.base import Array, check_bytes
from tamis.errors import CorruptArtifact


class Coding(ABC):
    """A coding writes a flat mask as bytes."""

    name: ClassVar[str]

    @abstractmethod
    def write(self, mask: Array) -> Array:
        """Return the bytes of a flat boolean array."""

    @abstractmethod
    def read(self, coded: Array, entries: int) -> Array:
        """Read the mask of this many entries, a flat boolean array."""


class Bitmask(Coding):
    name = "bitmask"

    def write(self, mask: Array) -> Array:
        return np.packbits(mask)

    def read(self, coded: Array, entries: int) -> Array:
        if len(coded) != -(-entries // 8):
            raise CorruptArtifact(f"has a bitmask of {len(coded)} bytes for {entries} entries")
        if entries % 8 and coded[-1] & (0xFF >> entries % 8):
            raise CorruptArtifact(f"has a bitmask that keeps entries after the last of {entries}")
        mask: Array = np.unpackbits(coded, count=entries).view(np.bool_)
        return mask


class Gaps(Coding):
    name = "gaps"

    def write(self, mask: Array) -> Array:
        return naturals.to_bytes(np.diff(np.flatnonzero(mask), prepend=-1) - 1)

    def read(self, coded: Array, entries: int) -> Array:
        if len(coded) > entries:
            raise CorruptArtifact(f"has gaps of {len(coded)} bytes for {entries} entries")
        mask = np.zeros(entries, dtype=np.bool_)
        for ends in naturals.iterate_running_sums(coded, plus=1):  # a gap and the kept entry after it
            if ends[-1] > entries:
                raise CorruptArtifact(f"has gaps that lead to entry {ends[-1] - 1} of {entries}")
            mask[ends - 1] = True
        return mask


class Runs(Coding):
    name = "runs"

    def write(self, mask: Array) -> Array:
        padded = np.concatenate(([False], mask, [False]))
        ends = np.flatnonzero(padded[1:] != padded[:-1])  # a run of pruned ones, then of kept ones, and so on
        return naturals.to_bytes(np.diff(ends, prepend=0))

    def read(self, coded: Array, entries: int) -> Array:
        if len(coded) > entries + 1:
            raise CorruptArtifact(f"has runs of {len(coded)} bytes for {entries} entries")
        mask = np.zeros(entries, dtype=np.bool_)
        number, start = 0, 0  # of the runs that were read, and where the next begins
        for ends in naturals.iterate_running_sums(coded):
            lengths = np.diff(ends, prepend=start)
            if not lengths[1 if number == 0 else 0 :].all():  # only the very first may be 0
                raise CorruptArtifact("has runs of pruned and kept entries that do not alternate")
            if ends[-1] > entries:
                raise CorruptArtifact(f"has runs that cover {ends[-1]} entries of {entries}")
            kept = np.arange(number, number + len(ends)) % 2 == 1
            mask[start : ends[-1]] = np.repeat(kept, lengths)
            number, start = number + len(ends), ends[-1]
        if number % 2:
            raise CorruptArtifact("has runs of pruned and kept entries that do not alternate")
        return mask


CODINGS: dict[str, Coding] = {coding.name: coding for coding in (Bitmask(), Gaps(), Runs())}


def to_part(mask: Tensor) -> dict[str, Tensor]:
    """Write the positions where a mask is true as one part, by the shortest coding and under its name."""
    kept = mask.reshape(-1).numpy()
    coded = {name: coding.write(kept) for name, coding in CODINGS.items()}
    shortest = min(coded, key=lambda name: len(coded[name]))
    return {shortest: torch.from_numpy(coded[shortest])}


def bound_bytes(kept: Array) -> int:
    """Compute a lower bound on the bytes of every coding of a flat mask: a byte for each gap or run, or the bitmask."""
    changes = int(np.count_nonzero(kept[1:] != kept[:-1])) + bool(kept[:1].any())
    return min(-(-len(kept) // 8), int(np.count_nonzero(kept)), changes)


def find_part(parts: Mapping[str, Tensor]) -> str | None:
    """Return the name of the part that says what is kept; None if there is none."""
    return next((name for name in CODINGS if name in parts), None)


def from_part(part: Tensor, name: str, entries: int) -> Array:
    """Read the flat mask of this many entries that `to_part` wrote under this name."""
    return CODINGS[name].read(check_bytes(part, name), entries)
