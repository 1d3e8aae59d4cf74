"""The error rate of a network, from its errors on inputs it has not seen."""

from __future__ import annotations

import math

from tamis.bounds.binomial import largest_rate, plain_counts, plain_probability
from tamis.bounds.bound import Bound, log_of


def error_rate(errors: int, n: int, delta: float) -> Bound:
    """With confidence 1 − δ, the probability of an error is at most `value`: the upper Clopper–Pearson limit.

    value = max {p : P[Bin(n, p) ≤ errors] ≥ δ}. It is exact: no approximation for many samples is involved.

    Args:
        errors: how many inputs the network gets wrong.
        n: how many inputs there are.
        delta: the probability with which the statement may fail.

    Example:
        >>> round(error_rate(errors=0, n=100, delta=0.05).value, 6)  # 1 − 0.05^(1/100)
        0.029513

    Reference: clopper1934confidence.
    """
    n, errors = plain_counts(n, errors=errors)
    delta = plain_probability("delta", delta)
    value = largest_rate(errors, n, math.log(delta))
    return Bound(
        value=value,
        log_value=log_of(value),
        informative=value < 1,
        source="clopper1934confidence, upper limit",
        assumptions=(
            "the inputs and their labels are independent draws from the distribution that the rate is meant for",
            "the network was not trained, compressed or chosen with the help of these inputs",
        ),
        terms={"errors": errors, "n": n, "delta": delta, "observed": errors / n},
    )
