"""Products with one Kronecker-sparse factor on a GPU: y[…, i, k, j] = Σ_l weight[i, k, l, j] · x[…, i, l, j].

Inputs are read where they lie and outputs written where they belong, and nothing is permuted in memory, but for one
case: batch-first with d > 1 and so much to multiply that it pays to bring the batch to the end first ("turned").
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from tamis.kernels.triton import kronecker_kernels as kernels
from tamis.kernels.triton import launching_on
from tamis.kernels.triton.kronecker_entries import entries, entries_weight
from tamis.kernels.triton.kronecker_launch import Launch
from tamis.kernels.triton.kronecker_tiles import FEW, Tile, tile_of, weight_tile_of

WAVES = 512  # programs that are enough to fill a GPU a few times over
PACKED = 16, 64  # rows of a weight that one program packs, and entries at a time
TURNED = 64  # rows and columns that one program transposes
DIVISORS = 16, 8, 4  # numbers of a batch that can be read together if they divide it
MOST_LAUNCHES = 64  # sizes of batches that a factor knows its launches for
CACHED = 24 << 20  # bytes of weights or inputs that stay in a GPU's cache between programs


def multiply(x: Tensor, weight: Tensor, batch_last: bool, tf32: bool, tile: Tile | None = None) -> Tensor:
    """Compute x Kᵀ, or K x where the batch is last.

    Args:
        x: (batch, acd), or (acd, batch); contiguous.
        weight: (a, b, c, d), of the dtype of x.
        batch_last: whether it is.
        tf32: whether float32 numbers may be rounded to TF32 before they are multiplied.
        tile: None takes the one of `tile_of`.
    """
    return Factor(weight, batch_last, tf32, tile)(x)


class Factor:
    """A factor whose weight is packed once: `Factor(weight, …)(x, bias)` is x Kᵀ + bias, or K x + bias.

    Arguments are those of `multiply`; the bias has an entry for each output. What is packed is that of the weight at
    the time, and belongs to the present stream; where nothing is, the weight itself is read in every call.
    """

    def __init__(self, weight: Tensor, batch_last: bool, tf32: bool, tile: Tile | None = None) -> None:
        a, b, c, d = weight.shape
        self.dtype, self.batch_last = weight.dtype, batch_last
        # For few vectors and for more; both go the same way.
        self._tiles = [tile or tile_of((a, b, c, d), weight.dtype, batch_last, batch) for batch in (FEW, FEW + 1)]
        self.way = self._tiles[0].way
        self._launches: dict[tuple[int, bool], Launch] = {}
        with launching_on(weight.device):
            if self.way == "filled":
                weight = _fill_diagonals(weight)
            self.shape = weight.shape
            exact = weight.dtype == torch.float32 and not tf32
            self.precision = "float16x3" if exact else "tf32"
            self._weights: tuple[Tensor, ...] = (
                (weight.contiguous(),) if self.way == "entries" else _pack_weight(weight, exact, self.way == "columns")
            )

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        batch = x.shape[1] if self.batch_last else x.shape[0]
        a, b, _, d = self.shape
        # Nothing to compute: no launch is compiled, or remembered, for it.
        if batch == 0:
            return x.new_empty((a * b * d, 0) if self.batch_last else (0, a * b * d))
        turned = self.way == "turned"
        with launching_on(x.device):
            if turned:
                # Filled up to a multiple of 16, so that the kernel can read several numbers at once for any batch.
                x = _turn(x, width=_whole_pieces(batch))
            last = self.batch_last or turned
            length = x.shape[1] if last else batch
            y = x.new_empty((a * b * d, length) if last else (length, a * b * d))
            self._launch(length, bias is not None)(x, *self._weights, y if bias is None else bias, y)
            return _turn(y, kept=batch) if turned else y

    def _launch(self, batch: int, biased: bool) -> Launch:
        launch = self._launches.get((batch, biased))
        if launch is None:
            # Emptied whole: batches of more sizes than that come from data without a fixed size, and none comes twice.
            if len(self._launches) >= MOST_LAUNCHES:
                self._launches = {}
            tile = self._tiles[batch > FEW]
            ways = {"columns": self._by_columns, "entries": self._by_entries}
            launch = self._launches[batch, biased] = ways.get(self.way, self._by_rows)(batch, biased, tile)
        return launch

    def _by_columns(self, batch: int, biased: bool, tile: Tile) -> Launch:
        a, b, c, d = self.shape
        width = self.dtype.itemsize
        batches, groups = _pieces(batch, tile.batch), _pieces(d, tile.columns)
        # programs counts whole groups of `together` tiles, also where the last group has fewer: those programs store
        # nothing.
        together = _together(batches, (b, c, d), tile, width)
        programs = _pieces(b, tile.outputs) * together * groups * _pieces(batches, together) * a
        constants = {
            "D": d,
            "BATCH": tile.batch,
            "OUTPUTS": tile.outputs,
            "INPUTS": tile.inputs,
            "COLUMNS": tile.columns,
            "WHOLE": tile.columns == d and d * width <= 8,
            "WHOLE_WEIGHTS": tile.columns == d and d * self._weights[0].itemsize <= 8,
            "BIASED": biased,
            "PRECISION": self.precision,
        }
        return Launch(kernels.columns, programs, (batch, a, b, c, groups, together), constants, _options(tile))

    def _by_rows(self, batch: int, biased: bool, tile: Tile) -> Launch:
        a, b, c, d = self.shape
        programs = _pieces(b, tile.outputs) * _pieces(batch, tile.batch) * a * d
        last = self.batch_last or self.way == "turned"
        divisor = _divisor(batch, last)
        constants = {
            "DIVISOR": divisor,
            "LAST": last,
            "BATCH": tile.batch,
            "OUTPUTS": tile.outputs,
            "INPUTS": tile.inputs,
            "BIASED": biased,
            "PRECISION": self.precision,
        }
        return Launch(kernels.rows, programs, (batch // divisor, a, b, c, d), constants, _options(tile))

    def _by_entries(self, batch: int, biased: bool, tile: Tile) -> Launch:
        a, b, c, d = self.shape
        programs = _pieces(a * b * d, tile.outputs) * _pieces(batch, tile.batch)
        divisor = _divisor(batch, self.batch_last)
        constants = {
            "DIVISOR": divisor,
            "LAST": self.batch_last,
            "BATCH": tile.batch,
            "OUTPUTS": tile.outputs,
            "INPUTS": c,
            "BIASED": biased,
        }
        return Launch(entries, programs, (batch // divisor, a, b, d), constants, _options(tile))


def _divisor(batch: int, last: bool) -> int:
    """Return how many numbers of the batch may be read together, if it is last."""
    return next((divisor for divisor in DIVISORS if last and batch % divisor == 0), 1)


def _whole_pieces(batch: int) -> int:
    """Round up to a number that all divisors divide."""
    return _pieces(batch, DIVISORS[0]) * DIVISORS[0]


def _pieces(number: int, size: int) -> int:
    return -(-number // size)


def _options(tile: Tile) -> dict[str, int]:
    return {"num_warps": tile.warps, "num_stages": tile.stages}


def weight_gradient(
    x: Tensor,
    gradient: Tensor,
    shape: tuple[int, int, int, int],
    batch_last: bool,
    tf32: bool,
    tile: Tile | None = None,
) -> Tensor:
    """Compute the gradient in the weight (a, b, c, d): Σ over the batch of gradient[…, i, k, j] · x[…, i, l, j].

    `tile.batch` numbers of the batch are summed at a time, for `tile.outputs` × `tile.inputs` weights.
    """
    a, b, c, d = shape
    if x.numel() == 0:
        return x.new_zeros(shape)
    tile = tile or weight_tile_of(shape, x.dtype, batch_last)
    precision = "tf32x3" if x.dtype == torch.float32 and not tf32 else "tf32"
    with launching_on(x.device):
        if tile.way == "turned":
            width = _whole_pieces(len(x))  # with vectors of zeros, which add nothing
            sums = _weight_sums(_turn(x, width=width), _turn(gradient, width=width), shape, True, tile, precision)
        elif tile.way == "filled":
            sums = _weight_sums(x, gradient, (a, b * d, c * d, 1), batch_last, tile, precision)
            # Of the filled block only the d diagonals, k's j equal to l's j, are weights of the pattern; the rest is
            # dropped.
            sums = sums.reshape(-1, a, b, d, c, d).diagonal(0, 3, 5)
        else:
            sums = _weight_sums(x, gradient, shape, batch_last, tile, precision)
    return sums.sum(0).to(x.dtype) if len(sums) > 1 else sums[0].to(x.dtype, memory_format=torch.contiguous_format)


def _weight_sums(
    x: Tensor, gradient: Tensor, shape: tuple[int, int, int, int], batch_last: bool, tile: Tile, precision: str
) -> Tensor:
    """Return (parts, a, b, c, d): the gradient in the weight, of so many parts of the batch."""
    a, b, c, d = shape
    batch = x.shape[1] if batch_last else x.shape[0]
    sizes = {"BATCH": tile.batch, "OUTPUTS": tile.outputs, "INPUTS": tile.inputs, "PRECISION": precision}
    if tile.way == "entries":
        sizes = {"BATCH": tile.batch, "WEIGHTS": tile.outputs}
        programs = _pieces(a * b * c * d, tile.outputs)
    else:
        groups = _pieces(d, tile.columns) if tile.way == "columns" else d
        programs = _pieces(b, tile.outputs) * _pieces(c, tile.inputs) * a * groups
    # Enough programs to fill the GPU, but no part of fewer than eight steps: its sums are written and read once more.
    parts = max(1, min(_pieces(WAVES, programs), _pieces(batch, 8 * tile.batch)))
    # A whole number of tiles, so that only the last part has a tile that is partly empty.
    length = _pieces(_pieces(batch, parts), tile.batch) * tile.batch
    sums = torch.empty((parts, *shape), dtype=torch.float32, device=x.device)
    tensors, grid = (x, gradient, sums), (programs, parts)
    if tile.way == "columns":
        numbers: tuple[int, ...] = (batch, length, a, b, c, groups)
        kernels.columns_weight[grid](*tensors, *numbers, D=d, COLUMNS=tile.columns, **sizes, **_options(tile))
    else:
        divisor = _divisor(batch, batch_last)
        numbers = (batch // divisor, length, a, b, c, d)
        kernel = entries_weight if tile.way == "entries" else kernels.rows_weight
        kernel[grid](*tensors, *numbers, DIVISOR=divisor, LAST=batch_last, **sizes, **_options(tile))
    return sums


def _turn(matrix: Tensor, kept: int | None = None, width: int | None = None) -> Tensor:
    """Return the first `kept` columns as rows, each with zeros up to `width`; without these, the transposed matrix."""
    rows, columns = matrix.shape
    kept, width = kept or columns, width or rows
    turned = matrix.new_empty((kept, width))
    _turn_of(rows, columns, kept, width, matrix.dtype, matrix.device)(matrix, turned)
    return turned


@lru_cache(maxsize=64)
def _turn_of(rows: int, columns: int, kept: int, width: int, dtype: torch.dtype, device: torch.device) -> Launch:
    """Return the launch that transposes such matrices; one for each dtype and device, as compiled kernels are."""
    programs = _pieces(width, TURNED) * _pieces(columns, TURNED)
    return Launch(kernels.turn, programs, (rows, columns, kept, width), {"SIDE": TURNED}, {})


def _fill_diagonals(weight: Tensor) -> Tensor:
    """Return the weight of the pattern (a, bd, cd, 1) of which (a, b, c, d) is a part, with zeros elsewhere."""
    a, b, c, d = weight.shape
    return torch.diag_embed(weight).permute(0, 1, 3, 2, 4).reshape(a, b * d, c * d, 1)


def _pack_weight(weight: Tensor, exact: bool, apart: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return what kernels read of a weight: it, thrice; or two float16 numbers of each, and units (a, d, b) of rows.

    Weights lie as (a, d, b, c), or if `apart` as they are.
    """
    a, b, c, d = weight.shape
    if not exact:
        packed = weight.contiguous() if apart else weight.permute(0, 3, 1, 2).contiguous()
        return packed, packed, packed
    # Split here, once for a weight, and not in each of the programs that read it.
    high, low = weight.new_empty((2, *weight.shape), dtype=torch.float16)
    units = weight.new_empty((a, d, b))
    outputs, inputs = PACKED
    programs = a * d * _pieces(b, outputs)
    sizes = {"APART": apart, "OUTPUTS": outputs, "INPUTS": inputs}
    kernels.pack[(programs,)](weight.contiguous(), high, low, units, b, c, d, **sizes)
    return high, low, units


def _together(batches: int, sizes: tuple[int, int, int], tile: Tile, width: int) -> int:
    """Return how many tiles of the batch to take in turn before going on to other values of j.

    One, if the weights stay in the cache. Else as many as share them while the rows of x, of which other values of j
    need the rest, stay there.
    """
    b, c, d = sizes
    if b * c * d * width <= CACHED:
        return 1
    return max(1, min(batches, CACHED // (32 * c * tile.batch)))
