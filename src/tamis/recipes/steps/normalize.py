"""The step normalize gives every hidden neuron incoming weights of norm 1, and keeps the function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tamis.recipes.steps.base import BINARY, QUANTIZED, Step

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State


class Normalize(Step):
    """This step runs `tamis.normalize`, so that magnitudes of different neurons can be compared."""

    not_after: ClassVar[Mapping[str, str]] = {"quantize": QUANTIZED, "binarize": BINARY}
    renews: ClassVar[bool] = True

    step: Literal["normalize"]
    q: float = Field(1.0, gt=0, description="Of the ℓ^q-norm.")

    def run(self, state: State, context: Context) -> State:
        from tamis.artifact import Compressed
        from tamis.graph import normalize

        small = state.small
        step = {"step": self.step, "q": self.q}
        return state.with_new_reference(
            Compressed(normalize(small.network, self.q), small.masks, [*small.recipe, step])
        )
