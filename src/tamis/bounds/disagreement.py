"""`disagreement` bounds how often two networks answer differently, from inputs that need no labels."""

from __future__ import annotations

from tamis.bounds.bound import Bound
from tamis.bounds.clopper_pearson import clopper_pearson
from tamis.bounds.confidence_sequence import rate_at_any_time


def disagreement(different: int, n: int, delta: float, sequential: bool = False) -> Bound:
    """With confidence 1 − δ, the probability that two networks answer differently is at most `value`.

    It is the upper Clopper–Pearson limit, max {p : P[Bin(n, p) ≤ different] ≥ δ}. The change of accuracy, in either
    direction, is never more than the rate of different answers.

    Args:
        different: how many inputs the two networks answer differently.
        n: how many inputs there are.
        delta: the probability with which the statement may fail.
        sequential: whether it shall hold at every n at which it is computed, by `rate_at_any_time`.

    Example:
        >>> round(disagreement(different=12, n=10_000, delta=0.05).value, 5)
        0.00194

    Reference: clopper1934confidence.
    """
    limit = rate_at_any_time if sequential else clopper_pearson
    return limit("different", different, n, delta)
