"""The settings of `tamis.architecture.search` say which connections of a network may go, and how many do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class Search:
    """These settings of `tamis.architecture.search` say which connections may go, and how masks are trained.

    A setting that is None is left to `search`, which has the defaults.
    """

    sparsity: float = setting("The part of all connections that goes, as 0.9.", typed=float, metavar="PART")
    t_l: float | None = setting("The inverse of the low temperature, of the masks.", None, typed=float, metavar="T")
    t_s: float | None = setting(
        "The inverse of the high temperature, of their gradient. Default: t_l / 10.", None, typed=float, metavar="T"
    )
    gamma: float | None = setting(
        "Of the penalty. Default: one that takes connections that nothing holds in half of the epochs.",
        None,
        typed=float,
        metavar="GAMMA",
    )
    mask_rate: float | None = setting("The largest learning rate of the masks.", None, typed=float, metavar="RATE")
    include: str | Iterable[str] | None = setting(
        "Mask only these weights or modules.", None, typed=list, metavar="PATTERN"
    )
    exclude: str | Iterable[str] | None = setting(
        "Leave these weights or modules whole, as the last layer.", None, typed=list, metavar="PATTERN"
    )
