"""Comparing candidates says which are on the Pareto front, and which one to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tamis.reports import on_pareto_front
from tamis.sweeps.spec import DIRECTIONS, Choose

Figures = Mapping[str, Any]


def cost(figures: Figures, objective: str) -> float:
    """Return a figure such that less is better."""
    return float(figures[objective]) * (1 if DIRECTIONS[objective] == "minimize" else -1)


def find_front(candidates: Sequence[Figures], objectives: Sequence[str]) -> list[bool]:
    """Say of each candidate whether no other one is at least as good in all objectives and better in one.

    Example:
        >>> sizes = [{"bytes": 5, "accuracy": 0.9}, {"bytes": 4, "accuracy": 0.8}, {"bytes": 5, "accuracy": 0.8}]
        >>> find_front(sizes, ["bytes", "accuracy"])
        [True, True, False]
    """
    return on_pareto_front([[cost(each, name) for name in objectives] for each in candidates])


def choose_candidate(candidates: Sequence[Figures], choose: Choose) -> int | None:
    """Return the place of the best candidate within the limits, of equal ones the smallest; None if there is none."""
    places = [place for place, each in enumerate(candidates) if _meets_limits(each, choose.within)]
    # Among equally good ones the fewest bytes: they cost nothing then.
    return min(places, key=lambda p: (cost(candidates[p], choose.best), candidates[p]["bytes"]), default=None)


def _meets_limits(figures: Figures, limits: Mapping[Any, float]) -> bool:
    """Say whether a candidate is good enough."""
    # `cost` turns both sides around where more is better, so that one comparison serves all.
    return all(cost(figures, name) <= cost({name: limit}, name) for name, limit in limits.items())
