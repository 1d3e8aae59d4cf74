import math

import pytest

from tamis.cli.display import from_logarithm, with_unit


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (640, "640"), (1_000, "1.00 k"), (18_432, "18.4 k"), (465_024, "465 k"), (1_816_557_056, "1.82 G")],
)
def test_counts_with_units(count, text):
    assert with_unit(count) == text
