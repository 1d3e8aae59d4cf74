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


def narrowed(tensor: Tensor) -> Tensor | None:
    """The same values in the narrowest type that holds each of them exactly; None if there is none.

    What processors do not agree on is left as it is: the payloads of NaNs, and numbers that are subnormal as float32,
    which a thread that flushes them (`torch.set_flush_denormal`) would read as zero.
    """
    if tensor.dtype not in NARROWER or tensor.isnan().any():
        return None
    if ((tensor.abs() < SMALLEST) & (tensor != 0)).any():
        return None
    for dtype in NARROWER[tensor.dtype]:
        narrow = tensor.to(dtype)
        if np.array_equal(bits(narrow.to(tensor.dtype)), bits(tensor)):
            return narrow
    return None


def narrowed_or_same(tensor: Tensor) -> Tensor:
    """`narrowed`, or the tensor itself if there is no narrower type for it."""
    narrow = narrowed(tensor)
    return tensor if narrow is None else narrow


def widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in a type they may have been narrowed from, which can be their own."""
    if values.dtype is not dtype and values.dtype not in NARROWER.get(dtype, ()):
        raise CorruptArtifact(f"claims {dtype} but is stored as {values.dtype}, which cannot stand for it")
    return values.to(dtype)
