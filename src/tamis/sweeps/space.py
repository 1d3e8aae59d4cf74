"""The space of a sweep is a set of recipes with ranges in place of values; a point gives each range a value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from tamis.errors import InvalidInput
from tamis.recipes import DataSection, Document, Recipe, format_path, recipe_of, recipe_path
from tamis.sweeps.ranges import CONTINUOUS, Place, Range, fill_ranges, find_ranges

if TYPE_CHECKING:
    import optuna

RECIPE = "recipe"  # the name of the choice between recipes, where there are several

Point = dict[str, Any]  # the name of each range that applies → a label of it, a number or a word


@dataclass(frozen=True)
class Alternative:
    """An alternative is one recipe with its ranges.

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
        """Count the points; with a range of real numbers, a huge number."""
        return prod(each.size for each in self.ranges.values())

    def ranges_by_name(self) -> dict[str, Range]:
        """Return the ranges by name."""
        return {f"{self.prefix}{format_path(place)}": each for place, each in self.ranges.items()}

    def recipe(self, labels: Mapping[str, Any]) -> Recipe:
        """Return the recipe at a point.

        Raises:
            RecipeError: the values there are wrong; it names the place.
        """
        values = {p: each.value(labels[f"{self.prefix}{format_path(p)}"]) for p, each in self.ranges.items()}
        # A second document with the same places: its data can be exchanged, and errors still name the lines of the
        # text.
        part = self.document.below(())
        part.data = fill_ranges(part.data, values)
        return recipe_of(part)

    @property
    def first(self) -> Point:
        """Return the first value of each range."""
        return {name: each.extremes()[0] for name, each in self.ranges_by_name().items()}

    def check(self) -> None:
        """Raise RecipeError where a value of a range is wrong, with all other ranges at their first value."""
        self.recipe(self.first)
        for name, each in self.ranges_by_name().items():
            # One range at a time, as all combinations may be too many. Values that are wrong only together fail when
            # they are tried.
            for label in each.extremes()[1:]:
                self.recipe({**self.first, name: label})


@dataclass(frozen=True)
class Space:
    """A space is everything that a sweep may try.

    Attributes:
        alternatives: the recipes.
        data: what all of them work on.
    """

    alternatives: tuple[Alternative, ...]
    data: DataSection

    @classmethod
    def of(cls, document: Document, path: Place, data: DataSection) -> Space:
        """Read the space of a document that has one recipe at a path, or choices of several."""
        content = document.below(path).data
        # By this key alone: a recipe has others.
        several = isinstance(content, Mapping) and [*content] == ["choices"]
        if several and not (isinstance(content["choices"], list) and content["choices"]):
            raise document.error((*path, "choices"), f"choices are a list of recipes, got {content['choices']!r:.60}")
        places: list[Place] = [(*path, "choices", i) for i in range(len(content["choices"]))] if several else [path]
        alternatives: dict[str, Alternative] = {}
        for number, place in enumerate(places):
            # Each is read and checked now, and not when its turn comes hours later.
            part = _read_recipe_document(document, place)
            name = part.data.get("name") or document.below(place).data
            name = name if isinstance(name, str) else f"recipe {number}"
            if name in alternatives:
                raise document.error(place, f"there are two recipes '{name}'; give one of them another name")
            prefix = f"{name}: " if several else ""
            alternatives[name] = Alternative(name, part, find_ranges(part), prefix)
            alternatives[name].check()
        return cls(tuple(alternatives.values()), data)

    @property
    def size(self) -> int:
        """Count the points of all recipes; with a range of real numbers, a huge number."""
        return sum(each.size for each in self.alternatives)

    def suggest(self, trial: optuna.Trial) -> Point:
        """Draw a point by the study's sampler."""
        names = [each.name for each in self.alternatives]
        choice: Point = {RECIPE: trial.suggest_categorical(RECIPE, names)} if len(names) > 1 else {}
        ranges = self._find_alternative(choice).ranges_by_name()
        return choice | {name: each.suggest(trial, name) for name, each in ranges.items()}

    def points(self) -> Iterator[Point]:
        """Yield all points in the order of the file, where they can be counted."""
        for each in self.alternatives:
            choice = {RECIPE: each.name} if len(self.alternatives) > 1 else {}
            ranges = each.ranges_by_name()
            for labels in product(*(one.labels for one in ranges.values())):
                yield choice | dict(zip(ranges, labels, strict=True))

    def recipe(self, point: Point) -> Recipe:
        """Return the recipe at a point, with the sweep's data."""
        return self._find_alternative(point).recipe(point).model_copy(update={"data": self.data})

    def _find_alternative(self, point: Point) -> Alternative:
        if len(self.alternatives) == 1:
            return self.alternatives[0]
        return next(each for each in self.alternatives if each.name == point[RECIPE])


def encode_point(point: Point) -> str:
    """Write a point as text, the same for the same point."""
    return json.dumps(point, sort_keys=True)


def describe_point(point: Point) -> str:
    """Describe a point to people: by the last key of each range, where no other range has the same.

    Example:
        >>> describe_point({"recipe": "sparse", "sparse: steps[0].amount": 0.62511})
        'sparse, amount 0.6251'
    """
    recipe = [str(point[RECIPE])] if RECIPE in point else []
    # The name of the recipe is said once, at the front, and taken off each range.
    names = {name: name.partition(": ")[2] or name for name in point if name != RECIPE}
    last = [name.rpartition(".")[2] for name in names.values()]
    short = {name: key if last.count(key) == 1 else names[name] for name, key in zip(names, last, strict=True)}
    return ", ".join([*recipe, *(f"{key} {_format_value(point[name])}" for name, key in short.items())]) or "as it is"


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read_recipe_document(document: Document, place: Place) -> Document:
    """Read the recipe at a place: a mapping there, or the file that is named there."""
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


def find_next_untried(space: Space, tried: set[str]) -> Point | None:
    """Return the first point that was not tried; None if there is none, or if there are too many to count."""
    # Nobody counts real numbers: there the sampler draws, and repetitions hardly happen.
    if space.size >= CONTINUOUS:
        return None
    return next((point for point in space.points() if encode_point(point) not in tried), None)
