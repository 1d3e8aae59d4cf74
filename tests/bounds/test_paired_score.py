"""Tango's score: against its definition by the likeliest rates, and the monotonicity that the bound rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import xlogy

from tamis.bounds.paired_score import most_worse_of, score, score_limit

some = settings(max_examples=80, deadline=None)


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 10_000))
    worse = draw(st.integers(0, n))
    return worse, draw(st.integers(0, n - worse)), n


@pytest.mark.parametrize(
    ("worse", "better", "n"), [(10, 5, 360), (0, 3, 20), (4, 0, 20), (203, 88, 10_000), (7, 13, 20)]
)
@pytest.mark.parametrize("theta", [-0.4, -0.01, 0.003, 0.2, 0.7])
def test_the_deviation_is_that_of_the_likeliest_rates(worse: int, better: int, n: int, theta: float) -> None:
    def unlikelihood(q: float) -> float:
        rates = q + theta, q, 1 - 2 * q - theta
        return -float(
            sum(xlogy(k, max(p, 1e-300)) for k, p in zip((worse, better, n - worse - better), rates, strict=True))
        )

    found = optimize.minimize_scalar(
        unlikelihood, bounds=(max(0.0, -theta), (1 - theta) / 2), method="bounded", options={"xatol": 1e-12}
    )
    variance = n * (2 * found.x + theta * (1 - theta))
    assert float(score(worse, better, n, theta)) == pytest.approx(
        (worse - better - n * theta) / math.sqrt(variance), rel=1e-3
    )


@some
@given(counts(), st.floats(-0.999, 0.999), st.floats(1e-4, 0.5))
def test_below_zero_it_increases_with_worse_and_decreases_with_better_and_theta(
    case: tuple[int, int, int], theta: float, more: float
) -> None:
    worse, better, n = case
    here = float(score(worse, better, n, theta))
    if here >= 0:
        return
    rounding = 1e-9 * (1 + abs(here))
    assert float(score(worse, better, n, theta + more * (0.9999 - theta))) <= here + rounding
    if worse:
        assert float(score(worse - 1, better, n, theta)) <= here + rounding
    if worse + better < n:
        assert float(score(worse, better + 1, n, theta)) <= here + rounding


@some
@given(counts(), st.floats(0.3, 6))
def test_an_outcome_is_among_those_up_to_its_own_limit(case: tuple[int, int, int], deviations: float) -> None:
    worse, better, n = case
    limit = score_limit(worse, better, n, deviations)
    assert (worse - better) / n <= limit <= 1
    assert (limit == 1) == (worse == n)
    if limit < 1:
        heights = most_worse_of(np.arange(max(0, better - 3), better + 1), n, limit, deviations)
        assert heights[-1] >= worse and (np.diff(heights) >= 0).all()
        higher = float(score(heights[-1] + 1, better, n, limit)) if heights[-1] + 1 + better <= n else math.inf
        assert higher > -deviations
