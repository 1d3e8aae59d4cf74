"""`clopper_pearson` gives the exact upper limit of a rate, from a count (Clopper and Pearson 1934)."""

from __future__ import annotations

import math

from tamis.bounds.binomial import check_counts, check_probability, largest_rate
from tamis.bounds.bound import Bound, log_rounded_up
from tamis.bounds.held_out import HELD_OUT

SOURCE = "clopper1934confidence, upper limit"


def clopper_pearson(name: str, count: int, n: int, delta: float) -> Bound:
    """Bound a rate by its upper Clopper–Pearson limit max {p : P[Bin(n, p) ≤ count] ≥ δ}, informative below 1.

    Args:
        name: of the count, for `terms` and messages.
        count: how often it happened.
        n: of how many samples.
        delta: the probability with which the statement may fail.

    Reference: clopper1934confidence.
    """
    n, count = check_counts(n, **{name: count})
    delta = check_probability("delta", delta)
    # One-sided, so that all of δ is spent on the side that is asked for.
    value = largest_rate(count, n, math.log(delta))
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < 1,
        source=SOURCE,
        assumptions=HELD_OUT,
        terms={name: count, "n": n, "delta": delta, "observed": count / n},
    )
