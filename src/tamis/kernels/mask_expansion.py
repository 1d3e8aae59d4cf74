"""Expansion restores a pruned tensor: its kept weights where a mask is true, and zeros elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvalidInput
from tamis.kernels import dispatch


def expand(values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Return out[i] = values[number of true entries before i] where mask[i], else 0.

    Args:
        values: a row of numbers of 1, 2, 4 or 8 bytes, as many as the mask has true entries.
        mask: a row of booleans; of the bytes of one that is a view of other memory, all but 0 are true.

    Example:
        >>> expand(np.array([7, 8]), np.array([False, True, False, True])).tolist()
        [0, 7, 0, 8]
    """
    if len(values) != (kept := np.count_nonzero(mask)):
        raise InvalidInput(f"expand got {len(values)} values for {kept} kept entries")
    extension = dispatch.native()
    if extension is None:
        # Writing to sorted positions takes half the time of indexing with the mask itself, in numpy as in torch.
        out = np.zeros(len(mask), dtype=values.dtype)
        out[np.flatnonzero(mask)] = values
        return out
    # numpy's memory, unlike torch's, comes in huge pages where it is large, but not at a multiple of 64 bytes, which is
    # what it takes to be written past the cache.
    size = len(mask) * values.itemsize
    memory = np.empty(size + 63, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + size].view(values.dtype)
    extension.expand(np.ascontiguousarray(values), np.ascontiguousarray(mask), out)
    return out
