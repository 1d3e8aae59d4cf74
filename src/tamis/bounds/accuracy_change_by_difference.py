"""The accuracy that a small network loses is bounded here by the number of worse inputs less that of better ones.

These are the bounds for more samples than `accuracy_change` orders by their score, and those of certificates of
version 1.
"""

from __future__ import annotations

import math

import numpy as np

from tamis.bounds.binomial import (
    EPSILON,
    SMALLEST_RATE,
    check_counts,
    check_probability,
    largest_rate,
    likely_counts,
    log_pmf,
)
from tamis.bounds.bound import Bound, log_rounded_up
from tamis.bounds.held_out import HELD_OUT

# The part of δ that is spent on the largest rate of one kind, and the rest on the test that needs it. More would be
# better for a few discordant inputs, less for thousands. It must not depend on the data.
SHARE = 0.1
STEPS = 40  # of bisection


def accuracy_change_by_difference(worse: int, better: int, n: int, delta: float) -> Bound:
    """With confidence 1 − δ, the accuracy drops by at most `value`: P[worse] − P[better] ≤ value.

    The counts are of the same n inputs for both networks, so inputs on which both are right or both are wrong cancel,
    and a thousand inputs may show a change that two separate error rates would hide. With 0.1·δ, P[worse] is at most
    its Clopper–Pearson limit; with 0.9·δ, worse − better is not below its exact quantile for any rates within that
    limit. docs/bounds.md proves that this is valid for every n.

    Args:
        worse: inputs that the original network gets right and the small one wrong.
        better: inputs that the original network gets wrong and the small one right.
        n: all inputs.
        delta: the probability with which the statement may fail.

    A negative `value` says that the small network is proved to be better; `log_value` is then −∞, as for zero.

    Example:
        >>> round(accuracy_change_by_difference(worse=30, better=20, n=10_000, delta=0.05).value, 4)
        0.0025

    Reference: clopper1934confidence.
    """
    n, worse, better = check_counts(n, worse=worse, better=better)
    delta = check_probability("delta", delta)
    most_worse = largest_rate(worse, n, math.log(delta) + math.log(SHARE))
    value = _find_limit(worse, better, n, most_worse, (1 - SHARE) * delta)
    return bound_by_pairs(
        value,
        "clopper1934confidence, upper limit of the rate of one kind of discordant pairs",
        worse,
        better,
        n,
        delta,
        most_worse=most_worse,
        delta_most_worse=SHARE * delta,
    )


def bound_by_pairs(value: float, source: str, worse: int, better: int, n: int, delta: float, **terms: float) -> Bound:
    """Make the bound of a change of accuracy that counts of discordant pairs of answers give, with terms of its own."""
    counts = {"worse": worse, "better": better, "n": n, "delta": delta, "observed": (worse - better) / n}
    return Bound(
        value=value,
        log_value=log_rounded_up(max(value, 0.0)),
        informative=value < 1,
        source=source,
        assumptions=HELD_OUT,
        terms={**counts, **terms},
    )


def _find_limit(worse: int, better: int, n: int, most_worse: float, delta: float) -> float:
    """Return the largest θ = P[W] − P[B] with P[W] ≤ most_worse that a test of level δ does not reject.

    Where the rate of discordant inputs P[W] + P[B] is at most ½, the test is of W − B. Where it is more, it is of how
    many of the discordant inputs are worse: Bin(worse + better, P[W]/(P[W] + P[B])).
    """
    # Two tests of the same level, each for its own range of rates. The true rate lies in one range, fixed beforehand,
    # so that only one of them can fail: the larger limit is valid without halving δ.
    few = _find_limit_of_few(worse - better, n, most_worse, delta)
    pairs = worse + better
    share = largest_rate(worse, pairs, math.log(delta)) if pairs else 1.0
    # For rates from ½ to 1, θ = 2·P[W] − rate is largest where both limits of P[W] meet.
    rate = min(max(most_worse / share, 0.5), 1.0) if share > 0.5 else 0.5
    return min(max(few, 2 * min(share * rate, most_worse) - rate + 4 * EPSILON), 1.0)


def _find_limit_of_few(difference: int, n: int, most_worse: float, delta: float) -> float:
    """Return the smallest θ, on a fine grid, for which W − B ≤ difference is proved to be less probable than δ."""
    # From (difference + 1)/(n − 1) on, the tail grows with the rate of discordant inputs: see docs/bounds.md.
    unproved, proved = max((difference + 1) / max(n - 1, 1), -0.5), min(most_worse, 0.5)
    for _ in range(STEPS):
        middle = (unproved + proved) / 2
        if not unproved < middle < proved:
            break
        if _bound_tail(difference, n, middle, min(2 * most_worse - middle, 0.5), delta) < delta:
            proved = middle
        else:
            unproved = middle
    return proved


def _bound_tail(difference: int, n: int, theta: float, discordant: float, delta: float) -> float:
    """Compute P[W − B ≤ difference] for P[W] − P[B] = θ and P[W] + P[B] = discordant ≤ ½, rounded up.

    The polynomial P[B] + (1 − discordant)·z + P[W]·z² has real roots, so one step of W − B is a difference of two
    independent Bernoulli variables, and W − B is a difference of two independent binomial ones.
    """
    root = math.sqrt((1 - 2 * discordant) + theta * theta)  # in this order nothing is lost where both are small
    # Roots in which nothing cancels. A rate of zero would have no logarithm; 10^−290 in its place changes less than
    # the rounding that is added below.
    up = max((discordant + theta) / (1 + theta + root), SMALLEST_RATE)
    down = max((discordant - theta) / (1 - theta + root), SMALLEST_RATE)
    negligible = max(1e-12 * delta, SMALLEST_RATE)
    # P[U − D ≤ d] = Σ_D P[D] · P[U ≤ D + d]: cumulative sums of the one binomial, weighted by the other.
    ups, downs = likely_counts(n, up, negligible), likely_counts(n, down, negligible)
    with np.errstate(under="ignore"):
        at_most = np.concatenate([[0.0], np.exp(log_pmf(ups, n, up)).cumsum()])
        weights = np.exp(log_pmf(downs, n, down))
        reached = np.clip(downs + (difference - ups[0] + 1), 0, len(ups))
        inside = float(weights @ at_most[reached])
    # More than what rounding loses: each term is off by some units of how far it is from the mean, and so are the sums.
    return inside * (1 + 1e-9 + 64 * EPSILON * (len(ups) + len(downs))) + 2 * negligible
