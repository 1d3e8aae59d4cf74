"""`accuracy_change` bounds how much accuracy a small network loses, from inputs on which both were compared."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from tamis.bounds.accuracy_change_by_difference import accuracy_change_by_difference, bound_by_pairs
from tamis.bounds.binomial import (
    SMALLEST_RATE,
    check_counts,
    check_probability,
    largest_rate,
    likely_counts,
    smallest_rate,
)
from tamis.bounds.bound import Bound
from tamis.bounds.confidence_sequence import difference_at_any_time
from tamis.bounds.paired_score import most_worse_of, score_limit
from tamis.bounds.staircase import Staircase

# The part of δ that is spent on limits of the rates, half for each, and the rest on the test that needs them. As the
# score depends little on the rates, a hundredth is near the best. It must not depend on the data.
SHARE = 0.01
# Beyond, the test takes seconds and gains less than a tenth of a standard deviation. Nor may this depend on the data:
# whoever takes the smaller of two bounds has two chances to fail.
MOST_ORDERED = 10**5
LARGEST_TAIL = 0.4  # for which outcomes are ordered: the score must be negative there
# How finely θ and the rates are told apart: parts of the distance from what was observed to the limit of the score.
STEPS_OF_DIFFERENCE, STEPS_OF_RATES = 250, 1000
FIRST_INTERVALS = 16  # of rates


def accuracy_change(worse: int, better: int, n: int, delta: float, sequential: bool = False) -> Bound:
    """With confidence 1 − δ, the accuracy drops by at most `value`: P[worse] − P[better] ≤ value.

    The counts are of the same n inputs for both networks, so inputs on which both are right or both are wrong cancel,
    and a thousand inputs may show a change that two separate error rates would hide. The outcomes are ordered by the
    limit of Tango's score; `value` is the smallest θ for which as low an outcome is proved to be less probable than
    0.99·δ, whatever the rates with this difference: P[worse] at most, and P[better] at least their Clopper–Pearson
    limits of 0.005·δ each (Berger and Boos). docs/bounds.md proves that this is valid for every n.

    Args:
        worse: inputs that the original network gets right and the small one wrong.
        better: inputs that the original network gets wrong and the small one right.
        n: all inputs. For more than a hundred thousand, `accuracy_change_by_difference` is taken instead.
        delta: the probability with which the statement may fail.
        sequential: whether it shall hold at every n at which it is computed, by `difference_at_any_time`.

    A negative `value` says that the small network is proved to be better; `log_value` is then −∞, as for zero.

    Example:
        >>> round(accuracy_change(worse=30, better=20, n=10_000, delta=0.05).value, 4)
        0.0022

    References: tango1998paired, berger1994pvalues, buehler1957confidence.
    """
    if sequential:
        return difference_at_any_time(worse, better, n, delta)
    n, worse, better = check_counts(n, worse=worse, better=better)
    delta = check_probability("delta", delta)
    if n > MOST_ORDERED:
        return accuracy_change_by_difference(worse, better, n, delta)
    # Berger and Boos: rates that a small part of δ rules out need not be looked at, and the test keeps the rest of δ.
    log_share = math.log(delta) + math.log(SHARE / 2)
    most_worse, least_better = largest_rate(worse, n, log_share), smallest_rate(better, n, log_share)
    value = _find_limit(worse, better, n, most_worse, least_better, delta)
    return bound_by_pairs(
        value,
        "tango1998paired, score statistic, as the order of exact upper limits",
        worse,
        better,
        n,
        delta,
        most_worse=most_worse,
        least_better=least_better,
        delta_of_rates=SHARE * delta,
    )


def _find_limit(worse: int, better: int, n: int, most_worse: float, least_better: float, delta: float) -> float:
    """Return the smallest θ, up to the resolution, that is proved to be too large; all above it are then too large as
    well.
    """
    # The limits of the rates prove a first θ by themselves; the bisection can only improve on it, so that stopping
    # early is safe.
    observed, proved = (worse - better) / n, min(most_worse - least_better, 1.0)
    deviations = -NormalDist().inv_cdf(min(delta, LARGEST_TAIL))
    limit = score_limit(worse, better, n, deviations)
    if limit >= 1:  # every outcome is as low as this one, and none is rare
        return proved
    stairs = _collect_outcomes(limit, deviations, n, observed, (least_better, most_worse), delta)
    unproved, distance = observed, limit - observed
    while proved - unproved > distance / STEPS_OF_DIFFERENCE:
        theta = (unproved + proved) / 2
        rates = max(0.0, least_better + theta), min(most_worse, (1 + theta) / 2)
        if _are_rare(stairs, theta, rates, (1 - SHARE) * delta, distance / STEPS_OF_RATES):
            proved = theta
        else:
            unproved = theta
    return proved


def _collect_outcomes(
    limit: float, deviations: float, n: int, observed: float, rates: tuple[float, float], delta: float
) -> Staircase:
    """Return all outcomes whose limit of the score is no higher, for θ ≥ observed and both rates between two."""
    # Columns and rows that no rates in question reach are left out; their probability is added back as `negligible`.
    negligible = max(1e-12 * delta, SMALLEST_RATE)
    low, high = rates
    first = int(likely_counts(n, low, negligible)[0])
    last = int(likely_counts(n, min(high - observed, 1.0), negligible)[-1])
    heights = most_worse_of(np.arange(first, last + 1), n, limit, deviations)
    # Given B, each of the other inputs is worse with a probability of at least P[worse] ≥ P[better] + observed.
    lowest = int(likely_counts(n - first, max(low + observed, 0.0), negligible)[0])
    return Staircase(n, first, heights, lowest, negligible)


def _are_rare(stairs: Staircase, theta: float, rates: tuple[float, float], level: float, finest: float) -> bool:
    """Return whether the outcomes are proved to be less probable than `level` for all P[worse] = P[better] + θ between
    two.

    The probability decreases with P[worse] and increases with P[better]. So on an interval of rates it is at most that
    at the lower P[worse] and the higher P[better]. Intervals where this is not below the level are halved, until none
    is left, a rate is found at which the outcomes are not rare, or intervals are as fine as they may be.
    """
    ends = np.linspace(*rates, FIRST_INTERVALS + 1)
    low, high = ends[:-1], ends[1:]
    while True:
        # The corner of each interval that is worst for us: monotone in both rates, so that it covers the whole
        # interval.
        left = stairs.probability(low, high - theta) >= level
        if not left.any():
            return True
        low, high = low[left], high[left]
        # Either way out below answers False: that only makes θ count as unproved, and the limit larger.
        middle = (low + high) / 2
        if (high - low).max() <= finest or (stairs.probability(middle, middle - theta) >= level).any():
            return False
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
