"""The Pareto front holds the candidates that no other candidate beats."""

from __future__ import annotations

from collections.abc import Sequence


def on_pareto_front(costs: Sequence[Sequence[float]]) -> list[bool]:
    """Say of each candidate whether no other one is at least as good in all costs and better in one.

    Args:
        costs: of each candidate, numbers of which less is better. Equal candidates do not beat each other.

    Example:
        >>> on_pareto_front([(5, 0.1), (4, 0.2), (5, 0.2)])
        [True, True, False]
    """
    rows = [tuple(each) for each in costs]
    # All pairs: a search tries tens or hundreds of networks, for which this is quick enough.
    return [not any(_beats(other, mine) for other in rows) for mine in rows]


def _beats(other: tuple[float, ...], mine: tuple[float, ...]) -> bool:
    # Equal ones stay both: neither is a reason to leave out the other.
    return other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
