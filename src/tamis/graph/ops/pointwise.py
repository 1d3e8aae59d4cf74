"""Operations on one neuron at a time: activations and multiplication by a number."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.graph.ops.base import Call, Capability, Op, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Relu(Op):
    """ReLU, and |x|: homogeneous, and the identity on non-negative values."""

    grows = False
    targets: Targets = (aten.relu.default, aten.abs.default)

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call["self"]

    def reach(self, call: Call) -> Tensor:
        return call["self"]

    def summands(self, call: Call) -> int:
        return 1

    def ties(self, call: Call, scales: Scales) -> Tensor:
        return call["self"]


class LeakyRelu(Relu):
    """x on one side of zero, slope · x on the other.

    An edge of weight m = max(1, |slope|) into a neuron whose path-activation is not 1 or 0 but 1/m or slope/m.
    """

    grows = True
    targets: Targets = (aten.leaky_relu.default,)

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        return call["self"] * max(1.0, abs(call["negative_slope"])) ** q


class Lipschitz(Relu):
    """1-Lipschitz activations with f(0) = 0: never larger than the identity, but not homogeneous."""

    targets: Targets = (
        aten.tanh.default,
        aten.relu6.default,
        aten.sin.default,
        aten.atan.default,
        aten.asinh.default,
    )

    def capability(self, call: Call) -> Capability:
        return Capability.LIPSCHITZ


class Elu(Lipschitz):
    """ELU: 1-Lipschitz while alpha and the two scales are at most one."""

    targets: Targets = (aten.elu.default,)

    def capability(self, call: Call) -> Capability:
        slopes = (abs(call["scale"]), abs(call["alpha"] * call["scale"] * call["input_scale"]))
        return Capability.LIPSCHITZ if max(slopes) <= 1 else Capability.OPAQUE


class Clamp(Lipschitz):
    """Clamping to an interval that contains zero; to [0, ∞) it is ReLU."""

    targets: Targets = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.hardtanh.default)

    def capability(self, call: Call) -> Capability:
        low, high = self._interval(call)
        if not low <= 0 <= high:
            return Capability.OPAQUE
        one_sided = (low, high) in ((0, float("inf")), (float("-inf"), 0), (float("-inf"), float("inf")))
        return Capability.HOMOGENEOUS if one_sided else Capability.LIPSCHITZ

    @staticmethod
    def _interval(call: Call) -> tuple[float, float]:
        named = call.node.arguments
        low, high = named.get("min", named.get("min_val")), named.get("max", named.get("max_val"))
        return (float("-inf") if low is None else low), (float("inf") if high is None else high)


class Negate(Relu):
    """−x."""

    targets: Targets = (aten.neg.default,)
