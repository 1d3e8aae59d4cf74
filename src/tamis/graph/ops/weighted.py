"""What a layer with a weight and a bias shares with every other one: a linear layer, or a convolution."""

from __future__ import annotations

from torch import Tensor

from tamis.graph.network import Node
from tamis.graph.ops.base import Call, Capability, IntervalRule, LayerArguments, Op, in_units


class Weighted(Op):
    """A weighted operation is linear in its input, and in its weight, and adds a bias."""

    multipliers = ("weight",)
    addends = ("bias",)
    interval = IntervalRule.AFFINE
    channel_axes = (0, 1)
    folds_batch_norm = True
    prunable = True

    def capability(self, call: Call) -> Capability:
        fixed = not call.is_data("weight") and not call.is_data("bias")
        return Capability.HOMOGENEOUS if fixed else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run(bias=in_units(call["bias"], one))

    def layer(self, node: Node) -> LayerArguments:
        return LayerArguments("input", "weight", "bias")
