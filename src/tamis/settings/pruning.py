"""The settings of `tamis.prune` say which weights to set to zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from tamis.errors import InvalidInput
from tamis.settings.field import exclude_setting, include_setting, setting

if TYPE_CHECKING:  # for its help alone, a command must not wait for torch
    from typing import Any

    Criterion = Any  # `tamis.pruning` has it; it comes later in the order of imports

SCOPES = ("global", "layer")


@dataclass(frozen=True)
class Pruning:
    """These settings of `tamis.prune` say which weights to set to zero."""

    amount: float | int | Mapping[str, float | int] = setting(
        "How much to prune: a fraction (0.8) or a count (1000) of weights, exact to one weight; or these for some "
        "layers by name or pattern, the others being left whole. Of equal scores, the first by name and index go.",
        typed=list,
        metavar="AMOUNT",
    )
    by: str | Criterion = setting(
        "What weights are compared by: phi (Φ-cost: invariant under rescaling, for ReLU networks), magnitude, random, "
        "or obs (optimal brain surgeon: from calibration data, those that the others can make up for best, which are "
        "then refitted layer by layer, without training). In Python, also a function that follows "
        "`tamis.pruning.Criterion`.",
        "phi",
        choices=("phi", "magnitude", "random", "obs"),
    )
    scope: Literal["global", "layer"] = setting(
        "Compare weights across layers, or prune `amount` of each. With obs, global shares the amount out among "
        "layers as magnitudes would.",
        "global",
        choices=SCOPES,
    )
    include: str | Iterable[str] | None = include_setting("Prune")
    exclude: str | Iterable[str] | None = exclude_setting("whole")
    biases: bool = setting("Prune biases of linear and convolution layers, too.", False, typed=bool)
    seed: int = setting("The seed of the random criterion.", 0, typed=int, metavar="N")
    halve_final: bool = setting(
        "Prune the last layer's weights at half the rate; with scope global, as many weights as that makes in all.",
        False,
        typed=bool,
    )

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise InvalidInput(f"scope={self.scope!r} must be one of: {', '.join(SCOPES)}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral) or not 0 <= self.seed < 2**63:
            raise InvalidInput(f"seed={self.seed!r} must be a whole number from 0 to 2⁶³ − 1")
