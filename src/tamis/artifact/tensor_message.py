"""The message of one tensor, sent in the shortest of several ways.

    constant    one number, which all entries are
    numbers     every entry
    sparse      which entries have a bit that is not 0, and those
    table       the numbers that occur, at most 256, in the order of their bits, and for each entry which it is
    levels      an entry is the scale of its unit × a level, as `Codes` have it; where no level is 0, first which are

Numbers are sent by their bits. Of floating-point ones: how many bits of their mantissas are needed, so that a number
that a narrower type holds, or a power of two, takes fewer; signs; exponents, by how often each occurs; and mantissas.
Of integers: the bits of the largest, each with its sign as the lowest bit, and all in so many bits. Equispaced levels,
−1 + 2j/(M−1), are sent as one bit and their number M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.arithmetic import Coder, LengthMeter, MessageWriter, Receiver, Sender
from tamis.artifact.codes import FLOORS, MOST_LEVELS, Codes
from tamis.artifact.encodings.base import Array, from_bits, view_bits
from tamis.errors import CorruptArtifact, InvalidInput

Plan = Callable[[MessageWriter], None]  # writes a tensor in one of the ways
# Bits of the exponent and of the mantissa.
FIELDS = {
    torch.float64: (11, 52),
    torch.float32: (8, 23),
    torch.bfloat16: (8, 7),
    torch.float16: (5, 10),
    torch.float8_e4m3fn: (4, 3),
    torch.float8_e5m2: (5, 2),
}
WAYS = ("constant", "numbers", "sparse", "table", "levels")  # the last for types that `Codes` are made for
MOST_DISTINCT = 256  # numbers in a table, at most
SAMPLE = 4096  # entries to look at first: most tensors fail a test on these already
ALPHABETS = (2, 3, 4, 5, 7, 8, 15, 16)  # numbers of levels to try for weights without codes


def send_tensor(sender: Sender, tensor: Tensor, codes: Codes | None, mask: Tensor | None) -> None:
    """Send a tensor that is not empty, in the shortest way.

    Args:
        sender: the message so far.
        tensor: contiguous, on the CPU.
        codes: its codes, if it was quantized.
        mask: which entries are kept, if it was pruned.
    """
    plans = list(_iterate_plans(tensor, codes, mask))
    way, plan = min(plans, key=lambda each: _measure(each[1])) if len(plans) > 1 else plans[0]
    sender.choice(way, _count_ways(tensor.dtype))
    sender.mark("way")
    plan(sender)


def receive_tensor(receiver: Receiver, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Receive the tensor that `send_tensor` sent."""
    way = WAYS[receiver.choice(0, _count_ways(dtype))]
    count = math.prod(shape)
    if way == "levels":
        return _read_levels(receiver, shape, dtype)
    if way == "constant":
        row = np.repeat(_read_numbers(receiver, 1, dtype), count)
    elif way == "numbers":
        row = _read_numbers(receiver, count, dtype)
    elif way == "sparse":
        nonzero = receiver.symbols(count, 2).view(np.bool_)
        row = np.zeros(count, dtype=np.uint64)
        row[nonzero] = _read_numbers(receiver, int(np.count_nonzero(nonzero)), dtype)
    else:
        number = receiver.choice(0, MOST_DISTINCT - 1) + 2
        row = _read_numbers(receiver, number, dtype)[receiver.symbols(count, number)]
    return _make_tensor(row, shape, dtype)


def _count_ways(dtype: torch.dtype) -> int:
    return len(WAYS) if dtype in FLOORS else len(WAYS) - 1


def _measure(plan: Plan) -> float:
    ruler = LengthMeter()
    plan(ruler)
    return ruler.bits


def _iterate_plans(tensor: Tensor, codes: Codes | None, mask: Tensor | None) -> Iterator[tuple[int, Plan]]:
    """Yield the ways of sending a tensor, each with its place in WAYS."""
    row, dtype = _view_bits(tensor), tensor.dtype
    distinct = _find_distinct(row)
    if distinct is not None and len(distinct) == 1:
        yield 0, lambda out: _write_numbers(out, distinct, dtype)
        return
    yield 1, lambda out: _write_numbers(out, row, dtype)
    if not row.all():
        yield 2, lambda out: _write_sparse(out, row, dtype)
    if distinct is not None:
        yield 3, lambda out: _write_table(out, distinct, row, dtype)
    for found, kept in _express_in_levels(tensor, codes, mask):
        yield 4, lambda out, found=found, kept=kept: _write_levels(out, found, kept)  # type: ignore[misc]


# -- rows of numbers -----------------------------------------------------------------------------------------------


def _view_bits(tensor: Tensor) -> Array:
    """Return the bits of a tensor as unsigned integers."""
    own: Array = view_bits(tensor)
    return own.view(f"u{own.itemsize}").astype(np.uint64)


