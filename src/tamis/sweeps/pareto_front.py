"""The Pareto front: the candidates that no other one beats, and the choice of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tamis.sweeps.spec import DIRECTIONS, Choose

Figures = Mapping[str, Any]


def cost(figures: Figures, objective: str) -> float:
    """A figure such that less is better."""
    return float(figures[objective]) * (1 if DIRECTIONS[objective] == "minimize" else -1)


def on_front(candidates: Sequence[Figures], objectives: Sequence[str]) -> list[bool]:
    """Of each candidate, whether no other one is at least as good in all objectives and better in one.

    Example:
        >>> sizes = [{"bytes": 5, "accuracy": 0.9}, {"bytes": 4, "accuracy": 0.8}, {"bytes": 5, "accuracy": 0.8}]
        >>> on_front(sizes, ["bytes", "accuracy"])
        [True, True, False]
    """
    costs = [tuple(cost(each, name) for name in objectives) for each in candidates]
    return [not any(_beats(other, mine) for other in costs) for mine in costs]


def _beats(other: tuple[float, ...], mine: tuple[float, ...]) -> bool:
    return other != mine and all(a <= b for a, b in zip(other, mine, strict=True))


def chosen(candidates: Sequence[Figures], choose: Choose) -> int | None:
    """The place of the best one within the limits, of equal ones the smallest file; None if none is within them."""
    within = [place for place, each in enumerate(candidates) if _within(each, choose.within)]
    return min(within, key=lambda p: (cost(candidates[p], choose.best), candidates[p]["bytes"]), default=None)


def _within(figures: Figures, limits: Mapping[Any, float]) -> bool:
    """Whether a candidate is good enough."""
    return all(cost(figures, name) <= cost({name: limit}, name) for name, limit in limits.items())
