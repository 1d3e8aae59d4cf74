import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tamis.cli.display import from_logarithm, round_up, with_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.0000"),
        (0.5, "0.50000"),
        (1234.56, "1,234.6"),
        (1234.51, "1,234.6"),  # a bound: 1,234.5 would be too small
        (1.00001, "1.0001"),
        (1.02e7, "10^7.01"),
        (999_999.0, "999,999.0"),
        (1e7, "10^7.00"),
        (3e-9, "10^-8.52"),
    ],
)
def test_numbers_from_logarithms(value, text):
    assert from_logarithm(math.log(value) if value else -math.inf) == text


def test_numbers_beyond_float64():
    assert from_logarithm(2000.0) == "10^868.59"


@given(value=st.floats(allow_nan=False, allow_infinity=False), digits=st.integers(0, 8))
@example(value=3.49 * (1 + 4e-13), digits=2)
def test_a_bound_is_rounded_up_however_little_is_above(value: float, digits: int) -> None:
    shown = round_up(value, digits)
    assert Fraction(value) <= Fraction(shown) < Fraction(value) + Fraction(1, 10**digits)
    assert -shown.as_tuple().exponent == digits


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (640, "640"), (1_000, "1.00 k"), (18_432, "18.4 k"), (465_024, "465 k"), (1_816_557_056, "1.82 G")],
)
def test_counts_with_units(count, text):
    assert with_unit(count) == text
