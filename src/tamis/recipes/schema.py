"""The schema of recipes is made of pydantic models, which also give the JSON Schema that editors use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tamis.recipes.budget import Budget
from tamis.recipes.order import check_order
from tamis.recipes.quantities import as_fraction
from tamis.recipes.steps.base import Section, Step
from tamis.recipes.steps.registry import STEPS as STEPS
from tamis.recipes.steps.registry import AnyStep
from tamis.recipes.validation import validate_section
from tamis.recipes.yaml_document import Document, KeyPath


class DataSection(Section):
    """The data of a recipe. Searches compare networks on what is held out; the rest of the test data is for the
    certificate alone."""

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

    def with_held_out(self, part: float | None, of: str) -> DataSection:
        """Fill in what is held out: this part of that split, unless the section says otherwise."""
        return self.model_copy(update={"held_out": self.held_out or part, "held_out_from": self.held_out_from or of})


class Recipe(Section):
    """A chain of steps, with the data for them; or a budget, with a search for the network that fits it; or both."""

    name: str = Field("", description="What to call it.")
    description: str = Field("", description="What it does, and for whom.")
    data: DataSection = Field(default_factory=lambda: DataSection.model_validate({}))
    steps: list[AnyStep] = Field([], description="In the order in which they run.")
    budget: Budget | None = Field(None, description="After the steps, prune and quantize until this is met.")

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.steps and self.budget is None:
            raise ValueError("a recipe needs steps or a budget, or both")
        return self

    @property
    def plan(self) -> list[Step]:
        """List the steps that run, in order."""
        return [*self.steps, *([] if self.budget is None else [self.budget])]

    @property
    def every_step(self) -> list[Step]:
        """List every step that may run: the plan, and the starts of its budget."""
        return [*self.plan, *(step for start in self._starts for step in start)]

    @property
    def chains(self) -> list[list[tuple[KeyPath, Step]]]:
        """List the sequences of steps that run, each step with the keys that lead to it."""
        steps: list[tuple[KeyPath, Step]] = [(("steps", place), step) for place, step in enumerate(self.steps)]
        if self.budget is None:
            return [steps]
        last = (("budget",), self.budget)
        return [
            [*steps, *((("budget", "starts", number, place), step) for place, step in enumerate(start)), last]
            # Without starts there is one chain: the steps, and then the budget.
            for number, start in enumerate(self._starts or [()])
        ]

    @property
    def _starts(self) -> Sequence[Sequence[Step]]:
        return (self.budget.starts if self.budget is not None else None) or ()

    def as_plain_data(self) -> dict[str, Any]:
        """Return all settings as plain data, defaults included."""
        # Keys that are None are left out: one that is newer than a lock file must not make its recipe another one.
        return self.model_dump(mode="json", exclude_none=True)


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a YAML file.

    Raises:
        RecipeError: it says file, line, column and key path of the first thing that is wrong.

    Example:
        >>> from tamis.recipes import recipe_path
        >>> read_recipe(recipe_path("ternary")).steps[0].levels
        3
    """
    return recipe_of(Document.read(path))


def recipe_of(source: Document | Mapping[str, Any]) -> Recipe:
    """Validate a document, or plain data, as a recipe."""
    document = source if isinstance(source, Document) else Document.of_data(source)
    if not isinstance(document.data, Mapping):
        got = "and this is empty" if document.data is None else f"not {type(document.data).__name__}"
        raise document.error((), f"a recipe is a mapping with steps, {got}")
    recipe = validate_section(Recipe, document, (), "a recipe")
    # Orders are checked once all steps are known to be sound, since a rule speaks of several of them.
    for chain in recipe.chains:
        check_order(chain, document)
    return recipe


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipes, by which editors complete and check YAML."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
