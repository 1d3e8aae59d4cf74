"""Sliding windows: what convolutions and pooling share."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def per_dimension(value: Any, rank: int) -> list[int]:
    """One number a dimension, whether the call gave one for all or one each."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * rank if len(values) == 1 else values
