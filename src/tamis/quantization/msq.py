"""Memoryless scalar quantization (MSQ) rounds every weight to the level nearest to it, whatever the data."""

from __future__ import annotations

from torch import Tensor

from tamis.layerwise import Gram
from tamis.quantization.feedback import Recursion


def msq(weights: Tensor, gram: Gram) -> Recursion:
    """Set up nearest rounding as a recursion without coupling: q_t = the level nearest to w_t.

    Reference: lybrand2021gpfq, section 3.
    """
    # No coupling: what one weight loses, no other makes up for. That is the baseline of the GPFQ paper.
    return Recursion(weights, weights, None)
