"""Numbers in a narrower type than their own, where that loses nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.encodings.base import bits
from tamis.errors import CorruptArtifact

# What each type may be stored as, shortest first.
NARROWER: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float32: (torch.float16, torch.bfloat16),
    torch.float64: (torch.float16, torch.bfloat16, torch.float32),
}
SMALLEST = 2.0**-126  # the smallest normal float32; bfloat16 has the same exponents
SAMPLE = 4096


def narrowed(tensor: Tensor) -> Tensor | None:
    """The same values in the narrowest type that holds each of them exactly; None if there is none.

    What processors do not agree on is left as it is: the payloads of NaNs, and numbers that are subnormal as float32,
    which a thread that flushes them (`torch.set_flush_denormal`) would read as zero.
    """
    first = tensor.reshape(-1)[:SAMPLE]  # most tensors show here already that they cannot be narrowed
    candidates = [dtype for dtype in NARROWER.get(tensor.dtype, ()) if _same_bits(first.to(dtype), first)]
    if not candidates or tensor.isnan().any():
        return None
    if ((tensor.abs() < SMALLEST) & (tensor != 0)).any():
        return None
    for dtype in candidates:
        narrow = tensor.to(dtype)
        if _same_bits(narrow, tensor):
            return narrow
    return None


def _same_bits(narrow: Tensor, tensor: Tensor) -> bool:
    return np.array_equal(bits(narrow.to(tensor.dtype)), bits(tensor))


def narrowed_or_same(tensor: Tensor) -> Tensor:
    """`narrowed`, or the tensor itself if there is no narrower type for it."""
    narrow = narrowed(tensor)
    return tensor if narrow is None else narrow


def widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in a type they may have been narrowed from, which can be their own."""
    if values.dtype is not dtype and values.dtype not in NARROWER.get(dtype, ()):
        raise CorruptArtifact(f"claims {dtype} but is stored as {values.dtype}, which cannot stand for it")
    return values.to(dtype)
