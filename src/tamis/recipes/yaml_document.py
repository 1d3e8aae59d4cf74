"""A YAML document knows where each of its parts stands, so that errors name the file, line, column and key path."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tamis.errors import InvalidInput

KeyPath = Sequence[str | int]
MOST_PARTS, DEEPEST = 100_000, 100  # aliases let a few lines stand for more than there is memory for
# PyYAML takes 1e-3 for a text, as YAML 1.1 has it; nobody who writes it means one.
FLOAT = re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


class RecipeError(InvalidInput):
    """A recipe or a sweep is wrong.

    Attributes:
        line, column: where it stands, from 1 on; None where the recipe came from no file.
        path: the keys that lead there, as "steps[1].amount".
    """

    def __init__(self, message: str, line: int | None, column: int | None, path: str) -> None:
        super().__init__(message)
        self.line, self.column, self.path = line, column, path


class _Loader(yaml.SafeLoader):
    """This loader makes plain data only, and no Python objects."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


class Document:
    """A document is a YAML text as plain data, with the place of each part.

    Args:
        text: the YAML.
        name: of the file, for messages.

    Raises:
        RecipeError: it is not YAML, has a key twice, or is larger or deeper than anybody would write it.

    Example:
        >>> document = Document("steps:\\n- step: prune\\n", "my.yaml")
        >>> str(document.error(("steps", 0), "no amount"))
        'my.yaml:2:3: steps[0]: no amount'
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        try:
            loader = _Loader(text)
        except yaml.reader.ReaderError as error:
            raise self._make_character_error(text, error) from None
        try:
            # The tree of nodes comes before the data that is made of it: nodes know their place, an alias is still one
            # node however often it stands there, and nothing that is too large has been built yet.
            self._root = loader.get_single_node()
            self._parts = 0
            self._check(self._root, (), ())
            self.data: Any = None if self._root is None else loader.construct_document(self._root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._error_at(mark, "", f"this is not YAML: {error.problem or error.context}") from None
        except (yaml.YAMLError, ValueError) as error:  # as 2026-13-45, which is not a date
            raise RecipeError(f"{name}: this is not YAML: {error}", None, None, "") from None
        except RecursionError:
            raise RecipeError(f"{name}: it is nested too deeply to be read", None, None, "") from None
        finally:
            loader.dispose()

    @classmethod
    def read(cls, path: str | Path) -> Document:
        """Read a YAML file.

        Raises:
            RecipeError: as of a text, or it is not UTF-8.
        """
        # Some editors begin a file with it; it is no part of the text.
        content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            before = content[: error.start].decode().split("\n")  # what comes before the first wrong byte is right
            line, column, byte = len(before), len(before[-1]) + 1, content[error.start]
            message = f"{path}:{line}:{column}: this is not UTF-8, as YAML must be: byte {byte:#x}"
            raise RecipeError(message, line, column, "") from None
        return cls(text, str(path))

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Document:
        """Wrap plain data as a document; its errors name the key path alone."""
        # Not through __init__, which reads a text: here there is none, and no places in it.
        document = object.__new__(cls)
        document.name, document.data, document._root = "recipe", data, None
        return document

    @property
    def is_file(self) -> bool:
        """Say whether it was read from a text, not given as data."""
        return self._root is not None

    def error(self, path: KeyPath, message: str, key: bool = False) -> RecipeError:
        """Make an error at a place; with `key`, at the key itself instead of its value."""
        node: Any = self._root
        mark = node.start_mark if node is not None else None
        for part in path:
            child = _find_child(node, part)
            # The last part that exists is the place: what is missing has none of its own.
            if child is None:
                break
            name, node = child
            mark = name.start_mark if key and name is not None else node.start_mark
        return self._error_at(mark, format_path(path), message)

    def below(self, path: KeyPath) -> Document:
        """Return the part at a path as a document of its own, which still knows its place in the whole."""
        part = object.__new__(Document)
        part.name, part.data, part._root = self.name, self.data, self._root
        for key in path:
            child = _find_child(part._root, key)
            part.data, part._root = part.data[key], None if child is None else child[1]
        return part

    def _error_at(self, mark: Any, path: str, message: str) -> RecipeError:
        text = f"{path}: {message}" if path else message
        if mark is None:
            return RecipeError(f"{self.name}: {text}", None, None, path)
        line, column = mark.line + 1, mark.column + 1
        return RecipeError(f"{self.name}:{line}:{column}: {text}", line, column, path)

    def _make_character_error(self, text: str, error: yaml.reader.ReaderError) -> RecipeError:
        """Make an error at a character that YAML does not allow."""
        before = text[: error.position].split("\n")
        line, column, code = len(before), len(before[-1]) + 1, ord(text[error.position])
        message = (
            f"{self.name}:{line}:{column}: this is not YAML: it has the character {code:#x}, which YAML does not allow"
        )
        return RecipeError(message, line, column, "")

    def _refuse_nul(self, node: Any, path: tuple[str | int, ...]) -> None:
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
            raise self._error_at(
                node.start_mark, format_path(path), "it has the character NUL, which no name or path may have"
            )

    def _check(self, node: Any, path: tuple[str | int, ...], above: tuple[int, ...]) -> None:
        """Refuse keys that stand twice, of which YAML would silently take the last, and what contains itself."""
        # By identity: an alias is the same node once more, and one inside of itself would never end.
        if id(node) in above:
            raise self._error_at(node.start_mark, format_path(path), "it contains itself")
        self._refuse_nul(node, path)
        # Counted at each visit, because an alias stands for all that it names each time.
        self._parts += 1
        if len(above) > DEEPEST or self._parts > MOST_PARTS:
            most = f"{DEEPEST} levels of nesting" if len(above) > DEEPEST else f"{MOST_PARTS:,} parts, with its aliases"
            raise self._error_at(node.start_mark, "", f"it has more than {most}")
        inside = (*above, id(node))
        if isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self._check(item, (*path, place), inside)
        if isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            for key, value in node.value:
                self._refuse_nul(key, path)
                name = str(key.value)
                if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith((":str", ":int", ":float", ":bool")):
                    raise self._error_at(key.start_mark, format_path(path), f"a key must be a word, not {name!r:.40}")
                if name in names:
                    raise self._error_at(key.start_mark, format_path((*path, name)), "this key is here twice")
                names.add(name)
                self._check(value, (*path, name), inside)


def format_path(path: KeyPath) -> str:
    """Write a path of keys as people do.

    Example:
        >>> format_path(("steps", 1, "amount"))
        'steps[1].amount'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _find_child(node: Any, part: str | int) -> tuple[Any, Any] | None:
    """Return the key, where there is one, and the value of a part of a node."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # As text: a key that reads 1 is a number in the data, and may be asked for as either.
            if str(key.value) == str(part):
                return key, value
    return None
