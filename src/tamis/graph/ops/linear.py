"""Matrix products with a fixed matrix: linear layers, matmul, addmm, graph convolutions, einsum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tamis.graph.ops.base import Call, Capability, Op, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Linear(Op):
    """y = x Wᵀ + b over the last axis."""

    targets: Targets = (aten.linear.default,)
    multipliers = ("weight",)
    addends = ("bias",)

    def capability(self, call: Call) -> Capability:
        fixed = not call.is_data("weight") and not call.is_data("bias")
        return Capability.HOMOGENEOUS if fixed else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run(bias=_scaled(call["bias"], one))

    def reach(self, call: Call) -> Tensor:
        largest = call["input"].amax(-1, keepdim=True)
        return largest.expand(*largest.shape[:-1], call["weight"].shape[0])

    def ties(self, call: Call, scales: Scales) -> Tensor:
        incoming = scales.along(call["input"], -1)
        outgoing = scales.layer(call.node, "weight", (0, 1), incoming, bias="bias")
        return outgoing.expand(call.shape)

    def macs(self, call: Call) -> int:
        return call["input"].numel() * call["weight"].shape[0]


class MatMul(Op):
    """A product of data with a fixed matrix on either side, batched or not."""

    targets: Targets = (aten.matmul.default, aten.mm.default, aten.bmm.default)
    multipliers = ("self", "other", "mat2")

    def capability(self, call: Call) -> Capability:
        both = all(call.is_data(name) for name in self._sides(call))
        return Capability.OPAQUE if both else Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run()

    def reach(self, call: Call) -> Tensor:
        left, right = self._sides(call)
        if call.is_data(left):
            largest = call[left].amax(-1, keepdim=True)
            return (
                largest.expand(*largest.shape[:-1], call[right].shape[-1]) * torch.ones_like(call.run())
            ).contiguous()
        largest = call[right].amax(-2, keepdim=True)
        return largest * torch.ones_like(call.run())

    def ties(self, call: Call, scales: Scales) -> Tensor:
        left, right = self._sides(call)
        if not call.is_data(left):  # mixes rows; columns, if there are any, keep their scales
            x = call[right]
            return (scales.along(x, -1) if x.dim() > 1 else scales.reduced(x, None, False)).expand(call.shape)
        if call[right].dim() != 2 or call[left].dim() < 2:
            return super().ties(call, scales)
        incoming = scales.along(call[left], -1)
        return scales.layer(call.node, right, (1, 0), incoming).expand(call.shape)

    def macs(self, call: Call) -> int:
        left, _ = self._sides(call)
        return call.run().numel() * call[left].shape[-1]

    @staticmethod
    def _sides(call: Call) -> tuple[str, str]:
        return "self", ("mat2" if "mat2" in call.node.arguments else "other")


class AddMM(Op):
    """β b + α x W, the matrix W on the right."""

    targets: Targets = (aten.addmm.default,)
    multipliers = ("mat2",)
    addends = ("self",)

    def capability(self, call: Call) -> Capability:
        fixed = not call.is_data("self") and not call.is_data("mat2")
        return Capability.HOMOGENEOUS if fixed else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run(self=call["self"] * one, alpha=abs(call["alpha"]) ** q, beta=abs(call["beta"]) ** q)

    def reach(self, call: Call) -> Tensor:
        largest = call["mat1"].amax(-1, keepdim=True)
        return largest.expand(*largest.shape[:-1], call["mat2"].shape[-1])

    def ties(self, call: Call, scales: Scales) -> Tensor:
        incoming = scales.along(call["mat1"], -1)
        return scales.layer(call.node, "mat2", (1, 0), incoming, bias="self").expand(call.shape)

    def macs(self, call: Call) -> int:
        return call["mat1"].numel() * call["mat2"].shape[-1]


class Einsum(Op):
    """A contraction of data with one fixed tensor."""

    targets: Targets = (aten.einsum.default,)
    multipliers = ("tensors",)

    def capability(self, call: Call) -> Capability:
        data = [carries for _, carries in call.items("tensors")]
        return Capability.HOMOGENEOUS if sum(data) == 1 and len(data) <= 2 else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run()

    def reach(self, call: Call) -> Tensor:
        reads, writes = call["equation"].replace(" ", "").split("->")
        (labels, largest), *_ = [
            (labels, value)
            for labels, (value, data) in zip(reads.split(","), call.items("tensors"), strict=True)
            if data
        ]
        summed = [label for label in labels if label not in writes]
        if summed:
            largest = largest.amax([labels.index(label) for label in summed])
        kept = [label for label in labels if label in writes]
        ordered = largest.permute([kept.index(label) for label in writes if label in kept])
        index = tuple(slice(None) if label in kept else None for label in writes)
        return ordered[index] * torch.ones_like(call.run())

    def macs(self, call: Call) -> int:
        reads, _ = call["equation"].replace(" ", "").split("->")
        sizes = {
            label: size
            for labels, (value, _) in zip(reads.split(","), call.items("tensors"), strict=True)
            for label, size in zip(labels, value.shape, strict=True)
        }
        return math.prod(sizes.values())


def _scaled(bias: Any, one: float) -> Any:
    """A bias in units of `one`; None where it vanishes."""
    return None if bias is None or one == 0 else bias * one
