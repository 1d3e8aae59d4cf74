"""Batch normalization in evaluation mode is an affine map per channel."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.graph.ops.base import Call, Capability, Op, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten
NORMALIZATION = "of a normalization: a few numbers per channel"


class BatchNorm(Op):
    """A batch normalization computes y = s x + t with s = γ/√(σ²+ε), t = β − s μ.

    Computations on |θ|^q never meet it: `fold` rewrites it first, so that the sign of t is not lost.
    """

    targets: Targets = (aten.batch_norm.default,)
    is_batch_norm = True
    untouched = NORMALIZATION

    def capability(self, call: Call) -> Capability:
        # With statistics of the batch itself it is neither affine nor a function of one sample.
        evaluation = not call["training"] and call.node.arguments["running_mean"] is not None
        return Capability.HOMOGENEOUS if evaluation else Capability.OPAQUE

    def ties(self, call: Call, scales: Scales) -> Tensor:
        incoming = scales.along(call["input"], 1)
        outgoing = scales.batch_norm(call.node, incoming)
        return scales.spread(outgoing, 1, call.shape)

    def macs(self, call: Call) -> int:
        return call["input"].numel()
