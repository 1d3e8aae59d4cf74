"""quantize: put weights on a few levels, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tamis.recipes.steps.base import BINARY, FACTORS, Step

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State

Positive = Annotated[float, Field(gt=0)]


class Quantize(Step):
    """`tamis.quantize`: what is pruned stays pruned, and the rest is fitted to the network as it was last trained.

    Two of them may follow one another, with `include` and `exclude`, for other levels in other layers.
    """

    not_after: ClassVar[Mapping[str, str]] = {"binarize": BINARY, "kronecker": FACTORS}

    step: Literal["quantize"]
    levels: Annotated[int, Field(ge=2, le=65536)] | Annotated[list[float], Field(min_length=2)] | None = Field(
        None, description="How many (3, unless `bits` is given), or which."
    )
    bits: int | None = Field(None, ge=1, le=16, description="Instead of `levels`, for 2^bits of them.")
    method: Literal["optq", "gpfq", "msq"] = Field("optq", description="How levels are chosen.")
    per: Literal["channel", "layer"] = Field("channel", description="What has a scale of its own.")
    c_alpha: Positive | list[Positive] | None = Field(
        None, description="The largest level, in medians of the weights, or several to choose from."
    )
    conv: Literal["joint", "per_channel"] = Field("joint", description="A filter at once, or a 2-D kernel at a time.")
    order: Literal["natural", "norm"] | None = Field(None, description="Of a neuron's weights.")
    biases: bool = Field(False, description="Quantize biases, too.")
    include: list[str] | None = Field(None, description="Quantize only these parameters or modules.")
    exclude: list[str] | None = Field(None, description="Leave these parameters or modules as they are.")

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if self.levels is not None and self.bits is not None:
            raise ValueError(f"bits or levels, not both; got bits {self.bits} and levels {self.levels}")
        if self.biases and self.conv == "per_channel":
            raise ValueError("biases need conv: joint, for a bias belongs to no single 2-D kernel")
        return self

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.quantization import quantize

        small = quantize(
            state.reference,
            context.data.calibration,
            **self.chosen(),
            pruned=state.small,
            directory=context.directory,
            progress=context.progress,
        )
        return replace(state, small=small)
