"""The kernels of `tamis.kernels.triton.kronecker`.

`columns`, for batch-first inputs with d > 1. A program takes J neighbouring values of j at once, so that what it reads
and writes is contiguous over (l, j), and turns the tile in registers into J matrices of a batched product. Numbers that
tensor cores take side by side along l lie d apart in memory: the tile is read in two parts, each with every second l,
and joined, so that every thread holds neighbours along l and can hand them over in one piece.

`rows`, for d = 1 and for batch-last inputs, is a product of two matrices for every (i, j), with strides.

`columns_weight` and `rows_weight` are the gradients in the weight: sums over the batch, in a fixed number of parts
that are added in a fixed order, so that they are the same in every run.

float32 numbers are split into two of 11 bits each: p·q ≈ lp·hq + hp·lq + hp·hq. In products these are float16 numbers,
which tensor cores multiply twice as fast as TF32 ones, and which need scaling: powers of two, the units, bring the
largest entry of each vector, within each tile along l, and of each row of the weight to between 2¹⁴ and 2¹⁵. What is
lost of smaller ones is below 2⁻³⁹ of the largest. In gradients, where sums run over all vectors, they are TF32 numbers.
Tensor cores cut off what does not fit into their sums instead of rounding it, so each tile's sum starts at 0 and is
added to the others outside them.
"""

import triton
import triton.language as tl


