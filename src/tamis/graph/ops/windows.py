"""Convolutions and pooling share these helpers for sliding windows."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def repeat_per_dimension(value: Any, rank: int) -> list[int]:
    """Return one number for each dimension, whether the call gave one for all or one for each."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * rank if len(values) == 1 else values
