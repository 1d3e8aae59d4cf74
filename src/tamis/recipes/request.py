"""A request combines a recipe, a lock file or a budget with data into one complete recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.errors import InvalidInput
from tamis.recipes.budget import STARTS, Budget
from tamis.recipes.catalogue import recipe_path
from tamis.recipes.lock import MOST_THREADS, VERSION, Lock, is_lock
from tamis.recipes.schema import DataSection, Recipe, recipe_of
from tamis.recipes.splits import Splits, load_splits
from tamis.recipes.yaml_document import Document
from tamis.training import Data, as_data, parse_spec
from tamis.verification import parse_rate, requirement_of_labels

IN_PYTHON = "given in Python"  # what a lock file says of data that has no name


@dataclass(frozen=True)
class GivenData:
    """Given data is what was passed beside a recipe: names, samples, or nothing.

    Attributes:
        train: the training data.
        test: what the certificate speaks of.
    """

    train: str | Data | None
    test: str | Data | None

    @classmethod
    def of(cls, train: Any, test: Any) -> GivenData:
        """Take names as they are, and load the samples of anything else."""
        return cls(_resolve_data(train, "the training data"), _resolve_data(test, "the test data"))

    def load(self, section: DataSection) -> Splits:
        """Load what a resolved data section names, and take what was given in Python from here."""
        samples = {name: each for name, each in (("train", self.train), ("test", self.test)) if isinstance(each, Data)}
        # Samples take the place of their name, which only says that they came from Python.
        return load_splits(**{**section.model_dump(), **samples})


@dataclass(frozen=True)
class Request:
    """A request says what a run is asked to do.

    Attributes:
        recipe: with data and budget resolved.
        lock: the lock file that it came from, where it came from one.
        path: the file that it came from.
    """

    recipe: Recipe
    lock: Lock | None
    path: Path


def resolve_request(
    recipe: str | Path | Mapping[str, Any] | Recipe | None,
    data: GivenData,
    target_bytes: int | str | None,
    max_disagreement: float | str | None,
) -> Request:
    """Combine a recipe with the data and the budget that were passed beside it.

    Raises:
        RecipeError: the recipe is wrong, or names no data and none was passed.
        InvalidInput: there is neither a recipe nor a budget, or a lock file is to be changed.
    """
    lock, path, document = None, Path("recipe"), Document.of_data({})
    budget: dict[str, Any] = {}
    # Of the two, bytes are what is searched for, and a disagreement beside them is only required.
    if target_bytes is not None:
        budget = {"target_bytes": target_bytes}
    elif max_disagreement is not None:
        budget = {"max_disagreement": max_disagreement}
    # A file may be a recipe or a lock file; what was given as data is a recipe in any case.
    if isinstance(recipe, (str, Path)):
        path = recipe_path(str(recipe))
        resolved, document, lock = _read_recipe_or_lock(path)
    elif isinstance(recipe, Recipe):
        resolved = recipe
    elif recipe is None and not budget:
        raise InvalidInput("compress needs a recipe or a budget: recipe=, target_bytes= or max_disagreement=")
    else:
        resolved = recipe_of(recipe if recipe is not None else {"name": "budget", "budget": budget})
    if lock is not None or any(step.step in Budget.not_after for step in resolved.steps):
        budget.pop("max_disagreement", None)  # nothing is left to search among: it is required, and no more
    resolved = _with_budget(resolved, budget, has_recipe=recipe is not None, default_starts=lock is None)
    # A search compares networks on data that the network was not trained on, on which it answers less surely: half of
    # the test data. Without a search nothing is compared, and nothing need be held out.
    part, of = (None, "train") if resolved.budget is None else (0.5, "test")
    section = _name_data(resolved.data, data, document).with_held_out(part, of)
    # Naming the same data once more is no change.
    if lock is not None and (budget or section != resolved.data):
        raise InvalidInput(
            f"'{path}' is a lock file, which already fixes the data and the budget: do not pass them as well"
        )
    return Request(resolved.model_copy(update={"data": section}), lock, path)


def _read_recipe_or_lock(path: Path) -> tuple[Recipe, Document, Lock | None]:
    """Read the recipe in a file, with its document, and with the lock where the file is a lock file."""
    document = Document.read(path)
    if is_lock(document.data):
        part = document.below(("recipe",))
        return recipe_of(part), part, Lock(document.data)
    if isinstance(document.data, Mapping) and {"lock", "recipe"} <= set(document.data):
        raise document.error(
            ("lock",),
            f"this is no lock file that can be repeated: one of version {VERSION} has recipe, model, data, versions "
            f"and threads, from 1 to {MOST_THREADS}",
        )
    return recipe_of(document), document, None


def _with_budget(recipe: Recipe, budget: Mapping[str, Any], has_recipe: bool, default_starts: bool) -> Recipe:
    """Replace the budget of a recipe but for its starts; a budget alone gets the default starts."""
    # Through plain data, so that what comes out is validated as a whole: orders of steps may be wrong only together.
    if budget and has_recipe:
        plain = recipe.as_plain_data()
        starts = {"starts": plain["budget"]["starts"]} if "starts" in plain.get("budget", {}) else {}
        recipe = recipe_of({**plain, "budget": {**budget, **starts}})
    # A lock file has its starts written out already; one without any had none.
    if default_starts and recipe.budget is not None and recipe.budget.starts is None and not recipe.steps:
        plain = recipe.as_plain_data()
        recipe = recipe_of({**plain, "budget": {**plain["budget"], "starts": STARTS}})
    return recipe


def _name_data(section: DataSection, data: GivenData, document: Document) -> DataSection:
    """Put the names of the data that was passed into the data section, and check that both splits have one."""
    names: dict[str, str] = {}
    if data.train is not None:
        names = parse_spec(data.train).splits() if isinstance(data.train, str) else {"train": IN_PYTHON}
    if data.test is not None:
        names["test"] = data.test if isinstance(data.test, str) else IN_PYTHON
    complete = section.model_copy(update=names)
    # Checked for both here, where a message can point at the line of the file.
    for name, words, option in (("train", "training data", "data"), ("test", "test data", "test")):
        spec = getattr(complete, name)
        if spec is None:
            message = f"no {words} is named: write it here, or pass {option}=NAME"
            raise document.error(("data", name), message)
        if name not in names and spec == IN_PYTHON:
            raise document.error(("data", name), f"the {words} was {IN_PYTHON}, and no file has it: pass {option}=")
        if name not in names and document.is_file and parse_spec(spec).in_module:
            message = f"'{spec}' is Python code, which a file may not run by itself: name it, too, as {option}={spec}"
            raise document.error(("data", name), message)
    return complete


def _resolve_data(data: Any, name: str) -> str | Data | None:
    if data is None or isinstance(data, str):
        return data
    return str(data) if isinstance(data, Path) else as_data(data, name)


def parse_requirements(
    max_accuracy_drop: float | str | None, max_disagreement: float | str | None, data: Splits
) -> dict[str, float | None]:
    """Return what is required of a certificate, as `certify` takes it.

    Raises:
        InvalidInput: the test data has no labels, which a drop of accuracy needs.
    """
    if max_accuracy_drop is not None and not data.test_has_labels:
        raise InvalidInput(f"'{data.test.name}' has no labels, which {requirement_of_labels(max_accuracy_drop)} needs")
    requirements = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    return {name: None if value is None else parse_rate(value, name) for name, value in requirements.items()}


def code_options(data: DataSection) -> str:
    """Return the options of a command that name data which is Python code.

    A file may not run code just because it names it, so a command that repeats a run must name it, too.
    """
    options = (("--data", data.train), ("--test", data.test))
    code = [(option, spec) for option, spec in options if spec is not None and parse_spec(spec).in_module]
    return "".join(f" {option} {shlex.quote(spec)}" for option, spec in code)
