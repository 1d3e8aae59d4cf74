"""Tiles: how products with Kronecker-sparse factors are divided among the programs of a GPU. Needs no Triton.

Tiles were chosen by what was fastest of a few on an H200, for 25088 vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_IN_COLUMNS = 75  # multiplications for each number moved, up to which "columns" is the faster way
FAR = 16  # numbers between two of a block, from which on single ones are read as fast as neighbours
MOST_COUNTED = 2**31 - 1  # weights, in 32 bits
FEW = 64  # vectors, up to which tiles are smaller along the batch


@dataclass(frozen=True)
class Tile:
    """The work of one program: `batch` × `outputs` numbers for each of `columns` values of j, `inputs` l at a time.

    `way` is "columns", "rows" or "entries", after the kernels; "filled", by `rows` with the zeros between the d
    diagonals multiplied as well; or "turned", by `rows` after the batch was brought to the end, with a pass over the
    input and one over the output more.
    """

    way: str
    batch: int
    outputs: int
    inputs: int
    columns: int
    warps: int
    stages: int


def tile_of(shape: tuple[int, int, int, int], dtype: torch.dtype, batch_last: bool, batch: int) -> Tile:
    """Return the tile that was fastest of a few on an H200; its way does not depend on the batch."""
    _, b, c, d = shape
    exact = dtype == torch.float32
    # Tensor cores take 16 × 16 numbers: blocks much smaller than that would mostly multiply zeros.
    if max(b, c) <= _most_entries(d, exact, batch_last):
        if batch_last:
            return Tile("entries", 512, 4, c, 1, 4, 1) if c <= 4 else Tile("entries", 256, 8, c, 1, 4, 1)
        return Tile("entries", 16, 128, c, 1, 4, 1) if d >= FAR else Tile("entries", 4, 256, c, 1, 4, 1)
    if not batch_last and d > 1:
        if _columns_are_faster(b, c, d, exact):
            if exact:
                columns = min(d, 4)
                return Tile("columns", 32 if d <= 4 else 64, _power(b, 32), 16, columns, columns, 1)
            columns = _columns_of(d)
            return Tile("columns", 64, _power(b, 64), 16, columns, columns, 1)
        # With d diagonals filled up, d times as much is multiplied; for few of them that is less than a pass over x to
        # turn it.
        if d <= 3 and not exact:
            return Tile("filled", 128, _power(b * d, 128), 64, 1, 8 if b * d > 64 else 4, 3)
    way = "turned" if not batch_last and d > 1 else "rows"
    if exact:
        return _exact_tile(way, b, c, batch_last or d > 1)
    # A tile longer than the batch would multiply rows that there are not.
    rows = 64 if batch <= FEW else 128
    if b <= 192:
        return Tile(way, rows, _power(b, 64), 32, 1, 4, 4)
    return Tile(way, rows, 128 if b < 512 else 256, 64, 1, 8, 3)


def weight_tile_of(shape: tuple[int, int, int, int], dtype: torch.dtype, batch_last: bool) -> Tile:
    """Return the tile that was fastest of a few on an H200 for gradients in the weight."""
    a, b, c, d = shape
    exact = dtype == torch.float32
    # Half as far as for products: a block has b · c sums over the batch, where a product has b sums.
    if max(b, c) <= _most_entries(d, exact, batch_last) // 2 and a * b * c * d <= MOST_COUNTED:
        if batch_last:
            return Tile("entries", 512, 4, 1, 1, 4, 1)
        return Tile("entries", 16, 128, 1, 1, 4, 1) if d >= FAR else Tile("entries", 8, 256, 1, 1, 4, 1)
    if not batch_last and d in (2, 4) and b * c < MOST_IN_COLUMNS * (b + c):
        return Tile("columns", 16, _power(b, 64), _power(c, 32 if exact else 64), d, d, 1)
    way = "rows" if batch_last or d == 1 else "filled" if d <= 3 and not exact else "turned"
    if way == "filled":
        b, c = b * d, c * d
    return Tile(way, 32 if exact else 64, _power(b, 64), _power(c, 64), 1, 4, 3)


def _most_entries(d: int, exact: bool, batch_last: bool) -> int:
    """Return the rows and columns of blocks up to which "entries" is the fastest way."""
    return 16 if exact and (batch_last or d >= FAR) else 8


def _exact_tile(way: str, b: int, c: int, last: bool) -> Tile:
    """Return the tile for `rows` in float32: as wide as fills up with few zeros, and as long, if the batch is last."""
    outputs = 64 if 10 * _multiple(b, 128) > 13 * _multiple(b, 64) else 128
    long = 4 * _multiple(c, 64) < 5 * _multiple(c, 32) if last else outputs == 128
    return Tile(way, 64, outputs, 64, 1, 4, 2) if long else Tile(way, 64, outputs, 32, 1, 4, 3)


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


def _columns_are_faster(b: int, c: int, d: int, exact: bool) -> bool:
    """Say whether "columns" is faster than "turned": with little to multiply, and j in whole groups."""
    multiplications = b * c / (b + c)  # for each number that is read or written
    if exact:
        return multiplications < {2: 100, 4: 80, 6: 40, 8: 40}.get(d, 0)
    if d in (2, 4, 8):
        return multiplications < (MOST_IN_COLUMNS if d == 2 else 150 if d == 4 else 80)
    return d % 8 == 0 and d < 48 and multiplications < 40


def _columns_of(d: int) -> int:
    return 2 if d == 2 else 4 if d <= 4 else 8


def _power(size: int, most: int) -> int:
    """Return the smallest power of two that holds a size, from 16 on, and at most `most`."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
