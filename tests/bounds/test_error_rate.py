"""Clopper–Pearson: how often it fails, by exact enumeration and by simulation; closed forms; what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.bounds.error_rate import error_rate
from tamis.errors import InvalidInput

some = settings(max_examples=25, deadline=None)


def values(n: int, delta: float) -> np.ndarray:
    return np.array([error_rate(errors, n, delta).value for errors in range(n + 1)])


@pytest.mark.parametrize("n", [1, 2, 5, 50])
@pytest.mark.parametrize("delta", [0.4, 0.05, 1e-3])
def test_it_fails_with_probability_at_most_delta_and_hardly_less_where_it_is_worst(n: int, delta: float) -> None:
    limits = values(n, delta)
    # The probability of failing jumps up where the true rate passes a limit: there it is largest.
    rates = np.concatenate([np.nextafter(limits[limits < 1], 1), np.linspace(0, 1, 201)])
    failing = (limits < rates[:, None]) * stats.binom.pmf(np.arange(n + 1), n, rates[:, None])
    worst = failing.sum(1).max()
    assert 0.999999 * delta < worst <= delta * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.0, 1e-4, 0.03, 0.5, 0.97, 1.0])
@pytest.mark.parametrize(("n", "delta"), [(30, 0.1), (1000, 0.05)])
def test_it_holds_in_simulations(rate: float, n: int, delta: float) -> None:
    draws = 20_000
    errors = np.random.default_rng(0).binomial(n, rate, draws)
    distinct, times = np.unique(errors, return_counts=True)
    failed = sum(t for k, t in zip(distinct, times, strict=True) if error_rate(int(k), n, delta).value < rate)
    assert failed / draws <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


@some
@given(st.integers(1, 10**6), st.floats(1e-9, 0.999))
def test_without_errors_it_has_a_closed_form(n: int, delta: float) -> None:
    assert error_rate(0, n, delta).value == pytest.approx(-math.expm1(math.log(delta) / n), rel=1e-12)


def test_where_all_is_wrong_it_says_nothing() -> None:
    bound = error_rate(7, 7, 0.05)
    assert (bound.value, bound.log_value, bound.informative) == (1.0, 0.0, False)
    assert error_rate(6, 7, 0.05).informative


def test_it_tells_how_it_came_about() -> None:
    bound = error_rate(np.int64(3), np.int64(200), np.float64(0.05))  # type: ignore[arg-type]
    assert dict(bound.terms) == {"errors": 3, "n": 200, "delta": 0.05, "observed": 0.015}
    assert all(type(term) in (int, float) for term in bound.terms.values())
    assert bound.citation == "clopper1934confidence" and len(bound.assumptions) == 2
    assert bound.log_value == pytest.approx(math.log(bound.value)) and bound.value > 0.015


@some
@given(st.integers(1, 3000), st.floats(1e-6, 0.5), st.data())
def test_more_errors_or_fewer_samples_or_more_confidence_never_help(n: int, delta: float, data: Any) -> None:
    errors = data.draw(st.integers(0, n - 1))
    value = error_rate(errors, n, delta).value
    assert value <= error_rate(errors + 1, n, delta).value
    assert value >= error_rate(errors, n + 1, delta).value
    assert value <= error_rate(errors, n, delta / 2).value


@pytest.mark.parametrize(
    ("errors", "n", "delta", "message"),
    [
        (5, 4, 0.05, "errors=5, n=4"),
        (-1, 4, 0.05, "errors=-1, n=4"),
        (0, 0, 0.05, "errors=0, n=0"),
        (1.0, 4, 0.05, r"errors=1\.0"),
        (math.nan, 4, 0.05, "errors=nan"),
        (1, 4, 0.0, r"delta=0\.0"),
        (1, 4, 1.0, r"delta=1\.0"),
        (1, 4, 5, "delta=5"),
        (1, 4, -0.1, r"delta=-0\.1"),
        (1, 4, math.nan, "delta=nan"),
        (1, 4, "0.05", r"delta='0\.05'"),
        (1, 4, 10**400, "delta=1000"),
    ],
)
def test_bad_input_is_refused(errors: Any, n: Any, delta: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        error_rate(errors, n, delta)
