"""The settings of `tamis.architecture.search` say which connections of a network may go, and how many do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tamis.settings.field import exclude_setting, include_setting, setting


@dataclass(frozen=True)
class Search:
    """These settings of `tamis.architecture.search` say which connections may go, and how masks are trained."""

    sparsity: float = setting("The part of all connections that goes, as 0.9.", typed=float, metavar="PART")
    t_l: float = setting("The inverse of the low temperature, of the masks.", 100.0, typed=float, metavar="T")
    t_s: float | None = setting(
        "The inverse of the high temperature, of their gradient: `t_l` for the gradient of the masks themselves. "
        "Default: a tenth of that.",
        None,
        typed=float,
        metavar="T",
    )
    gamma: float | None = setting(
        "The weight γ of the penalty. Default: one that takes a connection, if no gradient holds it, within half of "
        "the epochs.",
        None,
        typed=float,
        metavar="GAMMA",
    )
    mask_rate: float = setting(
        "The largest learning rate of the masks, which follows the schedule of that of the weights. The larger it is, "
        "the more the loss decides beside the penalty; many connections need more of it.",
        0.1,
        typed=float,
        metavar="RATE",
    )
    spread: float = setting(
        "Masks begin at the sizes of normal draws of this deviation, so that all connections are kept.",
        0.1,
        typed=float,
        metavar="DEVIATION",
    )
    include: str | Iterable[str] | None = include_setting("Mask")
    exclude: str | Iterable[str] | None = exclude_setting("whole")
