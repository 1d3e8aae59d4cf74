"""Ranges stand in the place of values: `levels: {choices: [3, 4, 8]}`, `amount: {low: 50%, high: 90%}`."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tamis.recipes import Document, validate_section, without_percent
from tamis.recipes.steps import Section

if TYPE_CHECKING:
    import optuna

Place = tuple[str | int, ...]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Annotated[int | Finite, BeforeValidator(without_percent, json_schema_input_type=int | float | str)]
CONTINUOUS = 10**9  # how many values a range without steps counts for: more than anybody tries


class Choices(Section):
    """One of several values: numbers, words, lists, anything that may stand there."""

    choices: list[Any] = Field(min_length=1, description="The values.")

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        # A value that is counted twice and tried once would leave a sweep waiting for a candidate that there is not.
        labels = self.labels
        for place, label in enumerate(labels):
            if label in labels[:place]:
                raise ValueError(f"choices name {self.choices[place]!r} twice")
        return self

    @property
    def labels(self) -> list[Any]:
        """Return what stands for each of them in a study, which takes numbers and words only."""
        return [_make_label(value) for value in self.choices]

    def value(self, label: Any) -> Any:
        """Return what a label stands for."""
        # A copy, since a list among the choices must not be shared by several recipes.
        return copy.deepcopy(self.choices[self.labels.index(label)])

    def extremes(self) -> list[Any]:
        """Return the labels that must be valid, for the whole range to be."""
        return self.labels

    @property
    def size(self) -> int:
        """Count the values."""
        return len(self.choices)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """Draw a label by the study's sampler."""
        return trial.suggest_categorical(name, self.labels)


class Between(Section):
    """A number from `low` to `high`, both included; whole if both are."""

    low: Number
    high: Number
    step: Number | None = Field(None, description="Only low, low + step, …")
    log: bool = Field(False, description="Draw its logarithm evenly, as for learning rates.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"high must be above low; got low {self.low} and high {self.high}")
        if self.log and (self.step is not None or self.low <= 0):
            raise ValueError(f"log needs a low above 0 and no step; got low {self.low} and step {self.step}")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be above 0, got {self.step}")
        if self.whole and self.step is not None and not isinstance(self.step, int):
            raise ValueError(f"step must be a whole number between whole numbers, got {self.step}")
        # 0.3 is not three times 0.1 in binary; 1e-9 forgives the rounding, and no step that anybody writes.
        if self.step is not None and abs((count := (self.high - self.low) / self.step) - round(count)) > 1e-9:
            raise ValueError(f"step must lead from low to high; got {self.step} from {self.low} to {self.high}")
        return self

    @property
    def whole(self) -> bool:
        """Say whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def value(self, label: Any) -> Any:
        """Return the label: numbers stand for themselves."""
        return label

    def extremes(self) -> list[Any]:
        """Return the two ends."""
        # As floats as soon as one end is one: 0 to 0.5 is no range of whole numbers.
        return [self.low, self.high] if self.whole else [float(self.low), float(self.high)]

    @property
    def size(self) -> int:
        """Count the numbers; real ones without a step count as `CONTINUOUS`."""
        if self.step is None:
            return int(self.high - self.low) + 1 if self.whole else CONTINUOUS
        return round((self.high - self.low) / self.step) + 1

    @property
    def labels(self) -> list[Any]:
        """List all numbers, where they can be counted."""
        return [self._number_after(steps) for steps in range(self.size)]

    def _number_after(self, steps: int) -> int | float:
        """Return the number so many steps above low, in decimal: 0.1 + 2 · 0.1 is more than 0.3 in binary."""
        step = self.step if self.step is not None else 1
        if self.whole:
            return self.low + steps * step
        # Not above `high` by the last digit, which validation would refuse.
        return min(float(Decimal(str(self.low)) + steps * Decimal(str(step))), float(self.high))

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """Draw a number by the study's sampler."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        if self.step is None:
            return trial.suggest_float(name, float(self.low), float(self.high), log=self.log)
        drawn = trial.suggest_float(name, float(self.low), float(self.high), step=float(self.step))
        return self._number_after(round((drawn - self.low) / self.step))  # by the number that `labels` has for it


Range = Choices | Between


def find_ranges(document: Document, path: Place = ()) -> dict[Place, Range]:
    """Find all ranges in a document, by where they stand, in the order of the text.

    Example:
        >>> from tamis.recipes import Document
        >>> find_ranges(Document("steps: [{step: quantize, levels: {choices: [3, 4]}}]", "my.yaml"))
        {('steps', 0, 'levels'): Choices(choices=[3, 4])}
    """
    data = document.below(path).data
    if isinstance(data, list):
        return {place: r for i in range(len(data)) for place, r in find_ranges(document, (*path, i)).items()}
    if not isinstance(data, Mapping):
        return {}
    # A mapping with such a key is a range wherever it stands: no step has keys of these names.
    if "choices" in data:
        return {path: validate_section(Choices, document, path, "a range")}
    if "low" in data or "high" in data:
        return {path: validate_section(Between, document, path, "a range")}
    return {place: r for key in data for place, r in find_ranges(document, (*path, key)).items()}


def fill_ranges(data: Any, values: Mapping[Place, Any], place: Place = ()) -> Any:
    """Copy plain data with other values at some places.

    What a YAML anchor repeats is copied each time: its places have values of their own.

    Example:
        >>> fill_ranges({"steps": [{"levels": {"choices": [3, 4]}}]}, {("steps", 0, "levels"): 4})
        {'steps': [{'levels': 4}]}
    """
    if place in values:
        return values[place]
    if isinstance(data, Mapping):
        return {key: fill_ranges(each, values, (*place, key)) for key, each in data.items()}
    if isinstance(data, list):
        return [fill_ranges(each, values, (*place, number)) for number, each in enumerate(data)]
    return data


def _make_label(value: Any) -> Any:
    # True == 1 in Python, so that a study would take `choices: [1, true]` for one value: as text they differ.
    plain = value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))
    return value if plain else json.dumps(value, sort_keys=True, default=str)
