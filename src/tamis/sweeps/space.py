"""What can be tried: recipes with ranges in place of values, and the points of that space."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from tamis.errors import InvalidInput
from tamis.recipes import DataSection, Document, Recipe, recipe_of, recipe_path, written
from tamis.sweeps.ranges import CONTINUOUS, Place, Range, filled, find_ranges

if TYPE_CHECKING:
    import optuna

RECIPE = "recipe"  # the name of the choice between recipes, where there are several

Point = dict[str, Any]  # the name of each range that applies → a label of it, a number or a word


@dataclass(frozen=True)
class Alternative:
    """One recipe with its ranges.

    Attributes:
        name: of the recipe.
        document: what it says, ranges and all.
        ranges: by where they stand.
        prefix: of its ranges' names, where there are several recipes.
    """

    name: str
    document: Document
    ranges: dict[Place, Range]
    prefix: str = ""

    @property
    def size(self) -> int:
        """How many points there are, or a huge number."""
        return prod(each.size for each in self.ranges.values())

    def named(self) -> dict[str, Range]:
        """The ranges by name."""
        return {f"{self.prefix}{written(place)}": each for place, each in self.ranges.items()}

    def recipe(self, labels: Mapping[str, Any]) -> Recipe:
        """The recipe at a point.

        Raises:
            RecipeError: there is none, at the place of what cannot be.
        """
        values = {p: each.value(labels[f"{self.prefix}{written(p)}"]) for p, each in self.ranges.items()}
        part = self.document.below(())
        part.data = filled(part.data, values)
        return recipe_of(part)

    @property
    def first(self) -> Point:
        """The first value of each range."""
        return {name: each.extremes()[0] for name, each in self.named().items()}

    def check(self) -> None:
        """Raise RecipeError where a value of a range cannot be, the others being at the first of theirs."""
        self.recipe(self.first)
        for name, each in self.named().items():
            for label in each.extremes()[1:]:
                self.recipe({**self.first, name: label})


@dataclass(frozen=True)
class Space:
    """All that a sweep may try.

    Attributes:
        alternatives: the recipes.
        data: what all of them work on.
    """

    alternatives: tuple[Alternative, ...]
    data: DataSection

    @classmethod
    def of(cls, document: Document, path: Place, data: DataSection) -> Space:
        """Of a document that has one recipe at a path, or choices of several."""
        whole = document.below(path).data
        several = isinstance(whole, Mapping) and [*whole] == ["choices"]
        if several and not (isinstance(whole["choices"], list) and whole["choices"]):
            raise document.error((*path, "choices"), f"choices are a list of recipes, got {whole['choices']!r:.60}")
        places: list[Place] = [(*path, "choices", i) for i in range(len(whole["choices"]))] if several else [path]
        found: dict[str, Alternative] = {}
        for number, place in enumerate(places):
            part = _recipe_document(document, place)
            name = part.data.get("name") or document.below(place).data
            name = name if isinstance(name, str) else f"recipe {number}"
            if name in found:
                raise document.error(place, f"there are two recipes '{name}'; give one of them another name")
            prefix = f"{name}: " if several else ""
            found[name] = Alternative(name, part, find_ranges(part), prefix)
            found[name].check()
        return cls(tuple(found.values()), data)

    @property
    def size(self) -> int:
        """How many points there are; with a range of real numbers, a huge number."""
        return sum(each.size for each in self.alternatives)

    def suggest(self, trial: optuna.Trial) -> Point:
        """A point, as the study's sampler has it."""
        names = [each.name for each in self.alternatives]
        chosen: Point = {RECIPE: trial.suggest_categorical(RECIPE, names)} if len(names) > 1 else {}
        ranges = self._at(chosen).named()
        return chosen | {name: each.suggest(trial, name) for name, each in ranges.items()}

    def points(self) -> Iterator[Point]:
        """All points in the order of the file, where they can be counted."""
        for each in self.alternatives:
            chosen = {RECIPE: each.name} if len(self.alternatives) > 1 else {}
            ranges = each.named()
            for labels in product(*(one.labels for one in ranges.values())):
                yield chosen | dict(zip(ranges, labels, strict=True))

    def recipe(self, point: Point) -> Recipe:
        """The recipe at a point, with the sweep's data."""
        return self._at(point).recipe(point).model_copy(update={"data": self.data})

    def _at(self, point: Point) -> Alternative:
        if len(self.alternatives) == 1:
            return self.alternatives[0]
        return next(each for each in self.alternatives if each.name == point[RECIPE])


def text_of(point: Point) -> str:
    """A point as text, the same for the same point."""
    return json.dumps(point, sort_keys=True)


def described(point: Point) -> str:
    """A point for people: the last key of each range will do, where it stands for one of them alone.

    Example:
        >>> described({"recipe": "sparse", "sparse: steps[0].amount": 0.62511})
        'sparse, amount 0.6251'
    """
    recipe = [str(point[RECIPE])] if RECIPE in point else []
    names = {name: name.partition(": ")[2] or name for name in point if name != RECIPE}
    last = [name.rpartition(".")[2] for name in names.values()]
    short = {name: key if last.count(key) == 1 else names[name] for name, key in zip(names, last, strict=True)}
    return ", ".join([*recipe, *(f"{key} {_written(point[name])}" for name, key in short.items())]) or "as it is"


def _written(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _recipe_document(document: Document, place: Place) -> Document:
    """The recipe at a place: a mapping there, or the file that is named there."""
    part = document.below(place)
    if isinstance(part.data, str):
        try:
            path = recipe_path(part.data)
        except InvalidInput as error:
            raise document.error(place, str(error)) from None
        part = Document.read(path)
    if not isinstance(part.data, Mapping):
        raise part.error((), f"a recipe is a mapping with steps, or the name of one; got {part.data!r:.60}")
    if "data" in part.data:
        raise part.error(
            ("data",), "the sweep itself names the data, the same for all recipes: move this there", key=True
        )
    return part


def untried(space: Space, tried: set[str]) -> Point | None:
    """The first point that was not tried; None if there is none, or if there are too many to count."""
    if space.size >= CONTINUOUS:
        return None
    return next((point for point in space.points() if text_of(point) not in tried), None)
