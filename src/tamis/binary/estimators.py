"""A straight-through estimator gives signs a gradient, since the true one is 0 almost everywhere.

Each returns signs, +1 where x ≥ 0 and −1 elsewhere (sign(0) = +1, ERRATA 6; a NaN is not ≥ 0), and multiplies the
gradient that comes back by a slope:

    clipped        1 where |x| ≤ 1, else 0                                               (XNOR-Net, XNOR-Net++)
    approx_sign    2 + 2x on [−1, 0), 2 − 2x on [0, 1), else 0                           (Bi-Real Net)
    rsign          approx_sign of x − s, with a shift s for each channel to be learnt    (ReActNet)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput

ESTIMATORS = ("clipped", "approx_sign", "rsign")


def sign(x: Tensor) -> Tensor:
    """Return +1 where x ≥ 0, else −1, in the dtype of x and without a gradient.

    Example:
        >>> sign(torch.tensor([-2.0, -0.0, 0.0, 3.0]))
        tensor([-1.,  1.,  1.,  1.])
    """
    # Not torch.sign, which is 0 at 0 and NaN at NaN: a sign has to fit into one bit.
    return as_signs(x >= 0, x.dtype)


def as_signs(positive: Tensor, dtype: torch.dtype) -> Tensor:
    """Return +1 for True and −1 for False."""
    return positive.to(dtype) * 2 - 1


def clipped_slope(x: Tensor) -> Tensor:
    """Return 1_{|x| ≤ 1}, the slope of the estimator "clipped"."""
    return (x.abs() <= 1).to(x.dtype)


def approx_sign_slope(x: Tensor) -> Tensor:
    """Return max(2 − 2|x|, 0), the derivative of Bi-Real Net's piecewise quadratic."""
    return (2 - 2 * x.abs()).clamp(min=0)


def clipped(x: Tensor, signs: Tensor | None = None) -> Tensor:
    """Return sign(x), with the gradient g ↦ g · 1_{|x| ≤ 1}: that of x clipped to [−1, 1].

    Args:
        x: any shape.
        signs: what to return in the place of sign(x), where it is known already.

    Example:
        >>> x = torch.tensor([-2.0, 0.5], requires_grad=True)
        >>> clipped(x).sum().backward(); x.grad
        tensor([0., 1.])

    Reference: rastegari2016xnor.
    """
    return _StraightThrough.apply(x, sign(x) if signs is None else signs, clipped_slope)


def approx_sign(x: Tensor, signs: Tensor | None = None) -> Tensor:
    """Return sign(x), with the gradient g ↦ g · max(2 − 2|x|, 0): that of a piecewise quadratic near sign.

    Args:
        x: any shape.
        signs: what to return in the place of sign(x), where it is known already.

    Reference: liu2018bireal.
    """
    return _StraightThrough.apply(x, sign(x) if signs is None else signs, approx_sign_slope)


def rsign(x: Tensor, shift: Tensor, signs: Tensor | None = None) -> Tensor:
    """Return sign(x − s), with the gradient of `approx_sign` at x − s; that of s is its negative, summed.

    Printed: +1 where x > s; here where x ≥ s, as sign(0) = +1 everywhere (ERRATA 6).

    Args:
        x: any shape.
        shift: s, in a shape that broadcasts to that of x.
        signs: what to return in the place of sign(x − s), where it is known already.

    Reference: liu2020reactnet.
    """
    return approx_sign(x - shift, signs)


def round_through(x: Tensor) -> Tensor:
    """Round to the nearest whole numbers, with the gradient of x itself."""
    return _Rounded.apply(x)


def check_estimator(estimator: str) -> None:
    """Raise InvalidInput for a name that is not in `ESTIMATORS`."""
    if estimator not in ESTIMATORS:
        raise InvalidInput(f"estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")


class _StraightThrough(torch.autograd.Function):
    """This function returns given signs forwards, and the slope of an estimator at x backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, signs: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        # x and not its signs: slopes depend on how far x is from 0.
        ctx.save_for_backward(x)
        ctx.slope = slope
        return signs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.slope(x), None, None


class _Rounded(torch.autograd.Function):
    """This function rounds forwards, and passes gradients back as they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
