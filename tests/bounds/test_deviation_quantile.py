"""Order statistics: their coverage on continuous, discrete and constant distances; ranks by their definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tamis.bounds.deviation_quantile import deviation_quantile
from tamis.errors import InvalidInput

some = settings(max_examples=25, deadline=None)


@some
@given(st.integers(1, 400), st.floats(0.01, 0.99), st.floats(1e-6, 0.9))
def test_the_rank_is_the_smallest_that_is_safe(n: int, coverage: float, delta: float) -> None:
    tails = stats.binom.sf(np.arange(n + 1), n, coverage)  # of at least 1, 2, …, n + 1
    bound = deviation_quantile(np.arange(1.0, n + 1), coverage, delta)
    lowest, highest = (1 + (tails <= delta * (1 + within)).argmax() for within in (1e-9, -1e-9))
    assert lowest <= bound.terms["rank"] <= highest
    assert bound.value == (bound.terms["rank"] if bound.terms["rank"] <= n else math.inf)
    assert bound.informative == math.isfinite(bound.value)


@pytest.mark.parametrize(("coverage", "delta", "needed"), [(0.95, 0.05, 59), (0.99, 0.05, 299), (0.9, 0.01, 44)])
def test_as_many_samples_are_needed_as_tables_say(coverage: float, delta: float, needed: int) -> None:
    few = deviation_quantile(np.ones(needed - 1), coverage, delta)
    assert (few.value, few.log_value, few.informative) == (math.inf, math.inf, False)
    enough = deviation_quantile(np.ones(needed), coverage, delta)
    assert (enough.value, enough.log_value, enough.informative, enough.terms["rank"]) == (1.0, 0.0, True, needed)


DISTRIBUTIONS: dict[str, Any] = {
    "exponential": stats.expon(),
    "heavy tails": stats.pareto(0.5),
    "few values": stats.binom(3, 0.4),
    "mostly zero": stats.poisson(0.05),
    "constant": stats.randint(2, 3),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "coverage", "delta"), [(100, 0.9, 0.05), (60, 0.95, 0.1), (40, 0.3, 0.2)])
def test_it_holds_in_simulations(name: str, n: int, coverage: float, delta: float) -> None:
    distribution, draws = DISTRIBUTIONS[name], 5000
    samples = distribution.rvs(size=(draws, n), random_state=np.random.default_rng(0)).astype(float)
    rank = int(deviation_quantile(samples[0], coverage, delta).terms["rank"])  # depends on how many there are, no more
    values = np.sort(samples, axis=1)[:, rank - 1]
    for row, value in zip(samples[:50], values, strict=False):
        assert deviation_quantile(row, coverage, delta).value == value
    failed = np.mean(distribution.cdf(values) < coverage)
    assert failed <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
def test_it_fails_on_continuous_distances_with_a_known_probability(coverage: float) -> None:
    n, delta, draws = 500, 0.1, 20_000
    rank = int(deviation_quantile(np.arange(float(n)), coverage, delta).terms["rank"])
    expected = stats.binom.sf(rank - 1, n, coverage)
    covered = np.partition(np.random.default_rng(0).random((draws, n)), rank - 1, axis=1)[:, rank - 1]
    assert np.mean(covered < coverage) == pytest.approx(expected, abs=4 * math.sqrt(expected / draws))
    assert delta / 3 < expected <= delta


@some
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=60), st.floats(0.05, 0.9), st.floats(0.01, 0.5), st.data())
def test_more_coverage_or_confidence_or_larger_distances_never_help(
    distances: list[float], coverage: float, delta: float, data: Any
) -> None:
    values = np.array(distances)
    bound = deviation_quantile(values, coverage, delta).value
    assert bound == math.inf or bound in distances
    assert bound <= deviation_quantile(values, min(0.99, coverage * 1.1), delta).value
    assert bound <= deviation_quantile(values, coverage, delta / 2).value
    assert bound <= deviation_quantile(values * 1.5, coverage, delta).value
    shuffled = np.array(data.draw(st.permutations(distances)))
    assert bound == deviation_quantile(shuffled, coverage, delta).value


def test_infinite_distances_count_as_the_largest() -> None:
    distances = np.array([math.inf, *range(1, 100)])
    assert deviation_quantile(distances, 0.9, 0.05).value == 96
    assert deviation_quantile(distances, 0.98, 0.3).value == math.inf
    assert not deviation_quantile(distances, 0.98, 0.3).informative


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_tensors_are_taken_and_left_as_they_are(dtype: torch.dtype) -> None:
    distances = torch.arange(99, -1, -1).to(dtype).requires_grad_(dtype.is_floating_point)
    before = distances.detach().clone()
    assert deviation_quantile(distances, 0.9, 0.05).value == 95
    assert torch.equal(distances.detach(), before)


def test_zero_is_a_distance() -> None:
    bound = deviation_quantile(np.zeros(59), 0.95, 0.05)
    assert (bound.value, bound.log_value, bound.informative) == (0.0, -math.inf, True)


@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (np.array([1.0, math.nan, 2.0]), "1 of 3 are: the first is nan at position 1"),
        (torch.tensor([1.0, -2.0, -3.0]), r"2 of 3 are: the first is -2\.0 at position 1"),
        (np.ones((2, 3)), r"the shape \(2, 3\)"),
        (torch.tensor(1.0), r"the shape \(\)"),
        (np.array([]), "n=0"),
        ([1.0, 2.0], "got list"),
        (np.array(["a"]), "got <U1"),
        (torch.ones(3, dtype=torch.bool), r"got torch\.bool"),
        (torch.ones(3, dtype=torch.complex64), r"got torch\.complex64"),
    ],
)
def test_what_are_not_distances_is_refused(distances: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        deviation_quantile(distances, 0.9, 0.05)


@pytest.mark.parametrize(
    ("coverage", "delta", "message"),
    [
        (0.0, 0.05, r"coverage=0\.0"),
        (1.0, 0.05, r"coverage=1\.0"),
        (math.nan, 0.05, "coverage=nan"),
        (0.9, 2, "delta=2"),
    ],
)
def test_bad_probabilities_are_refused(coverage: float, delta: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        deviation_quantile(np.ones(100), coverage, delta)
