"""A row of coded digits, 0 … base − 1, is a table of how often each occurs, then the words of ans.py, as bytes.

    2 bytes     T − 1, where T ≤ base is the length of the table
    1 byte      the width of its entries, 1 or 2
    T entries   weights of the digits, in proportion to how often they occur; 0: never. The last is not 0
    words       4 bytes each, to the end of the row

All of it is little-endian. g digits, one after the other, make a symbol d₀ + d₁ base + d₂ base² + …, where g is the
largest number with base^g ≤ 256, and at least 1; the weight of a symbol is the product of those of its digits. So a
symbol is a byte wherever the base is at most 256, and takes few words although it stands for many digits. The last
symbol is filled up with the digit of the largest weight, the first of them.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tamis.artifact.encodings import ans, packing
from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact
from tamis.kernels import dispatch

HEAD = 3
FEW = 1 << 16  # so many digits are coded with tables of both widths, to see which is shorter
SLACK = 1e-3  # relative; the estimate of a row's length is nearer to it than this, and 16 bytes


def to_row(digits: Array, base: int, room: int) -> Array | None:
    """Code digits as an entropy-coded row; return None if it would take more than `room` bytes.

    Args:
        digits: integers 0 … base − 1 in a row.
        base: 2 to 65536.
        room: what the row may take.

    Example:
        >>> row = to_row(np.zeros(1000, dtype=np.uint8), base=3, room=100)
        >>> row.tolist(), int(from_row(row, count=1000, base=3).max())
        ([0, 0, 1, 255], 0)
    """
    if len(digits) == 0:
        return None
    digits = digits.astype(np.uint8 if base <= 256 else np.int32, copy=False)
    symbols, size = _combine_digits(digits, base), _count_digits_per_symbol(base)
    occurring = _count_symbols(symbols, base**size)
    counts = _count_digits(occurring, base, size)
    counts[0] -= -len(digits) % size  # what the last symbol was filled up with
    # Two bytes a digit give exact frequencies; one makes a shorter table, which pays where digits are few. Beyond FEW
    # the table hardly counts, and the second attempt would only take time.
    rows = [_code_row(symbols, occurring, counts, 2, room)]
    if len(digits) <= FEW:
        rows.append(_code_row(symbols, occurring, counts, 1, room))
    return min((row for row in rows if row is not None), key=len, default=None)


def allocate_digits(count: int, base: int) -> Array:
    """Allocate memory for this many digits, of a base up to 16, and for those that fill up the last symbol."""
    return np.empty(count + -count % _count_digits_per_symbol(base), dtype=np.uint8)


def from_row(row: Array, count: int, base: int, out: Array | None = None) -> Array:
    """Decode the digits that `to_row` wrote, in the dtype of `Codes`.

    Nothing larger than the row and the digits is made, whatever the row says.

    Args:
        row: the bytes.
        count: of the digits.
        base: 2 to 65536.
        out: memory for them, of `room`, if there is any.
    """
    size = _count_digits_per_symbol(base)
    table, words = _split_row(row, base, -(-count // size))
    freqs = ans.frequencies(_compute_weights(table, base))
    if size == 1:
        return ans.decompress(words, freqs, count)
    digits = allocate_digits(count, base) if out is None else out
    ans.decompress_digits(words, freqs, _tabulate_digits(base), digits)
    # The writer fills the last symbol up with the most frequent digit. Were others taken, several rows would say the
    # same, and a file that is read and written again would not be the same file.
    if (digits[count:] != int(np.argmax(table))).any():
        raise CorruptArtifact(f"has an entropy-coded row that goes on after the last of {count} entries")
    return digits[:count]


def _code_row(symbols: Array, occurring: Array, counts: Array, width: int, room: int) -> Array | None:
    table = _scale_counts(counts, width)
    head = HEAD + table.nbytes
    base = len(counts)
    filled, tally = _fill_symbols(symbols, occurring, counts, base)
    freqs = ans.frequencies(_compute_weights(table, base))
    # A row that is clearly too long is given up before it is compressed, which takes far longer than the estimate.
    if head + (1 - SLACK) * _estimate_bits(tally, freqs) / 8 - 16 > room:
        return None
    words = ans.compress(filled, freqs)
    if head + words.nbytes > room:
        return None
    start = [*(len(table) - 1).to_bytes(2, "little"), width]
    bytes_of = [part.astype(part.dtype.newbyteorder("<")).view(np.uint8) for part in (table, words)]
    return np.concatenate([np.array(start, dtype=np.uint8), *bytes_of])


def _split_row(row: Array, base: int, symbols: int) -> tuple[Array, Array]:
    """Split a row of so many symbols into its table and its words, or raise CorruptArtifact if it is none."""
    length = 1 + int.from_bytes(row[:2].tobytes(), "little")
    width = int(row[2]) if len(row) >= HEAD else 0
    end = HEAD + length * width
    if width not in (1, 2) or length > base or end > len(row) or (len(row) - end) % 4:
        raise CorruptArtifact(f"has an entropy-coded row of {len(row)} bytes that is none, of {base} digits")
    table = row[HEAD:end].copy().view(f"<u{width}")
    if table[-1] == 0:
        raise CorruptArtifact("has an entropy-coded row whose table ends with a digit that does not occur")
    ans.check_length((len(row) - end) // 4, symbols)
    return table, row[end:].copy().view("<u4").astype(np.uint32, copy=False)


def _count_digits_per_symbol(base: int) -> int:
    """Return how many digits make a symbol."""
    size = 1
    while base ** (size + 1) <= 256:
        size += 1
    return size


@cache
def _tabulate_digits(base: int) -> Array:
    """Return a table with the digits of each symbol in a row."""
    size = _count_digits_per_symbol(base)
    return (np.arange(base**size)[:, None] // base ** np.arange(size) % base).astype(np.uint8)


def _combine_digits(digits: Array, base: int) -> Array:
    """Combine the digits into symbols, the last one filled up with zeros."""
    if base in packing.WHOLE:  # the same bytes
        return packing.pack(digits, base)
    size = _count_digits_per_symbol(base)
    if size == 1:
        return digits
    filled = np.concatenate((digits, np.zeros(-len(digits) % size, dtype=np.uint8))).reshape(-1, size)
    return sum(filled[:, place] * np.uint8(base**place) for place in range(size))  # type: ignore[return-value]


def _count_symbols(symbols: Array, alphabet: int) -> Array:
    """Count how often each symbol occurs, block by block, since numpy first converts them to 8-byte integers."""
    extension = dispatch.native()
    if extension is not None and alphabet <= 256:
        tally = np.zeros(256, dtype=np.uint64)
        extension.count_bytes(np.ascontiguousarray(symbols), tally)
        return tally[:alphabet].astype(np.int64)
    counts = np.zeros(alphabet, dtype=np.int64)
    for start in range(0, len(symbols), ans.BLOCK):
        counts += np.bincount(symbols[start : start + ans.BLOCK], minlength=alphabet)
    return counts


def _count_digits(occurring: Array, base: int, size: int) -> Array:
    """Count how often each digit occurs, from how often each symbol does."""
    # One axis for each digit of a symbol: to sum over the others leaves how often a digit stands at this place.
    cube = occurring.reshape((base,) * size)
    return sum(cube.sum(axis=tuple(other for other in range(size) if other != axis)) for axis in range(size))


def _scale_counts(counts: Array, width: int) -> Array:
    """Scale counts so that the largest fits the width, and keep those that are not 0 at 1 or more."""
    most, largest = 256**width - 1, int(counts.max())
    kept = counts[: int(np.flatnonzero(counts)[-1]) + 1]
    # Rounded to the nearest by integers: (2 n m + l) // (2 l) is n m / l + ½, rounded down.
    scaled = kept if largest <= most and width == 2 else (2 * kept * most + largest) // (2 * largest)
    return np.where(kept > 0, np.maximum(scaled, 1), 0).astype(f"u{width}")


def _compute_weights(table: Array, base: int) -> list[int]:
    """Compute the weight of each symbol: the product of the weights of its digits."""
    single = table.tolist() + [0] * (base - len(table))
    # Digits are taken as independent, so that a table of `base` numbers describes all base^size symbols. The first
    # digit is the lowest one of a symbol, hence the innermost loop.
    weights = single
    for _ in range(_count_digits_per_symbol(base) - 1):
        weights = [high * low for high in single for low in weights]
    return weights


def _fill_symbols(symbols: Array, occurring: Array, counts: Array, base: int) -> tuple[Array, Array]:
    """Fill up the last symbol with the most frequent digit instead of zeros; return symbols and their counts."""
    size, digit = _count_digits_per_symbol(base), int(np.argmax(counts))
    missing = int(occurring.sum()) * size - int(counts.sum())
    if missing == 0 or digit == 0:
        return symbols, occurring
    # The last symbol has zeros at its highest places, so that digits there can be added.
    last, tally = int(symbols[-1]), occurring.copy()
    new = last + digit * sum(base**place for place in range(size - missing, size))
    symbols = symbols.copy()
    symbols[-1] = new
    tally[last] -= 1
    tally[new] += 1
    return symbols, tally


def _estimate_bits(tally: Array, freqs: Array) -> float:
    """Estimate how many bits the words take: Σ n_s log₂(2²⁴ / f_s)."""
    occurs = tally > 0
    return float(np.sum(tally[occurs] * (ans.PRECISION - np.log2(freqs[occurs]))))
