"""Products with one Kronecker-sparse factor on a GPU: y[…, i, k, j] = Σ_l weight[i, k, l, j] · x[…, i, l, j].

Inputs are read where they lie and outputs written where they belong, and nothing is permuted in memory, but for one
case: batch-first with d > 1 and so much to multiply that it pays to bring the batch to the end first ("turned").
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from tamis.kernels.triton import kronecker_kernels as kernels
from tamis.kernels.triton import launching_on
from tamis.kernels.triton.kronecker_tiles import Tile, tile_of, weight_tile_of

WAVES = 512  # programs that are enough to fill a GPU a few times over
PACKED = 1024  # weights that one program packs
TURNED = 64  # rows and columns that one program transposes
CACHED = 24 << 20  # bytes of weights or inputs that stay in a GPU's cache between programs


def multiply(x: Tensor, weight: Tensor, batch_last: bool, tf32: bool, tile: Tile | None = None) -> Tensor:
    """x Kᵀ, or K x where the batch is last.

    Args:
        x: (batch, acd), or (acd, batch); contiguous.
        weight: (a, b, c, d), of the dtype of x.
        batch_last: whether it is.
        tf32: whether float32 numbers may be rounded to TF32 before they are multiplied.
        tile: None takes the one of `tile_of`.
    """
    a, b, c, d = weight.shape
    batch = x.shape[1] if batch_last else x.shape[0]
    if batch == 0:
        return x.new_empty((a * b * d, 0) if batch_last else (0, a * b * d))
    tile = tile or tile_of((a, b, c, d), x.dtype, batch_last, batch)
    with launching_on(x.device):
        if tile.way == "columns":
            return _by_columns(x, weight.contiguous(), tile, _precision(x.dtype, tf32))
        if tile.way == "turned":
            return _turned(_by_rows(_turned(x), weight, True, tile, _precision(x.dtype, tf32)))
        factor = _filled(weight) if tile.way == "filled" else weight
        return _by_rows(x, factor, batch_last, tile, _precision(x.dtype, tf32))


def weight_gradient(
    x: Tensor,
    gradient: Tensor,
    shape: tuple[int, int, int, int],
    batch_last: bool,
    tf32: bool,
    tile: Tile | None = None,
) -> Tensor:
    """The gradient in the weight, of that shape (a, b, c, d): Σ over the batch of gradient[…, i, k, j] · x[…, i, l, j].

    `tile.batch` numbers of the batch are summed at a time, for `tile.outputs` × `tile.inputs` weights.
    """
    a, b, c, d = shape
    if x.numel() == 0:
        return x.new_zeros(shape)
    tile = tile or weight_tile_of(shape, x.dtype, batch_last)
    precision = _precision(x.dtype, tf32)
    with launching_on(x.device):
        if tile.way == "turned":
            sums = _weight_sums(_turned(x), _turned(gradient), shape, True, tile, precision)
        elif tile.way == "filled":
            sums = _weight_sums(x, gradient, (a, b * d, c * d, 1), batch_last, tile, precision)
            sums = sums.reshape(-1, a, b, d, c, d).diagonal(0, 3, 5)
        else:
            sums = _weight_sums(x, gradient, shape, batch_last, tile, precision)
    return sums.sum(0).to(x.dtype) if len(sums) > 1 else sums[0].to(x.dtype, memory_format=torch.contiguous_format)


def _by_columns(x: Tensor, weight: Tensor, tile: Tile, precision: str) -> Tensor:
    a, b, c, d = weight.shape
    batch = x.shape[0]
    y = x.new_empty((batch, a * b * d))
    batches = triton.cdiv(batch, tile.batch)
    groups = triton.cdiv(d, tile.columns)
    together = _together(batches, (b, c, d), tile, x.element_size())
    kernels.columns[(triton.cdiv(b, tile.outputs) * together * groups * triton.cdiv(batches, together) * a,)](
        x,
        weight,
        y,
        batch,
        a,
        b,
        c,
        groups,
        together,
        D=d,
        BATCH=tile.batch,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        COLUMNS=tile.columns,
        WHOLE=tile.columns == d and d * x.element_size() <= 8,
        PRECISION=precision,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def _by_rows(x: Tensor, weight: Tensor, batch_last: bool, tile: Tile, precision: str) -> Tensor:
    a, b, c, d = weight.shape
    batch = x.shape[1] if batch_last else x.shape[0]
    y = x.new_empty((a * b * d, batch) if batch_last else (batch, a * b * d))
    packed = _packed(weight, precision)
    kernels.rows[(triton.cdiv(b, tile.outputs) * triton.cdiv(batch, tile.batch) * a * d,)](
        x,
        packed[0],
        packed[-1],
        y,
        batch,
        a,
        b,
        c,
        d,
        LAST=batch_last,
        BATCH=tile.batch,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        PRECISION=precision,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def _weight_sums(
    x: Tensor, gradient: Tensor, shape: tuple[int, int, int, int], batch_last: bool, tile: Tile, precision: str
) -> Tensor:
    """(parts, a, b, c, d): the gradient in the weight, of so many parts of the batch."""
    a, b, c, d = shape
    batch = x.shape[1] if batch_last else x.shape[0]
    columns = tile.way == "columns"
    groups = triton.cdiv(d, tile.columns) if columns else d
    programs = triton.cdiv(b, tile.outputs) * triton.cdiv(c, tile.inputs) * a * groups
    parts = max(1, min(triton.cdiv(WAVES, programs), triton.cdiv(batch, 8 * tile.batch)))
    length = triton.cdiv(triton.cdiv(batch, parts), tile.batch) * tile.batch
    sums = torch.empty((parts, *shape), dtype=torch.float32, device=x.device)
    constants = {"BATCH": tile.batch, "OUTPUTS": tile.outputs, "INPUTS": tile.inputs, "PRECISION": precision}
    launch = {"num_warps": tile.warps, "num_stages": tile.stages}
    if columns:
        kernels.columns_weight[(programs, parts)](
            x, gradient, sums, batch, length, a, b, c, groups, D=d, COLUMNS=tile.columns, **constants, **launch
        )
    else:
        kernels.rows_weight[(programs, parts)](
            x, gradient, sums, batch, length, a, b, c, d, LAST=batch_last, **constants, **launch
        )
    return sums


def _turned(matrix: Tensor) -> Tensor:
    """The transposed matrix, contiguous."""
    rows, columns = matrix.shape
    turned = matrix.new_empty((columns, rows))
    kernels.turn[(triton.cdiv(rows, TURNED) * triton.cdiv(columns, TURNED),)](
        matrix, turned, rows, columns, SIDE=TURNED
    )
    return turned


def _filled(weight: Tensor) -> Tensor:
    """The weight of the pattern (a, bd, cd, 1) of which (a, b, c, d) is a part, with zeros elsewhere."""
    a, b, c, d = weight.shape
    return torch.diag_embed(weight).permute(0, 1, 3, 2, 4).reshape(a, b * d, c * d, 1)


def _packed(weight: Tensor, precision: str) -> Tensor:
    """The weight as (1, a, d, b, c), or as (2, a, d, b, c): the first and the last 11 bits of each number."""
    a, b, c, d = weight.shape
    if precision != "tf32x3":
        return weight.permute(0, 3, 1, 2).contiguous().unsqueeze(0)
    packed = weight.new_empty((2, a, d, b, c))
    size = weight.numel()
    kernels.pack[(triton.cdiv(size, PACKED),)](weight.contiguous(), packed, size, b * c, d, BLOCK=PACKED)
    return packed


def _together(batches: int, sizes: tuple[int, int, int], tile: Tile, width: int) -> int:
    """How many tiles of the batch to take in turn before going on to other values of j.

    One, if the weights stay in the cache. Else as many as share them while the rows of x, of which other values of j
    need the rest, stay there.
    """
    b, c, d = sizes
    if b * c * d * width <= CACHED:
        return 1
    return max(1, min(batches, CACHED // (32 * c * tile.batch)))


def _precision(dtype: torch.dtype, tf32: bool) -> str:
    return "tf32x3" if dtype == torch.float32 and not tf32 else "tf32"
