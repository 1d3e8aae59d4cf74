"""The recipes that ship with tamis are found here by name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tamis.errors import InvalidInput, join_names

SHIPPED = Path(__file__).with_name("shipped")


@dataclass(frozen=True)
class Entry:
    """An entry is a recipe that ships, with its name, its file, and the comment at its top."""

    name: str
    path: Path
    comment: str

    @property
    def headline(self) -> str:
        """Return the first sentence of the comment."""
        return self.comment.split(". ", 1)[0].rstrip(".") + "."


def list_shipped() -> list[Entry]:
    """List all recipes that ship with tamis, sorted by name.

    Example:
        >>> [entry.name for entry in list_shipped()][:3]
        ['architecture', 'binary', 'four-bit']
    """
    return [Entry(path.stem, path, _read_comment(path)) for path in sorted(SHIPPED.glob("*.yaml"))]


def entry_named(name: str) -> Entry:
    """Return the recipe of this name that ships, or raise InvalidInput if there is none."""
    entries = {entry.name: entry for entry in list_shipped()}
    if name in entries:
        return entries[name]
    similar = get_close_matches(name, entries)
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"these ship: {join_names(entries, most=20)}."
    raise InvalidInput(f"there is no recipe '{name}'; {hint}")


def recipe_path(text: str) -> Path:
    """Return the file that a user means by a path or by the name of a recipe that ships."""
    # By how it is written and not by what exists, so that a file in the current folder cannot change what a name means.
    if "/" in text or text.endswith((".yaml", ".yml")):
        return Path(text)
    try:
        return entry_named(text).path
    except InvalidInput as error:
        raise InvalidInput(f"{error} A file must end in .yaml") from None


def _read_comment(path: Path) -> str:
    """Read the lines of comment at the top of a file as one text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").rstrip() for line in lines[:top])
