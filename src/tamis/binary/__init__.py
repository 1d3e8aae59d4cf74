"""Binary networks have signs for weights and activations, with positive scales learnt as in XNOR-Net++.

Reference: chee2021xnor.
"""

from tamis.binary.compile import compile as compile
from tamis.binary.conversion import binarize as binarize
from tamis.binary.layers import BinaryConv1d as BinaryConv1d
from tamis.binary.layers import BinaryConv2d as BinaryConv2d
from tamis.binary.layers import BinaryLayer as BinaryLayer
from tamis.binary.layers import BinaryLinear as BinaryLinear
from tamis.binary.layers import binary_layers as binary_layers
from tamis.binary.layers import clip_weights as clip_weights
from tamis.binary.layers import thresholds as thresholds
from tamis.binary.packed_layers import packed_layers as packed_layers
from tamis.binary.packed_network import pack_network as pack_network
from tamis.binary.packed_network import pack_traced as pack_traced
from tamis.binary.rebuilding import rebuild_binary_layers as rebuild_binary_layers
from tamis.binary.sparse_scales import scale_penalty as scale_penalty
from tamis.binary.sparse_scales import shrink_scales as shrink_scales
from tamis.binary.two_stage import ACTIVATIONS as ACTIVATIONS
from tamis.binary.two_stage import BOTH as BOTH
from tamis.binary.two_stage import TrainedBinary as TrainedBinary
from tamis.binary.two_stage import train_binary as train_binary

__all__ = [
    "ACTIVATIONS",
    "BOTH",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryLayer",
    "BinaryLinear",
    "TrainedBinary",
    "binarize",
    "binary_layers",
    "clip_weights",
    "compile",
    "pack_network",
    "pack_traced",
    "packed_layers",
    "rebuild_binary_layers",
    "scale_penalty",
    "shrink_scales",
    "thresholds",
    "train_binary",
]
