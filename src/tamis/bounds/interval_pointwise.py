"""Functions of one neuron, as intervals see them: where they go from an interval, and how steep they are on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import EPS, rounding_of
from tamis.errors import UnsupportedOp
from tamis.graph import Node
from tamis.graph.ops import Call

aten = torch.ops.aten
SMOOTH_ERROR = 1e-15  # what the derivatives below may lose to rounding, relative to the largest that they can be


@dataclass(frozen=True)
class Pointwise:
    """A function f of one number that is affine or smooth between its kinks; the base class knows only a slope range.

    Attributes:
        run: f on a tensor.
        kinks: where the slope may jump.
    """

    run: Callable[[Tensor], Tensor]
    kinks: tuple[float, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether `run` rounds nothing."""
        return False

    def rounding(self, value: Tensor) -> Tensor:
        """What `run` may have lost where it gave `value`: zero itself may be a positive number that underflowed."""
        return torch.zeros_like(value) if self.exact else rounding_of(value.abs())

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest slope of f on [low, high]."""
        raise NotImplementedError

    def extremes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value of f on [low, high], rounded outward: at the ends or at a kink."""
        places = [low, high, *(torch.clamp(torch.full_like(low, k), low, high) for k in self.kinks)]
        values = [self.run(place) for place in places]
        smallest, largest = reduce(torch.minimum, values), reduce(torch.maximum, values)
        smallest, largest = smallest - self.rounding(smallest), largest + self.rounding(largest)
        # What has left float64's range says nothing, whichever end it was to be.
        return (
            torch.where(smallest.isfinite(), smallest, -math.inf),
            torch.where(largest.isfinite(), largest, math.inf),
        )

    def curvature(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Where f is known to be convex on [low, high], and where concave."""
        unknown = torch.zeros_like(low, dtype=torch.bool)
        return unknown, unknown


@dataclass(frozen=True)
class PiecewiseLinear(Pointwise):
    """Affine between the kinks, with one more slope than there are kinks."""

    pieces: tuple[float, ...] = ()

    @property
    def exact(self) -> bool:
        """Only a slope that is not 0, 1 or −1 rounds."""
        return {*map(abs, self.pieces)} <= {0.0, 1.0}

    @property
    def rises(self) -> bool:
        """Whether f never decreases."""
        return min(self.pieces) >= 0

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        smallest, largest = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
        for met, slope in zip(self._met(low, high), self.pieces, strict=True):
            smallest = torch.where(met, smallest.clamp(max=slope), smallest)
            largest = torch.where(met, largest.clamp(min=slope), largest)
        return smallest, largest

    def curvature(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        convex = torch.ones_like(low, dtype=torch.bool)
        concave = convex.clone()
        met = self._met(low, high)
        # Pieces that an interval meets lie side by side, so neighbours decide.
        for (first, a), (second, b) in pairwise(zip(met, self.pieces, strict=True)):
            both = first & second
            convex &= ~both | torch.tensor(a <= b, device=low.device)
            concave &= ~both | torch.tensor(a >= b, device=low.device)
        return convex, concave

    def _met(self, low: Tensor, high: Tensor) -> list[Tensor]:
        """For each piece, which intervals meet it in more than an end point; a single point meets all it lies on."""
        borders = (-math.inf, *self.kinks, math.inf)
        point = low == high
        return [
            ((low < right) & (high > left)) | (point & (low <= right) & (high >= left))
            for left, right in pairwise(borders)
        ]


@dataclass(frozen=True)
class Bell(Pointwise):
    """A rising function whose derivative is even and falls away from zero: tanh, sigmoid, atan, asinh."""

    derivative: Callable[[Tensor], Tensor] = torch.ones_like
    vanishing: float = 0.0  # below which a positive value may have become 0

    def rounding(self, value: Tensor) -> Tensor:
        return super().rounding(value) + self.vanishing

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        far = torch.maximum(low.abs(), high.abs())
        near = torch.where((low < 0) & (high > 0), 0.0, torch.minimum(low.abs(), high.abs()))
        return (self.derivative(far) - SMOOTH_ERROR).clamp(min=0), self.derivative(near) + SMOOTH_ERROR


@dataclass(frozen=True)
class Exponential(Pointwise):
    """ELU: slope `right` above zero, left · e^(rate x) below it."""

    left: float = 1.0
    right: float = 1.0
    rate: float = 1.0

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        below = [self.left * (self.rate * end.clamp(max=0)).exp() for end in (low, high)]
        smallest = torch.where(high > 0, below[0].clamp(max=self.right), below[0])
        largest = torch.where(high > 0, below[1].clamp(min=self.right), below[1])
        above = low >= 0
        smallest, largest = (torch.where(above, self.right, each) for each in (smallest, largest))
        lost = SMOOTH_ERROR * (1 + self.left + self.right)
        return (smallest - lost).clamp(min=0), largest + lost


@dataclass(frozen=True)
class Wave(Pointwise):
    """sin: its slope lies in [−1, 1], and so does its value."""

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return -torch.ones_like(low), torch.ones_like(low)

    def extremes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        centre, radius = low / 2 + high / 2, high / 2 - low / 2
        radius = radius + 4 * EPS * (1 + low.abs() + high.abs())
        centre = torch.where(radius < 2, centre, 0.0)  # beyond, the clamps decide
        radius = torch.where(radius < 2, radius, 2.0)
        return (self.run(centre) - radius).clamp(min=-1), (self.run(centre) + radius).clamp(max=1)


def pointwise_of(node: Node) -> Pointwise | None:
    """The function of one neuron that a node is, or None: it is another kind of operation, or one not known here."""
    build = POINTWISE.get(node.target)
    return build(node, _runner(node)) if build else None


def function_of(node: Node) -> Pointwise:
    """The function of one neuron that a node is known to be."""
    function = pointwise_of(node)
    if function is None:
        raise UnsupportedOp("a box", "functions of one neuron that are monotone", node.op, node.module)
    return function


def _runner(node: Node) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        result: Tensor = Call(node, lambda name: x, ()).run()
        return result

    return run


def _clamp(node: Node, run: Callable[[Tensor], Tensor]) -> Pointwise | None:
    named = node.arguments
    low, high = named.get("min", named.get("min_val")), named.get("max", named.get("max_val"))
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if not low < high:
        return None
    kinks = tuple(float(k) for k in (low, high) if math.isfinite(k))
    pieces = (*[0.0] * (low > -math.inf), 1.0, *[0.0] * (high < math.inf))
    return PiecewiseLinear(run, kinks, pieces)


def _elu(node: Node, run: Callable[[Tensor], Tensor]) -> Pointwise | None:
    alpha, scale, rate = (float(node.arguments[name]) for name in ("alpha", "scale", "input_scale"))
    left = alpha * scale * rate
    known = alpha >= 0 and scale >= 0 and rate > 0 and math.isfinite(left)
    return Exponential(run, (0.0,), left=left, right=scale, rate=rate) if known else None


def _leaky(node: Node, run: Callable[[Tensor], Tensor]) -> Pointwise:
    return PiecewiseLinear(run, (0.0,), (float(node.arguments["negative_slope"]), 1.0))


def _bell(derivative: Callable[[Tensor], Tensor], vanishing: float = 0.0) -> Callable[..., Pointwise]:
    return lambda node, run: Bell(run, derivative=derivative, vanishing=vanishing)


POINTWISE: dict[Any, Callable[..., Pointwise | None]] = {
    aten.relu.default: lambda node, run: PiecewiseLinear(run, (0.0,), (0.0, 1.0)),
    aten.relu6.default: lambda node, run: PiecewiseLinear(run, (0.0, 6.0), (0.0, 1.0, 0.0)),
    aten.abs.default: lambda node, run: PiecewiseLinear(run, (0.0,), (-1.0, 1.0)),
    aten.leaky_relu.default: _leaky,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: _clamp,
    aten.hardtanh.default: _clamp,
    aten.elu.default: _elu,
    aten.tanh.default: _bell(lambda x: 1 - x.tanh() ** 2),
    # 1/(1 + e^−x) is 0 where e^−x overflows, though it may be as large as 2^−1024.
    aten.sigmoid.default: _bell(lambda x: x.sigmoid() * (-x).sigmoid(), vanishing=2.0**-1023),
    aten.atan.default: _bell(lambda x: 1 / (1 + x**2)),
    aten.asinh.default: _bell(lambda x: 1 / (1 + x**2).sqrt()),
    aten.sin.default: lambda node, run: Wave(run),
}
