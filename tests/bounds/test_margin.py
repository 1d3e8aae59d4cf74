"""Theorem 4.1.2: the formula, the price of choosing γ, homogeneity, and classifiers fitted to noise."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tamis
from tamis.bounds.bound import Bound
from tamis.bounds.margin import GAMMA_FIXED, SIGMA_FIXED, grid_size, margin_bound, margin_loss
from tamis.bounds.rademacher_arguments import BALL, UP_TO_CONSTANTS, sigma_of_box
from tamis.bounds.rademacher_peeling import rademacher_peeling
from tamis.bounds.shape import read_shape
from tamis.errors import InvalidInput

GAMMA = 0.7


def complexity(log_value: float, assumptions: tuple[str, ...] = (BALL,)) -> Bound:
    value = math.exp(log_value) if log_value < 700 else math.inf
    return Bound(value, log_value, True, "gonon2024thesis, Theorem 4.4.1", assumptions, (), {"d_out": 2.0})


def literal_loss(margins: Tensor, gamma: float) -> float:
    """(4.13), case by case."""

    def one(m: float) -> float:
        if gamma < m:
            return 0.0
        return 1 - m / gamma if m >= 0 else 1.0

    return sum(one(m) for m in margins.tolist()) / len(margins)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0.01, 20))
def test_the_margin_loss(margins: list[float], gamma: float) -> None:
    values = torch.tensor(margins, dtype=torch.float64)
    loss = margin_loss(values, math.log(gamma))
    assert loss == pytest.approx(literal_loss(values, gamma), abs=1e-9)
    assert loss >= float((values <= 0).double().mean()) - 1e-12  # it is above the error rate


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=30), st.floats(0.001, 0.5), st.floats(0.01, 100))
def test_a_margin_that_was_fixed_beforehand(margins: list[float], delta: float, value: float) -> None:
    n = len(margins)
    bound = margin_bound(complexity(math.log(value)), margins, n, delta, gamma=GAMMA)
    loss = literal_loss(torch.tensor(margins, dtype=torch.float64), GAMMA)
    expected = loss + 4 * math.sqrt(2) * value / (n * GAMMA) + 3 * math.sqrt(math.log(2 / delta) / (2 * n))
    assert bound.value == pytest.approx(expected)
    assert bound.informative == (bound.value < 1)
    assert GAMMA_FIXED in bound.assumptions and BALL in bound.assumptions


@given(st.integers(1, 400), st.floats(-20, 20), st.integers(0, 1000), st.floats(0.01, 0.3))
def test_choosing_the_margin_is_paid_for(n: int, log_value: float, seed: int, delta: float) -> None:
    margins = 3 * torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ball = complexity(log_value)
    chosen = margin_bound(ball, margins, n, delta)
    tried = grid_size(n)
    assert chosen.terms["grid"] == tried and 2.0**-tried <= max(0.5, 1 / math.sqrt(n))
    scale = 4 * math.sqrt(2) * math.exp(log_value) / n
    each = [margin_bound(ball, margins, n, delta / tried, gamma=scale * 2**j).value for j in range(1, tried + 1)]
    assert chosen.value == pytest.approx(min(each))
    same = margin_bound(ball, margins, n, delta, gamma=math.exp(chosen.terms["log_gamma"]))
    assert chosen.value >= same.value - 1e-12
    # The norm may then be read off the trained network: only σ has to be fixed.
    assert SIGMA_FIXED in chosen.assumptions and BALL not in chosen.assumptions


@given(st.floats(-100, 100), st.integers(0, 1000))
def test_outputs_and_path_norm_may_be_scaled_together(log_factor: float, seed: int) -> None:
    margins = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plain = margin_bound(complexity(0.0), margins, 50, 0.05)
    scaled = margin_bound(complexity(log_factor), margins * math.exp(log_factor), 50, 0.05)
    assert scaled.value == pytest.approx(plain.value)


@given(st.floats(-5, 5), st.floats(0, 5), st.integers(0, 1000))
def test_it_grows_with_the_complexity_and_falls_with_delta(log_value: float, more: float, seed: int) -> None:
    margins = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1
    at = margin_bound(complexity(log_value), margins, 50, 0.05).value
    assert at <= margin_bound(complexity(log_value + more), margins, 50, 0.05).value + 1e-12
    assert margin_bound(complexity(log_value), margins, 50, 0.1).value <= at


def test_it_can_be_informative_and_path_norms_of_real_networks_are_not() -> None:
    n = 100_000
    net = tamis.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    ball = rademacher_peeling(read_shape(net), path_norm=1.0, sigma=sigma_of_box(n, 1.0))
    margins = torch.full((n,), 0.9)
    assert margin_bound(ball, margins, n, 0.05).value < 0.2
    assert margin_bound(ball, margins, n, 0.05).informative
    assert not margin_bound(complexity(0.0, (UP_TO_CONSTANTS,)), margins, n, 0.05).informative
    vast = margin_bound(complexity(2000.0), margins, n, 0.05)
    assert 1 < vast.value < 2 and not vast.informative and vast.terms["log_gamma"] > 1900
    assert margin_bound(complexity(-math.inf), margins, n, 0.05).terms["complexity"] == 0


def test_classifiers_fitted_to_noise_stay_below() -> None:
    """A fifth of the labels are noise; the best of many linear classifiers is taken, and its own norm with it."""
    n, delta = 10_000, 0.2
    shape = read_shape(tamis.trace(nn.Linear(2, 2, bias=False), torch.zeros(1, 2)))
    failures = informative = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int, generator: torch.Generator = generator) -> tuple[Tensor, Tensor]:
            x = torch.where(torch.rand(count, 2, generator=generator) < 0.5, -1.0, 1.0)
            noise = torch.randint(0, 2, (count,), generator=generator)
            return x, torch.where(torch.rand(count, generator=generator) < 0.2, noise, (x[:, 0] > 0).long())

        x, y = draw(n)
        weights = torch.randn(200, 2, 2, generator=generator) * torch.tensor([1.0, 0.2])
        margins = torch.einsum("ci,ni->cn", weights[:, 1] - weights[:, 0], x) * (2 * y - 1)
        best = int((margins / weights.abs().sum((1, 2))[:, None]).clamp(max=0.2).mean(1).argmax())
        norm = float(weights[best].abs().sum())
        ball = rademacher_peeling(shape, path_norm=norm, sigma=sigma_of_box(n, 1.0))
        bound = margin_bound(ball, margins[best], n, delta)
        fresh, labels = draw(20_000)
        wrong = ((fresh @ (weights[best, 1] - weights[best, 0]) > 0).long() != labels).double().mean()
        failures += float(wrong) > bound.value
        informative += bound.informative
    assert failures == 0 and informative > 0


@pytest.mark.parametrize("gamma", [5e-324, 1e-300, 0.1, 1e300])
@pytest.mark.parametrize("delta", [5e-324, 0.05, 1 - 2**-53])
def test_the_bound_rounds_up(gamma: float, delta: float) -> None:
    """Against 60 digits, at margins and scales from the smallest number to near the largest."""
    margins = [-1.0, 0.0, 5e-324, 1e-300, 1 / 3, 1.0, 1e300]
    for log_complexity in (-700.0, 0.0, 1.0):
        with mpmath.workdps(60):
            losses = [min(max(1 - mpmath.mpf(m) / gamma, 0), 1) for m in margins]
            middle = 4 * mpmath.sqrt(2) * mpmath.exp(log_complexity) / (7 * mpmath.mpf(gamma))
            true = sum(losses) / 7 + middle + 3 * mpmath.sqrt(mpmath.log(2 / mpmath.mpf(delta)) / 14)
            bound = margin_bound(complexity(log_complexity), margins, 7, delta, gamma)
            assert true <= bound.value
            assert bound.value <= (true + mpmath.mpf(10) ** -12) * (1 + mpmath.mpf(10) ** -9) or true > 1e308


def test_errors() -> None:
    ball = complexity(0.0)
    with pytest.raises(InvalidInput, match=r"one margin for each of 3 samples, got shape \(2,\)"):
        margin_bound(ball, [0.1, 0.2], 3, 0.05)
    with pytest.raises(InvalidInput, match="1 margins that are not numbers"):
        margin_bound(ball, [0.1, math.nan], 2, 0.05)
    with pytest.raises(InvalidInput, match="delta = 1"):
        margin_bound(ball, [0.1], 1, 1.0)
    with pytest.raises(InvalidInput, match="gamma = 0"):
        margin_bound(ball, [0.1], 1, 0.05, gamma=0.0)
    with pytest.raises(InvalidInput, match=r"n = 2\.0"):
        margin_bound(ball, [0.1, 0.2], 2.0, 0.05)  # type: ignore[arg-type]
