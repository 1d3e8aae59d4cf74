"""A budget instead of knobs: so many bytes, or so many different answers, and a search for what fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tamis.recipe.quantities import as_bytes, as_fraction
from tamis.recipe.steps.base import BINARY, FACTORS, QUANTIZED, Step

if TYPE_CHECKING:
    from tamis.recipe.state import Context, State


class Budget(Step):
    """What a file may cost: bytes, or answers that differ. It runs after the steps, as one more."""

    not_after: ClassVar[Mapping[str, str]] = {"quantize": QUANTIZED, "binarize": BINARY, "kronecker": FACTORS}

    step: Literal["budget"] = "budget"
    target_bytes: Annotated[int, BeforeValidator(as_bytes, json_schema_input_type=int | str)] | None = Field(
        None, description="The file may have so many bytes, as 200KB; of such networks, the one that differs least."
    )
    max_disagreement: Annotated[float, BeforeValidator(as_fraction, json_schema_input_type=float | str)] | None = Field(
        None, description="The certificate should say that at most so many answers differ, as 1%; the smallest file."
    )

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.target_bytes is None) == (self.max_disagreement is None):
            raise ValueError("a budget is either target_bytes or max_disagreement")
        return self

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.recipe.fit import fit_bytes, fit_disagreement

        if self.target_bytes is not None:
            small = fit_bytes(state, context, self.target_bytes)
        else:
            assert self.max_disagreement is not None
            small = fit_disagreement(state, context, self.max_disagreement)
        return replace(state, small=small)
