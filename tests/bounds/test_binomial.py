"""Binomial tails against 60-digit arithmetic and scipy; limits against closed forms, scipy, and their definition."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.bounds.binomial import (
    MOST_SAMPLES,
    LogTail,
    largest_rate,
    log_lower_tail,
    log_pmf,
    log_upper_tail,
    smallest_rate,
)
from tamis.errors import InvalidInput

some = settings(max_examples=25, deadline=None)


def oracle_pmf(k: int, n: int, p: float) -> mpmath.mpf:
    p = mpmath.mpf(p)
    choose = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
    return mpmath.exp(choose + (k * mpmath.log(p) if k else 0) + ((n - k) * mpmath.log1p(-p) if k < n else 0))


def oracle_outer(k: int, n: int, p: float, step: int) -> mpmath.mpf:
    """Σ of the probabilities of k, k + step, …, until what is left is below the precision."""
    odds = mpmath.mpf(p) / (1 - mpmath.mpf(p))
    term = total = oracle_pmf(k, n, p)
    while 0 <= k + step <= n and term > total * mpmath.mpf(10) ** -30:
        term *= odds * (n - k) / (k + 1) if step > 0 else mpmath.mpf(k) / (n - k + 1) / odds
        k += step
        total += term
    return total


def oracle_logs(k: int, n: int, p: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """ln P[≤ k] and ln P[≥ k + 1] for 0 ≤ k < n, from the smaller of the two."""
    below = oracle_outer(k, n, p, -1) if k < n * p else mpmath.mpf(1)
    above = oracle_outer(k + 1, n, p, 1) if k + 1 > n * p else mpmath.mpf(1)
    if below < above:
        return mpmath.log(below), mpmath.log1p(-below)
    return mpmath.log1p(-above), mpmath.log(above)


def extreme_cases() -> list[tuple[int, int, float]]:
    """Counts, sample sizes and rates: around the mean, many deviations away, and at both ends of the floats."""
    draw = random.Random(0)
    cases = [(0, 1, 0.5), (0, 1, 2.0**-60), (0, 2, 1 - 2.0**-53), (1, 2, 1 - 2.0**-53), (0, 10**9, 1e-250)]
    cases += [(10**6, 10**9, 0.0012), (5 * 10**8, 10**9, 0.51), (3, 10**9, 1e-3), (10**9 - 2, 10**9, 0.5)]
    while len(cases) < 250:
        n = int(10 ** draw.uniform(0, 4))
        k = draw.randrange(n)
        deviation = math.sqrt(max(k * (n - k), n) / n) / n
        p = k / n + draw.choice([-1, 1]) * deviation * 10 ** draw.uniform(-3, 3)
        p = draw.choice([p, p, p, 10 ** draw.uniform(-100, 0), 1 - 2.0 ** -draw.randint(1, 53)])
        if 0 < p < 1:
            cases.append((k, n, p))
    return cases


def test_tails_are_those_of_60_digits_within_a_third_of_their_slack() -> None:
    with mpmath.workdps(60):
        for k, n, p in extreme_cases():
            for got, exact in zip(
                (log_lower_tail(k, n, p), log_upper_tail(k + 1, n, p)), oracle_logs(k, n, p), strict=True
            ):
                error = abs(mpmath.mpf(got.value) - exact)
                assert error <= got.slack / 3 or error < 1e-300, (k, n, p, got, exact)
                assert got.slack <= 1e-9 * (1 + abs(got.value)), (k, n, p, got)  # otherwise limits would be loose


def test_probabilities_of_single_counts_are_those_of_60_digits() -> None:
    with mpmath.workdps(60):
        for k, n, p in extreme_cases():
            exact = mpmath.log(oracle_pmf(k, n, p))
            assert float(log_pmf(np.array(k), n, p)) == pytest.approx(float(exact), rel=1e-13, abs=1e-11)


@some
@given(st.integers(1, 200), st.floats(1e-6, 1 - 1e-6))
def test_all_counts_together_have_probability_one(n: int, p: float) -> None:
    assert np.exp(log_pmf(np.arange(n + 1), n, p)).sum() == pytest.approx(1, rel=1e-12)


@some
@given(st.integers(1, 300), st.data())
def test_tails_are_scipys(n: int, data: Any) -> None:
    k, p = data.draw(st.integers(0, n)), data.draw(st.floats(1e-3, 1 - 1e-3))
    assert math.exp(log_lower_tail(k, n, p).value) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9)
    assert math.exp(log_upper_tail(k, n, p).value) == pytest.approx(stats.binom.sf(k - 1, n, p), rel=1e-9)


def test_tails_beyond_the_counts_are_certain() -> None:
    assert log_lower_tail(5, 5, 0.3) == log_upper_tail(0, 5, 0.3) == LogTail(0.0, 0.0)


@some
@given(st.integers(1, 2000), st.data())
def test_limits_are_scipys(n: int, data: Any) -> None:
    errors, delta = data.draw(st.integers(0, n)), data.draw(st.floats(1e-6, 0.4))
    test = stats.binomtest(errors, n)
    interval = test.proportion_ci(confidence_level=1 - 2 * delta, method="exact")
    assert largest_rate(errors, n, math.log(delta)) == pytest.approx(interval.high, rel=1e-7)
    assert smallest_rate(errors, n, math.log(delta)) == pytest.approx(interval.low, rel=1e-7)


@some
@given(st.integers(1, 10**9), st.floats(-1e6, -1e-12))
def test_closed_forms_where_nothing_or_all_is_wrong(n: int, log_delta: float) -> None:
    none = -math.expm1(log_delta / n)  # (1 − p)^n = δ
    assert largest_rate(0, n, log_delta) == pytest.approx(none, rel=1e-13)
    assert largest_rate(0, n, log_delta) >= none * (1 - 1e-15) or none == 1
    assert smallest_rate(n, n, log_delta) == pytest.approx(math.exp(log_delta / n), rel=1e-9, abs=1e-280)
    assert largest_rate(n, n, log_delta) == 1 and smallest_rate(0, n, log_delta) == 0


LIMITS = [
    (errors, n, log_delta)
    for n in (1, 2, 100, 60_000, 10**9)
    for errors in sorted({0, 1, n // 1000, n // 2, n - 1, n})
    for log_delta in (-1e-3, math.log(0.05), -1320.0, -1e6)
    if errors <= n and not (errors > 2000 and log_delta > -100)  # 60 digits would take minutes
]
LONGEST = (5 * 10**8, 10**9, -1320.0)  # longer than all others together


def test_limits_are_never_on_the_wrong_side_and_tight() -> None:
    assert LONGEST in LIMITS
    check_limits([each for each in LIMITS if each != LONGEST])


@pytest.mark.slow
def test_the_limits_of_the_longest_sum_are_never_on_the_wrong_side_and_tight() -> None:
    check_limits([LONGEST])


def check_limits(limits: list[tuple[int, int, float]]) -> None:
    with mpmath.workdps(60):
        for errors, n, log_delta in limits:
            high, low = largest_rate(errors, n, log_delta), smallest_rate(errors, n, log_delta)
            assert 0 <= low <= 1 and 0 <= high <= 1
            if high < 1:
                assert oracle_logs(errors, n, high)[0] < log_delta, (errors, n, log_delta)
                assert oracle_logs(errors, n, inward(high, -1))[0] >= log_delta, (errors, n, log_delta)
            elif errors < n:
                assert oracle_logs(errors, n, 1 - 1e-12)[0] >= log_delta, (errors, n, log_delta)
            if low > 0:
                assert oracle_logs(errors - 1, n, low)[1] < log_delta, (errors, n, log_delta)
                assert oracle_logs(errors - 1, n, inward(low, 1))[1] >= log_delta, (errors, n, log_delta)
            elif errors:
                assert oracle_logs(errors - 1, n, 1e-280)[1] >= log_delta, (errors, n, log_delta)


def inward(rate: float, sign: int) -> float:
    """A rate a little nearer to what was observed, relative to its distance from 0 and from 1."""
    return rate + sign * 1e-10 * min(rate, 1 - rate) + sign * 1e-15 * rate


@pytest.mark.parametrize("log_delta", [-1.0, math.log(0.05), -50.0])
def test_many_samples_are_no_problem(log_delta: float) -> None:
    n, errors = 10**9, 4 * 10**8
    z = stats.norm.isf(math.exp(log_delta))
    normal = errors / n + z * math.sqrt(0.24 / n)
    assert largest_rate(errors, n, log_delta) == pytest.approx(normal, abs=1e-7 * max(1, abs(z)) / 10)
    assert smallest_rate(errors, n, log_delta) == pytest.approx(0.8 - normal, abs=1e-7 * max(1, abs(z)) / 10)


@settings(some, max_examples=12)
@given(st.integers(1, 10**6), st.floats(-1e5, -1e-6), st.floats(0, 1e3), st.data())
def test_limits_move_with_what_they_depend_on(n: int, log_delta: float, stricter: float, data: Any) -> None:
    errors = data.draw(st.integers(0, n))
    high, low = largest_rate(errors, n, log_delta), smallest_rate(errors, n, log_delta)
    assert largest_rate(errors, n, log_delta - stricter) >= high
    assert smallest_rate(errors, n, log_delta - stricter) <= low
    assert largest_rate(errors, n + 1, log_delta) <= high
    assert smallest_rate(errors, n + 1, log_delta) <= low
    if errors < n:
        assert largest_rate(errors + 1, n, log_delta) >= high
        assert smallest_rate(errors + 1, n, log_delta) >= low


@some
@given(st.integers(1, 1000), st.floats(-100, -1e-3), st.data())
def test_upper_and_lower_limits_mirror_each_other(n: int, log_delta: float, data: Any) -> None:
    errors = data.draw(st.integers(0, n))
    assert smallest_rate(errors, n, log_delta) == pytest.approx(1 - largest_rate(n - errors, n, log_delta), abs=1e-12)


@pytest.mark.parametrize("limit", [largest_rate, smallest_rate])
@pytest.mark.parametrize(
    ("errors", "n", "log_delta", "message"),
    [
        (5, 4, -1.0, "errors=5, n=4"),
        (-1, 4, -1.0, "errors=-1, n=4"),
        (0, 0, -1.0, "errors=0, n=0"),
        (1, MOST_SAMPLES + 1, -1.0, f"n={MOST_SAMPLES + 1}"),
        (1.0, 4, -1.0, r"whole numbers, got errors=1\.0, n=4"),
        (1, 4.5, -1.0, r"whole numbers, got errors=1, n=4\.5"),
        (True, 4, -1.0, "errors=True"),
        (math.nan, 4, -1.0, "errors=nan"),
        (1, 4, 0.0, r"log_delta.*got 0\.0"),
        (1, 4, math.nan, "log_delta.*got nan"),
        (1, 4, -math.inf, "log_delta.*got -inf"),
    ],
)
def test_bad_input_is_refused(limit: Callable[..., float], errors: Any, n: Any, log_delta: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        limit(errors, n, log_delta)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert largest_rate(np.int32(3), np.int64(10), -1.0) == largest_rate(3, 10, -1.0)  # type: ignore[arg-type]
