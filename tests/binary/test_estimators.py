"""Signs, and the gradients that straight-through estimators say they have."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tamis.binary.estimators import approx_sign, clipped, round_through, rsign, sign

POINTS = [-3.0, -1.0 - 1e-6, -1.0, -0.75, -0.25, -0.0, 0.0, 1e-30, 0.5, 1.0, 1.0 + 1e-6, 7.0]


def clipped_formula(x: float) -> float:
    return 1.0 if abs(x) <= 1 else 0.0


def approx_sign_formula(x: float) -> float:
    if -1 <= x < 0:
        return 2 + 2 * x
    return 2 - 2 * x if 0 <= x < 1 else 0.0


def bireal(x: float) -> float:
    """The piecewise quadratic of Bi-Real Net."""
    if x < -1:
        return -1.0
    if x < 0:
        return 2 * x + x * x
    return 2 * x - x * x if x < 1 else 1.0


def gradient(estimator: Callable[[Tensor], Tensor], x: Tensor, coming: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    estimator(x).backward(coming)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(("estimator", "formula"), [(clipped, clipped_formula), (approx_sign, approx_sign_formula)])
def test_gradients_are_the_formula_times_what_comes_back(
    estimator: Callable[[Tensor], Tensor], formula: Callable[[float], float]
) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    coming = torch.linspace(-2, 3, len(POINTS), dtype=torch.float64)
    expected = torch.tensor([formula(p) for p in POINTS], dtype=torch.float64) * coming
    assert torch.equal(gradient(estimator, x, coming), expected)


@given(st.floats(-2, 2))
def test_approx_sign_has_the_slope_of_the_piecewise_quadratic(x: float) -> None:
    step = 1e-6
    found = float(gradient(approx_sign, torch.tensor([x], dtype=torch.float64), torch.ones(1, dtype=torch.float64)))
    assert found == pytest.approx((bireal(x + step) - bireal(x - step)) / (2 * step), abs=1e-5)


@pytest.mark.parametrize("estimator", [clipped, approx_sign, sign])
def test_signs_are_one_at_zero_and_minus_one_for_nan(estimator: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([-math.inf, -1e-45, -0.0, 0.0, 1e-45, math.inf, math.nan])
    assert estimator(x).tolist() == [-1, -1, 1, 1, 1, 1, -1]
    assert estimator(x.bfloat16()).dtype is torch.bfloat16


def test_rsign_learns_its_shift() -> None:
    x = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    shift = torch.tensor([0.25, 0.0, -0.5], dtype=torch.float64).reshape(3, 1).requires_grad_()
    coming = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    signs = rsign(x, shift)
    signs.backward(coming)
    assert x.grad is not None and shift.grad is not None
    for n in range(5):
        for c in range(3):
            for i in range(4):
                moved = float((x[n, c, i] - shift[c]).detach())
                assert signs[n, c, i].item() == (1 if moved >= 0 else -1)
                assert x.grad[n, c, i].item() == approx_sign_formula(moved) * float(coming[n, c, i])
    torch.testing.assert_close(shift.grad.flatten(), -x.grad.sum((0, 2)))


def test_signs_that_are_known_already_are_returned() -> None:
    x = torch.tensor([0.5, -0.5], requires_grad=True)
    known = torch.tensor([-1.0, -1.0])
    for estimator in (clipped, approx_sign):
        found = estimator(x, known)
        assert torch.equal(found, known) and found.requires_grad


def test_rounding_keeps_the_gradient() -> None:
    x = torch.tensor([1.2, -3.7], requires_grad=True)
    rounded = round_through(x)
    assert rounded.tolist() == [1, -4]
    rounded.backward(torch.tensor([5.0, 6.0]))
    assert x.grad is not None and x.grad.tolist() == [5, 6]
