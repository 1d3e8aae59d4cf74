"""Kernels of `tamis.kernels.triton.kronecker` for blocks of few columns, such as those of butterflies: no matrices.

Tensor cores multiply 16 × 16 numbers at least, of which blocks of 2 × 2 would use a sixty-fourth. Here each output is
the sum of its few products. It takes as long as the numbers are on their way: c of them are read for an output, b of
c times from the cache.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pieces"])
def entries(
    x,
    weight,
    bias,
    y,
    pieces,
    a,
    b,
    d,
    DIVISOR: tl.constexpr,
    LAST: tl.constexpr,
    BATCH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Multiply entry by entry. INPUTS is c; the weight lies as (a, b, c, d). The batch is as in `rows`."""
    # A product with a constant: the compiler knows what divides the batch, and reads several numbers at once.
    batch = pieces * DIVISOR
    tiles = tl.cdiv(a * b * d, OUTPUTS)
    outputs = tl.program_id(0) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = (tl.program_id(0) // tiles * BATCH + tl.arange(0, BATCH)).to(tl.int64)
    block, j = outputs // d, outputs % d  # (i, k) and j
    # The b outputs of a block i read the same c inputs, d apart: block // b is i.
    inputs = block // b * (INPUTS * d) + j
    weights = weight + block.to(tl.int64) * (INPUTS * d) + j
    wanted = outputs < a * b * d
    if LAST:
        inside = wanted[:, None] & (rows < batch)[None, :]
        xs = x + inputs.to(tl.int64)[:, None] * batch + rows[None, :]
        ys = y + outputs.to(tl.int64)[:, None] * batch + rows[None, :]
        step = tl.cast(d, tl.int64) * batch  # sizes that are 1 are no tensors
        total = tl.zeros((OUTPUTS, BATCH), tl.float32)
    else:
        inside = (rows < batch)[:, None] & wanted[None, :]
        xs = x + rows[:, None] * (a * INPUTS * d) + inputs[None, :]
        ys = y + rows[:, None] * (a * b * d) + outputs[None, :]
        step = d
        total = tl.zeros((BATCH, OUTPUTS), tl.float32)
    # Unrolled: c is small, and all loads can be under way at once. Sums are float32, whatever the numbers are.
    for entry in tl.static_range(INPUTS):
        factor = tl.load(weights + entry * d, mask=wanted, other=0.0).to(tl.float32)
        values = tl.load(xs + entry * step, mask=inside, other=0.0).to(tl.float32)
        total += values * (factor[:, None] if LAST else factor[None, :])
    if BIASED:
        added = tl.load(bias + outputs, mask=wanted, other=0.0).to(tl.float32)
        total += added[:, None] if LAST else added[None, :]
    tl.store(ys, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["pieces"])
def entries_weight(
    x,
    gradient,
    sums,
    pieces,
    length,
    a,
    b,
    c,
    d,
    DIVISOR: tl.constexpr,
    LAST: tl.constexpr,
    BATCH: tl.constexpr,
    WEIGHTS: tl.constexpr,
):
    """Compute the gradient in so many weights, of one part of the batch, which is as in `rows_weight`."""
    batch = pieces * DIVISOR
    # Each program sums one part of the batch for its weights alone: no atomic additions, whose order would vary.
    part, size = tl.program_id(1), a * b * c * d
    weights = tl.program_id(0) * WEIGHTS + tl.arange(0, WEIGHTS)
    wanted = weights < size
    block, j = weights // (c * d), weights % d  # (i, k) and j
    # A weight (i, k, l, j) is flat over (i, k, l, j): its output is (i, k, j), and its input (i, l, j).
    outputs = block * d + j
    inputs = (block // b * c + weights // d % c) * d + j
    last = tl.minimum((part + 1) * length, batch)
    if LAST:
        total = tl.zeros((WEIGHTS, BATCH), tl.float32)
        gradients = gradient + outputs.to(tl.int64)[:, None] * batch
        xs = x + inputs.to(tl.int64)[:, None] * batch
        for first in range(part * length, last, BATCH):
            rows = first + tl.arange(0, BATCH)
            inside = wanted[:, None] & (rows < last)[None, :]
            upstream = tl.load(gradients + rows[None, :], mask=inside, other=0.0).to(tl.float32)
            total += upstream * tl.load(xs + rows[None, :], mask=inside, other=0.0).to(tl.float32)
        # Summed over the batch once, at the end: until then each thread adds to numbers of its own.
        found = tl.sum(total, 1)
    else:
        total = tl.zeros((BATCH, WEIGHTS), tl.float32)
        gradients, xs = gradient + outputs[None, :], x + inputs[None, :]
        for first in range(part * length, last, BATCH):
            rows = (first + tl.arange(0, BATCH)).to(tl.int64)
            inside = (rows < last)[:, None] & wanted[None, :]
            upstream = tl.load(gradients + rows[:, None] * (a * b * d), mask=inside, other=0.0).to(tl.float32)
            total += upstream * tl.load(xs + rows[:, None] * (a * c * d), mask=inside, other=0.0).to(tl.float32)
        found = tl.sum(total, 0)
    tl.store(sums + tl.cast(part, tl.int64) * size + weights, found, mask=wanted)