@triton.jit
def _split(values):
    """Split numbers into two of 11 bits each that add up to them, but for the last bit."""
    # As integers: adding half of the last kept bit and cutting the rest off rounds to nearest, exponents included. What
    # would round to infinity is left whole, with a low part of 0; the difference from infinity would be NaN.
    bits = values.to(tl.int32, bitcast=True)
    huge = (bits & 0x7FFFFFFF) >= 0x7F7FF000
    high = tl.where(huge, bits, (bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, values - high


@triton.jit
def _unit(largest):
    """Return the power of two that divides the largest of some numbers into [2¹⁴, 2¹⁵), as bits of a float32."""
    # The exponent's bits alone are a power of two. 14 is taken from it (0x07000000), and what is tiny counts as 2⁻¹¹²
    # (0x07800000), so that neither the unit nor its inverse leaves the range of float32.
    exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.maximum(exponent, 0x07800000) - 0x07000000


@triton.jit
def _divide(values, unit):
    """Divide by a power of two, of which these are the bits."""
    # 0x7F000000 is twice the exponent of 1: taking a power's exponent from it leaves that of its inverse, and a product
    # by a power of two is exact.
    return values * (0x7F000000 - unit).to(tl.float32, bitcast=True)


@triton.jit
def _halves_of(values):
    """Split numbers into two float16 ones that add up to them, but for the last bits."""
    high = values.to(tl.float16)
    return high, (values - high.to(tl.float32)).to(tl.float16)


@triton.jit
def pack(weight, high, low, units, b, c, d, APART: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr):
    """Write two float16 numbers for each weight, times a unit of its row; infinite ones give NaN.

    (a, b, c, d) → (a, d, b, c), or as it lies if APART; units (a, d, b).
    """
    tiles = tl.cdiv(b, OUTPUTS)
    block = tl.program_id(0) // tiles
    outputs = tl.program_id(0) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    wanted = outputs < b
    inputs = tl.arange(0, INPUTS)
    rows = weight + ((block // d * b + outputs).to(tl.int64) * (c * d) + block % d)[:, None]
    # Two passes over the row: its unit must be known before the first entry is divided, and a row may be too long to
    # hold.
    largest = tl.zeros((OUTPUTS,), tl.float32)
    for first in range(0, c, INPUTS):
        entries = first + inputs
        there = wanted[:, None] & (entries < c)[None, :]
        largest = tl.maximum(largest, tl.max(tl.abs(tl.load(rows + entries[None, :] * d, mask=there, other=0.0)), 1))
    # Bits of 1 for a row with an infinite entry: infinity divided by any unit stays what it is.
    unit = tl.where(largest < float("inf"), _unit(largest), 0x3F800000)
    tl.store(units + block * b + outputs, unit.to(tl.float32, bitcast=True), mask=wanted)
    if APART:
        packed = ((block // d * b + outputs).to(tl.int64) * (c * d) + block % d)[:, None]
        step = d
    else:
        packed = (block * b + outputs).to(tl.int64)[:, None] * c
        step = 1
    for first in range(0, c, INPUTS):
        entries = first + inputs
        there = wanted[:, None] & (entries < c)[None, :]
        values = _divide(tl.load(rows + entries[None, :] * d, mask=there, other=0.0), unit[:, None])
        upper, lower = _halves_of(values)
        tl.store(high + packed + entries[None, :] * step, upper, mask=there)
        tl.store(low + packed + entries[None, :] * step, lower, mask=there)


@triton.jit
def _dot(left, right, total, PRECISION: tl.constexpr):
    if PRECISION == "tf32x3":
        left_high, left_low = _split(left)
        right_high, right_low = _split(right)
        # Small terms first, so that the large one does not swallow them; low · low is below the last bit.
        part = tl.dot(left_low, right_high, input_precision="tf32")
        part = tl.dot(left_high, right_low, part, input_precision="tf32")
        part = tl.where(part == part, part, 0.0)  # ∞ − ∞ and ∞ · 0, of what the product of the high parts tells rightly
        return total + tl.dot(left_high, right_high, part, input_precision="tf32")
    else:
        return tl.dot(left, right, total, input_precision="tf32")


@triton.jit
def _dot_halves(left, right_high, right_low, right_unit, total):
    """Multiply float32 numbers by float16 ones that are split already; `right_unit` is for all of these."""
    LAST: tl.constexpr = len(left.shape) - 1
    largest = tl.max(tl.abs(left), LAST)
    unit = _unit(largest)
    # An infinite number becomes the largest that there is, beside which others are 0, times ∞ in the end.
    left = tl.clamp(_divide(left, tl.expand_dims(unit, LAST)), -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    factor = tl.where(largest < float("inf"), unit.to(tl.float32, bitcast=True) * right_unit, float("inf"))
    left_high, left_low = _halves_of(left)
    # Small terms first. The sum starts at 0 and is added to the total outside of the tensor cores, which would cut off
    # its last bits: see the top of this file.
    part = tl.dot(left_low, right_high)
    part = tl.dot(left_high, right_low, part)
    part = tl.dot(left_high, right_high, part)
    return total + part * tl.expand_dims(factor, LAST)


@triton.jit
def turn(matrix, turned, rows, columns, kept, width, SIDE: tl.constexpr):
    """Write the first `kept` columns as rows of length `width`, with zeros after the numbers that there are."""
    # Through a tile in registers, so that both the rows that are read and those that are written are contiguous.
    tiles = tl.cdiv(columns, SIDE)
    row = (tl.program_id(0) // tiles * SIDE + tl.arange(0, SIDE)).to(tl.int64)
    column = (tl.program_id(0) % tiles * SIDE + tl.arange(0, SIDE)).to(tl.int64)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(matrix + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    inside = (column < kept)[:, None] & (row < width)[None, :]
    tl.store(turned + column[:, None] * width + row[None, :], tl.trans(tile), mask=inside)


@triton.jit
def _every_second(rows, inside, first, size, j, D: tl.constexpr, SIZE: tl.constexpr, J: tl.constexpr):
    """Load [rows, SIZE · J]: entries first, first + 2, … along l, and j to j + J of each."""
    place = tl.arange(0, SIZE * J)
    entry = 2 * (place // J)
    within = first + entry < size
    if D % J != 0:
        within = within & (j + place % J < D)
    return tl.load(rows + (entry * D + place % J)[None, :], mask=inside[:, None] & within[None, :], other=0.0)


@triton.jit
def _halves(values, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Return [ROWS, SIZE] as [ROWS / 2, SIZE, 2], with a row and the one ROWS / 2 below it next to each other."""
    upper, lower = tl.split(tl.permute(tl.reshape(values, (2, ROWS // 2, SIZE)), (1, 2, 0)))
    return tl.join(upper, lower)


@triton.jit
def _matrices(
    rows,
    inside,
    first,
    size,
    j,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    J: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Load J matrices of ROWS × SIZE from rows in which j runs fastest, and then l.

    The order in which numbers are joined is the order in which they come to lie in shared memory: first neighbours
    along l, then rows, and j last. In any other order, reading the rows of one matrix would take eight times as long.
    """
    if WHOLE:
        place = tl.arange(0, SIZE * J)
        inner = (place < (size - first) * D)[None, :]
        tile = tl.load(rows + place[None, :], mask=inside[:, None] & inner, other=0.0)
        even, odd = tl.split(tl.permute(tl.reshape(tile, (ROWS, SIZE // 2, 2, J)), (0, 1, 3, 2)))
        even, odd = tl.reshape(even, (ROWS, SIZE // 2 * J)), tl.reshape(odd, (ROWS, SIZE // 2 * J))
    else:
        even = _every_second(rows, inside, first, size, j, D, SIZE // 2, J)
        odd = _every_second(rows + D, inside, first + 1, size, j, D, SIZE // 2, J)
    both = tl.join(_halves(even, ROWS, SIZE // 2 * J), _halves(odd, ROWS, SIZE // 2 * J))
    tile = tl.reshape(both, (ROWS // 2, SIZE // 2, J, 2, 2))
    return tl.reshape(tl.permute(tile, (2, 3, 0, 1, 4)), (J, ROWS, SIZE))


@triton.jit
def columns(
    x,
    weight,
    weight_low,
    weight_units,
    bias,
    y,
    batch,
    a,
    b,
    c,
    groups,
    together,
    D: tl.constexpr,
    BATCH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    WHOLE_WEIGHTS: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # What runs fastest is what neighbouring programs share in the cache: first tiles of outputs, which read the same x;
    # then `together` tiles of the batch, which read the same weights; then groups of j, which share cache lines of x.
    rest = tl.program_id(0)
    tiles = tl.cdiv(b, OUTPUTS)
    tile, rest = rest % tiles, rest // tiles
    low, rest = rest % together, rest // together
    group, rest = rest % groups, rest // groups
    highs = tl.cdiv(tl.cdiv(batch, BATCH), together)
    high, i = rest % highs, rest // highs
    rows = (high * together + low) * BATCH + tl.arange(0, BATCH)
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    # COLUMNS values of j at once: what is loaded is contiguous over (l, j), where a single j would be every D-th
    # number.
    j = group * COLUMNS
    if COLUMNS == D:
        j = 0  # which the compiler then knows, and drops the sums with it
    inside, wanted = rows < batch, outputs < b
    # 64 bits only for what is multiplied by the batch: the rest is within one vector, and 32-bit sums are cheaper.
    xs = x + rows.to(tl.int64)[:, None] * (a * c * D) + (i * c * D + j)
    places = ((i * b + outputs).to(tl.int64) * (c * D) + j)[:, None]
    total = tl.zeros((COLUMNS, BATCH, OUTPUTS), tl.float32)
    if PRECISION == "float16x3":
        column = j + tl.arange(0, COLUMNS)
        units_at = weight_units + (i * D + column)[:, None] * b + outputs[None, :]
        units = tl.load(units_at, mask=(column < D)[:, None] & wanted[None, :], other=0.0)
        largest_unit = tl.max(units)  # as in `rows`
    left = _matrices(xs, inside, 0, c, j, D, BATCH, INPUTS, COLUMNS, WHOLE)
    right = _matrices(weight + places, wanted, 0, c, j, D, OUTPUTS, INPUTS, COLUMNS, WHOLE_WEIGHTS)
    if PRECISION == "float16x3":
        right_low = _matrices(weight_low + places, wanted, 0, c, j, D, OUTPUTS, INPUTS, COLUMNS, WHOLE_WEIGHTS)
    for first in tl.range(INPUTS, c, INPUTS, num_stages=1):
        xs += INPUTS * D
        places += INPUTS * D
        # Read ahead: these are on their way while the ones before are multiplied.
        next_left = _matrices(xs, inside, first, c, j, D, BATCH, INPUTS, COLUMNS, WHOLE)
        next_right = _matrices(weight + places, wanted, first, c, j, D, OUTPUTS, INPUTS, COLUMNS, WHOLE_WEIGHTS)
        if PRECISION == "float16x3":
            next_low = _matrices(weight_low + places, wanted, first, c, j, D, OUTPUTS, INPUTS, COLUMNS, WHOLE_WEIGHTS)
            total = _dot_halves(
                left, tl.permute(right, (0, 2, 1)), tl.permute(right_low, (0, 2, 1)), largest_unit, total
            )
            right_low = next_low
        else:
            total = _dot(left, tl.permute(right, (0, 2, 1)), total, PRECISION)
        left = next_left
        right = next_right
    if PRECISION == "float16x3":
        total = _dot_halves(left, tl.permute(right, (0, 2, 1)), tl.permute(right_low, (0, 2, 1)), largest_unit, total)
        # One unit for all rows kept the loop free of a broadcast; here they get their own, by powers of two, without an
        # error.
        total *= (units / largest_unit)[:, None, :]
    else:
        total = _dot(left, tl.permute(right, (0, 2, 1)), total, PRECISION)
    # (J, BATCH, OUTPUTS) back to j fastest, as y lies in memory: then what is stored is contiguous as well.
    values = tl.reshape(tl.permute(total, (1, 2, 0)), (BATCH, OUTPUTS * COLUMNS))
    place = tl.arange(0, OUTPUTS * COLUMNS)
    if COLUMNS == D:
        offset = tile * (OUTPUTS * D) + place
        within = offset < b * D
    else:
        output = tile * OUTPUTS + place // COLUMNS
        offset = output * D + j + place % COLUMNS
        within = output < b
        if D % COLUMNS != 0:
            within = within & (j + place % COLUMNS < D)
    if BIASED:
        values += tl.load(bias + i * b * D + offset, mask=within, other=0.0).to(tl.float32)[None, :]
    ys = y + rows.to(tl.int64)[:, None] * (a * b * D) + (i * b * D + offset)[None, :]
    tl.store(ys, values.to(y.dtype.element_ty), mask=inside[:, None] & within[None, :])


@triton.jit(do_not_specialize=["pieces"])
def rows(
    x,
    weight,
    weight_low,
    weight_units,
    bias,
    y,
    pieces,
    a,
    b,
    c,
    d,
    DIVISOR: tl.constexpr,
    LAST: tl.constexpr,
    BATCH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply matrices. The weight lies as (a, d, b, c); the batch is so many pieces of DIVISOR, read together."""
    batch = pieces * DIVISOR
    rest = tl.program_id(0)
    tiles, batches = tl.cdiv(b, OUTPUTS), tl.cdiv(batch, BATCH)
    tile, rest = rest % tiles, rest // tiles
    if LAST:
        row, rest = rest % batches, rest // batches
        j, i = rest % d, rest // d
    else:  # neighbours along j share what is read
        j, rest = rest % d, rest // d
        row, i = rest % batches, rest // batches
    block = i * d + j
    rows = row * BATCH + tl.arange(0, BATCH)
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    inside, wanted = rows < batch, outputs < b
    places = (block * b + outputs).to(tl.int64)[:, None] * c + inputs[None, :]
    if LAST:
        step = tl.cast(d, tl.int64) * batch  # sizes that are 1 are no tensors
        xs = x + (i * c * d + j).to(tl.int64) * batch + inputs.to(tl.int64)[:, None] * step + rows[None, :]
        ys = y + (i * b * d + j).to(tl.int64) * batch + outputs.to(tl.int64)[None, :] * step + rows[:, None]
    else:
        step = d
        xs = x + rows.to(tl.int64)[:, None] * (a * c * d) + (i * c * d + j) + inputs[None, :] * d
        ys = y + rows.to(tl.int64)[:, None] * (a * b * d) + (i * b * d + j) + outputs[None, :] * d
    total = tl.zeros((BATCH, OUTPUTS), tl.float32)
    if PRECISION == "float16x3":
        units = tl.load(weight_units + block * b + outputs, mask=wanted, other=0.0)
        largest_unit = tl.max(units)  # sums are as large as those of the largest row until the end, and no larger
    for first in range(0, c, INPUTS):
        within = first + inputs < c
        if LAST:
            # Loaded as it lies, with the batch contiguous, and turned in registers.
            left = tl.trans(tl.load(xs, mask=within[:, None] & inside[None, :], other=0.0))
        else:
            left = tl.load(xs, mask=inside[:, None] & within[None, :], other=0.0)
        needed = wanted[:, None] & within[None, :]
        right = tl.trans(tl.load(weight + places, mask=needed, other=0.0))
        if PRECISION == "float16x3":
            right_low = tl.trans(tl.load(weight_low + places, mask=needed, other=0.0))
            total = _dot_halves(left, right, right_low, largest_unit, total)
        else:
            total = tl.dot(left, right, total, input_precision="tf32")
        xs += INPUTS * step
        places += INPUTS
    if PRECISION == "float16x3":
        total *= (units / largest_unit)[None, :]  # powers of two: exact
    if BIASED:
        total += tl.load(bias + i * b * d + outputs * d + j, mask=wanted, other=0.0).to(tl.float32)[None, :]
    tl.store(ys, total.to(y.dtype.element_ty), mask=inside[:, None] & wanted[None, :])


@triton.jit
def _every_second_row(rows, first, last, stride, within, BATCH: tl.constexpr):
    # Every second vector: joined with those between, each thread holds neighbours along the batch, over which is
    # summed.
    row = first + 2 * tl.arange(0, BATCH)
    inside = (row < last)[:, None] & within[None, :]
    return tl.load(rows + row.to(tl.int64)[:, None] * stride, mask=inside, other=0.0)


@triton.jit
def _over_batch(
    lower,
    upper,
    first,
    last,
    stride,
    lower_within,
    upper_within,
    BATCH: tl.constexpr,
    SIZE: tl.constexpr,
    J: tl.constexpr,
):
    """Load J matrices of SIZE × BATCH, joined as in `_matrices`: neighbours along the batch, then halves."""
    even = tl.join(
        _every_second_row(lower, first, last, stride, lower_within, BATCH // 2),
        _every_second_row(upper, first, last, stride, upper_within, BATCH // 2),
    )
    odd = tl.join(
        _every_second_row(lower, first + 1, last, stride, lower_within, BATCH // 2),
        _every_second_row(upper, first + 1, last, stride, upper_within, BATCH // 2),
    )
    tile = tl.reshape(tl.join(even, odd), (BATCH // 2, SIZE // 2, J, 2, 2))
    return tl.reshape(tl.permute(tile, (2, 3, 1, 0, 4)), (J, SIZE, BATCH))


@triton.jit
def _half(entry, size, j, D: tl.constexpr, SIZE: tl.constexpr, J: tl.constexpr):
    """Return where entries from this one on lie, and which of them there are."""
    place = tl.arange(0, SIZE // 2 * J)
    if J == D:
        offset = entry * D + place
        within = offset < size * D
    else:
        offset = (entry + place // J) * D + j + place % J
        within = entry + place // J < size
        if D % J != 0:
            within = within & (j + place % J < D)
    return offset, within


@triton.jit
def columns_weight(
    x,
    gradient,
    sums,
    batch,
    length,
    a,
    b,
    c,
    groups,
    D: tl.constexpr,
    BATCH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rest, part = tl.program_id(0), tl.program_id(1)
    tile, rest = rest % tl.cdiv(b, OUTPUTS), rest // tl.cdiv(b, OUTPUTS)
    other, rest = rest % tl.cdiv(c, INPUTS), rest // tl.cdiv(c, INPUTS)
    group, i = rest % groups, rest // groups
    j = group * COLUMNS
    if COLUMNS == D:
        j = 0
    # Parts of the batch and their lengths are those of the sizes alone, never of how programs are scheduled: the sums
    # are the same in every run.
    start = part * length
    # Lengths are rounded up to whole tiles, so that the last parts may be short or empty: their sums are stored as 0.
    last = tl.minimum(start + length, batch)
    out_lower, has_out_lower = _half(tile * OUTPUTS, b, j, D, OUTPUTS, COLUMNS)
    out_upper, has_out_upper = _half(tile * OUTPUTS + OUTPUTS // 2, b, j, D, OUTPUTS, COLUMNS)
    in_lower, has_in_lower = _half(other * INPUTS, c, j, D, INPUTS, COLUMNS)
    in_upper, has_in_upper = _half(other * INPUTS + INPUTS // 2, c, j, D, INPUTS, COLUMNS)
    gradient += i * b * D
    x += i * c * D
    stride, x_stride = a * b * D, a * c * D
    out_lower, out_upper = gradient + out_lower[None, :], gradient + out_upper[None, :]
    in_lower, in_upper = x + in_lower[None, :], x + in_upper[None, :]
    total = tl.zeros((COLUMNS, OUTPUTS, INPUTS), tl.float32)
    left = _over_batch(out_lower, out_upper, start, last, stride, has_out_lower, has_out_upper, BATCH, OUTPUTS, COLUMNS)
    right = _over_batch(in_lower, in_upper, start, last, x_stride, has_in_lower, has_in_upper, BATCH, INPUTS, COLUMNS)
    for first in tl.range(start + BATCH, last, BATCH, num_stages=1):
        next_left = _over_batch(
            out_lower, out_upper, first, last, stride, has_out_lower, has_out_upper, BATCH, OUTPUTS, COLUMNS
        )
        next_right = _over_batch(
            in_lower, in_upper, first, last, x_stride, has_in_lower, has_in_upper, BATCH, INPUTS, COLUMNS
        )
        total = _dot(left, tl.permute(right, (0, 2, 1)), total, PRECISION)
        left = next_left
        right = next_right
    total = _dot(left, tl.permute(right, (0, 2, 1)), total, PRECISION)
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    place = tl.arange(0, INPUTS * COLUMNS)
    inputs, column = other * INPUTS + place // COLUMNS, j + place % COLUMNS
    values = tl.reshape(tl.permute(total, (1, 2, 0)), (OUTPUTS, INPUTS * COLUMNS))
    # Each part of the batch writes sums of its own, which are added afterwards in order: atomic additions would come in
    # any order and give other last bits in every run.
    places = ((part * a + i) * b + outputs).to(tl.int64)[:, None] * (c * D) + (inputs * D + column)[None, :]
    tl.store(sums + places, values, mask=(outputs < b)[:, None] & ((inputs < c) & (column < D))[None, :])


@triton.jit(do_not_specialize=["pieces"])
def rows_weight(
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
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    batch = pieces * DIVISOR
    rest, part = tl.program_id(0), tl.program_id(1)
    tile, rest = rest % tl.cdiv(b, OUTPUTS), rest // tl.cdiv(b, OUTPUTS)
    other, block = rest % tl.cdiv(c, INPUTS), rest // tl.cdiv(c, INPUTS)
    i, j = block // d, block % d
    outputs = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = other * INPUTS + tl.arange(0, INPUTS)
    wanted, given = outputs < b, inputs < c
    start = part * length
    last = tl.minimum(start + length, batch)
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    if LAST:
        gradients = gradient + (((i * b + outputs) * d + j).to(tl.int64) * batch)[:, None]
        xs = x + (((i * c + inputs) * d + j).to(tl.int64) * batch)[:, None]
        for first in range(start, last, BATCH):
            rows = first + tl.arange(0, BATCH)
            inside = rows < last
            left = tl.load(gradients + rows[None, :], mask=wanted[:, None] & inside[None, :], other=0.0)
            right = tl.load(xs + rows[None, :], mask=given[:, None] & inside[None, :], other=0.0)
            total = _dot(left, tl.trans(right), total, PRECISION)
    else:
        gradients = gradient + ((i * b + outputs) * d + j)[None, :]
        xs = x + ((i * c + inputs) * d + j)[None, :]
        for first in range(start, last, BATCH):
            rows = (first + tl.arange(0, BATCH)).to(tl.int64)
            inside = rows < last
            left = tl.load(gradients + rows[:, None] * (a * b * d), mask=inside[:, None] & wanted[None, :], other=0.0)
            right = tl.load(xs + rows[:, None] * (a * c * d), mask=inside[:, None] & given[None, :], other=0.0)
            total = _dot(tl.trans(left), right, total, PRECISION)
    places = (((part * a + i) * b + outputs).to(tl.int64)[:, None] * c + inputs[None, :]) * d + j
    tl.store(sums + places, total, mask=wanted[:, None] & given[None, :])
