"""Scales become sparse by the penalty of Theorem 3.2, in a step that sets some of them to zero.

For one vector a of scales, of which ‖a‖₀ are not zero, the penalty is 4 ‖a‖₀ log(1 + ‖a‖₁ / (τ ‖a‖₀)). Printed without
the 4, which the proof obtains (ERRATA 5). The vectors are α, β and γ of each layer. The proof adds up 4 log(1 + a_u/τ)
and bounds the sum by one term for all scales together (Jensen's inequality); one term for each vector is a smaller
bound of the same sum.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tamis.binary.layers import binary_layers
from tamis.errors import InvalidInput


def scale_penalty(model: nn.Module, tau: float) -> Tensor:
    """Compute 4 Σ_a ‖a‖₀ log(1 + ‖a‖₁ / (τ ‖a‖₀)) + p_bin log 2 over a model's scales a and signs (Theorem 3.2).

    It bounds, in nats, how far the scales and signs are from a sparsity prior of scale τ, and so what they add to the
    regret; the real weights of other layers are not counted. Gradients flow through ‖a‖₁, and take ‖a‖₀ for fixed.

    Args:
        model: one with binary layers.
        tau: τ > 0.

    Example:
        >>> model = nn.Sequential(tamis.binary.BinaryLinear(4, 2))
        >>> loss = model(torch.ones(3, 4)).square().mean() + 1e-6 * scale_penalty(model, tau=0.1)

    Reference: chee2021xnor.
    """
    _check_tau(tau)
    layers = binary_layers(model).values()
    signs = sum(layer.weight.numel() for layer in layers)
    # On the device and in the dtype of the weights, so that it can be added to a loss.
    total = next(iter(layers)).weight.new_tensor(signs * math.log(2))
    for layer in layers:
        for factor in layer.factors.values():
            remaining = _count_nonzero(factor)
            total = total + 4 * remaining * torch.log1p(factor.abs().sum() / (tau * remaining))
    return total


@torch.no_grad()
def shrink_scales(model: nn.Module, step: float, tau: float) -> None:
    """Take a proximal step of the penalty, in place: a ← max(a − step · 4 ‖a‖₀ / (τ ‖a‖₀ + ‖a‖₁), 0).

    4 ‖a‖₀ / (τ ‖a‖₀ + ‖a‖₁) is the slope of the penalty in ‖a‖₁, in which it is concave: so it lies below its tangent,
    and the step minimises the tangent plus ‖a − a_before‖² / (2 step). Scales that reach zero stay there, and their
    channels, rows or columns of the output are zero. The last scale of a vector is left: without it a layer would be
    gone.

    Where batch normalization follows a layer, α can shrink at no cost to the loss until it is zero: then the sizes of α
    decide which channels go, and `step` how many, not the loss.

    Args:
        model: one with binary layers.
        step: the learning rate times the weight of the penalty.
        tau: τ > 0.

    Example:
        >>> model = nn.Sequential(tamis.binary.BinaryLinear(4, 2))
        >>> shrink_scales(model, step=100.0, tau=0.1)  # after each step of the optimizer, and much smaller than this
        >>> count_zero_scales(model)  # one scale is always left
        (1, 2)

    Reference: chee2021xnor.
    """
    _check_tau(tau)
    # In this form a NaN is refused, too.
    if not step >= 0:
        raise InvalidInput(f"step must be a number ≥ 0, got {step!r}")
    for layer in binary_layers(model).values():
        for factor in layer.factors.values():
            size = factor.abs()
            remaining = _count_nonzero(factor)
            shrunk = size - step * 4 * remaining / (tau * remaining + size.sum())
            largest = size == size.max()
            # The largest scale is at most halved in a step, so that it never reaches 0 and the layer keeps an output.
            result = torch.where(largest, torch.maximum(shrunk, size / 2), shrunk.clamp(min=0))
            # The parameters carry signs, of which the scale takes the magnitude: shrinking must not change them.
            factor.copy_(result.copysign(factor))


def count_zero_scales(model: nn.Module) -> tuple[int, int]:
    """Count the zero scales of a model's binary layers, and all of their scales.

    Example:
        >>> count_zero_scales(nn.Sequential(tamis.binary.BinaryLinear(4, 2)))
        (0, 2)
    """
    factors = [factor for layer in binary_layers(model).values() for factor in layer.factors.values()]
    total = sum(factor.numel() for factor in factors)
    return total - sum(int(factor.count_nonzero()) for factor in factors), total


def _count_nonzero(factor: Tensor) -> Tensor:
    """Compute max(‖a‖₀, 1) in the dtype of a; where all scales are 0, so is ‖a‖₁, and with it the penalty."""
    return factor.count_nonzero().clamp(min=1).to(factor.dtype)


def _check_tau(tau: float) -> None:
    if isinstance(tau, bool) or not 0 < tau < math.inf:
        raise InvalidInput(f"tau must be a number > 0, got {tau!r}")
