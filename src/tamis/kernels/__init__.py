"""These are the few computations worth writing below PyTorch, with the choice of which one runs.

`cpu/` holds the C++ kernels, `triton/` those for GPUs; `dispatch` picks an implementation and says why it was picked.

Names are looked up on first use: `dispatch` needs no torch, and neither does a command that asks it for the processor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamis.kernels import binary as binary
    from tamis.kernels import binary_reference as binary_reference
    from tamis.kernels import dispatch as dispatch
    from tamis.kernels import kronecker as kronecker
    from tamis.kernels.binary import binary_conv2d as binary_conv2d
    from tamis.kernels.binary import is_intercepted as is_intercepted
    from tamis.kernels.binary import pack_weight as pack_weight
    from tamis.kernels.binary_arguments import Geometry as Geometry
    from tamis.kernels.binary_arguments import Operands as Operands
    from tamis.kernels.binary_call import CachedBinaryConv2d as CachedBinaryConv2d
    from tamis.kernels.dispatch import binary_kernel as binary_kernel
    from tamis.kernels.energy import NOT_MEASURED as NOT_MEASURED
    from tamis.kernels.energy import Energy as Energy
    from tamis.kernels.energy import measure_energy as measure_energy
    from tamis.kernels.feedback import BLOCK as BLOCK
    from tamis.kernels.feedback import FeedbackBlock as FeedbackBlock
    from tamis.kernels.feedback import Grid as Grid
    from tamis.kernels.feedback import choose_block as choose_block
    from tamis.kernels.kronecker import is_transform_active as is_transform_active
    from tamis.kernels.kronecker import multiply_with_torch as multiply_with_torch
    from tamis.kernels.kronecker import needs_gradient as needs_gradient
    from tamis.kernels.kronecker import needs_torch_rules as needs_torch_rules
    from tamis.kernels.kronecker import weight_gradient_with_torch as weight_gradient_with_torch
    from tamis.kernels.mask_expansion import expand as expand
    from tamis.kernels.timing import time_in_turns as time_in_turns

_HOMES = {
    "binary_conv2d": "binary",
    "is_intercepted": "binary",
    "pack_weight": "binary",
    "Geometry": "binary_arguments",
    "Operands": "binary_arguments",
    "CachedBinaryConv2d": "binary_call",
    "binary_kernel": "dispatch",
    "NOT_MEASURED": "energy",
    "Energy": "energy",
    "measure_energy": "energy",
    "BLOCK": "feedback",
    "Grid": "feedback",
    "FeedbackBlock": "feedback",
    "choose_block": "feedback",
    "is_transform_active": "kronecker",
    "multiply_with_torch": "kronecker",
    "needs_gradient": "kronecker",
    "needs_torch_rules": "kronecker",
    "weight_gradient_with_torch": "kronecker",
    "expand": "mask_expansion",
    "time_in_turns": "timing",
}
__all__ = [
    "BLOCK",
    "NOT_MEASURED",
    "CachedBinaryConv2d",
    "Energy",
    "FeedbackBlock",
    "Geometry",
    "Grid",
    "Operands",
    "binary",
    "binary_conv2d",
    "binary_kernel",
    "binary_reference",
    "choose_block",
    "dispatch",
    "expand",
    "is_intercepted",
    "is_transform_active",
    "kronecker",
    "measure_energy",
    "multiply_with_torch",
    "needs_gradient",
    "needs_torch_rules",
    "pack_weight",
    "time_in_turns",
    "weight_gradient_with_torch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tamis.kernels' has no attribute '{name}'")
    value = getattr(import_module(f"tamis.kernels.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
