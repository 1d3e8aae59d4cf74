"""Float64 is rounded in one direction here, so that sums and products hold the true value at any scale.

A sum of two numbers is off by half a unit in its last place and never underflows; a product may underflow as well, and
then is off by at most half of 2^−1074. The next number in the direction that is asked for covers both. What is exactly
zero stays zero, so that a bound is zero where, and only where, the true value is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps  # 2u, where u bounds the relative error of one operation
SMALLEST = math.ulp(0.0)  # 2^−1074: twice what a product, or anything else that underflows, can lose
FAINT = 16 * SMALLEST  # more than a few operations near zero lose, as 4 EPS |x| is away from it
SAFE = 2.0**-900  # no product as large as this is near underflow, nor are its rounding errors


def up(value: Tensor) -> Tensor:
    """Return a number above what a sum rounded to `value`."""
    # A sum of two numbers never underflows, so one that is zero is exactly zero.
    return torch.where(value == 0, value, torch.nextafter(value, torch.full_like(value, math.inf)))


def down(value: Tensor) -> Tensor:
    """Return a number below what a sum rounded to `value`."""
    return -up(-value)


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """Multiply real numbers that may be unbounded: zero times anything is zero, an infinite end too."""
    return torch.where((first == 0) | (second == 0), 0.0, first * second)


def multiply_up(first: Tensor, second: Tensor) -> Tensor:
    """Return a number above the product of two, zero where one of them is."""
    product = first * second
    # A product that underflowed to zero becomes 2^−1074 here; only a factor of zero makes the result zero.
    above = torch.nextafter(product, torch.full_like(product, math.inf))
    return torch.where((first == 0) | (second == 0), 0.0, above)


def multiply_down(first: Tensor, second: Tensor) -> Tensor:
    """Return a number below the product of two, zero where one of them is."""
    return -multiply_up(-first, second)


def rounding_of(size: Tensor, positive: Tensor | bool = True) -> Tensor:
    """Return what a few operations on numbers of that size may lose; `positive` says where the true size is, if not
    here.
    """
    return 8 * EPS * size + FAINT * torch.as_tensor(positive, device=size.device).to(size.dtype)


def least(value: Tensor) -> float:
    """Return the smallest magnitude that is not zero; 1 where there is none."""
    magnitude = value.abs()
    found = float(torch.where(magnitude > 0, magnitude, math.inf).min()) if value.numel() else math.inf
    return found if math.isfinite(found) else 1.0
