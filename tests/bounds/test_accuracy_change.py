"""The change of accuracy, ordered by the score: how often it fails, its proof, how tight it is, and what it takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_counts import RATES, failures, worst_failure
from scipy import stats

from tamis.bounds.accuracy_change import (
    MOST_ORDERED,
    SHARE,
    STEPS_OF_DIFFERENCE,
    _are_rare,
    accuracy_change,
)
from tamis.bounds.accuracy_change_by_difference import accuracy_change_by_difference
from tamis.bounds.binomial import largest_rate, smallest_rate
from tamis.bounds.paired_score import score_limit
from tamis.bounds.staircase import Staircase
from tamis.errors import InvalidInput

some = settings(max_examples=20, deadline=None)


@pytest.mark.parametrize(
    ("n", "delta"),
    [(1, 0.2), (1, 0.05), (2, 0.2), (3, 0.05), (5, 0.2), (6, 0.05), pytest.param(8, 0.05, marks=pytest.mark.slow)],
)
def test_it_fails_with_probability_at_most_delta(n: int, delta: float) -> None:
    worst = worst_failure(accuracy_change, n, delta)
    assert worst <= delta * (1 + 1e-9)
    assert worst >= 0.6 * delta or n == 1  # not safe merely by being loose


@pytest.mark.slow
@pytest.mark.parametrize(("n", "delta"), [(12, 0.5), (25, 0.01), (45, 0.05)])
def test_it_fails_with_probability_at_most_delta_for_more_samples(n: int, delta: float) -> None:
    assert 0.8 * delta <= worst_failure(accuracy_change, n, delta) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(
    ("worse", "better"),
    [pytest.param(*rates, marks=pytest.mark.slow if rates == (0.3, 0.4) else []) for rates in RATES],  # many outcomes
)
def test_it_holds_in_simulations(worse: float, better: float) -> None:
    n, delta, draws = 60, 0.1, 100
    failed = failures(accuracy_change, worse, better, n, delta, draws)
    assert failed <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.slow
@pytest.mark.parametrize(("worse", "better"), [(1e-3, 0.0), (0.01, 0.01), (0.03, 0.01)])
def test_it_holds_in_simulations_of_many_samples(worse: float, better: float) -> None:
    n, delta, draws = 1000, 0.05, 400
    failed = failures(accuracy_change, worse, better, n, delta, draws)
    assert failed <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.parametrize(
    ("worse", "better", "n", "points"),
    [(203, 88, 10_000, 1.56), (10, 5, 360, 4.35)],
)
def test_it_is_tighter_than_by_the_difference_of_counts(worse: int, better: int, n: int, points: float) -> None:
    value = accuracy_change(worse, better, n, 0.01).value
    assert 100 * value <= points < 100 * accuracy_change_by_difference(worse, better, n, 0.01).value
    # No valid limit in this order can be much lower than that of the normal distribution.
    assert value > 0.98 * score_limit(worse, better, n, stats.norm.isf(0.01))


def test_without_discordant_inputs_it_is_nearly_the_limit_of_one_rate() -> None:
    rate = -math.expm1(math.log(0.05) / 1000)
    assert rate < accuracy_change(0, 0, 1000, 0.05).value < 1.01 * rate


@some
@given(
    n=st.integers(2, 60),
    theta=st.floats(-0.5, 0.9),
    heights=st.lists(st.integers(0, 8), min_size=2, max_size=61),
    level=st.floats(1e-3, 0.9),
)
def test_what_is_called_rare_is_rare_at_every_rate(n: int, theta: float, heights: list[int], level: float) -> None:
    climb = np.minimum(np.cumsum((heights * 31)[: n + 1]) - 1, n)
    stairs = Staircase(n, 0, climb)
    low, high = max(0.0, theta), (1 + theta) / 2
    rare = _are_rare(stairs, theta, (low, high), level, 1e-3)
    rates, counts = np.linspace(low, high, 201), np.arange(n + 1)
    given_better = stats.binom.cdf(
        climb, n - counts, np.minimum(rates / np.maximum(1 - rates + theta, rates), 1)[:, None]
    )
    exact = (stats.binom.pmf(counts, n, np.clip(rates - theta, 0, 1)[:, None]) * given_better).sum(1)
    assert exact.max() < level * (1 + 1e-9) or not rare
    assert exact.max() > level - 0.1 or rare  # on intervals of a thousandth the probability changes by less


def test_a_small_network_can_be_proved_better() -> None:
    bound = accuracy_change(20, 100, 10_000, 0.05)
    assert bound.value < -0.006 and bound.log_value == -math.inf and bound.informative
    assert bound.terms["observed"] == -0.008
    assert accuracy_change(0, 1000, 1000, 0.05).value < -0.99


@pytest.mark.parametrize(("worse", "better", "n"), [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 3), (5, 0, 5), (0, 5, 5)])
@pytest.mark.parametrize("delta", [5e-324, 1e-9, 0.05, 1 - 1e-16])
def test_few_samples_and_extreme_confidence_are_no_problem(worse: int, better: int, n: int, delta: float) -> None:
    bound = accuracy_change(worse, better, n, delta)
    assert (worse - better) / n <= bound.value <= 1
    assert bound.informative == (bound.value < 1)
    assert worse < n or bound.value == 1


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 120), st.floats(1e-4, 0.5), st.data())
def test_more_worse_or_fewer_better_never_help(n: int, delta: float, data: Any) -> None:
    worse = data.draw(st.integers(0, n - 1))
    better = data.draw(st.integers(0, n - 1 - worse))
    value = accuracy_change(worse, better, n, delta).value
    # θ is looked for in steps, which are far smaller than one input.
    step = (score_limit(worse, better, n, stats.norm.isf(min(delta, 0.4))) - (worse - better) / n) / STEPS_OF_DIFFERENCE
    assert value >= (worse - better) / n
    assert value <= accuracy_change(worse + 1, better, n, delta).value + step
    assert value >= accuracy_change(worse, better + 1, n, delta).value - step


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (300, 200), (50_001, 50_000)])
def test_many_samples_are_bounded_by_the_difference_of_counts_whatever_they_show(worse: int, better: int) -> None:
    n = MOST_ORDERED + 1
    assert accuracy_change(worse, better, n, 0.05) == accuracy_change_by_difference(worse, better, n, 0.05)


def test_a_billion_samples_are_no_problem() -> None:
    assert accuracy_change(10_000, 9_000, 10**9, 0.05).value == pytest.approx(1.23e-6, rel=0.05)


def test_it_tells_how_it_came_about() -> None:
    bound = accuracy_change(np.int64(30), np.int64(20), np.int64(10_000), 0.05)  # type: ignore[arg-type]
    log_share = math.log(0.05) + math.log(SHARE / 2)
    assert bound.terms["most_worse"] == largest_rate(30, 10_000, log_share)
    assert bound.terms["least_better"] == smallest_rate(20, 10_000, log_share)
    assert bound.terms["delta_of_rates"] == SHARE * 0.05 and bound.terms["observed"] == 0.001
    assert all(type(term) in (int, float) for term in bound.terms.values())
    assert bound.log_value == pytest.approx(math.log(bound.value)) and len(bound.assumptions) == 2


@pytest.mark.parametrize(
    ("worse", "better", "n", "delta", "message"),
    [
        (3, 2, 4, 0.05, "worse=3, better=2, n=4"),
        (-1, 2, 4, 0.05, "worse=-1"),
        (1, -2, 4, 0.05, "better=-2"),
        (1.0, 2, 4, 0.05, r"worse=1\.0"),
        (1, 2, 0, 0.05, "n=0"),
        (1, 2, 4, 0.0, r"delta=0\.0"),
        (1, 2, 4, math.nan, "delta=nan"),
    ],
)
def test_bad_input_is_refused(worse: Any, better: Any, n: Any, delta: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        accuracy_change(worse, better, n, delta)
