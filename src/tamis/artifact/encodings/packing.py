"""Packing writes indices of a few levels as bytes: five ternary digits in each for three levels, else fields of bits.

    3 levels    a byte is d₀ + 3 d₁ + 9 d₂ + 27 d₃ + 81 d₄, of five indices one after the other
    M levels    ⌈log₂ M⌉ bits for each index, from the lowest bit of the first byte on; low bits come first

What is left of the last byte is zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact
from tamis.kernels import dispatch

DIGITS = 5  # ternary ones in a byte: 3⁵ = 243
POWERS = 3 ** np.arange(DIGITS)
TABLE = (np.arange(256)[:, None] // POWERS % 3).astype(np.uint8)  # the digits of each byte
WHOLE = {2: 8, 3: DIGITS, 4: 4, 16: 2}  # levels of which so many indices fill a byte, as digits of that base
BLOCK = 1 << 14  # bytes, or groups of fields, at a time: what is made of them stays in the cache


def pack(indices: Array, levels: int) -> Array:
    """Pack a row of indices into bytes.

    Args:
        indices: uint8 or int32, each below `levels`.
        levels: how many there are, 2 to 65536.

    Example:
        >>> pack(np.array([1, 2, 0, 0, 1, 2], dtype=np.uint8), levels=3).tolist()
        [88, 2]
        >>> pack(np.array([1, 3, 0, 2, 3], dtype=np.uint8), levels=4).tolist()
        [141, 3]
    """
    packed = np.empty(compute_packed_size(len(indices), levels), dtype=np.uint8)
    extension = dispatch.native()
    if extension is not None and levels in WHOLE:
        extension.pack_digits(np.ascontiguousarray(indices), levels, WHOLE[levels], packed)
        return packed
    group, size = _choose_group(levels)
    for number, start in enumerate(range(0, len(indices), BLOCK * group)):
        block = _fill_up(indices[start : start + BLOCK * group], group)
        coded = _of_digits(block) if levels == 3 else _of_fields(block, size)
        place = packed[number * BLOCK * size :][: BLOCK * size]
        place[:] = coded.reshape(-1)[: len(place)]
    return packed


def unpack(packed: Array, count: int, levels: int) -> Array:
    """Unpack the indices that `pack` wrote, in the dtype of `Codes`; bit fields may give indices beyond the levels.

    Args:
        packed: the bytes.
        count: of the indices.
        levels: how many there are, 2 to 65536.

    Example:
        >>> unpack(np.array([88, 2], dtype=np.uint8), count=6, levels=3).tolist()
        [1, 2, 0, 0, 1, 2]
    """
    if len(packed) != compute_packed_size(count, levels):
        raise CorruptArtifact(f"has {len(packed)} bytes of codes for {count} entries of {levels} levels")
    indices = np.empty(count, dtype=np.uint8 if levels <= 256 else np.int32)
    group, size = _choose_group(levels)
    for number, start in enumerate(range(0, len(packed), BLOCK * size)):
        block = _fill_up(packed[start : start + BLOCK * size], size)
        entries = (_unpack_digits(block) if levels == 3 else _unpack_fields(block, indices.dtype)).reshape(-1)
        place = indices[number * BLOCK * group :][: BLOCK * group]
        place[:] = entries[: len(place)]
        if entries[len(place) :].any():
            raise CorruptArtifact(f"has codes that go on after the last of {count} entries")
    return indices


def compute_packed_size(count: int, levels: int) -> int:
    """Return how many bytes so many indices take."""
    return -(-count // DIGITS) if levels == 3 else -(-count * _compute_width(levels) // 8)


def _compute_width(levels: int) -> int:
    """Compute ⌈log₂ levels⌉, the bits of a field."""
    return (levels - 1).bit_length()


def _choose_group(levels: int) -> tuple[int, int]:
    """Return how many indices fill how many bytes: five one byte, or eight as many bytes as a field has bits."""
    return (DIGITS, 1) if levels == 3 else (8, _compute_width(levels))


def _fill_up(row: Array, size: int) -> Array:
    """Split a row into groups of this size, and fill up the last with zeros."""
    return np.concatenate((row, np.zeros(-len(row) % size, dtype=row.dtype))).reshape(-1, size)


def _of_digits(groups: Array) -> Array:
    return sum(groups[:, digit] * np.uint8(power) for digit, power in enumerate(POWERS))  # type: ignore[return-value]


def _unpack_digits(groups: Array) -> Array:
    if (largest := groups.max(initial=0)) >= 3**DIGITS:
        raise CorruptArtifact(f"has the byte {largest} where five ternary digits make at most {3**DIGITS - 1}")
    return TABLE.take(groups[:, 0], axis=0)  # a quarter of the time that indexing takes


def _of_fields(groups: Array, width: int) -> Array:
    coded = np.zeros((len(groups), width), dtype=np.uint8)
    wide = np.uint16 if width <= 8 else np.uint32
    for entry, byte, shift in _iterate_pieces(width):
        field: Array = groups[:, entry].astype(wide)
        coded[:, byte] |= (field << shift if shift >= 0 else field >> -shift).astype(np.uint8)
    return coded


def _unpack_fields(groups: Array, dtype: np.dtype[np.generic]) -> Array:
    width = groups.shape[1]
    wide = np.uint16 if width <= 8 else np.uint32
    entries = np.zeros((len(groups), 8), dtype=wide)
    for entry, byte, shift in _iterate_pieces(width):
        piece: Array = groups[:, byte].astype(wide)
        entries[:, entry] |= piece >> shift if shift >= 0 else piece << -shift
    return (entries & (2**width - 1)).astype(dtype)


def _iterate_pieces(width: int) -> Iterator[tuple[int, int, int]]:
    """Yield, for each of eight fields and each byte that it touches, by how many bits it starts above the byte."""
    for entry in range(8):
        first = entry * width
        for byte in range(first // 8, (first + width - 1) // 8 + 1):
            yield entry, byte, first - 8 * byte
