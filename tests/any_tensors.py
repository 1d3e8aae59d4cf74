"""Tensors of every dtype a file can hold, with every kind of value, and masks for them."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from tamis.artifact.format import CODES

WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPECIAL = [0.0, -0.0, 1.0, -2.5, 0.1, 65504.0, 65520.0, 2.0**-24, 2.0**-126, 2.0**-149, 1e-310, 1e300]
SPECIAL += [math.inf, -math.inf, math.nan]


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
def masked_tensors(draw: st.DrawFn) -> tuple[Tensor, Tensor | None]:
    """A tensor and its mask, or None; where the mask is False, all bits are zero."""
    tensor = draw(tensors())
    if draw(st.booleans()):
        return tensor, None
    mask = draw(masks(tuple(tensor.shape)))
    zero = torch.zeros((), dtype=WIDTHS[tensor.itemsize])
    bits = tensor.reshape(-1).view(WIDTHS[tensor.itemsize])
    return torch.where(mask.reshape(-1), bits, zero).view(tensor.dtype).reshape(tensor.shape), mask
