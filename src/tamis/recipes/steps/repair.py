"""The step repair refits what pruning and quantization have left to the network before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from tamis.recipes.steps.base import BINARY, FACTORS, Step, key
from tamis.settings import Repair as RepairSettings

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State


class Repair(Step):
    """This step runs `tamis.repair`: masks and levels stay, and least squares chooses new weights and scales."""

    not_after: ClassVar[Mapping[str, str]] = {"binarize": BINARY, "kronecker": FACTORS}
    only_after: ClassVar[tuple[str, ...]] = ("prune", "l1inf", "search", "quantize")

    step: Literal["repair"]
    damping: float | None = key(RepairSettings, "damping", default=None, gt=0)
    bias_correction: bool | None = key(RepairSettings, "bias_correction", default=None)
    include: list[str] | None = key(RepairSettings, "include")
    exclude: list[str] | None = key(RepairSettings, "exclude")

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.layerwise import repair

        # Fitted to the network before pruning and quantization, as those steps themselves were.
        small = repair(
            state.reference,
            state.small,
            context.data.calibration,
            **self.chosen_settings(),
            directory=context.directory,
            progress=context.progress,
        )
        return replace(state, small=small)
