"""Natural numbers are written as bytes, small ones in one byte: 255 means "add 255 and go on"."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact

GO_ON = 255
BLOCK = 1 << 16  # bytes that are read at a time: each becomes numbers of 8 bytes, of which few should exist at once


def to_bytes(naturals: Array) -> Array:
    """Write each natural n as ⌊n / 255⌋ times the byte 255, then the byte n mod 255.

    Args:
        naturals: integers ≥ 0 in a row.

    Example:
        >>> to_bytes(np.array([3, 255, 600])).tolist()
        [3, 255, 0, 255, 255, 90]
    """
    more, last = np.divmod(naturals, GO_ON)
    ends = np.cumsum(more + 1) - 1
    coded = np.full(int(ends[-1]) + 1 if len(ends) else 0, GO_ON, dtype=np.uint8)
    coded[ends] = last
    return coded


def iterate_running_sums(coded: Array, plus: int = 0) -> Iterator[Array]:
    """Yield rows of running sums, int64: for each natural that `to_bytes` wrote, the sum of all up to it.

    Args:
        coded: the bytes.
        plus: what to add to each natural.

    Example:
        >>> [sums.tolist() for sums in iterate_running_sums(to_bytes(np.array([3, 255, 600])), plus=1)]
        [[4, 260, 861]]
    """
    if len(coded) and coded[-1] == GO_ON:
        raise CorruptArtifact("has a sequence of numbers that breaks off within one")
    before = 0
    for start in range(0, len(coded), BLOCK):
        block = coded[start : start + BLOCK]
        last = block != GO_ON  # the last byte of a number; the first may stand in the block before
        sums = before + np.cumsum(block + plus * last, dtype=np.int64)
        before = sums[-1]
        if last.any():
            yield sums[last]
