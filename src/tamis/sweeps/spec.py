"""The file of a sweep names its recipes, its objectives, and which of its networks are certified in the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tamis.recipes import DataSection, Document, as_bytes, as_fraction, validate_section
from tamis.recipes.steps import Section
from tamis.sweeps.space import Space
from tamis.training import parse_spec

Objective = Literal["bytes", "accuracy", "disagreement", "latency"]
DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {
    "bytes": "minimize",
    "accuracy": "maximize",
    "disagreement": "minimize",
    "latency": "minimize",
}


def _as_seconds(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value <= sys.float_info.max):
        raise ValueError(f"it must be a number of seconds above 0, got {value!r:.50}")
    return float(value)


LIMITS = {"bytes": as_bytes, "accuracy": as_fraction, "disagreement": as_fraction, "latency": _as_seconds}


def _read_limits(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    limits: dict[str, float] = {}
    for name, each in value.items():
        if name not in LIMITS:
            raise ValueError(f"{name} is not an objective; these are: {', '.join(LIMITS)}")
        try:
            # As the command line takes them: 200KB, 1%.
            limits[name] = float(LIMITS[name](each))
        except ValueError as error:
            raise ValueError(f"{name} has no such limit: {error}") from None
    return limits


def _name_both_splits(value: Any) -> Any:
    """Replace the name of a dataset by its two splits."""
    return parse_spec(value).splits() if isinstance(value, str) else value


def _hold_some_out(data: DataSection) -> DataSection:
    """Hold out a part of the training data to compare networks on, unless the file says otherwise."""
    return data.with_held_out(0.2, "train")


class Choose(Section):
    """The choice of what to certify: the network that is best in one thing, of those good enough in others."""

    best: Objective = Field(description="In what it is to be the best.")
    within: Annotated[dict[Objective, float], BeforeValidator(_read_limits)] = Field(
        {}, description="At most so many bytes, so much disagreement, so many seconds; at least so much accuracy."
    )


class Spec(Section):
    """The keys of a sweep's file."""

    name: str = Field("sweep", min_length=1, description="Of the study.")
    model: str | None = Field(None, description="A .pt2 file, or package.module:factory.")
    weights: str | None = Field(None, description="A .safetensors file.")
    shape: str | None = Field(None, description="Of one input without the batch, where it is not known otherwise.")
    data: Annotated[DataSection, BeforeValidator(_name_both_splits), AfterValidator(_hold_some_out)] = Field(
        description="As recipes have it; or the name of a dataset, for its two splits."
    )
    recipe: Any = Field(description="A recipe with ranges in place of values, its name or file, or choices of these.")
    objectives: list[Objective] = Field(["bytes", "accuracy"], min_length=1, description="What networks are judged by.")
    choose: Choose | None = Field(None, description="Which one to certify. Default: each one on the front.")
    trials: int = Field(ge=1, description="How many networks to make, or all there are if these are fewer.")
    seed: int = Field(0, ge=0, description="Of what is tried.")

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives name one twice: {', '.join(self.objectives)}")
        for name in ("train", "test"):
            if getattr(self.data, name) is None:
                raise ValueError(f"data has no '{name}'; write {{train: digits:train, test: digits:test}}, say")
        return self

    @property
    def measured(self) -> tuple[str, ...]:
        """List what must be measured of each network."""
        # What is needed only to choose is measured as well, but steers nothing.
        chosen = () if self.choose is None else (self.choose.best, *self.choose.within)
        return tuple(dict.fromkeys((*self.objectives, *chosen)))


@dataclass(frozen=True)
class Sweep:
    """A sweep is what its file says, with what can be tried."""

    spec: Spec
    space: Space

    @property
    def candidates(self) -> int:
        """Return how many networks are made."""
        return min(self.spec.trials, self.space.size)


def read_sweep(source: str | Path | Mapping[str, Any]) -> Sweep:
    """Read a sweep from a YAML file, or take it as plain data.

    Raises:
        RecipeError: it says file, line, column and key path of the first thing that is wrong.

    Example:
        >>> levels = {"step": "quantize", "levels": {"choices": [3, 4, 8]}}
        >>> read_sweep({"data": "digits", "recipe": {"steps": [levels]}, "trials": 20}).candidates
        3
    """
    if isinstance(source, Mapping):
        document = Document.of_data(source)
        document.name = "sweep"
    else:
        document = Document.read(source)
    if not isinstance(document.data, Mapping):
        got = "and this is empty" if document.data is None else f"not {type(document.data).__name__}"
        raise document.error((), f"a sweep is a mapping with a recipe, {got}")
    spec = validate_section(Spec, document, (), "a sweep")
    return Sweep(spec, Space.of(document, ("recipe",), spec.data))
