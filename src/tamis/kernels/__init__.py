"""The few computations worth writing below PyTorch, and the choice of which one runs.

`cpu/` holds the C++ kernels; `dispatch` picks an implementation and says why it was picked.
"""

from tamis.kernels import binary as binary
from tamis.kernels import binary_reference as binary_reference
from tamis.kernels import dispatch as dispatch
from tamis.kernels import kronecker as kronecker
from tamis.kernels.binary import binary_conv2d as binary_conv2d
from tamis.kernels.binary import pack_weight as pack_weight
from tamis.kernels.binary import watched as watched
from tamis.kernels.binary_call import LayerHere as LayerHere
from tamis.kernels.dispatch import binary_kernel as binary_kernel
from tamis.kernels.energy import NOT_MEASURED as NOT_MEASURED
from tamis.kernels.energy import Energy as Energy
from tamis.kernels.energy import measure as measure
from tamis.kernels.feedback import BLOCK as BLOCK
from tamis.kernels.feedback import Grid as Grid
from tamis.kernels.feedback import choose_block as choose_block
from tamis.kernels.kronecker import beyond_kernels as beyond_kernels
from tamis.kernels.kronecker import contracted as contracted
from tamis.kernels.kronecker import contracted_weight_gradient as contracted_weight_gradient
from tamis.kernels.kronecker import differentiated as differentiated
from tamis.kernels.kronecker import transformed as transformed
from tamis.kernels.mask_expansion import expand as expand
from tamis.kernels.timing import in_turns as in_turns

__all__ = [
    "BLOCK",
    "NOT_MEASURED",
    "Energy",
    "Grid",
    "LayerHere",
    "beyond_kernels",
    "binary",
    "binary_conv2d",
    "binary_kernel",
    "binary_reference",
    "choose_block",
    "contracted",
    "contracted_weight_gradient",
    "differentiated",
    "dispatch",
    "expand",
    "in_turns",
    "kronecker",
    "measure",
    "pack_weight",
    "transformed",
    "watched",
]
