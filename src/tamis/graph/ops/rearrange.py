"""These operations only move neurons: views, slices, permutations, zero padding, shuffles, nearest upsampling."""

from __future__ import annotations

import operator
from typing import Any

import torch

from tamis.graph.network import Node
from tamis.graph.ops.base import Call, Capability, Entrywise, IntervalRule, Op, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Rearrange(Op):
    """Each output neuron is a copy of one input neuron, or zero: the operation means the same on any kind of value."""

    grows = False
    interval = IntervalRule.MOVING
    keeps_zeros = True
    targets: Targets = (
        aten.reshape.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.expand.default,
        aten.repeat.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.index_select.default,
        aten.index.Tensor,
        aten.flip.default,
        aten.roll.default,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unbind.int,
        aten.pixel_shuffle.default,
        aten.pixel_unshuffle.default,
        aten.channel_shuffle.default,
        aten.im2col.default,
        aten.reflection_pad1d.default,
        aten.reflection_pad2d.default,
        aten.reflection_pad3d.default,
        aten.replication_pad1d.default,
        aten.replication_pad2d.default,
        aten.replication_pad3d.default,
        aten.upsample_nearest1d.default,
        aten.upsample_nearest2d.default,
        aten.upsample_nearest3d.default,
        aten.upsample_nearest1d.vec,
        aten.upsample_nearest2d.vec,
        aten.upsample_nearest3d.vec,
        aten._upsample_nearest_exact1d.default,
        aten._upsample_nearest_exact2d.default,
        aten._upsample_nearest_exact3d.default,
        aten._upsample_nearest_exact1d.vec,
        aten._upsample_nearest_exact2d.vec,
        aten._upsample_nearest_exact3d.vec,
    )

    def capability(self, call: Call) -> Capability:
        # An index that depends on the input would move neurons by their values.
        only_first = not any(call.is_data(name) for name in list(call.node.arguments)[1:])
        return Capability.HOMOGENEOUS if only_first else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        return call.run()

    def reach(self, call: Call) -> Any:
        return call.run()

    def ties(self, call: Call, scales: Scales) -> Any:
        # Zeros that padding brings in become variable 0, which stands for "zero, so any scale".
        return call.run()

    def entrywise(self, node: Node) -> Entrywise | None:
        return Entrywise.RESHAPE if node.target is aten.reshape.default else Entrywise.MOVE


class Pad(Rearrange):
    """Padding fills new entries with a constant; only zero keeps the network homogeneous without a bias of its own."""

    targets: Targets = (aten.constant_pad_nd.default, aten.pad.default)
    fillings = ("value",)

    def capability(self, call: Call) -> Capability:
        # Reflection and replication copy neurons and have no value to fill in.
        constant = call.node.arguments.get("mode", "constant") == "constant"
        return Capability.OPAQUE if constant and call["value"] else Capability.HOMOGENEOUS

    def interval_rule(self, call: Call) -> IntervalRule | None:
        return self.interval  # padding with any number is no trouble for intervals

    def entrywise(self, node: Node) -> Entrywise | None:
        return None  # it has entries that come from nowhere


class Pick(Rearrange):
    """A pick is one of the results of an operation that has several."""

    targets: Targets = (operator.getitem,)
    picks_result = True

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS if call.node.shape is not None else Capability.OPAQUE

    def entrywise(self, node: Node) -> Entrywise | None:
        return None  # its argument is a tuple, not a tensor
