"""The projection of cpu/l1ball.cpp on a GPU: one launch for a layer, one program for each of its columns.

A column that fits into the registers of a program is read once: its norm, the search for t and the result all come from
there. The search starts with a few steps in the precision of the column, each a step of Newton's method for
log Σ max(t − d, 0) = log c, which is almost a line in t for the tails of most columns. That is a guess, and wherever it
lies, one step of Michelot's iteration from it is at the solution or above, and the iteration goes on from there: in
float64, until the same gaps are below t. Three steps leave it little to do, where from t = c it would take ten.

A longer column is read once for its norm and once for each step, mostly from the cache.
"""

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from tamis.kernels.triton import launching_on

LARGEST_HELD = 1 << 17  # bytes of a column that one program keeps in registers, half of what there are
STREAMED = 4096  # entries of a longer column that it reads at once


def project_l1(
    rows: Tensor, bias: Tensor | None, c: float, slack: float, out: Tensor, out_bias: Tensor | None
) -> Tensor:
    """Write the projections, and return θ of each column: 0 inside the ball, NaN where something is not finite.

    Args:
        rows: columns, contiguous; `out` may be the same tensor.
        bias: an entry more for each column, or None; `out_bias` may be the same tensor.
        c: the radius.
        slack: the part of c by which a norm may exceed it, and the column is left as it is.
        out, out_bias: where to write.
    """
    columns, entries = rows.shape
    thresholds = torch.empty(columns, dtype=torch.float64, device=rows.device)
    if columns == 0:
        return thresholds
    block = triton.next_power_of_2(max(entries, 32))
    held = block * rows.element_size() <= LARGEST_HELD
    with launching_on(rows.device):
        (_project_held if held else _project_streamed)[(columns,)](
            rows,
            rows if bias is None else bias,
            _bits(c),
            _bits(c * (1 + slack)),
            out,
            out if out_bias is None else out_bias,
            thresholds,
            entries,
            HAS_BIAS=bias is not None,
            BLOCK=block if held else STREAMED,
            num_warps=_warps(block * rows.element_size()) if held else 8,
        )
    return thresholds


