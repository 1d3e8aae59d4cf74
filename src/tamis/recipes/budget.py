"""A budget limits the bytes of a file, or the answers that may differ, and a search finds the network that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tamis.recipes.quantities import as_bytes, as_fraction
from tamis.recipes.steps.base import BINARY, FACTORS, QUANTIZED, Step
from tamis.recipes.steps.registry import AnyStep

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State

# What a budget alone begins with: none of it trains. More than this, pruned without training, cost more than it saved.
STARTS: list[list[dict[str, Any]]] = [
    [],
    [{"step": "prune", "amount": 0.1, "by": "phi"}],
    [{"step": "prune", "amount": 0.25, "by": "phi"}],
]


class Budget(Step):
    """A budget says what a file may cost: bytes, or answers that differ. It runs as one more step, after all others."""

    not_after: ClassVar[Mapping[str, str]] = {"quantize": QUANTIZED, "binarize": BINARY, "kronecker": FACTORS}

    step: Literal["budget"] = "budget"
    target_bytes: Annotated[int, BeforeValidator(as_bytes, json_schema_input_type=int | str)] | None = Field(
        None, description="The file may have so many bytes, as 200KB; of such networks, the one that differs least."
    )
    max_disagreement: Annotated[float, BeforeValidator(as_fraction, json_schema_input_type=float | str)] | None = Field(
        None, description="The certificate should say that at most so many answers differ, as 1%; the smallest file."
    )
    starts: Annotated[list[list[AnyStep]], Field(min_length=1)] | None = Field(
        None,
        description="Chains of steps: each is tried before the search for levels, and the best is taken; [] is the "
        "network as it is. Default: that alone after steps, and else [] and 10% and 25% pruned by Φ-cost.",
    )

    @model_validator(mode="after")
    def _check_one_of_two(self) -> Self:
        # One of them is the limit, and the other is what the search makes as good as it can.
        if (self.target_bytes is None) == (self.max_disagreement is None):
            raise ValueError("a budget is either target_bytes or max_disagreement")
        return self

    def run(self, state: State, context: Context) -> State:
        # Here and not above: whoever only reads recipes needs no torch.
        from dataclasses import replace

        from tamis.recipes.budget_search import fit_bytes, fit_disagreement

        # Without starts there is one: the network as the steps left it.
        starts: Sequence[Sequence[Step]] = self.starts or [()]
        if self.target_bytes is not None:
            small = fit_bytes(starts, state, context, self.target_bytes)
        else:
            assert self.max_disagreement is not None
            small = fit_disagreement(starts, state, context, self.max_disagreement)
        return replace(state, small=small)
