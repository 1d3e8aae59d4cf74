"""Kernels for GPUs. The files of this room import triton: import one only where `runs_on(device)` is true."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def runs_on(device: torch.device) -> bool:
    """Whether a tensor on this device can be given to these kernels."""
    return device.type == "cuda" and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
