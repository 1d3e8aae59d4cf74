"""The projection of cpu/l1ball.cpp on a GPU: one launch for a layer, one program for each of its columns.

A column is read once for its norm and, where that is above c, once for each step of Michelot's iteration, mostly from
the cache: with torch's operations each step would pass several times over a copy in float64, and wait for an answer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_BLOCK = 4096  # entries that one program holds at once


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
    block = min(LARGEST_BLOCK, triton.next_power_of_2(max(entries, 1)))
    with torch.cuda.device(rows.device):
        _project_l1[(columns,)](
            rows,
            rows if bias is None else bias,
            torch.full((1,), c, dtype=torch.float64, device=rows.device),  # as an argument it would be a float32
            slack,
            out,
            out if out_bias is None else out_bias,
            thresholds,
            entries,
            HAS_BIAS=bias is not None,
            BLOCK=block,
            num_warps=4 if block <= 1024 else 8,
        )
    return thresholds


@triton.jit
def _project_l1(
    rows, bias, radius, slack, out, out_bias, thresholds, entries, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64)
    rows += column * entries
    out += column * entries
    c = tl.load(radius)
    places = tl.arange(0, BLOCK)
    offset = tl.zeros((), tl.float64)
    if HAS_BIAS:
        offset = tl.load(bias + column).to(tl.float64)

    norm = tl.abs(offset)
    largest = norm
    finite = tl.where(norm < float("inf"), 1, 0)
    for start in range(0, entries, BLOCK):
        inside = start + places < entries
        sizes = tl.abs(tl.load(rows + start + places, mask=inside, other=0.0).to(tl.float64))
        norm += tl.sum(sizes)
        largest = tl.maximum(largest, tl.max(sizes))
        finite = tl.minimum(finite, tl.min(tl.where(sizes < float("inf"), 1, 0)))

    threshold = tl.zeros((), tl.float64)
    reach = largest  # t of the text: what is further than that from the largest becomes 0
    if finite == 0:
        threshold += float("nan")
    elif norm > c * (1.0 + slack.to(tl.float64)):
        reach = c
        before = -1
        count = 0
        while count != before:
            before = count
            gap = largest - tl.abs(offset)
            near = gap < reach
            total = c + tl.where(near & HAS_BIAS, gap, 0.0)
            count = tl.where(near & HAS_BIAS, 1, 0)
            for start in range(0, entries, BLOCK):
                inside = start + places < entries
                sizes = tl.abs(tl.load(rows + start + places, mask=inside, other=0.0).to(tl.float64))
                gaps = largest - sizes
                below = inside & (gaps < reach)
                total += tl.sum(tl.where(below, gaps, 0.0))
                count += tl.sum(below.to(tl.int32))
            reach = tl.minimum(reach, total / tl.maximum(count, 1))
        threshold = largest - reach

    for start in range(0, entries, BLOCK):
        inside = start + places < entries
        values = tl.load(rows + start + places, mask=inside, other=0.0)
        wide = values.to(tl.float64)
        shrunk = tl.maximum(reach - (largest - tl.abs(wide)), 0.0)
        shrunk = tl.where(wide < 0, -shrunk, shrunk).to(values.dtype)
        tl.store(out + start + places, tl.where(threshold > 0, tl.where(shrunk == 0, 0.0, shrunk), values), mask=inside)
    if HAS_BIAS:
        shrunk = tl.maximum(reach - (largest - tl.abs(offset)), 0.0)
        shrunk = tl.where(offset < 0, -shrunk, shrunk)
        moved = tl.where(threshold > 0, tl.where(shrunk == 0, 0.0, shrunk), offset)
        tl.store(out_bias + column, moved.to(out_bias.dtype.element_ty))
    tl.store(thresholds + column, threshold)
