"""The narrow encoding stores a tensor in a narrower floating-point type that holds each of its values exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.encodings.base import Decoded, Encoded, Encoding, view_bits
from tamis.errors import CorruptArtifact

# The types that each type may be stored in, shortest first.
NARROWER: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float32: (torch.float16, torch.bfloat16),
    torch.float64: (torch.float16, torch.bfloat16, torch.float32),
}
SMALLEST = 2.0**-126  # the smallest normal float32; bfloat16 has the same exponents
SAMPLE = 4096


class Narrow(Encoding):
    """A narrow tensor has one part, `values`: the tensor in a narrower type."""

    name = "narrow"

    def encode(self, decoded: Decoded) -> Encoded | None:
        if decoded.mask is not None or decoded.codes is not None:
            return None
        values = narrow_dtype(decoded.tensor)
        return None if values is None else Encoded({"values": values})

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        stored.require({"values"})
        values = stored.parts["values"]
        if values.dtype is dtype or tuple(values.shape) != shape:
            raise CorruptArtifact(
                f"is stored as {values.dtype} of shape {tuple(values.shape)} but claims {dtype} and {shape}"
            )
        return Decoded(widen_dtype(values, dtype))


def narrow_dtype(tensor: Tensor) -> Tensor | None:
    """Convert values to the narrowest type that holds each of them exactly; return None if there is none.

    Values that processors convert differently are left as they are: the payloads of NaNs, and numbers that are
    subnormal as float32, which a thread that flushes them (`torch.set_flush_denormal`) would read as zero.
    """
    first = tensor.reshape(-1)[:SAMPLE]  # a few entries already rule out most candidates
    candidates = [dtype for dtype in NARROWER.get(tensor.dtype, ()) if _have_same_bits(first.to(dtype), first)]
    if not candidates or tensor.isnan().any():
        return None
    if ((tensor.abs() < SMALLEST) & (tensor != 0)).any():
        return None
    for dtype in candidates:
        narrow = tensor.to(dtype)
        if _have_same_bits(narrow, tensor):
            return narrow
    return None


def _have_same_bits(narrow: Tensor, tensor: Tensor) -> bool:
    return np.array_equal(view_bits(narrow.to(tensor.dtype)), view_bits(tensor))


def narrow_if_possible(tensor: Tensor) -> Tensor:
    """Return the tensor in a narrower type, or as it is if no narrower type holds its values."""
    narrow = narrow_dtype(tensor)
    return tensor if narrow is None else narrow


def widen_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert values back to the type that they were narrowed from, which can be their own."""
    if values.dtype is not dtype and values.dtype not in NARROWER.get(dtype, ()):
        raise CorruptArtifact(f"claims {dtype} but is stored as {values.dtype}, which does not widen to it")
    return values.to(dtype)
