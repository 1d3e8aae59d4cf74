"""prune: set the weights that matter least to zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tamis.recipes.quantities import without_percent
from tamis.recipes.steps.base import BINARY, FACTORS, Step

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State


def _amount(value: Any) -> Any:
    """A part of the weights, or one by layer."""
    if isinstance(value, Mapping):
        return {name: _part(each) for name, each in value.items()}
    return _part(value)


def _part(value: Any) -> int | float:
    found = without_percent(value)
    whole = isinstance(found, int) and not isinstance(found, bool) and found >= 0
    if not whole and not (isinstance(found, float) and 0 <= found <= 1):
        raise ValueError(f"it must be a fraction (0.8), a percentage (80%) or a count (1000), got {value!r:.50}")
    return found


class Prune(Step):
    """`tamis.prune`: by Φ-cost, by magnitude, at random, or by optimal brain surgeon."""

    not_after: ClassVar[Mapping[str, str]] = {"binarize": BINARY, "kronecker": FACTORS}

    step: Literal["prune"]
    amount: Annotated[
        int | float | dict[str, int | float],
        BeforeValidator(_amount, json_schema_input_type=int | float | str | dict[str, int | float | str]),
    ] = Field(description="A fraction (0.8), a percentage (80%) or a count (1000) of weights; or these by layer.")
    by: Literal["phi", "magnitude", "random", "obs"] = Field("phi", description="What weights are compared by.")
    scope: Literal["global", "layer"] = Field("global", description="Across layers, or within each.")
    include: list[str] | None = Field(None, description="Prune only these parameters or modules.")
    exclude: list[str] | None = Field(None, description="Leave these parameters or modules whole.")
    biases: bool = Field(False, description="Prune biases, too.")
    halve_final: bool = Field(False, description="Prune the last layer at half the rate.")
    seed: int = Field(0, ge=0, description="Of `by: random`.")

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.pruning import prune

        options = self.chosen()
        if self.by == "obs":
            options |= {"calibration": context.data.calibration, "directory": context.directory}
        return replace(state, small=prune(state.small, **options, progress=context.progress))
