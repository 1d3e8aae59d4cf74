"""The rate of different answers: Clopper–Pearson, and what it means for accuracy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.bounds.disagreement import disagreement
from tamis.errors import InvalidInput

some = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("rate", [0.0, 0.002, 0.5, 1.0])
def test_it_holds_in_simulations_of_two_networks(rate: float) -> None:
    n, delta, draws, rng = 200, 0.05, 4000, np.random.default_rng(1)
    first = rng.integers(10, size=(draws, n))
    second = np.where(rng.random((draws, n)) < rate, (first + rng.integers(1, 10, size=(draws, n))) % 10, first)
    different = (first != second).sum(1)
    values = {int(k): disagreement(int(k), n, delta).value for k in np.unique(different)}
    failed = np.mean([values[int(k)] < rate for k in different])
    assert failed <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


@some
@given(st.integers(1, 5000), st.floats(1e-6, 0.4), st.data())
def test_it_is_scipys_exact_limit(n: int, delta: float, data: Any) -> None:
    different = data.draw(st.integers(0, n))
    test = stats.binomtest(different, n, alternative="less")
    expected = test.proportion_ci(confidence_level=1 - delta, method="exact").high
    assert disagreement(different, n, delta).value == pytest.approx(expected, rel=1e-7)


def test_it_tells_how_it_came_about() -> None:
    bound = disagreement(12, 10_000, 0.05)
    assert dict(bound.terms) == {"different": 12, "n": 10_000, "delta": 0.05, "observed": 0.0012}
    assert bound.informative and not disagreement(3, 3, 0.05).informative
    assert not any("label" in assumption for assumption in bound.assumptions)


@pytest.mark.parametrize(
    ("different", "n", "delta", "message"),
    [
        (5, 4, 0.05, "different=5, n=4"),
        (-1, 4, 0.05, "different=-1"),
        (0.5, 4, 0.05, r"different=0\.5"),
        (1, 4, 1.0, r"delta=1\.0"),
        (1, 4, math.nan, "delta=nan"),
    ],
)
def test_bad_input_is_refused(different: Any, n: Any, delta: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        disagreement(different, n, delta)
