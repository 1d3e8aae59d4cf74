"""Parts of a sweep's file as pydantic models, with errors that point at the line."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from tamis.errors import listed
from tamis.recipes import Document, Path_, RecipeError, blamed, first_to_tell, in_document, wish
from tamis.recipes.steps import Section

Kind = TypeVar("Kind", bound=Section)


def checked(kind: type[Kind], document: Document, path: Path_, called: str) -> Kind:
    """The part of a document at a path, as a model.

    Args:
        kind: the model.
        document: the whole file.
        path: the keys that lead to the part.
        called: what messages call such a part.

    Raises:
        RecipeError: it says file, line, column and key path of the first thing that is wrong.

    Example:
        >>> checked(Between, Document("amount: {low: 0.5, high: 0.9}", "my.yaml"), ("amount",), "a range").high
        0.9
    """
    data = document.below(path).data
    if not isinstance(data, Mapping):
        raise document.error(path, f"{called} is a mapping, not {type(data).__name__}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _located(error, kind, document, path, called) from None


def _located(error: ValidationError, kind: type[Section], document: Document, base: Path_, called: str) -> RecipeError:
    """The first of pydantic's errors, in our words and at its place."""
    first, data = first_to_tell(error.errors(include_url=False)), document.below(base).data
    path = in_document(first["loc"], data)
    if first["type"] == "missing":
        message = f"'{first['loc'][-1]}' is missing; {_keys(kind, path, called)}"
    elif first["type"] == "extra_forbidden":
        message = f"there is no key '{path[-1]}' here; {_keys(kind, path[:-1], called, str(path[-1]))}"
    elif first["type"] == "value_error":
        message = str(first["ctx"]["error"])
        path = tuple(blamed(path, message, data))
    else:
        here = [each["msg"] for each in error.errors() if in_document(each["loc"], data) == path]
        message = f"it should be {' or '.join(dict.fromkeys(map(wish, here)))}; got {first['input']!r:.60}"
    return document.error((*base, *path), message, key=first["type"] == "extra_forbidden")


def _keys(kind: type[Section], path: Path_, called: str, wrong: str | None = None) -> str:
    """Which keys there are at a place, and which of them was meant."""
    for part in path:
        kind = _section(kind.model_fields[str(part)].annotation)
    names = [*kind.model_fields]
    similar = get_close_matches(wrong, names, 1) if wrong is not None else []
    if similar:
        return f"did you mean {similar[0]}?"
    return f"keys of {path[-1] if path else called} are {listed(names, most=20)}"


def _section(annotation: Any) -> type[Section]:
    """The model among the types that a field may have."""
    found = [
        each for each in (annotation, *get_args(annotation)) if isinstance(each, type) and issubclass(each, Section)
    ]
    return found[0]
