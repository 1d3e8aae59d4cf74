"""Projection onto the ℓ1 ball on a GPU, as in cpu/l1ball.cpp: one launch for a layer, one program for each column.

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
FOUR_EACH = 128  # entries of a part of a column, of which each thread of a warp holds four
STREAMED = 4096  # entries of a longer column that are read at once


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
    arguments = (
        rows,
        rows if bias is None else bias,
        _bits(c),
        _bits(c * (1 + slack)),
        out,
        out if out_bias is None else out_bias,
        thresholds,
        entries,
        bias is not None,
    )
    with launching_on(rows.device):
        # Held in registers, a column is read from memory once, whatever number of steps the search takes.
        if entries * rows.element_size() <= LARGEST_HELD:
            warps, parts = _shares(entries)
            _project_held[(columns,)](*arguments, PART=FOUR_EACH * warps, PARTS=parts, num_warps=warps)
        else:
            _project_streamed[(columns,)](*arguments, BLOCK=STREAMED, num_warps=8)
    return thresholds


def _bits(c: float) -> int:
    """Return the bits of a float64 as an integer: a float would reach the kernel as a float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", c))[0]
    return bits


def _shares(entries: int) -> tuple[int, int]:
    """Return how many warps hold a column, in how many parts: at most 5 where warps are left to be added."""
    warps = next((warps for warps in (1, 2, 4, 8) if entries <= 5 * FOUR_EACH * warps), 16)
    return warps, max(1, triton.cdiv(entries, FOUR_EACH * warps))


GUESSES: tl.constexpr = tl.constexpr(3)


@triton.jit(do_not_specialize=["radius", "most"])
def _project_held(
    rows,
    bias,
    radius,
    most,
    out,
    out_bias,
    thresholds,
    entries,
    HAS_BIAS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64)
    rows += column * entries
    out += column * entries
    places = tl.arange(0, PART)
    c = radius.to(tl.int64).to(tl.float64, bitcast=True)
    # Zeros, past the last entry or in place of a bias, change no norm and no result.
    offset = tl.zeros((), rows.dtype.element_ty)
    if HAS_BIAS:
        offset = tl.load(bias + column)
    values = ()
    for part in tl.static_range(PARTS):
        loaded = tl.load(rows + part * PART + places, mask=part * PART + places < entries, other=0.0)
        values = values + (loaded,)  # type: ignore[assignment] # noqa: RUF005
    sums = tl.zeros((PART,), tl.float64)
    tops = tl.zeros((PART,), rows.dtype.element_ty)
    for part in tl.static_range(PARTS):
        sums += tl.abs(values[part]).to(tl.float64)
        tops = tl.maximum(tops, tl.abs(values[part]))
    # In float64: whether a column is inside the ball must not hang on the rounding of a float32 sum.
    norm = tl.sum(sums) + tl.abs(offset).to(tl.float64)
    top = tl.maximum(tl.max(tops), tl.abs(offset))
    largest = top.to(tl.float64)

    # The search is for t = largest − θ, from gaps d = largest − |w|, and not for θ: near the largest entries, which are
    # those that stay, differences are exact where sums of magnitudes would cancel.
    threshold = tl.zeros((), tl.float64)
    reach = tl.zeros((), tl.float64)
    count = 0
    if (norm != norm) | (largest == float("inf")):
        threshold += float("nan")
    elif norm > most.to(tl.int64).to(tl.float64, bitcast=True):
        reach = _guess(values, tl.abs(offset), top, norm, entries + HAS_BIAS, c, PART, PARTS).to(tl.float64)
        # No guess: from t = c on, which is never below the solution, since the largest entry alone, d = 0, adds t to
        # the sum.
        reach = tl.where(reach > 0, reach, c)
        limit = c
        before = -1
        # Michelot: with the set of gaps below t fixed, t = (c + Σ d) / n solves Σ (t − d) = c. The set only shrinks, so
        # that the same count means the same set, and t is the solution.
        while count != before:
            before = count
            sums = tl.zeros((PART,), tl.float64)
            counts = tl.zeros((PART,), tl.int32)
            for part in tl.static_range(PARTS):
                gaps = largest - tl.abs(_anew(values[part], count)).to(tl.float64)
                sums += tl.where(gaps < reach, gaps, 0.0)
                counts += (gaps < reach).to(tl.int32)
            gap = largest - tl.abs(offset).to(tl.float64)
            near = HAS_BIAS & (gap < reach)
            total = c + tl.sum(sums) + tl.where(near, gap, 0.0)
            count = tl.sum(counts) + near.to(tl.int32)
            # t only falls in exact arithmetic. By rounding it could grow, and the loop would not end.
            reach = tl.minimum(limit, total / tl.maximum(count, 1))
            limit = reach
        threshold = largest - reach

    for part in tl.static_range(PARTS):
        result = values[part]  # type: ignore[var-annotated]
        if threshold > 0:
            result = _shrink(_anew(result, entries), largest, reach)
        tl.store(out + part * PART + places, result, mask=part * PART + places < entries)
    if HAS_BIAS:
        if threshold > 0:
            offset = _shrink(offset, largest, reach)
        tl.store(out_bias + column, offset)
    tl.store(thresholds + column, threshold)


