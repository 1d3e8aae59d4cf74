"""Ctrl-C: what a command has left by then, and which one goes on from it."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from tamis.cli.command_line import write_command_line

INTERRUPTED = 130  # the exit code, as shells have it


class _Left(NamedTuple):
    """A command may leave places to continue from, and files, noted with the state they had when it began."""

    places: tuple[tuple[Path, str], ...] = ()
    files: tuple[tuple[Path, object], ...] = ()


NOTHING = _Left()
_LEFT: ContextVar[_Left] = ContextVar("left", default=NOTHING)


def begin() -> None:
    """Forget the command before."""
    _LEFT.set(NOTHING)


def note_resumption(folder: Path, pattern: str = "*") -> None:
    """Note that the same command goes on from what is in a folder, where there is something of this name."""
    left = _LEFT.get()
    _LEFT.set(left._replace(places=(*left.places, (folder, pattern))))


def writes(file: Path) -> None:
    """Note that the command will write a file."""
    left = _LEFT.get()
    _LEFT.set(left._replace(files=(*left.files, (file, _state(file)))))


def explain_how_to_go_on() -> str:
    """Say what an interrupted command has left, and how to continue it."""
    left = _LEFT.get()
    written = [str(file) for file, before in left.files if _state(file) not in (None, before)]
    if written:
        return f"interrupted; {', '.join(written)} is written"
    for folder, pattern in left.places:
        if folder.is_dir() and any(folder.glob(pattern)):
            found = f"interrupted; what is finished lies in {folder}"
            return f"{found}, and the same command goes on from there:{_write_again()}"
    nothing = ", and nothing was written" if left.files or left.places else ""
    return f"interrupted{nothing}; the same command begins anew:{_write_again()}"


def is_leader() -> bool:
    """Tell whether this process speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _write_again() -> str:
    """Return the command on a line of its own, to be pasted; torchrun's own arguments are not known here."""
    return f"\n  {write_command_line()}" if "WORLD_SIZE" not in os.environ else " start it as before"


def _state(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
