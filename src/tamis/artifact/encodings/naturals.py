"""Small natural numbers as bytes, the common case in one: 255 means "add 255 and go on"."""

from __future__ import annotations

import numpy as np

from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact

GO_ON = 255


def to_bytes(naturals: Array) -> Array:
    """n becomes ⌊n / 255⌋ times the byte 255, then the byte n mod 255.

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


def from_bytes(coded: Array) -> Array:
    """The naturals that `to_bytes` wrote, as int64: at most 255 times as large, together, as there are bytes."""
    if len(coded) and coded[-1] == GO_ON:
        raise CorruptArtifact("has a sequence of numbers that breaks off within one")
    ends = np.flatnonzero(coded != GO_ON)
    more = np.diff(ends, prepend=-1) - 1
    naturals: Array = GO_ON * more + coded[ends]
    return naturals
