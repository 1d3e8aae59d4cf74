"""The change of accuracy by the difference of counts: how often it fails; the steps of its proof; its tightness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paired_counts import RATES, failures, worst_failure
from scipy import stats

from tamis.bounds.accuracy_change_by_difference import SHARE, _bound_tail, accuracy_change_by_difference
from tamis.bounds.binomial import largest_rate, smallest_rate
from tamis.errors import InvalidInput

some = settings(max_examples=15, deadline=None)


@pytest.mark.parametrize(
    ("n", "delta"),
    [
        *[(1, 0.5), (1, 0.05), (2, 0.5), (3, 0.05), (5, 0.5), (6, 0.05), pytest.param(8, 0.05, marks=pytest.mark.slow)],
        *(pytest.param(30, delta, marks=pytest.mark.slow) for delta in (0.5, 0.05)),
    ],
)
def test_it_fails_with_probability_at_most_delta(n: int, delta: float) -> None:
    worst = worst_failure(accuracy_change_by_difference, n, delta)
    assert worst <= delta * (1 + 1e-9)
    assert worst >= delta / 4 or n == 1  # not safe merely by being loose


@pytest.mark.parametrize(
    ("worse", "better"),
    [pytest.param(*rates, marks=pytest.mark.slow if rates == (0.3, 0.4) else []) for rates in RATES],  # many outcomes
)
def test_it_holds_in_simulations(worse: float, better: float) -> None:
    n, delta, draws = 60, 0.1, 100
    failed = failures(accuracy_change_by_difference, worse, better, n, delta, draws)
    assert failed <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


def difference_tail(difference: int, n: int, theta: float, discordant: float) -> float:
    """P[W − B ≤ difference] by summing over how many are discordant, and how many of those are worse."""
    # Beyond 40 standard deviations, and 400 pairs, lies less than float64 has in a probability.
    reach = 400 + 40 * math.sqrt(n * discordant)
    pairs = np.arange(max(0, int(n * discordant - reach)), min(n, int(n * discordant + reach)) + 1)
    worse = stats.binom.cdf((difference + pairs) // 2, pairs, (1 + theta / discordant) / 2)
    return float(stats.binom.pmf(pairs, n, discordant) @ np.where(pairs + difference < 0, 0, worse))


@some
@given(st.integers(1, 300), st.floats(1e-4, 0.5), st.floats(-1, 1), st.data())
def test_the_tail_is_that_of_the_trinomial_distribution(n: int, discordant: float, lead: float, data: Any) -> None:
    difference, theta = data.draw(st.integers(-n, n)), lead * discordant
    exact = difference_tail(difference, n, theta, discordant)
    got = _bound_tail(difference, n, theta, discordant, 0.05)
    assert exact * (1 + 1e-12) <= got <= exact * (1 + 1e-8) + 1e-12


@pytest.mark.parametrize(("n", "pairs"), [(10**6, 10**3), (10**6, 4 * 10**5)])
def test_the_tail_is_exact_for_many_samples(n: int, pairs: int) -> None:
    theta, discordant = 0.3 * pairs / n, pairs / n
    for deviations in (0, 1.5, 4):
        difference = round(n * theta - deviations * math.sqrt(pairs))
        exact = difference_tail(difference, n, theta, discordant)
        got = _bound_tail(difference, n, theta, discordant, 0.05)
        assert exact <= got <= exact * (1 + 1e-8) + 1e-12


@some
@given(st.integers(2, 200), st.floats(1e-3, 0.5), st.floats(0, 1), st.data())
def test_where_it_matters_the_tail_grows_with_the_discordant_rate(n: int, most: float, part: float, data: Any) -> None:
    difference = data.draw(st.integers(-n, n - 2))
    theta = (difference + 1) / (n - 1) + part * 0.1
    if abs(theta) > most:
        return
    rates = np.linspace(max(abs(theta), 1e-9), most, 12)
    tails = np.array([difference_tail(difference, n, theta, rate) for rate in rates])
    assert (np.diff(tails) >= -1e-10).all()


def bonferroni(worse: int, better: int, n: int, delta: float) -> float:
    return largest_rate(worse, n, math.log(delta / 2)) - smallest_rate(better, n, math.log(delta / 2))


@pytest.mark.parametrize(
    ("worse", "better", "n"), [(5, 5, 1000), (20, 10, 1000), (30, 20, 10_000), (20, 100, 10_000), (500, 400, 50_000)]
)
@pytest.mark.parametrize("delta", [0.05, 1e-3])
def test_it_is_tighter_than_two_limits_and_near_the_normal_approximation(
    worse: int, better: int, n: int, delta: float
) -> None:
    normal = worse - better + stats.norm.isf(delta) * math.sqrt(worse + better)
    value = accuracy_change_by_difference(worse, better, n, delta).value
    assert value < bonferroni(worse, better, n, delta)
    assert normal < n * value < normal + 2 + 2 * math.log(1 / delta)


def test_without_discordant_inputs_it_lies_between_closed_forms() -> None:
    bound = accuracy_change_by_difference(0, 0, 1000, 0.05)
    assert bound.terms["most_worse"] == pytest.approx(-math.expm1(math.log(SHARE * 0.05) / 1000), rel=1e-12)
    assert -math.expm1(math.log(0.05) / 1000) < bound.value < bound.terms["most_worse"]


def test_a_small_network_can_be_proved_better() -> None:
    bound = accuracy_change_by_difference(20, 100, 10_000, 0.05)
    assert bound.value < -0.005 and bound.log_value == -math.inf and bound.informative
    assert bound.terms["observed"] == -0.008
    assert accuracy_change_by_difference(0, 1000, 1000, 0.05).value < -0.49


@pytest.mark.parametrize(("worse", "better", "n"), [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 3), (5, 0, 5), (0, 5, 5)])
def test_few_samples_are_no_problem(worse: int, better: int, n: int) -> None:
    bound = accuracy_change_by_difference(worse, better, n, 0.05)
    assert (worse - better) / n <= bound.value <= 1
    assert bound.informative == (bound.value < 1) == (worse < n)


def test_very_small_and_very_large_delta_are_no_problem() -> None:
    values = [
        accuracy_change_by_difference(3, 2, 100, delta).value for delta in (5e-324, 1e-300, 1e-100, 0.5, 1 - 1e-16)
    ]
    assert values == sorted(values, reverse=True) and all(0.01 <= value <= 1 for value in values)


@settings(some, max_examples=8)
@given(st.integers(1, 400), st.floats(1e-4, 0.5), st.data())
def test_more_worse_or_fewer_better_or_more_confidence_never_help(n: int, delta: float, data: Any) -> None:
    worse = data.draw(st.integers(0, n - 1))
    better = data.draw(st.integers(0, n - 1 - worse))
    value = accuracy_change_by_difference(worse, better, n, delta).value
    assert value >= (worse - better) / n
    assert value <= accuracy_change_by_difference(worse + 1, better, n, delta).value + 1e-12
    assert value >= accuracy_change_by_difference(worse, better + 1, n, delta).value - 1e-12
    assert value <= accuracy_change_by_difference(worse, better, n, delta / 2).value + 1e-12


def test_it_tells_how_it_came_about() -> None:
    bound = accuracy_change_by_difference(np.int64(30), np.int64(20), np.int64(10_000), 0.05)  # type: ignore[arg-type]
    assert bound.terms["most_worse"] == largest_rate(30, 10_000, math.log(0.05) + math.log(SHARE))
    assert bound.terms["delta_most_worse"] == SHARE * 0.05 and bound.terms["observed"] == 0.001
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
        accuracy_change_by_difference(worse, better, n, delta)
