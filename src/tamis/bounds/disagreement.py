"""How often two networks answer differently, from inputs that need no labels."""

from __future__ import annotations

import math

from tamis.bounds.binomial import largest_rate, plain_counts, plain_probability
from tamis.bounds.bound import Bound, log_of


def disagreement(different: int, n: int, delta: float) -> Bound:
    """With confidence 1 − δ, the probability that two networks answer differently is at most `value`.

    It is the upper Clopper–Pearson limit, max {p : P[Bin(n, p) ≤ different] ≥ δ}. The change of accuracy, in either
    direction, is never more than the rate of different answers.

    Args:
        different: how many inputs the two networks answer differently.
        n: how many inputs there are.
        delta: the probability with which the statement may fail.

    Example:
        >>> round(disagreement(different=12, n=10_000, delta=0.05).value, 5)
        0.00194

    Reference: clopper1934confidence.
    """
    n, different = plain_counts(n, different=different)
    delta = plain_probability("delta", delta)
    value = largest_rate(different, n, math.log(delta))
    return Bound(
        value=value,
        log_value=log_of(value),
        informative=value < 1,
        source="clopper1934confidence, upper limit",
        assumptions=(
            "the inputs are independent draws from the distribution that the rate is meant for",
            "neither network was trained, compressed or chosen with the help of these inputs",
        ),
        terms={"different": different, "n": n, "delta": delta, "observed": different / n},
    )
