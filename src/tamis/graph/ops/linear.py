"""Matrix products with a fixed matrix are described here: linear layers, matmul, addmm, graph convolutions, einsum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tamis.graph.network import Node
from tamis.graph.ops.base import Call, Capability, IntervalRule, LayerArguments, Op, Targets
from tamis.graph.ops.weighted import Weighted
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Linear(Weighted):
    """A linear layer computes y = x Wᵀ + b over the last axis."""

    targets: Targets = (aten.linear.default,)

    def reach(self, call: Call) -> Tensor:
        # A weight of one dimension is a single neuron, whose axis torch drops from the result.
        largest = call["input"].amax(-1, keepdim=call["weight"].dim() > 1)
        # Every output neuron is fed by every input neuron, so all have the same reach; ones give it their shape.
        return largest * torch.ones_like(call.run(bias=None))

    def ties(self, call: Call, scales: Scales) -> Tensor:
        # A single neuron has no axis of outputs that a scale could be written to, so its inputs stay as they are.
        if call["weight"].dim() == 1:
            return super().ties(call, scales)
        incoming = scales.along(call["input"], -1)
        outgoing = scales.layer(call.node, "weight", (0, 1), incoming, bias="bias")
        return outgoing.expand(call.shape)

    def summands(self, call: Call) -> int:
        return call["weight"].shape[-1] + 1

    def products(self, call: Call) -> int:
        return int(call["weight"].shape[-1])

    def macs(self, call: Call) -> int:
        return call.run(bias=None).numel() * call["weight"].shape[-1]


class MatMul(Op):
    """A matrix product multiplies data by a fixed matrix on either side, batched or not."""

    targets: Targets = (aten.matmul.default, aten.mm.default, aten.bmm.default)
    multipliers = ("self", "other", "mat2")
    interval = IntervalRule.AFFINE
    channel_axes = (1, 0)
    prunable = True

    def capability(self, call: Call) -> Capability:
        # A product of data with data has degree two: neither linear nor homogeneous of degree one.
        both = all(call.is_data(name) for name in self._name_sides(call))
        return Capability.OPAQUE if both else Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run()

    def reach(self, call: Call) -> Tensor:
        left, right = self._name_sides(call)
        x = call[left] if call.is_data(left) else call[right]
        # The axis that is summed over is the last one of the left factor, and the last but one of the right factor.
        if call.is_data(left):
            largest = x.amax(-1, keepdim=call[right].dim() > 1)
        else:
            largest = x.amax(-2, keepdim=True) if x.dim() > 1 else x.amax()
        return largest * torch.ones_like(call.run())

    def ties(self, call: Call, scales: Scales) -> Tensor:
        left, right = self._name_sides(call)
        if not call.is_data(left):  # mixes rows; columns, if there are any, keep their scales
            x = call[right]
            return (scales.along(x, -1) if x.dim() > 1 else scales.reduced(x, None, False)).expand(call.shape)
        # A batch of matrices has a weight for each place in the batch, which no scale of a channel can be moved into.
        if call[right].dim() != 2 or call[left].dim() < 2:
            return super().ties(call, scales)
        incoming = scales.along(call[left], -1)
        return scales.layer(call.node, right, (1, 0), incoming).expand(call.shape)

    def summands(self, call: Call) -> int:
        left, _ = self._name_sides(call)
        return call[left].shape[-1]

    def macs(self, call: Call) -> int:
        left, _ = self._name_sides(call)
        return call.run().numel() * call[left].shape[-1]

    def layer(self, node: Node) -> LayerArguments:
        return LayerArguments("self", "mat2" if "mat2" in node.arguments else "other", None)

    def _name_sides(self, call: Call) -> tuple[str, str]:
        names = self.layer(call.node)
        return names.inputs, names.weight


class AddMM(Op):
    """`addmm` computes β b + α x W, with the matrix W on the right."""

    targets: Targets = (aten.addmm.default,)
    multipliers = ("mat2",)
    addends = ("self",)
    interval = IntervalRule.AFFINE
    channel_axes = (1, 0)
    prunable = True

    def capability(self, call: Call) -> Capability:
        # Data as the bias would be a branch that is added, which neither `reach` nor `ties` counts here.
        fixed = not call.is_data("self") and not call.is_data("mat2")
        return Capability.HOMOGENEOUS if fixed else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        # α and β are numbers of the call, so they are raw; the tensors hold their powers already.
        return call.run(self=call["self"] * one, alpha=abs(call["alpha"]) ** q, beta=abs(call["beta"]) ** q)

    def reach(self, call: Call) -> Tensor:
        largest = call["mat1"].amax(-1, keepdim=True)
        return largest.expand(*largest.shape[:-1], call["mat2"].shape[-1])

    def ties(self, call: Call, scales: Scales) -> Tensor:
        incoming = scales.along(call["mat1"], -1)
        return scales.layer(call.node, "mat2", (1, 0), incoming, bias="self").expand(call.shape)

    def summands(self, call: Call) -> int:
        return call["mat2"].shape[0] + 1

    def macs(self, call: Call) -> int:
        return call["mat1"].numel() * call["mat2"].shape[-1]

    def layer(self, node: Node) -> LayerArguments:
        scaled = node.arguments["alpha"] != 1 or node.arguments["beta"] != 1
        return LayerArguments("mat1", "mat2", "self", scaled)


class Einsum(Op):
    """An einsum contracts data with at most one fixed tensor, by an equation that is written out in full."""

    targets: Targets = (aten.einsum.default,)
    multipliers = ("tensors",)
    interval = IntervalRule.AFFINE
    prunable = True

    def capability(self, call: Call) -> Capability:
        data = [carries for _, carries in call.items("tensors")]
        # An entry of the product of two fixed tensors is a sum over the label they share, and |Σ w v| is not Σ |w||v|.
        covered = sum(data) == 1 and len(data) <= 2 and self._read_labels(call) is not None
        return Capability.HOMOGENEOUS if covered else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run()

    def reach(self, call: Call) -> Tensor:
        labels = self._read_labels(call)
        assert labels is not None
        (mine, largest), *_ = [
            (mine, x) for mine, (x, data) in zip(labels, call.items("tensors"), strict=False) if data
        ]
        writes = labels[-1]
        # Labels of the data that the result lacks are summed over, so the maximum runs over them; labels that only the
        # fixed tensor has repeat it.
        summed = [mine.index(label) for label in mine if label not in writes]
        largest = largest.amax(summed) if summed else largest
        kept = [label for label in mine if label in writes]
        ordered = largest.permute([kept.index(label) for label in writes if label in kept])
        index = tuple(slice(None) if label in kept else None for label in writes)
        return ordered[index] * torch.ones_like(call.run())

    def macs(self, call: Call) -> int | None:
        labels = self._read_labels(call)
        if labels is None:
            return super().macs(call)
        shapes = [(mine, value.shape) for mine, (value, _) in zip(labels, call.items("tensors"), strict=False)]
        # One multiplication for every choice of all labels, those of the result and those that are summed over.
        return math.prod(
            {label: size for mine, shape in shapes for label, size in zip(mine, shape, strict=True)}.values()
        )

    @staticmethod
    def _read_labels(call: Call) -> list[str] | None:
        """Return the labels of each operand and then of the result; None if there are dots, repeats or no arrow."""
        equation = call.node.arguments["equation"].replace(" ", "")
        reads, arrow, writes = equation.partition("->")
        labels = [*reads.split(","), writes]
        plain = arrow and "." not in equation and all(len(set(each)) == len(each) for each in labels)
        return labels if plain else None
