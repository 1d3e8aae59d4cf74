"""What a recipe is: pydantic models, their JSON Schema, and errors that point at the line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tamis.errors import listed
from tamis.recipes.budget import Budget
from tamis.recipes.order import check_order
from tamis.recipes.quantities import as_fraction
from tamis.recipes.steps.base import Section, Step
from tamis.recipes.steps.registry import STEPS as STEPS
from tamis.recipes.steps.registry import AnyStep
from tamis.recipes.yaml_document import Document, Path_, RecipeError


class DataSection(Section):
    """What a recipe works on. What is held out is for searches to compare networks on, the rest of the test data for
    the certificate alone."""

    train: str | None = Field(None, description="Training data, a name or a path: digits:train, cifar10:train[:5000].")
    test: str | None = Field(None, description="What the certificate speaks of, which no step sees: digits:test.")
    held_out: Annotated[float, BeforeValidator(as_fraction, json_schema_input_type=float | str)] | None = Field(
        None, description="Which part is held out. Default: none, as no step needs it; with a budget 0.5."
    )
    held_out_from: Literal["train", "test"] | None = Field(
        None,
        description="Of what. Default: train; with a budget test, for a network answers more surely on inputs that it "
        "was trained on, and a search there would promise too much.",
    )
    calibration: int = Field(1000, ge=1, description="How many training samples the layer-by-layer steps see.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of the choice of what is held out.")

    def resolved(self, part: float | None, of: str) -> DataSection:
        """With nothing left open but the names of the data: this part of that is held out, unless it says otherwise."""
        return self.model_copy(update={"held_out": self.held_out or part, "held_out_from": self.held_out_from or of})


class Recipe(Section):
    """A chain of steps, with the data for them; or a budget, with a search for the network that fits it; or both."""

    name: str = Field("", description="What to call it.")
    description: str = Field("", description="What it does, and for whom.")
    data: DataSection = Field(default_factory=lambda: DataSection.model_validate({}))
    steps: list[AnyStep] = Field([], description="In the order in which they run.")
    budget: Budget | None = Field(None, description="After the steps, prune and quantize until this is met.")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.steps and self.budget is None:
            raise ValueError("a recipe needs steps or a budget, or both")
        return self

    @property
    def plan(self) -> list[Step]:
        """Everything that runs, in order."""
        return [*self.steps, *([] if self.budget is None else [self.budget])]

    @property
    def every_step(self) -> list[Step]:
        """All that may run: the plan, and what its budget tries before it."""
        return [*self.plan, *(step for start in self._starts for step in start)]

    @property
    def chains(self) -> list[list[tuple[Path_, Step]]]:
        """Everything that runs one after the other, each step with the keys that lead to it."""
        steps: list[tuple[Path_, Step]] = [(("steps", place), step) for place, step in enumerate(self.steps)]
        if self.budget is None:
            return [steps]
        last = (("budget",), self.budget)
        return [
            [*steps, *((("budget", "starts", number, place), step) for place, step in enumerate(start)), last]
            for number, start in enumerate(self._starts or [()])
        ]

    @property
    def _starts(self) -> Sequence[Sequence[Step]]:
        return (self.budget.starts if self.budget is not None else None) or ()

    def resolved(self) -> dict[str, Any]:
        """All settings, also those that were left out, as plain data."""
        return self.model_dump(mode="json", exclude_none=True)


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a YAML file.

    Raises:
        RecipeError: it says file, line, column and key path of the first thing that is wrong.

    Example:
        >>> read_recipe("ternary.yaml").steps[0].levels
        3
    """
    return recipe_of(Document.read(path))


def recipe_of(source: Document | Mapping[str, Any]) -> Recipe:
    """The recipe that a document, or plain data, stands for."""
    document = source if isinstance(source, Document) else Document.of_data(source)
    if not isinstance(document.data, Mapping):
        found = "and this is empty" if document.data is None else f"not {type(document.data).__name__}"
        raise document.error((), f"a recipe is a mapping with steps, {found}")
    try:
        recipe = Recipe.model_validate(document.data)
    except ValidationError as error:
        raise _located(error, document) from None
    for chain in recipe.chains:
        check_order(chain, document)
    return recipe


