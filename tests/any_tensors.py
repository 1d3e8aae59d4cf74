"""Tensors of every dtype a file can hold, with every kind of value, masks for them, and quantized ones."""

from __future__ import annotations

import math
import random

import torch
from hypothesis import strategies as st
from torch import Tensor

from tamis.artifact import Codes
from tamis.artifact.encodings import Decoded
from tamis.artifact.format import CODES

WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPECIAL = [0.0, -0.0, 1.0, -2.5, 0.1, 65504.0, 65520.0, 2.0**-24, 2.0**-126, 2.0**-149, 1e-310, 1e300]
SPECIAL += [math.inf, -math.inf, math.nan]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS_OF_LEVELS = [*range(2, 21), 243, 256, 257, 1000]


def raw(tensor: Tensor) -> bytes:
    """The bits of a tensor."""
    flat = tensor.detach().contiguous().reshape(-1).view(WIDTHS[tensor.itemsize])
    return flat.numpy().tobytes()


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype is other.dtype and one.shape == other.shape and raw(one) == raw(other)


def from_raw(content: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype)
    content = bytes(byte & 1 for byte in content) if dtype is torch.bool else content
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 5), max_size=4).map(tuple) | st.tuples(st.integers(0, 1500))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> Tensor:
    """Random bits, in which NaNs of every payload occur, or values that are special to some type."""
    shape = draw(shapes()) if shape is None else shape
    dtype = draw(st.sampled_from(list(CODES)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    entries = math.prod(shape)
    if draw(st.booleans()) or not dtype.is_floating_point or dtype.itemsize == 1:
        content = torch.randint(256, (entries * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        return from_raw(content.numpy().tobytes(), shape, dtype)
    chosen = draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=5))
    values = torch.tensor(chosen, dtype=torch.float64).to(dtype)
    return values[torch.randint(len(chosen), (entries,), generator=generator)].reshape(shape)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """Dense, sparse, empty and full ones, and ones in long runs."""
    entries = math.prod(shape)
    kept = draw(st.sampled_from([0.0, 0.002, 0.1, 0.5, 0.99, 1.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    run = draw(st.sampled_from([1, 1, 7, 300]))
    coarse = torch.rand(entries // run + 1, generator=generator) < kept
    return coarse.repeat_interleave(run)[:entries].reshape(shape)


@st.composite
def masked_tensors(draw: st.DrawFn) -> Decoded:
    """A tensor and its mask, or None; where the mask is False, all bits are zero."""
    tensor = draw(tensors())
    mask = draw(st.none() | masks(tuple(tensor.shape)))
    return Decoded(tensor if mask is None else zeroed(tensor, mask), mask)


def zeroed(tensor: Tensor, mask: Tensor) -> Tensor:
    """The tensor with all bits zero where a mask is False."""
    bits = tensor.reshape(-1).view(WIDTHS[tensor.itemsize])
    return bits.where(mask.reshape(-1), torch.zeros_like(bits)).view(tensor.dtype).reshape(tensor.shape)


def any_codes(dtype: torch.dtype, number: int, shape: tuple[int, ...], units: tuple[int, ...], seed: int) -> Codes:
    """Random indices of levels and scales that are either simple or, like random bits, of every size up to 16."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    integers = WIDTHS[dtype.itemsize]
    sixteen = int(torch.tensor(16.0, dtype=dtype).view(integers))
    if number <= 20 and draw.random() < 0.5:
        levels = torch.arange(number).to(dtype) - number // 2
    else:
        ranks = sorted(draw.sample(range(-sixteen, sixteen + 1, 1 + (sixteen >> 40)), number))
        levels = torch.tensor([r if r >= 0 else torch.iinfo(integers).min - r for r in ranks], dtype=integers).view(
            dtype
        )
    some = [draw.choice([0.1, 0.5, 3.0]) if draw.random() < 0.7 else None for _ in range(math.prod(units))]
    smallest = sixteen // draw.choice([2, 10**6])  # without, or with numbers that are as small as they get
    raw_scales = [draw.randint(max(smallest, 1), sixteen) for _ in some]
    scales = torch.tensor(raw_scales, dtype=integers).view(dtype)
    plain = torch.tensor([0.0 if value is None else value for value in some], dtype=torch.float64).to(dtype)
    scales = plain.where(plain != 0, scales).reshape(units)
    kind = torch.uint8 if number <= 256 else torch.int32
    return Codes(torch.randint(number, shape, generator=generator).to(kind), levels, scales)


def units_of(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of scales that divide the shape of a parameter."""
    divisors = [[unit for unit in range(1, length + 1) if length % unit == 0] or [0, 1] for length in shape]
    return st.tuples(*map(st.sampled_from, divisors))


@st.composite
def quantized_tensors(draw: st.DrawFn) -> Decoded:
    """A tensor with codes, and with a mask or without; where there is a mask, pruned entries have the index 0."""
    shape = draw(shapes())
    dtype, number = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(NUMBERS_OF_LEVELS))
    codes = any_codes(dtype, number, shape, draw(units_of(shape)), draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        return Decoded(codes.values(), None, codes)
    mask = draw(masks(shape))
    codes = codes.apply_mask(mask)
    return Decoded(zeroed(codes.values(), mask), mask, codes)


def same_codes(one: Codes | None, other: Codes | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(same(getattr(one, name), getattr(other, name)) for name in ("indices", "levels", "scales"))
