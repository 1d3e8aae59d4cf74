"""Limits at any time: how often they ever fail, by dynamic programming and simulation; their rounding; their price."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.bounds import confidence_sequence
from tamis.bounds.accuracy_change import accuracy_change
from tamis.bounds.binomial import EPSILON
from tamis.bounds.clopper_pearson import clopper_pearson
from tamis.bounds.confidence_sequence import difference_at_any_time, rank_at_any_time, rate_at_any_time
from tamis.bounds.deviation_quantile import deviation_quantile, deviation_rank
from tamis.bounds.disagreement import disagreement
from tamis.bounds.error_rate import error_rate
from tamis.errors import InvalidInput

some = settings(max_examples=20, deadline=None)


# -- validity, without chance ------------------------------------------------------------------------------------------


@cache
def limits(steps: int, delta: float) -> list[np.ndarray]:
    """For n = 1, 2, …: the limit for each count from 0 to n."""
    return [
        np.array([rate_at_any_time("events", k, n, delta).value for k in range(n + 1)]) for n in range(1, steps + 1)
    ]


def ever_below(table: list[np.ndarray], rates: np.ndarray) -> np.ndarray:
    """The exact probability, for each true rate, that some limit of the table is below it."""
    alive, failed = np.ones((len(rates), 1)), np.zeros(len(rates))
    for row in table:
        nothing, event = alive * (1 - rates[:, None]), alive * rates[:, None]
        alive = np.pad(nothing, ((0, 0), (0, 1))) + np.pad(event, ((0, 0), (1, 0)))
        below = row < rates[:, None]
        failed += (alive * below).sum(1)
        alive = np.where(below, 0.0, alive)
    assert np.allclose(failed + alive.sum(1), 1)
    return failed


def rates_to_try(table: list[np.ndarray]) -> np.ndarray:
    """A grid, and what lies just above limits, where the probability of failing jumps up."""
    jumps = np.nextafter(np.unique(np.concatenate(table)), 2)
    return np.concatenate([np.linspace(0, 1, 51), jumps[jumps < 1][:: max(1, len(jumps) // 100)]])


@pytest.mark.parametrize(("steps", "delta"), [(15, 0.5), (20, 0.05), pytest.param(60, 0.05, marks=pytest.mark.slow)])
def test_a_rate_is_ever_below_its_limit_with_probability_at_most_delta(steps: int, delta: float) -> None:
    table = limits(steps, delta)
    worst = ever_below(table, rates_to_try(table)).max()
    assert 0 < worst <= delta


def test_limits_for_one_number_of_samples_are_broken_by_looking_at_each() -> None:
    table = [np.append(stats.beta.isf(0.05, np.arange(1, n + 1), np.arange(n, 0, -1)), 1) for n in range(1, 61)]
    assert table[24][3] == pytest.approx(clopper_pearson("events", 3, 25, 0.05).value)
    rates = np.linspace(0.01, 0.99, 99)
    assert ever_below(table, rates).max() > 0.1  # twice δ after 60 samples, and it goes on


def paired_outcomes(n: int) -> Iterator[tuple[int, int]]:
    return ((w, b) for w in range(n + 1) for b in range(n + 1 - w))


def test_a_difference_is_ever_below_its_limit_with_probability_at_most_delta() -> None:
    steps, delta = 8, 0.3
    theta, discordant = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, 81), np.linspace(0, 1, 21)))
    possible = np.abs(theta) <= discordant + 1e-12
    theta, discordant = theta[possible], discordant[possible]
    up, down = np.clip((discordant + theta) / 2, 0, 1), np.clip((discordant - theta) / 2, 0, 1)
    alive = np.zeros((len(theta), steps + 2, steps + 2))
    alive[:, 0, 0], failed = 1, np.zeros(len(theta))
    for n in range(1, steps + 1):
        moved = alive * np.maximum(1 - up - down, 0)[:, None, None]
        moved[:, 1:] += alive[:, :-1] * up[:, None, None]
        moved[:, :, 1:] += alive[:, :, :-1] * down[:, None, None]
        alive = moved
        for w, b in paired_outcomes(n):
            # The grid's θ is rounded: what is above the limit by rounding alone is no failure.
            below = difference_at_any_time(w, b, n, delta).value < theta - 1e-12
            failed += np.where(below, alive[:, w, b], 0)
            alive[below, w, b] = 0
    assert np.allclose(failed + alive.sum((1, 2)), 1)
    assert 0 < failed.max() <= delta


def test_a_quantile_is_ever_above_its_distance_with_probability_at_most_delta() -> None:
    for coverage, delta in ((0.5, 0.2), (0.9, 0.5), (0.3, 0.05)):
        # Bin(n, coverage) of n distances are below the quantile, and the one of rank k is if k or more are.
        table = [np.where(np.arange(n, -1, -1) >= rank_at_any_time(n, coverage, delta), 0.0, 1.0) for n in range(1, 61)]
        assert 0 < ever_below(table, np.array([1 - coverage]))[0] <= delta


# -- validity, in simulations ------------------------------------------------------------------------------------------


def first_failures(rate: float, looks: np.ndarray, fewest: np.ndarray, draws: int) -> float:
    """In which part of draws a look finds no more events than `fewest` says for it."""
    rng, failed = np.random.default_rng(20), 0
    gaps = np.diff(looks, prepend=0)
    for _ in range(draws // 250):
        counts = np.cumsum(rng.binomial(gaps, rate, (250, len(looks))), axis=1)
        failed += int((counts <= fewest).any(1).sum())
    return failed / draws


def test_looking_at_every_hundred_samples_breaks_what_was_meant_for_one_look() -> None:
    looks = np.arange(100, 10_001, 100)
    fixed = stats.binom.ppf(0.05, looks, 0.02).astype(int) - 1  # the largest count whose limit is below the rate
    most = int(fixed[-1])
    assert (
        clopper_pearson("events", most, 10_000, 0.05).value
        < 0.02
        < clopper_pearson("events", most + 1, 10_000, 0.05).value
    )
    assert first_failures(0.02, looks, fixed, 2000) > 0.2
    assert first_failures(0.02, looks[-1:], fixed[-1:], 2000) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 2000)


def most_refuted(rate: float, looks: np.ndarray) -> np.ndarray:
    """For each look, the largest number of events that refutes the rate; −1 if none does. It never falls with n."""
    found, most = [], -1
    for n in looks.tolist():
        while confidence_sequence._log_capital_at_rate(most + 1, n, rate) >= -math.log(0.05):
            most += 1
        found.append(most)
    return np.array(found)


@pytest.mark.parametrize(
    ("rate", "every", "draws"),
    [(0.005, 100, 4000), (0.05, 100, 4000), pytest.param(0.02, 1, 2000, marks=pytest.mark.slow)],
)
def test_looking_again_breaks_no_rate(rate: float, every: int, draws: int) -> None:
    looks = np.arange(every, 20_001, every)
    refuted = most_refuted(rate, looks)
    assert 0.005 < first_failures(rate, looks, refuted, draws) <= 0.05
    # The limit of a rate and the rank of a quantile make the same statement of that rate.
    most = int(refuted[-1])
    assert rate_at_any_time("events", most, 20_000, 0.05).value < rate
    assert rate_at_any_time("events", most + 1, 20_000, 0.05).value > rate
    assert rank_at_any_time(20_000, 1 - rate, 0.05) == 20_000 - most


@pytest.mark.parametrize(("up", "down"), [(0.02, 0.01), (0.3, 0.5)])
def test_looking_again_breaks_no_difference(up: float, down: float) -> None:
    rng, looks = np.random.default_rng(21), np.unique(np.geomspace(10, 20_000, 40).astype(int))
    gaps = np.diff(looks, prepend=0)
    steps = np.stack([rng.multinomial(int(gap), [up, down, 1 - up - down], 150)[:, :2] for gap in gaps], axis=1)
    counts, needed = steps.cumsum(1), -math.log(0.05)

    def refuted(worse: int, better: int, n: int) -> bool:
        return confidence_sequence._log_capital_at_difference(worse, better, n, up - down) >= needed

    failed = [any(refuted(int(w), int(b), int(n)) for (w, b), n in zip(draw, looks, strict=True)) for draw in counts]
    assert np.mean(failed) <= 0.05
    for (w, b), n in zip(counts[0].tolist(), looks.tolist(), strict=True):
        assert (difference_at_any_time(w, b, n, 0.05).value < up - down) == refuted(w, b, n)


# -- rounding ----------------------------------------------------------------------------------------------------------


def exact_capital_at_rate(count: int, n: int, p: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        phi, total = mpmath.asin(mpmath.sqrt(mpmath.mpf(p))), mpmath.mpf(0)
        for share, angle in zip(confidence_sequence._SHARES_OF_RATE, confidence_sequence._ANGLES, strict=True):
            q = mpmath.sin(max(phi - mpmath.mpf(float(angle)), mpmath.mpf(0))) ** 2
            total += mpmath.mpf(float(share)) * (q / p) ** count * ((1 - q) / (1 - mpmath.mpf(p))) ** (n - count)
        return mpmath.log(total) if total else -mpmath.inf


def exact_capital_at_difference(worse: int, better: int, n: int, theta: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        stakes, shares = confidence_sequence._STAKES, confidence_sequence._SHARES_OF_DIFFERENCE
        total = mpmath.mpf(0)
        for share, stake in zip(shares, map(mpmath.mpf, map(float, stakes)), strict=True):
            kept = (1 - stake) ** worse * (1 + stake) ** better
            total += mpmath.mpf(float(share)) * kept / (1 - stake * mpmath.mpf(theta)) ** n
        return mpmath.log(total)


COUNTS = st.one_of(st.integers(1, 100), st.integers(1, 10**5), st.integers(1, 10**9))


@settings(max_examples=40, deadline=None)
@given(COUNTS, st.floats(0, 1), st.floats(0, 1, exclude_max=True), st.floats(0, 6))
def test_the_capital_at_a_rate_rounds_down(n: int, part: float, free: float, deviations: float) -> None:
    count = round(part * n)
    near = count / n + deviations * math.sqrt(count / n * (1 - count / n) / n) + 1 / n
    for p in (near, free):
        if 0 < p < 1:
            found, exact = confidence_sequence._log_capital_at_rate(count, n, p), exact_capital_at_rate(count, n, p)
            assert found <= exact
            assert found >= exact - 1e-9 * (1 + abs(exact)) or exact < -1e3


@settings(max_examples=40, deadline=None)
@given(COUNTS, st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1, exclude_max=True))
@example(1, 0.0, 0.0, math.nextafter(1, 0))
def test_the_capital_at_a_difference_rounds_down(n: int, discordant: float, lead: float, theta: float) -> None:
    pairs = round(discordant * n)
    worse = round(lead * pairs)
    for difference in (theta, (2 * worse - pairs) / n + 3 * math.sqrt(pairs + 1) / n):
        if difference < 1:
            found = confidence_sequence._log_capital_at_difference(worse, pairs - worse, n, difference)
            exact = exact_capital_at_difference(worse, pairs - worse, n, difference)
            assert found <= exact
            # The slack of ln (1 − κθ) grows as θ comes near 1, where a limit says nothing.
            assert found >= exact - 1e-9 * (1 + abs(exact)) or difference > 1 - 1e-4


@pytest.mark.parametrize(
    ("count", "n"), [(0, 1), (0, 10**9), (1, 10**9), (50, 10_000), (5 * 10**8, 10**9), (10**9 - 1, 10**9)]
)
@pytest.mark.parametrize("delta", [0.05, 1e-9])
def test_a_limit_lies_just_above_the_exact_one(count: int, n: int, delta: float) -> None:
    value = rate_at_any_time("events", count, n, delta).value
    below = value - max(1e-7 * min(value, 1 - value), EPSILON * value)
    assert exact_capital_at_rate(count, n, below) < -mpmath.log(delta)
    assert value == 1 or exact_capital_at_rate(count, n, value) >= -mpmath.log(delta)


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 0.05, 1 - 2**-53])
@pytest.mark.parametrize("n", [1, 2, 10_000, 10**12])
def test_limits_at_any_time_are_proved_at_every_scale(n: int, delta: float) -> None:
    for count in {0, 1, n // 2, n - 1, n}:
        with mpmath.workdps(60):
            needed = -mpmath.log(mpmath.mpf(delta))
        rate = rate_at_any_time("events", count, n, delta).value
        assert rate == 1 or (rate >= count / n and exact_capital_at_rate(count, n, rate) >= needed)
        for worse in {0, count // 2, count}:
            change = difference_at_any_time(worse, count - worse, n, delta).value
            assert change == 1 or exact_capital_at_difference(worse, count - worse, n, change) >= needed


@some
@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_above_what_is_observed_the_capital_grows_with_the_rate(n: int, part: float, one: float, two: float) -> None:
    count = round(part * n)
    low, high = sorted(count / n + (1 - count / n) * share for share in (one, two))
    if count < n:
        lower, higher = exact_capital_at_rate(count, n, low), exact_capital_at_rate(count, n, high)
        assert lower <= higher
        assert exact_capital_at_rate(count, n, count / n) <= 16 * EPSILON if count else True


# -- what the limits are like ------------------------------------------------------------------------------------------


@some
@given(COUNTS, st.floats(1e-9, 0.5), st.floats(0, 1))
def test_events_raise_a_limit_and_other_samples_and_a_larger_delta_lower_it(n: int, delta: float, part: float) -> None:
    count = round(part * n)
    value = rate_at_any_time("events", count, n, delta).value
    assert count / n <= value <= 1
    assert rate_at_any_time("events", count, n + 1, delta).value <= value * (1 + 1e-9)
    assert rate_at_any_time("events", count + 1, n + 1, delta).value >= value * (1 - 1e-9)
    assert rate_at_any_time("events", count, n, delta / 2).value >= value
    assert value >= clopper_pearson("events", count, n, delta).value * (
        1 - 1e-9
    )  # what holds at all times holds at one


@some
@given(st.integers(1, 10**6), st.floats(1e-9, 0.5), st.floats(0, 1), st.floats(0, 1))
def test_worse_samples_raise_a_limit_and_better_ones_lower_it(
    n: int, delta: float, discordant: float, lead: float
) -> None:
    pairs = round(discordant * n)
    worse = round(lead * pairs)
    better = pairs - worse
    value = difference_at_any_time(worse, better, n, delta).value
    assert (worse - better) / n <= value <= 1
    assert difference_at_any_time(worse, better + 1, n + 1, delta).value <= value + 1e-9
    assert difference_at_any_time(worse + 1, better, n + 1, delta).value >= value - 1e-9
    assert difference_at_any_time(worse, better, n, delta / 2).value >= value


@some
@given(COUNTS, st.floats(1e-6, 1 - 1e-6), st.floats(1e-9, 0.5))
def test_a_rank_is_no_lower_than_that_for_one_look(n: int, coverage: float, delta: float) -> None:
    rank = rank_at_any_time(n, coverage, delta)
    assert deviation_rank(n, coverage, delta) <= rank <= n + 1
    assert rank <= rank_at_any_time(n + 1, coverage, delta) <= rank + 1
    assert rank <= rank_at_any_time(n, coverage, delta / 2)


@pytest.mark.parametrize(("count", "points"), [(50, 0.07), (200, 0.14), (500, 0.21)])
def test_at_ten_thousand_samples_looking_again_costs_little(count: int, points: float) -> None:
    any_time, once = (
        rate_at_any_time("events", count, 10_000, 0.05).value,
        clopper_pearson("events", count, 10_000, 0.05),
    )
    assert points - 0.02 < 100 * (any_time - once.value) < points
    # No mixture of bets gets below n·KL(observed ‖ limit) = ln 1/δ; this is the price of holding at all times.
    observed, least = count / 10_000, -math.log(0.05)
    divergence = observed * math.log(observed / any_time) + (1 - observed) * math.log((1 - observed) / (1 - any_time))
    assert least < 10_000 * divergence < least + 0.6


@pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.05, 1 - 2**-53])
@pytest.mark.parametrize("n", [1, 2, 10**6, 10**12])
def test_extremes_are_no_problem(n: int, delta: float) -> None:
    assert rate_at_any_time("events", n, n, delta).value == 1.0
    none = rate_at_any_time("events", 0, n, delta).value
    assert 0 < none <= 1 and none < max(40 * (1 - math.log(delta)) / n, 1.1)
    assert difference_at_any_time(n, 0, n, delta).value == 1.0
    assert -1 < difference_at_any_time(0, n, n, delta).value <= 1
    assert 0 < difference_at_any_time(0, 0, n, delta).value <= 1
    assert 1 <= rank_at_any_time(n, 0.95, delta) <= n + 1


def test_a_limit_tells_how_it_came_about() -> None:
    bound = rate_at_any_time("different", 12, 10_000, 0.05)
    assert dict(bound.terms) == {"different": 12, "n": 10_000, "delta": 0.05, "observed": 0.0012}
    assert bound.informative and not rate_at_any_time("different", 3, 3, 0.05).informative
    assert len(bound.assumptions) == 3 and bound.citation == "waudbysmith2024betting"
    assert difference_at_any_time(20, 150, 10_000, 0.05).log_value == -math.inf  # proved to be better


def test_each_statement_of_held_out_data_has_a_sequential_form() -> None:
    assert disagreement(5, 100, 0.05, sequential=True) == rate_at_any_time("different", 5, 100, 0.05)
    assert error_rate(5, 100, 0.05, sequential=True) == rate_at_any_time("errors", 5, 100, 0.05)
    assert accuracy_change(5, 3, 100, 0.05, sequential=True) == difference_at_any_time(5, 3, 100, 0.05)
    distances = np.random.default_rng(0).random(1000)
    bound = deviation_quantile(distances, 0.9, 0.05, sequential=True)
    assert bound.terms["rank"] == rank_at_any_time(1000, 0.9, 0.05) > deviation_rank(1000, 0.9, 0.05)
    assert bound.value == np.sort(distances)[int(bound.terms["rank"]) - 1]
    assert bound.citation == "waudbysmith2024betting" and len(bound.assumptions) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rate_at_any_time("different", 5, 4, 0.05), "different=5, n=4"),
        (lambda: rate_at_any_time("different", 1, 4, 1.0), r"delta=1\.0"),
        (lambda: difference_at_any_time(3, 2, 4, 0.05), "worse=3, better=2, n=4"),
        (lambda: difference_at_any_time(1, 2, 4, math.nan), "delta=nan"),
        (lambda: rank_at_any_time(0, 0.5, 0.05), "n=0"),
        (lambda: rank_at_any_time(4, 1.5, 0.05), r"coverage=1\.5"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