@triton.jit
def _guess(values, offset, top, norm, entries, c, PART: tl.constexpr, PARTS: tl.constexpr):
    """Guess t in the precision of the column; 0, less, or NaN where that is too coarse for it."""
    radius = c.to(top.dtype)
    limit = _limit(norm, top.to(tl.float64), entries, c).to(top.dtype)
    mean = (norm / entries).to(top.dtype)
    t = top - mean * tl.log((norm / c).to(top.dtype))  # t of an exponential distribution
    t = tl.where((t > 0) & (t < limit), t, limit * 0.5)
    for _ in tl.static_range(GUESSES):
        sums = tl.zeros((PART,), top.dtype)
        counts = tl.zeros((PART,), tl.int32)
        for part in tl.static_range(PARTS):
            gaps = top - tl.abs(values[part])
            sums += tl.where(gaps < t, gaps, 0.0)
            counts += (gaps < t).to(tl.int32)
        near = (top - offset) < t
        total = tl.sum(sums) + tl.where(near, top - offset, 0.0)
        slope = tl.maximum(tl.sum(counts) + near.to(tl.int32), 1).to(top.dtype)
        # Σ max(t − d, 0), which the search brings to c.
        excess = slope * t - total
        # A step of Michelot's iteration, which from anywhere ends at the solution or above: the least of these is the
        # best upper end so far, and what is returned.
        limit = tl.minimum(limit, (radius + total) / slope)
        # A step of Newton's method for log Σ max(t − d, 0) = log c, whose derivative in t is slope / excess.
        t -= tl.log(excess / radius) * excess / slope
        t = tl.where((t > 0) & (t < limit), t, limit)
    return limit


@triton.jit
def _limit(norm, largest, entries, c):
    """Return what t cannot exceed: c, and the step from where every gap is below t."""
    mean = (c + (entries * largest - norm)) / entries
    return tl.where((mean > 0) & (mean < c), mean, c)


@triton.jit
def _anew(values, count):
    """Return the same numbers, for a count of 0 or more, in a way that the compiler cannot see through.

    The compiler does not know that counts are not negative, and so converts the numbers to float64 each time. Otherwise
    it would keep what it has converted once, and there are not enough registers for that.
    """
    whole = tl.int32 if values.dtype == tl.float32 else tl.int64
    return (values.to(whole, bitcast=True) | tl.minimum(count, 0).to(whole)).to(values.dtype, bitcast=True)


@triton.jit
def _shrink(values, largest, reach):
    # |w| − θ as t − (largest − |w|), for the reason above; zeros without a sign.
    wide = values.to(tl.float64)
    left = tl.maximum(reach - (largest - tl.abs(wide)), 0.0)
    return tl.where(left == 0, 0.0, tl.where(wide < 0, -left, left)).to(values.dtype)


@triton.jit(do_not_specialize=["radius", "most"])
def _project_streamed(
    rows,
    bias,
    radius,
    most,
    out,
    out_bias,
    thresholds,
    ENTRIES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64)
    rows += column * ENTRIES
    out += column * ENTRIES
    c = radius.to(tl.int64).to(tl.float64, bitcast=True)
    places = tl.arange(0, BLOCK)
    offset = tl.zeros((), rows.dtype.element_ty)
    if HAS_BIAS:
        offset = tl.load(bias + column)
    offset_size = tl.abs(offset).to(tl.float64)

    sums = tl.zeros((BLOCK,), tl.float64)
    tops = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, ENTRIES, BLOCK):
        sizes = tl.abs(tl.load(rows + start + places, mask=start + places < ENTRIES, other=0.0)).to(tl.float64)
        sums += sizes
        tops = tl.maximum(tops, sizes)
    norm = tl.sum(sums) + offset_size
    largest = tl.maximum(tl.max(tops), offset_size)

    threshold = tl.zeros((), tl.float64)
    reach = tl.zeros((), tl.float64)
    if (norm != norm) | (largest == float("inf")):
        threshold += float("nan")
    elif norm > most.to(tl.int64).to(tl.float64, bitcast=True):
        reach = _limit(norm, largest, ENTRIES + HAS_BIAS, c)
        limit = c
        before = -1
        count = 0
        while count != before:
            before = count
            sums = tl.zeros((BLOCK,), tl.float64)
            counts = tl.zeros((BLOCK,), tl.int32)
            for start in range(0, ENTRIES, BLOCK):
                sizes = tl.abs(tl.load(rows + start + places, mask=start + places < ENTRIES, other=0.0))
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

    for start in range(0, ENTRIES, BLOCK):
        inside = start + places < ENTRIES
        values = tl.load(rows + start + places, mask=inside, other=0.0)
        if threshold > 0:
            values = _shrink(values, largest, reach)
        tl.store(out + start + places, values, mask=inside)
    if HAS_BIAS:
        if threshold > 0:
            offset = _shrink(offset, largest, reach)
        tl.store(out_bias + column, offset)
    tl.store(thresholds + column, threshold)
