"""`error_rate` bounds the error rate of a network, from its errors on inputs that it has not seen."""

from __future__ import annotations

from tamis.bounds.bound import Bound
from tamis.bounds.clopper_pearson import clopper_pearson
from tamis.bounds.confidence_sequence import rate_at_any_time


def error_rate(errors: int, n: int, delta: float, sequential: bool = False) -> Bound:
    """With confidence 1 − δ, the probability of an error is at most `value`: the upper Clopper–Pearson limit.

    value = max {p : P[Bin(n, p) ≤ errors] ≥ δ}. It is exact: no approximation for many samples is involved.

    Args:
        errors: how many inputs the network gets wrong.
        n: how many inputs there are.
        delta: the probability with which the statement may fail.
        sequential: whether it shall hold at every n at which it is computed, by `rate_at_any_time`.

    Example:
        >>> round(error_rate(errors=0, n=100, delta=0.05).value, 6)  # 1 − 0.05^(1/100)
        0.029513

    Reference: clopper1934confidence.
    """
    limit = rate_at_any_time if sequential else clopper_pearson
    return limit("errors", errors, n, delta)
