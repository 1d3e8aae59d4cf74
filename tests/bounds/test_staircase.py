"""The probability below a staircase against exact rational numbers, and against summing all columns."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.bounds.binomial import likely_counts
from tamis.bounds.staircase import Staircase

some = settings(max_examples=60, deadline=None)


def exact(n: int, heights: np.ndarray, worse: Fraction, better: Fraction) -> Fraction:
    """The sum of all terms of the trinomial distribution."""
    neither, total = 1 - worse - better, Fraction(0)
    for b, height in enumerate(heights):
        for w in range(min(int(height), n - b) + 1):
            ways = math.comb(n, b) * math.comb(n - b, w)
            total += ways * worse**w * better**b * neither ** (n - w - b)
    return total


@st.composite
def stairs_and_rates(draw: st.DrawFn) -> tuple[int, np.ndarray, float, float]:
    n = draw(st.integers(1, 12))
    rises = draw(st.lists(st.integers(0, 4), min_size=n + 1, max_size=n + 1))
    better = draw(st.sampled_from([0.0, 1e-300, 1e-17, 0.5, 1 - 2.0**-53, 1.0]) | st.floats(0, 1))
    worse = draw(st.sampled_from([0.0, 5e-324, 1e-12, 1 - better]) | st.floats(0, max(0.0, 1 - better)))
    return n, np.cumsum(rises) - 1, worse, better


@some
@given(stairs_and_rates())
def test_it_is_never_below_the_exact_probability(case: tuple[int, np.ndarray, float, float]) -> None:
    n, heights, worse, better = case
    if Fraction(worse) + Fraction(better) > 1:
        worse = max(0.0, math.nextafter(1 - better, 0))
    got = float(Staircase(n, 0, heights).probability(np.array([worse]), np.array([better]))[0])
    wanted = exact(n, heights, Fraction(worse), Fraction(better))
    assert wanted <= Fraction(got) <= wanted + Fraction(1, 10**10)


@pytest.mark.parametrize(("n", "worse", "better"), [(500, 0.04, 0.02), (20_000, 0.02, 0.009), (20_000, 0.3, 0.4)])
def test_it_is_the_sum_over_all_columns(n: int, worse: float, better: float) -> None:
    columns = np.arange(n + 1)
    heights = np.minimum(np.floor(columns + n * (worse - better) - 2 * math.sqrt(n * (worse + better))), n).astype(int)
    heights = np.maximum(heights, -1)
    got = Staircase(n, 0, heights).probability(np.array([worse]), np.array([better]))[0]
    chances = stats.binom.pmf(columns, n, better) * stats.binom.cdf(heights, n - columns, worse / (1 - better))
    assert chances.sum() <= got <= chances.sum() * (1 + 1e-7)
    # What is far from the likely counts may be left out.
    likely = likely_counts(n, better, 1e-12)
    lowest = int(likely_counts(n - int(likely[0]), worse, 1e-12)[0])
    part = Staircase(n, int(likely[0]), heights[likely], lowest, 1e-12)
    assert part.probability(np.array([worse]), np.array([better]))[0] == pytest.approx(got, rel=1e-6, abs=1e-11)


def test_many_rates_at_once_are_each_alone() -> None:
    stairs = Staircase(300, 0, np.arange(301) // 2)
    worse, better = np.linspace(0, 0.5, 2000), np.linspace(0.5, 0, 2000)
    together = stairs.probability(worse, better)
    assert together[::97].tolist() == [
        float(stairs.probability(worse[i : i + 1], better[i : i + 1])[0]) for i in range(0, 2000, 97)
    ]
    assert (np.diff(together) <= 1e-12).all()  # more worse and fewer better ones are less often below
