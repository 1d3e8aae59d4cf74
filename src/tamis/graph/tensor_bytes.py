"""The bytes of a tensor are what digests are made of, and what tells equal numbers of different bits apart."""

from __future__ import annotations

import torch
from torch import Tensor


def tensor_bytes(value: Tensor) -> Tensor:
    """Return the bytes of a tensor, entry by entry, as a tensor of uint8 on the CPU; it may share the tensor's memory.

    Example:
        >>> tensor_bytes(torch.tensor([1, 256], dtype=torch.int16)).tolist()
        [1, 0, 0, 1]
    """
    whole = value.detach().cpu().contiguous()
    # A tensor of one entry counts as contiguous whatever its stride, but torch shows bytes only where the stride is 1.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
