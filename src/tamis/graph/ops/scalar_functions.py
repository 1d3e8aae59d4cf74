"""Activations are described here by their slopes, as functions of one number.

The descriptions are data. `tamis.bounds` works out what such a function does to a box, and `tamis.paths` what a path's
activation is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PiecewiseLinear:
    """A piecewise linear function is continuous, and affine between its kinks.

    Attributes:
        kinks: where the slope may jump, in rising order.
        slopes: one more than there are kinks, from left to right.
    """

    kinks: tuple[float, ...]
    slopes: tuple[float, ...]

    @property
    def homogeneous(self) -> bool:
        """Return whether f(λx) = λ f(x) for λ > 0, given f(0) = 0: the only kink, if any, is at zero."""
        return set(self.kinks) <= {0.0}


@dataclass(frozen=True)
class Sigmoidal:
    """A sigmoidal function rises, and its derivative is even and falls away from zero: tanh, sigmoid, atan, asinh.

    Attributes:
        derivative: f' on a tensor.
        vanishing: below this, a positive value of f may be computed as 0.
    """

    derivative: Callable[[Tensor], Tensor]
    vanishing: float = 0.0


@dataclass(frozen=True)
class Exponential:
    """This function has the slope `right` above zero, and left · e^(rate x) below it: ELU."""

    left: float
    right: float
    rate: float


@dataclass(frozen=True)
class Sinusoid:
    """A sinusoid has slopes and values in [−1, 1]: the sine."""


ScalarFunction = PiecewiseLinear | Sigmoidal | Exponential | Sinusoid

RELU = PiecewiseLinear((0.0,), (0.0, 1.0))
RELU6 = PiecewiseLinear((0.0, 6.0), (0.0, 1.0, 0.0))
ABS = PiecewiseLinear((0.0,), (-1.0, 1.0))
TANH = Sigmoidal(lambda x: 1 - x.tanh() ** 2)
# 1/(1 + e^−x) is 0 where e^−x overflows, though it may be as large as 2^−1024.
SIGMOID = Sigmoidal(lambda x: x.sigmoid() * (-x).sigmoid(), vanishing=2.0**-1023)
ATAN = Sigmoidal(lambda x: 1 / (1 + x**2))
ASINH = Sigmoidal(lambda x: 1 / (1 + x**2).sqrt())
SINE = Sinusoid()
