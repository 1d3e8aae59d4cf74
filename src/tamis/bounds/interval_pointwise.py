"""Functions of one neuron tell intervals here what values they take on an interval, and how steep they are on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import EPS, rounding_of
from tamis.errors import UnsupportedOp
from tamis.graph import Node
from tamis.graph.ops import Call, ScalarFunction, Sigmoidal, describe
from tamis.graph.ops import Exponential as ExponentialFunction
from tamis.graph.ops import PiecewiseLinear as PiecewiseLinearFunction

SMOOTH_ERROR = 1e-15  # what the derivatives below may lose to rounding, relative to the largest that they can be


@dataclass(frozen=True)
class Pointwise:
    """A function f of one number is affine or smooth between its kinks; the base class knows only a slope range.

    Attributes:
        run: f on a tensor.
        kinks: where the slope may jump.
    """

    run: Callable[[Tensor], Tensor]
    kinks: tuple[float, ...] = ()

    @property
    def exact(self) -> bool:
        """Return whether `run` rounds nothing."""
        return False

    def rounding(self, value: Tensor) -> Tensor:
        """Return what `run` may have lost where it gave `value`: zero may be a positive number that underflowed."""
        return torch.zeros_like(value) if self.exact else rounding_of(value.abs())

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest slope of f on [low, high]."""
        raise NotImplementedError

    def extremes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of f on [low, high], rounded outward: at the ends or at a kink."""
        # Between kinks f is monotone, so it has its extremes at ends and kinks. A kink outside of the interval is moved
        # to an end, where it changes nothing.
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
        """Return where f is known to be convex on [low, high], and where concave."""
        unknown = torch.zeros_like(low, dtype=torch.bool)
        return unknown, unknown


@dataclass(frozen=True)
class PiecewiseLinear(Pointwise):
    """A piecewise linear function is affine between its kinks, and has one more slope than kinks."""

    pieces: tuple[float, ...] = ()

    @property
    def exact(self) -> bool:
        """Return whether `run` rounds nothing: only a slope that is not 0, 1 or −1 does."""
        return {*map(abs, self.pieces)} <= {0.0, 1.0}

    @property
    def rises(self) -> bool:
        """Return whether f never decreases."""
        return min(self.pieces) >= 0

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # Every interval meets at least one piece, which replaces these.
        smallest, largest = torch.full_like(low, math.inf), torch.full_like(low, -math.inf)
        for met, slope in zip(self._find_pieces_met(low, high), self.pieces, strict=True):
            smallest = torch.where(met, smallest.clamp(max=slope), smallest)
            largest = torch.where(met, largest.clamp(min=slope), largest)
        return smallest, largest

    def curvature(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        convex = torch.ones_like(low, dtype=torch.bool)
        concave = convex.clone()
        met = self._find_pieces_met(low, high)
        # Pieces that an interval meets lie side by side, so neighbours decide.
        for (first, a), (second, b) in pairwise(zip(met, self.pieces, strict=True)):
            both = first & second
            convex &= ~both | torch.tensor(a <= b, device=low.device)
            concave &= ~both | torch.tensor(a >= b, device=low.device)
        return convex, concave

    def _find_pieces_met(self, low: Tensor, high: Tensor) -> list[Tensor]:
        """Return which intervals meet each piece in more than an end point; a single point meets all it lies on."""
        borders = (-math.inf, *self.kinks, math.inf)
        # A point meets no piece in more than an end, and on a kink the slope may be that of either side.
        point = low == high
        return [
            ((low < right) & (high > left)) | (point & (low <= right) & (high >= left))
            for left, right in pairwise(borders)
        ]


@dataclass(frozen=True)
class Bell(Pointwise):
    """A bell has an even derivative that falls away from zero, and rises: tanh, sigmoid, atan, asinh."""

    derivative: Callable[[Tensor], Tensor] = torch.ones_like
    vanishing: float = 0.0  # below which a positive value may have become 0

    def rounding(self, value: Tensor) -> Tensor:
        # sigmoid(x) is positive for all x, but float64 gives 0 where e^−x overflows: an upper end of 0 would be wrong.
        return super().rounding(value) + self.vanishing

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # The derivative falls with |x|: it is smallest at the place farthest from zero, and largest at the nearest.
        far = torch.maximum(low.abs(), high.abs())
        near = torch.where((low < 0) & (high > 0), 0.0, torch.minimum(low.abs(), high.abs()))
        # Outward, so that a rounded derivative holds the true slopes. These functions rise, so no slope is below zero.
        return (self.derivative(far) - SMOOTH_ERROR).clamp(min=0), self.derivative(near) + SMOOTH_ERROR


@dataclass(frozen=True)
class Exponential(Pointwise):
    """ELU has the slope `right` above zero, and left · e^(rate x) below it."""

    left: float = 1.0
    right: float = 1.0
    rate: float = 1.0

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # Clamped first: e^x of a large positive end would overflow, and is not a slope of this function.
        below = [self.left * (self.rate * end.clamp(max=0)).exp() for end in (low, high)]
        # Below zero the slope rises with x; where the interval reaches beyond, `right` is one of its slopes, too.
        smallest = torch.where(high > 0, below[0].clamp(max=self.right), below[0])
        largest = torch.where(high > 0, below[1].clamp(min=self.right), below[1])
        above = low >= 0
        smallest, largest = (torch.where(above, self.right, each) for each in (smallest, largest))
        lost = SMOOTH_ERROR * (1 + self.left + self.right)
        return (smallest - lost).clamp(min=0), largest + lost


@dataclass(frozen=True)
class Wave(Pointwise):
    """The sine has slopes and values in [−1, 1]."""

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return -torch.ones_like(low), torch.ones_like(low)

    def extremes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # Slopes of at most 1 take no value farther from f(centre) than the radius; the rest is what all this rounds.
        centre, radius = low / 2 + high / 2, high / 2 - low / 2
        radius = radius + 4 * EPS * (1 + low.abs() + high.abs())
        centre = torch.where(radius < 2, centre, 0.0)  # beyond, the clamps decide
        radius = torch.where(radius < 2, radius, 2.0)
        return (self.run(centre) - radius).clamp(min=-1), (self.run(centre) + radius).clamp(max=1)


def find_pointwise(node: Node) -> Pointwise | None:
    """Return the function of one neuron that a node is, or None: it is another kind of operation."""
    description = describe(node).function(Call(node, lambda name: None, ()))
    return None if description is None else _read(description, _make_runner(node))


def find_function(node: Node) -> Pointwise:
    """Return the function of one neuron that a node is known to be."""
    function = find_pointwise(node)
    if function is None:
        raise UnsupportedOp("a box", "functions of one neuron that are monotone", node.op, node.module)
    return function


def _read(description: ScalarFunction, run: Callable[[Tensor], Tensor]) -> Pointwise:
    """Return what intervals need of a function, from what its operation says of it."""
    if isinstance(description, PiecewiseLinearFunction):
        return PiecewiseLinear(run, description.kinks, description.slopes)
    if isinstance(description, Sigmoidal):
        return Bell(run, derivative=description.derivative, vanishing=description.vanishing)
    if isinstance(description, ExponentialFunction):
        return Exponential(run, (0.0,), left=description.left, right=description.right, rate=description.rate)
    return Wave(run)


def _make_runner(node: Node) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        result: Tensor = Call(node, lambda name: x, ()).run()
        return result

    return run