def json_schema() -> dict[str, Any]:
    """The JSON Schema of recipes, for editors that complete and check YAML by it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}


# -- errors ------------------------------------------------------------------------------------------------------------


def _located(error: ValidationError, document: Document) -> RecipeError:
    """The first of pydantic's errors, in our words and at its place."""
    errors = error.errors(include_url=False)
    first = first_to_tell(errors)
    kind = first["type"]
    path: Path_ = in_document(first["loc"], document.data)
    if kind == "missing":
        message = f"'{first['loc'][-1]}' is missing; {_keys(path, document.data)}"
    elif kind == "extra_forbidden":
        message = f"there is no key '{path[-1]}' here; {_keys(path[:-1], document.data, str(path[-1]))}"
    elif kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type") and _is_step(path):
        message, path = _unknown_step(path, document.data)
    elif kind == "value_error":
        message = str(first["ctx"]["error"])
        path = blamed(path, message, document.data)
    else:
        here = [each["msg"] for each in errors if in_document(each["loc"], document.data) == path]
        message = f"it should be {' or '.join(dict.fromkeys(map(wish, here)))}; got {first['input']!r:.60}"
    others = len({in_document(each["loc"], document.data) for each in errors}) - 1
    more = f" ({others} more after this one)" if others and kind != "union_tag_invalid" else ""
    return document.error(path, message + more, key=kind == "extra_forbidden")


def first_to_tell(errors: Sequence[Any]) -> Any:
    """The first of pydantic's errors; of a key that is missing, the one that was written for it by mistake."""
    first = errors[0]
    if first["type"] != "missing":
        return first
    *place, missing = first["loc"]
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]
    beside = {str(each["loc"][-1]): each for each in unknown if [*each["loc"][:-1]] == place}
    similar = get_close_matches(str(missing), beside, 1)
    return beside[similar[0]] if similar else first


def _is_step(path: Path_) -> bool:
    """Whether a step stands at a place, or should."""
    return path[:1] == ("steps",) or (path[:2] == ("budget", "starts") and len(path) > 3)


def in_document(location: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """Pydantic's location without what is no key of the document: a choice between types, and what is missing."""
    path: list[str | int] = []
    for part in location:
        known = range(len(data)) if isinstance(data, list) else data if isinstance(data, Mapping) else ()
        if part in known:
            path.append(part)
            data = data[part]
    return tuple(path)


SECTIONS: dict[str, type[Section]] = {"data": DataSection, "budget": Budget}


def _section(path: Path_) -> type[Section]:
    return SECTIONS.get(str(path[0]), Recipe) if path else Recipe


def _keys(path: Path_, data: Any, wrong: str | None = None) -> str:
    """Which keys there are at a place, and which of them was meant."""
    for part in path:
        data = data[part]
    kind = STEPS.get(str(data.get("step"))) if isinstance(data, Mapping) and "step" in data else _section(path)
    names = [name for name in (kind or Recipe).model_fields if (name, kind) != ("step", Budget)]
    similar = get_close_matches(wrong, names, 1) if wrong is not None else []
    if similar:
        return f"did you mean {similar[0]}?"
    where = f"a {data['step']} step" if kind in STEPS.values() else written_section(path)
    return f"keys of {where} are {listed(names, most=20)}"


def written_section(path: Path_) -> str:
    """What a part of a recipe is called."""
    return str(path[0]) if path else "a recipe"


def _unknown_step(path: Path_, data: Any) -> tuple[str, Path_]:
    for part in path:
        data = data[part]
    known = listed(STEPS, most=20)
    if not isinstance(data, Mapping):
        return f"a step is a mapping, as {{step: prune, amount: 0.8}}; got {data!r:.60}", path
    if "step" not in data:
        return f"'step' is missing, which says what to do: {known}", path
    similar = get_close_matches(str(data["step"]), STEPS, 1)
    meant = f"did you mean {similar[0]}? " if similar else ""
    return f"there is no step '{data['step']!s:.60}'; {meant}steps are {known}", (*path, "step")


def blamed(path: Path_, message: str, data: Any) -> Path_:
    """The key that a message begins with, if it is one of those at the place."""
    for part in path:
        data = data[part]
    word = message.split(" ", 1)[0]
    return (*path, word) if isinstance(data, Mapping) and word in data else path


def wish(message: str) -> str:
    """What pydantic's message says that there should be."""
    at_least = re.fullmatch(r"\w+ should have at least (\d+ \w+) after validation, not \d+", message)
    if at_least is not None:
        return f"at least {at_least[1]}"
    return message.removeprefix("Input should be ").split(", unable", 1)[0].split(", got", 1)[0]