def _bits(c: float) -> int:
    """The bits of a float64 as an integer: a float would reach the kernel as a float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", c))[0]
    return bits


def _warps(size: int) -> int:
    """So many that each thread holds 64 bytes of a short column, and up to 128 of a long one."""
    return min(32, max(1, size // (32 * 64)))


GUESSES: tl.constexpr = tl.constexpr(3)


@triton.jit(do_not_specialize=["radius", "most"])
def _project_held(
    rows, bias, radius, most, out, out_bias, thresholds, entries, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    inside = places < entries
    c = radius.to(tl.int64).to(tl.float64, bitcast=True)
    # Zeros, past the last entry or in place of a bias, change no norm and no result.
    values = tl.load(rows + column * entries + places, mask=inside, other=0.0)
    sizes = tl.abs(values)
    offset = tl.zeros((), values.dtype)
    if HAS_BIAS:
        offset = tl.load(bias + column)
    offset_size = tl.abs(offset).to(tl.float64)
    norm = tl.sum(sizes.to(tl.float64)) + offset_size
    top = tl.maximum(tl.max(sizes), tl.abs(offset))
    largest = top.to(tl.float64)

    threshold = tl.zeros((), tl.float64)
    reach = tl.zeros((), tl.float64)
    if (norm != norm) | (largest == float("inf")):
        threshold += float("nan")
    elif norm > most.to(tl.int64).to(tl.float64, bitcast=True):
        reach = _guess(sizes, tl.abs(offset), top, norm, entries + HAS_BIAS, c).to(tl.float64)
        reach = tl.where(reach > 0, reach, c)
        limit = c
        before = -1
        count = 0
        while count != before:
            before = count
            gaps = largest - sizes.to(tl.float64)
            below = gaps < reach
            gap = largest - offset_size
            near = HAS_BIAS & (gap < reach)
            total = c + tl.sum(tl.where(below, gaps, 0.0)) + tl.where(near, gap, 0.0)
            count = tl.sum(below.to(tl.int32)) + near.to(tl.int32)
            reach = tl.minimum(limit, total / tl.maximum(count, 1))  # of rounding, t could grow
            limit = reach
        threshold = largest - reach

    if threshold > 0:
        tl.store(out + column * entries + places, _shrunk(values, largest, reach), mask=inside)
        if HAS_BIAS:
            tl.store(out_bias + column, _shrunk(offset, largest, reach))
    else:
        tl.store(out + column * entries + places, values, mask=inside)
        if HAS_BIAS:
            tl.store(out_bias + column, offset)
    tl.store(thresholds + column, threshold)


@triton.jit
def _guess(sizes, offset, top, norm, entries, c):
    """About t, in the precision of the column; 0, less, or no number where that is too coarse for it."""
    radius = c.to(sizes.dtype)
    limit = _limit(norm, top.to(tl.float64), entries, c).to(sizes.dtype)
    mean = (norm / entries).to(sizes.dtype)
    t = top - mean * tl.log((norm / c).to(sizes.dtype))  # t of an exponential distribution
    t = tl.where((t > 0) & (t < limit), t, limit * 0.5)
    for _ in tl.static_range(GUESSES):
        gaps = top - sizes
        below = gaps < t
        near = (top - offset) < t
        count = tl.sum(below.to(tl.int32)) + near.to(tl.int32)
        slope = tl.maximum(count, 1).to(sizes.dtype)
        total = tl.sum(tl.where(below, gaps, 0.0)) + tl.where(near, top - offset, 0.0)
        excess = slope * t - total
        limit = tl.minimum(limit, (radius + total) / slope)
        t -= tl.log(excess / radius) * excess / slope
        t = tl.where((t > 0) & (t < limit), t, limit)
    return limit


@triton.jit
def _limit(norm, largest, entries, c):
    """What t cannot exceed: c, and the step from where every gap is below t."""
    mean = (c + (entries * largest - norm)) / entries
    return tl.where((mean > 0) & (mean < c), mean, c)


@triton.jit
def _shrunk(values, largest, reach):
    wide = values.to(tl.float64)
    left = tl.maximum(reach - (largest - tl.abs(wide)), 0.0)
    return tl.where(left == 0, 0.0, tl.where(wide < 0, -left, left)).to(values.dtype)


@triton.jit(do_not_specialize=["radius", "most"])
def _project_streamed(
    rows, bias, radius, most, out, out_bias, thresholds, entries, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64)
    rows += column * entries
    out += column * entries
    c = radius.to(tl.int64).to(tl.float64, bitcast=True)
    places = tl.arange(0, BLOCK)
    offset = tl.zeros((), rows.dtype.element_ty)
    if HAS_BIAS:
        offset = tl.load(bias + column)
    offset_size = tl.abs(offset).to(tl.float64)

    sums = tl.zeros((BLOCK,), tl.float64)
    tops = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, entries, BLOCK):
        sizes = tl.abs(tl.load(rows + start + places, mask=start + places < entries, other=0.0)).to(tl.float64)
        sums += sizes
        tops = tl.maximum(tops, sizes)
    norm = tl.sum(sums) + offset_size
    largest = tl.maximum(tl.max(tops), offset_size)

    threshold = tl.zeros((), tl.float64)
    reach = tl.zeros((), tl.float64)
    if (norm != norm) | (largest == float("inf")):
        threshold += float("nan")
    elif norm > most.to(tl.int64).to(tl.float64, bitcast=True):
        reach = _limit(norm, largest, entries + HAS_BIAS, c)
        limit = c
        before = -1
        count = 0
        while count != before:
            before = count
            sums = tl.zeros((BLOCK,), tl.float64)
            counts = tl.zeros((BLOCK,), tl.int32)
            for start in range(0, entries, BLOCK):
                sizes = tl.abs(tl.load(rows + start + places, mask=start + places < entries, other=0.0))
                gaps = largest - sizes.to(tl.float64)
                below = gaps < reach
                sums += tl.where(below, gaps, 0.0)
                counts += below.to(tl.int32)
            gap = largest - offset_size
            near = HAS_BIAS & (gap < reach)
            total = c + tl.sum(sums) + tl.where(near, gap, 0.0)
            count = tl.sum(counts) + near.to(tl.int32)
            reach = tl.minimum(limit, total / tl.maximum(count, 1))
            limit = reach
        threshold = largest - reach

    for start in range(0, entries, BLOCK):
        inside = start + places < entries
        values = tl.load(rows + start + places, mask=inside, other=0.0)
        if threshold > 0:
            values = _shrunk(values, largest, reach)
        tl.store(out + start + places, values, mask=inside)
    if HAS_BIAS:
        if threshold > 0:
            offset = _shrunk(offset, largest, reach)
        tl.store(out_bias + column, offset)
    tl.store(thresholds + column, threshold)
