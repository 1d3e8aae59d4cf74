"""How often limits of confidence fail: tens of thousands of draws of known probability, for each of many settings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from attacks.attack_size import TIMES
from scipy.stats import binom

from tamis.bounds import accuracy_change, deviation_quantile, disagreement, error_rate

DRAWS = 20_000 * TIMES
# Failures are compared with the quantile of Bin(DRAWS, δ) that a valid limit passes once in a hundred million times.
ONCE = 1e-8
RATES = (0.001, 0.01, 0.05, 0.3, 0.5, 0.97)


def assert_seldom(failures: int, delta: float) -> None:
    most = int(binom.isf(ONCE, DRAWS, delta))
    assert failures <= most, f"{failures} of {DRAWS} draws fail, and {most} may at delta = {delta}"


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.001])
@pytest.mark.parametrize("samples", [1, 20, 300, 10_000])
@pytest.mark.parametrize("limit", [disagreement, error_rate])
def test_limits_of_a_rate_fail_no_more_often_than_they_may(
    limit: Callable[[int, int, float], object], samples: int, delta: float
) -> None:
    random = np.random.default_rng(samples)
    for rate in RATES:
        counts, times = np.unique(random.binomial(samples, rate, DRAWS), return_counts=True)
        values = [limit(int(count), samples, delta).value for count in counts]  # type: ignore[attr-defined]
        assert_seldom(int(times[np.array(values) < rate].sum()), delta)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.01])
@pytest.mark.parametrize("samples", [1, 12, 80])
def test_limits_of_a_change_of_accuracy_fail_no_more_often_than_they_may(samples: int, delta: float) -> None:
    random = np.random.default_rng(samples)
    known: dict[tuple[int, int], float] = {}
    for worse, better in ((0.02, 0.01), (0.05, 0.05), (0.3, 0.1), (0.1, 0.4), (0.5, 0.5), (0.9, 0.0), (0.01, 0.0)):
        drawn = random.multinomial(samples, [worse, better, 1 - worse - better], DRAWS)[:, :2]
        pairs, times = np.unique(drawn, axis=0, return_counts=True)
        for pair in map(tuple, pairs.tolist()):
            if pair not in known:
                known[pair] = accuracy_change(*pair, samples, delta).value
        values = np.array([known[pair] for pair in map(tuple, pairs.tolist())])
        assert_seldom(int(times[values < worse - better - 1e-15].sum()), delta)


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "coverage", "delta"), [(20, 0.5, 0.05), (100, 0.9, 0.05), (300, 0.99, 0.05)])
def test_quantiles_of_distances_fail_no_more_often_than_they_may(samples: int, coverage: float, delta: float) -> None:
    """Of uniform distances, the part below a value is the value itself."""
    random = np.random.default_rng(samples)
    example = deviation_quantile(random.random(samples), coverage, delta)
    rank = int(example.terms["rank"])
    if rank > samples:
        assert example.value == math.inf
        return
    # The k-th smallest of n uniform numbers has a beta distribution: no need to sort.
    smallest = random.beta(rank, samples + 1 - rank, DRAWS)
    assert_seldom(int((smallest < coverage).sum()), delta)
