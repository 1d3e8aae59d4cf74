"""Operations on one neuron at a time are described here: activations, and the sign."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tamis.graph.network import Node
from tamis.graph.ops.base import Call, Capability, Entrywise, IntervalRule, Op, Opaque, Targets
from tamis.graph.ops.scalar_functions import (
    ABS,
    ASINH,
    ATAN,
    RELU,
    RELU6,
    SIGMOID,
    SINE,
    TANH,
    Exponential,
    PiecewiseLinear,
    ScalarFunction,
)
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class _OneNeuron(Op):
    """This is the base of operations that are homogeneous, and the identity on non-negative magnitudes."""

    grows = False  # magnitudes are handed on as they are, so their exponents need no second look

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        value: Tensor = call["self"]
        return value

    def reach(self, call: Call) -> Tensor:
        value: Tensor = call["self"]
        return value

    def summands(self, call: Call) -> int:
        return 1

    def ties(self, call: Call, scales: Scales) -> Tensor:
        value: Tensor = call["self"]
        return value


class Relu(_OneNeuron):
    """ReLU and |x| are homogeneous, and the identity on non-negative values."""

    targets: Targets = (aten.relu.default, aten.abs.default)

    def function(self, call: Call) -> ScalarFunction | None:
        return ABS if call.node.target is aten.abs.default else RELU


class LeakyRelu(_OneNeuron):
    """A leaky ReLU is x on one side of zero and slope · x on the other.

    Paths have an edge of weight m = max(1, |slope|) into a neuron whose path-activation is not 1 or 0 but 1/m or
    slope/m.
    """

    grows = True
    targets: Targets = (aten.leaky_relu.default,)

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        # The slope is a number of the call, so it is raw, and takes the power itself.
        return call["self"] * max(1.0, abs(call["negative_slope"])) ** q

    def function(self, call: Call) -> ScalarFunction | None:
        return PiecewiseLinear((0.0,), (float(call["negative_slope"]), 1.0))


class Lipschitz(_OneNeuron):
    """A 1-Lipschitz activation with f(0) = 0 is never larger than the identity, but not homogeneous."""

    targets: Targets = (
        aten.tanh.default,
        aten.relu6.default,
        aten.sin.default,
        aten.atan.default,
        aten.asinh.default,
    )

    def capability(self, call: Call) -> Capability:
        return Capability.LIPSCHITZ

    def function(self, call: Call) -> ScalarFunction | None:
        functions: dict[object, ScalarFunction] = {}
        functions.update(zip(self.targets, (TANH, RELU6, SINE, ATAN, ASINH), strict=True))
        return functions[call.node.target]


class Elu(Lipschitz):
    """ELU is 1-Lipschitz while scale and alpha · scale · input_scale are at most one."""

    targets: Targets = (aten.elu.default,)

    def capability(self, call: Call) -> Capability:
        # ELU is scale · x above zero and alpha · scale · (e^(rate x) − 1) below, which is steepest at zero.
        slopes = (abs(call["scale"]), abs(call["alpha"] * call["scale"] * call["input_scale"]))
        return Capability.LIPSCHITZ if max(slopes) <= 1 else Capability.OPAQUE

    def function(self, call: Call) -> ScalarFunction | None:
        alpha, scale, rate = (float(call[name]) for name in ("alpha", "scale", "input_scale"))
        left = alpha * scale * rate
        # With other signs it does not rise everywhere, and its slopes below zero are not what `Exponential` says.
        known = alpha >= 0 and scale >= 0 and rate > 0 and math.isfinite(left)
        return Exponential(left, right=scale, rate=rate) if known else None


class Clamp(Lipschitz):
    """Clamping to an interval that contains zero is 1-Lipschitz; to [0, ∞) it is ReLU."""

    targets: Targets = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.hardtanh.default)

    def capability(self, call: Call) -> Capability:
        low, high = self._read_ends(call)
        # Where f(0) ≠ 0 the neuron adds something of its own, as a bias does, and no parameter says how much.
        if not low <= 0 <= high:
            return Capability.OPAQUE
        # Multiplying by λ > 0 maps only these intervals to themselves, which is homogeneity.
        one_sided = (low, high) in ((0, math.inf), (-math.inf, 0), (-math.inf, math.inf))
        return Capability.HOMOGENEOUS if one_sided else Capability.LIPSCHITZ

    def function(self, call: Call) -> ScalarFunction | None:
        low, high = self._read_ends(call)
        # With low ≥ high the result is constant, and the pieces below would have kinks that do not rise.
        if not low < high:
            return None
        kinks = tuple(float(end) for end in (low, high) if math.isfinite(end))
        return PiecewiseLinear(kinks, (*[0.0] * (low > -math.inf), 1.0, *[0.0] * (high < math.inf)))

    @staticmethod
    def _read_ends(call: Call) -> tuple[float, float]:
        named = call.node.arguments
        low, high = named.get("min", named.get("min_val")), named.get("max", named.get("max_val"))
        return (-math.inf if low is None else low), (math.inf if high is None else high)


class Negate(_OneNeuron):
    """The negative of x is affine, and its magnitude is that of x."""

    targets: Targets = (aten.neg.default,)
    interval = IntervalRule.AFFINE
    keeps_zeros = True

    def entrywise(self, node: Node) -> Entrywise | None:
        return Entrywise.NEGATION


class Sigmoid(Opaque):
    """The sigmoid 1/(1 + e^−x) is 1/2 at zero: nothing that needs f(0) = 0 can treat it, but a box can."""

    targets: Targets = (aten.sigmoid.default,)

    def function(self, call: Call) -> ScalarFunction | None:
        return SIGMOID


class InverseRoot(Opaque):
    """x^(−1/2) is opaque to data, but a batch-norm's weights are computed by it."""

    targets: Targets = (aten.rsqrt.default,)

    def entrywise(self, node: Node) -> Entrywise | None:
        return Entrywise.INVERSE_ROOT
