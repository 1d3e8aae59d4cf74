"""Alphabets: their levels, their radii against brute force, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tamis
from tamis.errors import InvalidInput
from tamis.quantization.alphabet import MOST_LEVELS, Alphabet, make_equispaced, parse_alphabet

rows = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.floats(-9, 9, width=32), min_size=n, max_size=n), min_size=1, max_size=4)
)


@given(st.integers(2, 300))
def test_equispaced_levels_are_those_of_section_6(count: int) -> None:
    expected = [-1 + 2 * j / (count - 1) for j in range(count)]
    levels = make_equispaced(count).levels
    assert np.allclose(levels, expected, rtol=0, atol=4e-16) and levels[0] == -1 and levels[-1] == 1
    assert all(low == -high for low, high in zip(levels, reversed(levels), strict=True))
    assert count % 2 == 0 or levels[count // 2] == 0


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 16])
def test_bits_are_powers_of_two(bits: int) -> None:
    assert parse_alphabet(None, bits, "median") == parse_alphabet(2**bits, None, "median") == make_equispaced(2**bits)
    assert parse_alphabet(None, np.int64(bits), "max") == make_equispaced(2**bits, "max")  # type: ignore[arg-type]


def test_bits_and_levels_are_one_through_the_whole_call() -> None:
    torch.manual_seed(0)
    data = torch.randn(20, 6)
    net = tamis.trace(nn.Sequential(nn.Linear(6, 4)), data)
    one, other = (
        tamis.quantize(net, data, progress=False, c_alpha=2.0, **which) for which in ({"bits": 2}, {"levels": 4})
    )
    assert torch.equal(one.params["0.weight"], other.params["0.weight"])
    assert one.recipe == other.recipe


@given(rows)
def test_the_median_is_numpys_or_that_of_the_weights_that_are_not_zero(values: list[list[float]]) -> None:
    found = make_equispaced(3).radii(torch.tensor(values, dtype=torch.float64))
    for row, radius in zip(values, found, strict=True):
        magnitudes = np.abs(row)
        expected = np.median(magnitudes)
        if expected == 0 and magnitudes.any():
            expected = np.median(magnitudes[magnitudes > 0])
        assert radius == expected or (expected == 0 and 0 < radius <= 2.0**-14)


@settings(max_examples=40)
@given(rows, st.data())
def test_pruned_weights_have_no_say_in_the_radius(values: list[list[float]], data: Any) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(values[0]), max_size=len(values[0])))
    weights = torch.tensor(values, dtype=torch.float64)
    masked = weights.where(torch.tensor(kept), math.nan)
    for radius in ("median", "max", "least_squares"):
        found = make_equispaced(4, radius).radii(masked)
        if any(kept):
            assert torch.equal(found, make_equispaced(4, radius).radii(weights[:, kept]))
        assert (found > 0).all()


@given(rows)
def test_max_is_the_largest_magnitude(values: list[list[float]]) -> None:
    found = make_equispaced(3, "max").radii(torch.tensor(values, dtype=torch.float64))
    for row, radius in zip(values, found, strict=True):
        assert radius == max(map(abs, row)) or (not any(row) and 0 < radius <= 2.0**-14)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("heavy", [False, True])
def test_least_squares_is_as_good_as_the_best_of_many_radii(count: int, heavy: bool) -> None:
    draw = torch.Generator().manual_seed(count)
    weights = normal(draw, 3, 60) ** (3 if heavy else 1)
    alphabet = make_equispaced(count, "least_squares")
    levels = torch.tensor(alphabet.levels, dtype=torch.float64)

    def errors(row: torch.Tensor, radii: torch.Tensor) -> torch.Tensor:
        """Of rounding to the nearest level, by trying all of them, with each radius."""
        return (row[:, None] - radii[:, None, None] * levels).square().amin(2).sum(1)

    for row, radius in zip(weights, alphabet.radii(weights), strict=True):
        largest, own = row.abs().max(), float(errors(row, radius[None]))
        tried = errors(row, torch.linspace(0.02, 1.2, 3000, dtype=torch.float64) * largest)
        assert own <= 1.05 * float(tried.min()) + 1e-12
        grid = errors(row, torch.linspace(0.05, 1.0, 96, dtype=torch.float64) * largest)
        assert own == pytest.approx(float(grid.min()), rel=1e-12)


def test_given_levels_are_meant_as_they_are() -> None:
    assert torch.equal(Alphabet((-0.5, 0.25)).radii(torch.randn(3, 4)), torch.ones(3))
    assert parse_alphabet([-0.5, 0.25], None, "median") == Alphabet((-0.5, 0.25))
    assert parse_alphabet(np.array([-1, 0, 2]), None, "median").levels == (-1.0, 0.0, 2.0)
    assert parse_alphabet(torch.tensor([-1.0, 0.5]), None, "median").levels == (-1.0, 0.5)
    chosen = Alphabet((-1.0, 0.0, 0.5), "max")
    assert parse_alphabet(chosen, None, "median") is chosen


@pytest.mark.parametrize(
    ("levels", "bits", "message"),
    [
        (None, None, "either levels or bits"),
        (3, 2, "either levels or bits"),
        (1, None, "levels=1 must be a whole number from 2 to 65536"),
        (0, None, "levels=0 must be"),
        (-3, None, "levels=-3 must be"),
        (MOST_LEVELS + 1, None, "levels=65537 must be"),
        (True, None, "levels=True must be"),
        (3.0, None, r"levels=3\.0 must be"),
        (float("nan"), None, "levels=nan must be"),
        ([0.5], None, "2 to 65536 levels, got 1"),
        ([], None, "2 to 65536 levels, got 0"),
        ([1.0, 0.0], None, "sorted and distinct"),
        ([0.0, 0.0], None, "sorted and distinct"),
        ([0.0, float("nan")], None, "finite"),
        ([0.0, float("inf")], None, "finite"),
        ("abc", None, "levels='abc'"),
        ([None, 1.0], None, "levels="),
        ([0.0, 1j], None, "levels="),
        (torch.tensor(3), None, "levels="),
        (None, 0, "bits=0 must be a whole number from 1 to 16"),
        (None, 17, "bits=17 must be"),
        (None, True, "bits=True must be"),
        (None, 2.0, r"bits=2\.0 must be"),
        (None, "2", "bits='2' must be"),
    ],
)
def test_it_refuses(levels: Any, bits: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_alphabet(levels, bits, "median")


@pytest.mark.parametrize("levels", [3, [-1.0, 0.0, 1.0], Alphabet((-1.0, 1.0))])
def test_it_refuses_an_unknown_radius_whatever_the_levels(levels: Any) -> None:
    with pytest.raises(InvalidInput, match="radius must be median, max, least_squares or given, got 'mean'"):
        parse_alphabet(levels, None, "mean")  # type: ignore[arg-type]


@pytest.mark.parametrize("levels", [(0.0,), ("a", "b"), (0.0, None), (1, 0)])
def test_an_alphabet_refuses_bad_levels(levels: Any) -> None:
    with pytest.raises(InvalidInput):
        Alphabet(levels)
