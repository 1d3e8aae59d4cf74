"""Importing modules, and what is in them, by names that a user typed: a model's factory, or a data loader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any

from tamis.errors import InvalidInput

# Where modules have gone that recipes, lock files and commands of earlier versions name.
_MOVED = {"tamis.train.models": "tamis.training.models"}


def import_named(name: str) -> ModuleType:
    """Import an installed module, or else one of the current folder.

    The folder is looked at last: a file there must not stand in for a package that an installed one imports.

    Raises:
        InvalidInput: there is no such module, or importing it fails.
    """
    directory = os.getcwd()
    name = _MOVED.get(name, name)
    try:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            # Where something else is missing, which the module itself imports, looking elsewhere would hide that.
            if not _is_part_of(error.name, name) or directory in sys.path:
                raise
            sys.path.append(directory)
            return import_module(name)
    except ModuleNotFoundError as error:
        if _is_part_of(error.name, name):
            raise InvalidInput(f"no module '{error.name}' in {directory} or among installed packages") from None
        raise InvalidInput(f"importing '{name}' failed: {error}") from error
    except Exception as error:
        raise InvalidInput(f"importing '{name}' failed: {type(error).__name__}: {error}") from error


def attribute(module: ModuleType, path: str) -> Any:
    """Return what a module has under a name, or under names with points between."""
    try:
        return attrgetter(path)(module)
    except AttributeError:
        where = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        similar = _similar(path, vars(module))
        raise InvalidInput(f"module '{module.__name__}'{where} has no '{path}'{similar}") from None


def _is_part_of(missing: str | None, name: str) -> bool:
    """Whether what is missing is the module itself or a package that it is in, and nothing that it imports."""
    return missing is not None and (name + ".").startswith(missing + ".")


def _similar(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(name, [other for other in known if not other.startswith("_")])
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
