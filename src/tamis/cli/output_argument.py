"""-o on the command line: the file that a command writes, looked at before the long work and not after it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tamis.cli.interruption import writes
from tamis.errors import InvalidInput


def prepare_output(path: Path, *suffixes: str) -> None:
    """Make the directory of a file that will be written, of one of these kinds."""
    if path.suffix not in suffixes:
        raise InvalidInput(f"-o must end in {' or '.join(suffixes)}, got '{path}'")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    writes(path)


def name_replaced(path: Path) -> str:
    """Return what to add to the name of a file that is about to be written, where it exists already."""
    return ", in place of the one that was there" if path.exists() else ""