def _make_tensor(row: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the tensor with these bits."""
    own: Array = row.astype(f"u{dtype.itemsize}")
    if dtype is torch.bool and (own > 1).any():
        raise CorruptArtifact("has truth values other than 0 and 1")
    return from_bits(own.view(view_bits(torch.empty(0, dtype=dtype)).dtype), shape, dtype)


def _write_numbers(
    out: MessageWriter, row: Array, dtype: torch.dtype, positive: bool = False, label: str = "values"
) -> None:
    if not dtype.is_floating_point:
        signed = _zigzag(row, 8 * dtype.itemsize)
        width = int(signed.max(initial=0)).bit_length()
        out.choice(width, 8 * dtype.itemsize + 1)
        out.fields(signed, width)
    else:
        exponent, mantissa = FIELDS[dtype]
        mantissas = row & np.uint64((1 << mantissa) - 1)
        # Trailing bits that are 0 in every mantissa are not sent: numbers that were once float16 have 13 of them.
        used = int(np.bitwise_or.reduce(mantissas, initial=0))
        kept = mantissa - (used & -used).bit_length() + 1 if used else 0
        out.choice(kept, mantissa + 1)
        if not positive:
            out.symbols((row >> np.uint64(exponent + mantissa)).astype(np.uint8), 2)
        # Exponents of weights are few, and entropy-coded; mantissas are as good as random, and sent as they are.
        out.symbols((row >> np.uint64(mantissa) & np.uint64((1 << exponent) - 1)).astype(np.int32), 1 << exponent)
        out.fields(mantissas >> np.uint64(mantissa - kept), kept)
    out.mark(label)


def _read_numbers(receiver: Receiver, count: int, dtype: torch.dtype, positive: bool = False) -> Array:
    if not dtype.is_floating_point:
        width = receiver.choice(0, 8 * dtype.itemsize + 1)
        return _unzigzag(receiver.fields(count, width))
    exponent, mantissa = FIELDS[dtype]
    kept = receiver.choice(0, mantissa + 1)
    signs = np.zeros(count, dtype=np.uint64) if positive else receiver.symbols(count, 2).astype(np.uint64)
    exponents = receiver.symbols(count, 1 << exponent).astype(np.uint64)
    mantissas = receiver.fields(count, kept) << np.uint64(mantissa - kept)
    return signs << np.uint64(exponent + mantissa) | exponents << np.uint64(mantissa) | mantissas


def _zigzag(row: Array, width: int) -> Array:
    """Map signed integers 0, −1, 1, −2, … to 0, 1, 2, 3, …, so that small magnitudes take few bits."""
    # Up and down again, to spread the sign over all 64 bits: the shift down of a signed number repeats its sign.
    signed = (row << np.uint64(64 - width)).view(np.int64) >> np.int64(64 - width)
    return (signed << np.int64(1) ^ signed >> np.int64(63)).view(np.uint64)


def _unzigzag(row: Array) -> Array:
    found: Array = row >> np.uint64(1) ^ -(row & np.uint64(1)).view(np.int64).view(np.uint64)
    return found


def _write_sparse(out: MessageWriter, row: Array, dtype: torch.dtype) -> None:
    nonzero = row != 0
    out.symbols(nonzero.view(np.uint8), 2)
    out.mark("mask")
    _write_numbers(out, row[nonzero], dtype)


def _write_table(out: MessageWriter, distinct: Array, row: Array, dtype: torch.dtype) -> None:
    out.choice(len(distinct) - 2, MOST_DISTINCT - 1)
    _write_numbers(out, distinct, dtype, label="table")
    out.symbols(np.searchsorted(distinct, row).astype(np.uint8), len(distinct))
    out.mark("indices")


def _find_distinct(row: Array) -> Array | None:
    """Return the numbers that occur, ascending; None if they are too many for a table."""
    # The beginning first: most tensors have too many numbers there already, and sorting all of them takes long.
    for part in (row[:SAMPLE], row):
        found: Array = np.unique(part)
        if len(found) > MOST_DISTINCT:
            return None
    return found


# -- levels --------------------------------------------------------------------------------------------------------


def _write_levels(out: MessageWriter, codes: Codes, kept: Array | None) -> None:
    dtype, shape, indices = codes.levels.dtype, tuple(codes.indices.shape), codes.indices.reshape(-1).numpy()
    number = len(codes.levels)
    out.natural(number - 2)
    regular = np.array_equal(view_bits(codes.levels), view_bits(_make_equispaced(number, dtype)))
    out.choice(int(regular), 2)
    if not regular:
        _write_numbers(out, _view_bits(codes.levels), dtype, label="levels")
    out.mark("levels")
    _code_units(out, shape, tuple(codes.scales.shape))
    _write_numbers(out, _view_bits(codes.scales), dtype, positive=True, label="scales")
    out.choice(int(kept is not None), 2)
    if kept is not None:
        out.symbols(kept.view(np.uint8), 2)
        out.mark("mask")
        indices = indices[kept]
    out.symbols(indices, number)
    out.mark("indices")


def _read_levels(receiver: Receiver, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    number = receiver.natural(0) + 2
    if number > MOST_LEVELS:
        raise CorruptArtifact(f"has {number} levels")
    levels = _make_equispaced(number, dtype)
    if not receiver.choice(0, 2):
        levels = _make_tensor(_read_numbers(receiver, number, dtype), (number,), dtype)
    units = _code_units(receiver, shape, shape)
    scales = _make_tensor(_read_numbers(receiver, math.prod(units), dtype, positive=True), units, dtype)
    count, mask = math.prod(shape), None
    kept = receiver.symbols(count, 2).view(np.bool_) if receiver.choice(0, 2) else np.ones(count, dtype=np.bool_)
    indices = np.zeros(count, dtype=np.uint8 if number <= 256 else np.int32)
    indices[kept] = receiver.symbols(int(np.count_nonzero(kept)), number)
    mask = torch.from_numpy(kept).reshape(shape)
    try:
        return Codes(torch.from_numpy(indices).reshape(shape), levels, scales).values(mask)
    except InvalidInput as error:
        raise CorruptArtifact(f"has impossible codes: {error}") from error


def _code_units(coder: Coder, shape: tuple[int, ...], units: tuple[int, ...]) -> tuple[int, ...]:
    """Code the shape of scales: one for all, one along the first axis, or else a divisor of each axis' length."""
    # Both of the usual shapes can be the same, as for a single row; then the first is said, and read.
    usual = _list_usual_units(shape)
    place = coder.choice(usual.index(units) if units in usual else 2, 3)
    if place < 2:
        return usual[place]
    divisors = [[unit for unit in range(1, length + 1) if length % unit == 0] for length in shape]
    places = [own.index(unit) for own, unit in zip(divisors, units, strict=True)]
    return tuple(own[coder.choice(place, len(own))] for own, place in zip(divisors, places, strict=True))


def _list_usual_units(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(1 for _ in shape), tuple(length if axis == 0 else 1 for axis, length in enumerate(shape))]


def _make_equispaced(number: int, dtype: torch.dtype) -> Tensor:
    steps = number - 1
    return torch.tensor([(2 * j - steps) / steps for j in range(number)], dtype=torch.float64).to(dtype)


def _express_in_levels(
    tensor: Tensor, codes: Codes | None, mask: Tensor | None
) -> Iterator[tuple[Codes, Array | None]]:
    """Yield codes that give a tensor, its own or such as its values fit, and the kept entries if no level is zero."""
    if codes is not None:
        yield _drop_needless_mask(codes.to("cpu"), None if mask is None else mask.cpu())
    elif tensor.dtype in FLOORS and tensor.isfinite().all():
        yield from _find_levels(tensor)


def _drop_needless_mask(codes: Codes, mask: Tensor | None) -> tuple[Codes, Array | None]:
    """Turn pruned entries into a level of zero where there is one: the mask need not be sent then."""
    if mask is None:
        return codes, None
    # Compared by bits: −0.0 is no level that pruned entries, which are +0.0, could take.
    zeros = np.flatnonzero(view_bits(codes.levels) == 0)
    if len(zeros) == 0:
        return codes, mask.reshape(-1).numpy()
    indices = codes.indices.where(mask, torch.tensor(int(zeros[0]), dtype=codes.indices.dtype))
    return Codes(indices, codes.levels, codes.scales), None


def _find_levels(tensor: Tensor) -> Iterator[tuple[Codes, Array | None]]:
    """Find equispaced levels that a tensor without codes lies on, with one scale, or one for each row."""
    for units in _list_usual_units(tuple(tensor.shape))[: max(tensor.dim(), 1)]:
        rows = tensor.reshape(math.prod(units), -1)
        some = rows[:1, :SAMPLE].contiguous()  # most weights fail already on these
        if len(some.unique()) > max(ALPHABETS):
            continue
        # The outermost level is ±1, so that the largest magnitude is the scale; a row of zeros has none, and takes 1.
        scales = rows.abs().amax(1)
        scales = scales.where(scales > 0, 1.0).reshape(units)
        for number in ALPHABETS:
            if _match_levels(some, scales.reshape(-1, 1)[:1], number) is None:
                continue
            if (found := _match_levels(tensor, scales, number)) is not None:
                yield found
                break


def _match_levels(tensor: Tensor, scales: Tensor, number: int) -> tuple[Codes, Array | None] | None:
    levels = _make_equispaced(number, tensor.dtype)
    nearest = ((tensor / scales + 1) * ((number - 1) / 2)).round().clamp(0, number - 1)
    try:
        codes = Codes(nearest.to(torch.uint8), levels, scales)
    except InvalidInput:  # a product overflows
        return None
    # An even number of equispaced levels has no zero among them: zeros are then pruned entries.
    kept = None if number % 2 else tensor != 0
    # Whatever was found must give back every bit, or it is not used: rounding above decides about length alone.
    if not np.array_equal(view_bits(codes.values(kept)), view_bits(tensor)):
        return None
    return codes, None if kept is None or kept.all() else kept.reshape(-1).numpy()
