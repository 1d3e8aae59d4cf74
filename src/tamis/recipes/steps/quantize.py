"""The step quantize puts weights on a few levels, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tamis.recipes.steps.base import BINARY, FACTORS, Step, key
from tamis.settings import Quantization

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State

Positive = Annotated[float, Field(gt=0)]


class Quantize(Step):
    """This step runs `tamis.quantize`: pruned weights stay pruned, and the rest is fitted to the last trained network.

    Two such steps may follow one another, with `include` and `exclude`, to give layers different levels.
    """

    not_after: ClassVar[Mapping[str, str]] = {"binarize": BINARY, "kronecker": FACTORS}

    step: Literal["quantize"]
    levels: Annotated[int, Field(ge=2, le=65536)] | Annotated[list[float], Field(min_length=2)] | None = key(
        Quantization, "levels"
    )
    bits: int | None = key(Quantization, "bits", ge=1, le=16)
    method: Literal["optq", "gpfq", "msq"] = key(Quantization, "method")
    per: Literal["channel", "layer"] = key(Quantization, "per")
    c_alpha: Positive | list[Positive] | None = key(Quantization, "c_alpha")
    search: Literal["layer", "global"] | None = key(Quantization, "search", default=None)
    radius: Literal["median", "max", "least_squares", "given"] | None = key(Quantization, "radius", default=None)
    conv: Literal["joint", "per_channel"] = key(Quantization, "conv")
    order: Literal["natural", "norm"] | None = key(Quantization, "order")
    biases: bool = key(Quantization, "biases")
    bias_correction: bool | None = key(Quantization, "bias_correction")
    include: list[str] | None = key(Quantization, "include")
    exclude: list[str] | None = key(Quantization, "exclude")

    @model_validator(mode="after")
    def _check_one_of_two(self) -> Self:
        if self.levels is not None and self.bits is not None:
            raise ValueError(f"bits or levels, not both; got bits {self.bits} and levels {self.levels}")
        if self.biases and self.conv == "per_channel":
            raise ValueError("biases need conv: joint, for a bias belongs to no single 2-D kernel")
        return self

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.quantization import quantize

        # Fitted to the reference, which has all weights, and not to what pruning has left of it.
        small = quantize(
            state.reference,
            context.data.calibration,
            **self.chosen_settings(),
            pruned=state.small,
            directory=context.directory,
            progress=context.progress,
        )
        return replace(state, small=small)
