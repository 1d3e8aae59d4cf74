"""What a `Bound` holds, and what it refuses."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.bounds.bound import Bound, exp_rounded_up, log_rounded_up
from tamis.errors import InvalidInput

SOURCE = "gonon2024thesis, Theorem 3.3.1"


def test_it_names_the_work_it_comes_from() -> None:
    assert Bound(2.0, math.log(2), True, SOURCE).citation == "gonon2024thesis"
    assert Bound(2.0, math.log(2), True, "gonon2024thesis").citation == "gonon2024thesis"


@pytest.mark.parametrize("source", ["", "Theorem 3.3.1", "gonon2024thesis Theorem 3.3.1", ", gonon2024thesis"])
def test_a_source_without_a_citation_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{source}' does not begin with a citation key"):
        Bound(1.0, 0.0, True, source)


@pytest.mark.parametrize(("value", "log_value"), [(math.nan, 0.0), (1.0, math.nan), (math.nan, math.nan)])
def test_what_is_not_a_number_is_refused(value: float, log_value: float) -> None:
    with pytest.raises(InvalidInput, match=f"value {value} and log_value {log_value}"):
        Bound(value, log_value, True, SOURCE)


def test_infinite_values_are_bounds_too() -> None:
    assert Bound(math.inf, 5000.0, False, SOURCE).log10 == pytest.approx(5000 / math.log(10))
    assert Bound(0.0, -math.inf, True, SOURCE).log10 == -math.inf


def test_nothing_in_it_can_be_changed() -> None:
    terms = {"n": 3.0}
    bound = Bound(1.0, 0.0, True, SOURCE, terms=terms)
    terms["n"] = 4.0
    assert bound.terms["n"] == 3.0
    with pytest.raises(TypeError):
        bound.terms["n"] = 5.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        bound.value = 0.0  # type: ignore[misc]


def test_without_more_it_assumes_nothing() -> None:
    bound = Bound(1.0, 0.0, True, SOURCE)
    assert (bound.assumptions, bound.checked, dict(bound.terms)) == ((), (), {})


@given(st.floats(0, allow_nan=False, allow_infinity=False))
def test_logarithms_and_numbers_go_back_and_forth(value: float) -> None:
    assert value <= exp_rounded_up(log_rounded_up(value)) <= value * (1 + 2e-12) + 1e-323


def test_logarithms_at_the_ends_of_float64() -> None:
    assert log_rounded_up(0.0) == -math.inf and exp_rounded_up(-math.inf) == 0.0
    assert exp_rounded_up(1e6) == math.inf and exp_rounded_up(-1e6) == 5e-324  # never 0 where the number is not
