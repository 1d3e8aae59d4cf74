"""Kernels for GPUs. Its modules import triton: import one only where `runs_on(device)` is true.

With TRITON_INTERPRET=1 in the environment they run on tensors of the CPU as well, slowly: that is how they are tested
where there is no GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch

# The submodules among these import triton, and are imported only where it runs; `kronecker_tiles` needs none.
__all__ = ["binary_conv", "kronecker", "kronecker_tiles", "l1ball", "launching_on", "runs_on"]


def runs_on(device: torch.device) -> bool:
    """Say whether a tensor on this device can be given to these kernels."""
    return device.type == "cuda" and _is_installed()


def launching_on(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which kernels are launched on the device of their tensors, if it is not the current one."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None
