"""Merges of branches and arithmetic with fixed values are described here: add, sub, mul, div, cat, stack, maximum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tamis.graph.network import Node, Ref
from tamis.graph.ops.base import Call, Capability, Entrywise, IntervalRule, Op, Rank, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Add(Op):
    """A sum is x ± α y, where either side may be a fixed tensor or a number (a bias)."""

    targets: Targets = (
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.sub.Scalar,
        aten.rsub.Scalar,
        aten.rsub.Tensor,
    )
    addends = ("self", "other")
    interval = IntervalRule.AFFINE

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        x, y = (_make_term(call, name, q, one) for name in ("self", "other"))
        # rsub computes other − α self, so α belongs to the first argument there.
        weight = abs(call["alpha"]) ** q
        return weight * x + y if call.node.op.startswith("aten.rsub") else x + weight * y

    def reach(self, call: Call) -> Tensor:
        # Only data feeds a sum; what is fixed is its bias, which Π counts apart from what feeds the neuron.
        data = [call[name] for name in ("self", "other") if call.is_data(name)]
        largest = torch.maximum(*data) if len(data) == 2 else data[0]
        return largest * torch.ones_like(call.run())

    def summands(self, call: Call) -> int:
        return 2

    def ties(self, call: Call, scales: Scales) -> Tensor:
        if call.is_data("self") and call.is_data("other"):
            # λ x + μ y is a multiple of x + y for λ = μ alone: this is what ties the channels of a skip connection.
            return scales.same(call["self"], call["other"])
        data, fixed = ("self", "other") if call.is_data("self") else ("other", "self")
        return scales.added(call.node, fixed, call[data])

    def entrywise(self, node: Node) -> Entrywise | None:
        return Entrywise.SUM if node.target in (aten.add.Tensor, aten.sub.Tensor) else None

    def added_number(self, node: Node) -> float | None:
        # rsub would also turn the sign of the data, and is then no mere shift.
        term, other = node.args[:2]
        if not isinstance(term, Ref) or isinstance(other, Ref) or node.op.startswith("aten.rsub"):
            return None
        sign = -1 if node.op.startswith("aten.sub") else 1
        return float(sign * other * node.arguments["alpha"])


class Multiply(Op):
    """A product multiplies data by a number or a fixed tensor."""

    targets: Targets = (aten.mul.Tensor, aten.mul.Scalar)
    multipliers = ("self", "other")
    interval = IntervalRule.AFFINE
    keeps_zeros = True

    def capability(self, call: Call) -> Capability:
        return Capability.OPAQUE if call.is_data("self") and call.is_data("other") else Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        x, y = (_raise_factor(call[name], q) for name in ("self", "other"))
        return x * y

    def reach(self, call: Call) -> Tensor:
        data = call["self"] if call.is_data("self") else call["other"]
        return data * torch.ones_like(call.run())

    def summands(self, call: Call) -> int:
        return 2

    def ties(self, call: Call, scales: Scales) -> Tensor:
        data = call["self"] if call.is_data("self") else call["other"]
        # The factor stays as it is, and what comes out has the scale of the data.
        return data.expand(call.shape)

    def entrywise(self, node: Node) -> Entrywise | None:
        return Entrywise.PRODUCT


class Divide(Multiply):
    """A quotient divides data by a number."""

    targets: Targets = (aten.div.Tensor, aten.div.Scalar)

    def capability(self, call: Call) -> Capability:
        by_number = isinstance(call.node.arguments["other"], (int, float))
        return Capability.HOMOGENEOUS if by_number else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call["self"] / _raise_factor(call["other"], q)

    def entrywise(self, node: Node) -> Entrywise | None:
        return Entrywise.QUOTIENT


class Maximum(Op):
    """The larger or smaller of two tensors is k-max-pooling over two neurons, or over a neuron and a constant."""

    targets: Targets = (aten.maximum.default, aten.minimum.default)
    interval = IntervalRule.SELECTING

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS if call.is_data("self") and call.is_data("other") else Capability.OPAQUE

    def interval_rule(self, call: Call) -> IntervalRule | None:
        return self.interval  # the maximum with a fixed tensor is not homogeneous, but no trouble for intervals

    def ranks(self, call: Call) -> list[Rank]:
        return [("smallest" if call.node.target is aten.minimum.default else "largest", 1)]

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        # max(a, b) ≤ a + b for magnitudes, and the sum is what keeps both edges of the k-max-pooling neuron (3.1.1).
        return call["self"] + call["other"]

    def reach(self, call: Call) -> Tensor:
        return torch.maximum(call["self"], call["other"])

    def summands(self, call: Call) -> int:
        return 2

    def ties(self, call: Call, scales: Scales) -> Tensor:
        return scales.same(call["self"], call["other"])


class Join(Op):
    """`cat` and `stack` join tensors, and those that are fixed (a class token, say) are biases."""

    targets: Targets = (aten.cat.default, aten.stack.default)
    addends = ("tensors",)
    interval = IntervalRule.MOVING

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call.run(tensors=[value if data else value * one for value, data in call.items("tensors")])

    def reach(self, call: Call) -> Tensor:
        # With `one` = 0 the fixed entries become 0: no data feeds them.
        return self.magnitude(call, 1.0, 0.0)

    def summands(self, call: Call) -> int:
        return 2

    def ties(self, call: Call, scales: Scales) -> Tensor:
        # A fixed entry cannot be rescaled: its scale variable is the one that stays 1.
        return call.run(
            tensors=[v if data else torch.ones(v.shape, dtype=torch.float64) for v, data in call.items("tensors")]
        )


def _make_term(call: Call, name: str, q: float, one: float) -> Any:
    """Return a summand: data as it is, a number or fixed tensor in units of `one`."""
    value = call[name]
    # A bias starts paths of its own, worth |b|^q each, in the units that the data is in at this node.
    return value if call.is_data(name) else _raise_factor(value, q) * one


def _raise_factor(value: Any, q: float) -> Any:
    """Return |number|^q; tensors hold their power already."""
    return value if isinstance(value, Tensor) else abs(value) ** q
