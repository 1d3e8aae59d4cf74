"""Occam's razor: simulated learners that choose the best of a coded class; closed forms; monotonicity."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.bounds.error_rate import error_rate
from tamis.bounds.occam import occam
from tamis.errors import InvalidInput

some = settings(max_examples=20, deadline=None)


def test_three_percent_and_1900_bits_on_60000_samples_give_eight_percent() -> None:
    bound = occam(errors=1800, n=60_000, bits=1900, delta=0.05, trivial=0.9)
    assert round(bound.value, 3) == 0.08 and bound.informative


@some
@given(st.integers(1, 10**6), st.floats(1e-9, 0.5), st.data())
def test_without_bits_it_is_the_bound_of_data_not_seen(n: int, delta: float, data: Any) -> None:
    errors = data.draw(st.integers(0, n))
    assert occam(errors, n, 0, delta).value == error_rate(errors, n, delta).value


@some
@given(st.integers(1, 10**6), st.integers(0, 10**7), st.integers(1, 100), st.floats(1e-9, 0.5))
def test_without_errors_it_has_a_closed_form(n: int, bits: int, candidates: int, delta: float) -> None:
    nats = bits * math.log(2) + math.log(candidates / delta)
    assert occam(0, n, bits, delta, candidates).value == pytest.approx(-math.expm1(-nats / n), rel=1e-12)


# Lengths of prefix-free codes: Kraft's sum Σ 2^−length is 1 for the first two, less for the last.
CODES = {
    "equal": np.full(64, 6),
    "unary": np.append(np.arange(1, 12), 11),
    "steps": np.repeat([3, 5, 8], [4, 8, 40]),
}
SAMPLES, DRAWS = 15, 5000


@cache
def limits(bits: int, delta: float, candidates: int = 1) -> np.ndarray:
    return np.array([occam(k, SAMPLES, bits, delta, candidates).value for k in range(SAMPLES + 1)])


def failures(lengths: np.ndarray, rates: np.ndarray, delta: float, candidates: int = 1) -> float:
    """How often a learner that takes the hypothesis with the smallest bound has a rate above that bound."""
    table = np.array([limits(int(bits), delta, candidates) for bits in lengths])
    errors = np.random.default_rng(0).binomial(SAMPLES, rates, (DRAWS, len(rates)))
    bounds = table[np.arange(len(rates)), errors]
    chosen = bounds.argmin(1)
    return float(np.mean(bounds[np.arange(DRAWS), chosen] < rates[chosen]))


def at_most(delta: float) -> float:
    return delta + 4 * math.sqrt(delta * (1 - delta) / DRAWS)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, None])
def test_the_best_of_a_coded_class_holds_in_simulations(code: str, rate: float | None) -> None:
    lengths, delta = CODES[code], 0.1
    assert (2.0**-lengths).sum() <= 1
    rates = np.full(len(lengths), rate) if rate is not None else np.linspace(0, 1, len(lengths))
    assert failures(lengths, rates, delta) <= at_most(delta)


def test_not_counting_the_bits_would_fail_most_of_the_time() -> None:
    assert failures(np.zeros(64), np.full(64, 0.5), 0.1) > 0.9


def test_candidates_that_the_bits_do_not_tell_apart_are_paid_for() -> None:
    lengths, rates, delta = np.full(64, 3), np.full(64, 0.5), 0.2  # eight codes of eight words with three bits each
    assert failures(lengths, rates, delta, candidates=1) > 2 * delta
    assert failures(lengths, rates, delta, candidates=8) <= at_most(delta)


@settings(some, max_examples=10)
@given(
    st.integers(1, 10**5), st.floats(0, 1e6), st.floats(0, 1e3), st.floats(1e-9, 0.5), st.integers(1, 1000), st.data()
)
def test_more_of_anything_but_samples_never_helps(
    n: int, bits: float, more: float, delta: float, candidates: int, data: Any
) -> None:
    errors = data.draw(st.integers(0, n - 1))
    value = occam(errors, n, bits, delta, candidates).value
    assert value <= occam(errors, n, bits + more, delta, candidates).value
    assert value <= occam(errors, n, bits, delta, candidates + 1).value
    assert value <= occam(errors, n, bits, delta / 2, candidates).value
    assert value <= occam(errors + 1, n, bits, delta, candidates).value
    assert value >= occam(errors, n + 1, bits, delta, candidates).value
    assert value >= error_rate(errors, n, delta).value


def test_a_code_as_long_as_the_data_says_nothing() -> None:
    bound = occam(3000, 50_000, 10**9, 0.05)
    assert (bound.value, bound.log_value, bound.informative) == (1.0, 0.0, False)
    assert occam(0, 1000, 5000, 0.05).informative and not occam(0, 1000, 5000, 0.05, trivial=0.9).informative


def test_it_tells_how_it_came_about() -> None:
    bound = occam(np.int64(18), np.int64(600), np.int64(19), 0.05, candidates=4, trivial=0.9)  # type: ignore[arg-type]
    assert bound.terms["log_delta"] == pytest.approx(math.log(0.05) - 21 * math.log(2), rel=1e-14)
    assert dict(bound.terms) | {"log_delta": 0} == {
        "errors": 18,
        "n": 600,
        "bits": 19,
        "delta": 0.05,
        "candidates": 4,
        "trivial": 0.9,
        "observed": 0.03,
        "log_delta": 0,
    }
    assert all(type(term) in (int, float) for term in bound.terms.values())
    assert any("prefix-free" in assumption for assumption in bound.assumptions)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"errors": 700}, "errors=700, n=600"),
        ({"errors": 1.5}, r"errors=1\.5"),
        ({"n": 0}, "n=0"),
        ({"bits": -1}, "bits=-1"),
        ({"bits": math.nan}, "bits=nan"),
        ({"bits": math.inf}, "bits=inf"),
        ({"bits": True}, "bits=True"),
        ({"bits": "12"}, "bits='12'"),
        ({"delta": 0}, "delta=0"),
        ({"delta": math.nan}, "delta=nan"),
        ({"candidates": 0}, "candidates=0"),
        ({"candidates": 2.0}, r"candidates=2\.0"),
        ({"trivial": 0}, "trivial=0"),
        ({"trivial": 1.1}, r"trivial=1\.1"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        occam(**({"errors": 18, "n": 600, "bits": 19, "delta": 0.05} | changed))
