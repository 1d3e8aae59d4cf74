"""Parts of a YAML file, of a recipe or a sweep, become pydantic models, with errors that point at the line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from tamis.errors import join_names
from tamis.recipes.steps.base import Section, Step
from tamis.recipes.steps.registry import STEPS
from tamis.recipes.yaml_document import Document, KeyPath, RecipeError

Kind = TypeVar("Kind", bound=Section)
UNKNOWN_STEP = ("union_tag_invalid", "union_tag_not_found", "model_attributes_type")  # pydantic's names of such errors


def validate_section(kind: type[Kind], document: Document, path: KeyPath, name: str) -> Kind:
    """Read the part of a document at a path as a model.

    Args:
        kind: the model.
        document: the whole file.
        path: the keys that lead to the part.
        name: what messages call such a part, as "a recipe".

    Raises:
        RecipeError: it says file, line, column and key path of the first thing that is wrong.

    Example:
        >>> from tamis.recipes import DataSection, Document
        >>> validate_section(DataSection, Document("data: {seed: 3}", "my.yaml"), ("data",), "data").seed
        3
    """
    data = document.below(path).data
    # pydantic would say so, too, but of a "dictionary", which people who write YAML do not know.
    if not isinstance(data, Mapping):
        raise document.error(path, f"{name} is a mapping, not {type(data).__name__}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _Reader(kind, document, path, name).make_first_error(error) from None


class _Reader:
    """This reader puts pydantic's errors about one part of a document into words, at their place in the file."""

    def __init__(self, kind: type[Section], document: Document, base: KeyPath, name: str) -> None:
        self.kind, self.document, self.base, self.name = kind, document, base, name
        self.data = document.below(base).data

    def make_first_error(self, error: ValidationError) -> RecipeError:
        """Return the first error, with the number of those that follow."""
        # All that pydantic found: the first is shown, and the others are counted.
        errors = error.errors(include_url=False)
        first = choose_first_error(errors)
        kind: str = first["type"]
        path: KeyPath = find_document_path(first["loc"], self.data)
        if kind == "missing":
            message = f"'{first['loc'][-1]}' is missing; {self._list_known_keys(path)}"
        elif kind == "extra_forbidden":
            message = f"there is no key '{path[-1]}' here; {self._list_known_keys(path[:-1], str(path[-1]))}"
        elif kind in UNKNOWN_STEP and _is_step(path):
            message, path = self._explain_unknown_step(path)
        elif kind == "value_error":
            message = str(first["ctx"]["error"])
            path = self._find_named_key(path, message)
        else:
            # A field of several types has one error for each: all of them say what would do.
            here = [each["msg"] for each in errors if find_document_path(each["loc"], self.data) == path]
            message = (
                f"it should be {' or '.join(dict.fromkeys(map(read_expectation, here)))}; got {first['input']!r:.60}"
            )
        others = len({find_document_path(each["loc"], self.data) for each in errors}) - 1
        # After an unknown step, pydantic lists the same place again for each step that it could have been.
        more = f" ({others} more after this one)" if others and kind != "union_tag_invalid" else ""
        return self.document.error((*self.base, *path), message + more, key=kind == "extra_forbidden")

    def _list_known_keys(self, path: KeyPath, wrong: str | None = None) -> str:
        """Say which keys a place has, or which of them was meant."""
        kind, name = self._find_model(path)
        # A budget runs as a step, but nobody writes `step: budget`.
        fixed = issubclass(kind, Step) and not kind.model_fields["step"].is_required()
        names = [each for each in kind.model_fields if not (fixed and each == "step")]
        similar = get_close_matches(wrong, names, 1) if wrong is not None else []
        return f"did you mean {similar[0]}?" if similar else f"keys of {name} are {join_names(names, most=20)}"

    def _find_model(self, path: KeyPath) -> tuple[type[Section], str]:
        """Return the model of the part at a path, and what messages call that part."""
        data = _look_up(self.data, path)
        if isinstance(data, Mapping) and str(data.get("step")) in STEPS:
            return STEPS[str(data["step"])], f"a {data['step']} step"
        kind: type[Section] = self.kind
        for part in path:
            kind = _find_section(kind.model_fields[str(part)].annotation)
        return kind, str(path[-1]) if path else self.name

    def _explain_unknown_step(self, path: KeyPath) -> tuple[str, KeyPath]:
        data, known = _look_up(self.data, path), join_names(STEPS, most=20)
        if not isinstance(data, Mapping):
            return f"a step is a mapping, as {{step: prune, amount: 0.8}}; got {data!r:.60}", path
        if "step" not in data:
            return f"'step' is missing, which says what to do: {known}", path
        similar = get_close_matches(str(data["step"]), STEPS, 1)
        hint = f"did you mean {similar[0]}? " if similar else ""
        return f"there is no step '{data['step']!s:.60}'; {hint}steps are {known}", (*path, "step")

    def _find_named_key(self, path: KeyPath, message: str) -> KeyPath:
        """Return the path of the key that a message begins with, if it is one of those at the place."""
        # Validators name the key first where several are involved: the error then points at that one.
        data, word = _look_up(self.data, path), message.split(" ", 1)[0]
        return (*path, word) if isinstance(data, Mapping) and word in data else path


def choose_first_error(errors: Sequence[Any]) -> Any:
    """Return the first of pydantic's errors; for a missing key, the misspelt one that was written instead."""
    # A misspelt key is both missing and unknown, and what was written is the better place to point at.
    first = errors[0]
    if first["type"] != "missing":
        return first
    *place, missing = first["loc"]
    unknown = [each for each in errors if each["type"] == "extra_forbidden"]
    beside = {str(each["loc"][-1]): each for each in unknown if [*each["loc"][:-1]] == place}
    similar = get_close_matches(str(missing), beside, 1)
    return beside[similar[0]] if similar else first


def find_document_path(location: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """Return pydantic's location without its parts that are no keys of the document: types, and missing keys."""
    # In a location, pydantic also names the member of a union that it tried, as ("steps", 0, "prune", "amount"): going
    # down the data itself tells these from keys.
    path: list[str | int] = []
    for part in location:
        keys = range(len(data)) if isinstance(data, list) else data if isinstance(data, Mapping) else ()
        if part in keys:
            path.append(part)
            data = data[part]
    return tuple(path)


def read_expectation(message: str) -> str:
    """Return what pydantic's message says that there should be.

    Example:
        >>> read_expectation("Input should be a valid string, unable to parse")
        'a valid string'
    """
    at_least = re.fullmatch(r"\w+ should have at least (\d+ \w+) after validation, not \d+", message)
    if at_least is not None:
        return f"at least {at_least[1]}"
    return message.removeprefix("Input should be ").split(", unable", 1)[0].split(", got", 1)[0]


def _is_step(path: KeyPath) -> bool:
    """Return whether a step stands at a place, or should."""
    # ("budget", "starts", 0) is a chain; only what is inside of one is a step.
    return path[:1] == ("steps",) or (path[:2] == ("budget", "starts") and len(path) > 3)


def _look_up(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _find_section(annotation: Any) -> type[Section]:
    """Return the model among the types that a field may have."""
    types = (annotation, *get_args(annotation))
    return next(each for each in types if isinstance(each, type) and issubclass(each, Section))
