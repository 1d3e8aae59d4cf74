"""The step prune sets the weights that matter least to zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from tamis.recipes.quantities import without_percent
from tamis.recipes.steps.base import BINARY, FACTORS, Step, key
from tamis.settings import Pruning

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State


def _read_amount(value: Any) -> Any:
    """Read how much to prune: one part of all weights, or one for each layer."""
    if isinstance(value, Mapping):
        return {name: _read_part(each) for name, each in value.items()}
    return _read_part(value)


def _read_part(value: Any) -> int | float:
    number = without_percent(value)
    # True is an integer in Python, and no amount.
    is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    if not is_count and not (isinstance(number, float) and 0 <= number <= 1):
        raise ValueError(f"it must be a fraction (0.8), a percentage (80%) or a count (1000), got {value!r:.50}")
    return number


class Prune(Step):
    """This step runs `tamis.prune`: by Φ-cost, by magnitude, at random, or by optimal brain surgeon."""

    not_after: ClassVar[Mapping[str, str]] = {"binarize": BINARY, "kronecker": FACTORS}

    step: Literal["prune"]
    amount: Annotated[
        int | float | dict[str, int | float],
        BeforeValidator(_read_amount, json_schema_input_type=int | float | str | dict[str, int | float | str]),
    ] = key(Pruning, "amount")
    by: Literal["phi", "magnitude", "random", "obs"] = key(Pruning, "by")
    scope: Literal["global", "layer"] = key(Pruning, "scope")
    include: list[str] | None = key(Pruning, "include")
    exclude: list[str] | None = key(Pruning, "exclude")
    biases: bool = key(Pruning, "biases")
    halve_final: bool = key(Pruning, "halve_final")
    seed: int = key(Pruning, "seed", ge=0)

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.pruning import prune

        options = self.chosen_settings()
        if self.by == "obs":
            options |= {"calibration": context.data.calibration, "directory": context.directory}
        return replace(state, small=prune(state.small, **options, progress=context.progress))
