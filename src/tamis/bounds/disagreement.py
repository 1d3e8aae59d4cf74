"""How often two networks answer differently, from inputs that need no labels."""

from __future__ import annotations

from tamis.bounds.bound import Bound
from tamis.bounds.clopper_pearson import upper_limit


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
    return upper_limit("different", different, n, delta)
