"""Where a command that trains leaves its checkpoints: --directory, or else FILE.partial beside what it writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tamis.architecture import RESULT_FILE, SEARCH_FILE
from tamis.cli.interruption import note_resumption
from tamis.cli.unfinished import SUFFIX
from tamis.training import CHECKPOINT, Team

# What a training or a search writes, and what a kill leaves of it while it is written.
NAMES = "|".join(map(re.escape, (CHECKPOINT, SEARCH_FILE, RESULT_FILE)))
WRITTEN = re.compile(rf"({NAMES})|\.({NAMES})\.\d+\.[0-9a-f]+\.part")


@contextmanager
def open_training_directory(given: Path | None, out: Path, team: Team) -> Iterator[Path]:
    """Yield the directory that the user names, which stays; or FILE.partial, removed when the block ends without error.

    Whoever writes `out` does so in the block: until then, the same command goes on from what is in the directory. Only
    what training writes is ever removed: with anything else in it, the directory stays, and holds that.
    """
    directory = out.with_name(out.name + SUFFIX) if given is None else given
    note_resumption(directory, f"**/{CHECKPOINT}")
    yield directory
    if given is not None:
        return
    team.wait()  # until all of them have read what they need there
    if team.leads:
        with suppress(OSError):  # the file is written
            _clear(directory)


def _clear(directory: Path) -> None:
    for path in [*directory.iterdir()]:
        if WRITTEN.fullmatch(path.name) and not path.is_dir():
            path.unlink(missing_ok=True)
    directory.rmdir()
