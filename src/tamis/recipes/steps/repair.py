"""repair: refit what pruning and quantization have left to the network before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tamis.recipes.steps.base import BINARY, FACTORS, Step

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State


class Repair(Step):
    """`tamis.repair`: masks and levels stay; weights and scales are chosen anew, by least squares."""

    not_after: ClassVar[Mapping[str, str]] = {"binarize": BINARY, "kronecker": FACTORS}
    only_after: ClassVar[tuple[str, ...]] = ("prune", "l1inf", "search", "quantize")

    step: Literal["repair"]
    damping: float | None = Field(None, gt=0, description="How much weights are held to what they are.")
    include: list[str] | None = Field(None, description="Refit only these parameters or modules.")
    exclude: list[str] | None = Field(None, description="Leave these parameters or modules as they are.")

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.layerwise import repair

        small = repair(
            state.reference,
            state.small,
            context.data.calibration,
            **self.chosen(),
            directory=context.directory,
            progress=context.progress,
        )
        return replace(state, small=small)
