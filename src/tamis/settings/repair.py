"""The settings of `tamis.repair` say how to refit what pruning and quantization left."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

from tamis.errors import InvalidInput
from tamis.settings.field import exclude_setting, include_setting, setting


@dataclass(frozen=True)
class Repair:
    """These settings of `tamis.repair` say how to refit what pruning and quantization left."""

    damping: float = setting(
        "How much weights are held to what they are: a ridge, as a fraction of the inputs' mean square.",
        0.01,
        typed=float,
        metavar="FRACTION",
    )
    bias_correction: bool = setting("Fit biases, or batch-norm means, as well.", True, typed=bool)
    include: str | Iterable[str] | None = include_setting("Refit")
    exclude: str | Iterable[str] | None = exclude_setting()

    def __post_init__(self) -> None:
        damping = self.damping
        if isinstance(damping, bool) or not isinstance(damping, Real) or not 0 < damping < math.inf:
            raise InvalidInput(f"damping={damping!r} must be a positive number")
