"""FILE.partial beside a file that takes long to make: layers that are finished wait there until all of them are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tamis.cli.interruption import note_resumption
from tamis.errors import InvalidInput, TamisError
from tamis.layerwise import ORIGIN
from tamis.training import Team

SUFFIX = ".partial"
LAYER = r"layer_\d{4,}\.pt"
# What a journal writes, and what a kill leaves of it while it is written (`tamis.artifact.atomic_file.replace_file`).
WRITTEN = re.compile(rf"{LAYER}|{re.escape(ORIGIN)}|\.({LAYER}|{re.escape(ORIGIN)})\.\d+\.[0-9a-f]+\.part")


@contextmanager
def open_parts_directory(out: Path, team: Team) -> Iterator[Path]:
    """Yield the directory for finished parts of `out`, removed when the block ends; `out` is written in the block.

    Only what a journal writes is ever removed: with anything else in it, the directory stays, and holds that.

    It is made before the work, so that nobody waits for a file that cannot be written. What an interruption leaves
    there is where the next run goes on. An error of the user leaves nothing that was not there before: the same command
    would end in the same error, and another one could not use it.
    """
    directory = out.with_name(out.name + SUFFIX)
    note_resumption(directory, "layer_*.pt")
    finished = _count_finished_layers(directory)
    team.wait()  # all have looked before one of them changes anything
    if team.leads:
        _begin(directory, finished)
    team.wait()
    try:
        yield directory
    except BaseException as error:
        if not finished and (isinstance(error, TamisError) or not _count_finished_layers(directory)):
            _remove(directory, team)
        raise
    _remove(directory, team)


def _begin(directory: Path, finished: int) -> None:
    if finished:
        layers = "1 layer is" if finished == 1 else f"{finished} layers are"
        print(f"going on from {directory}, where {layers} finished", file=sys.stderr, flush=True)
        return
    if directory.is_dir():  # of a run that came to nothing, perhaps another one than this
        if not (directory / ORIGIN).exists() and any(not _is_written(path) for path in directory.iterdir()):
            raise InvalidInput(f"'{directory}' is where finished layers would go, but there is something else: move it")
        _clear(directory)
    try:
        directory.mkdir(exist_ok=True)
    except FileExistsError:
        raise InvalidInput(
            f"'{directory}' is a file, but a directory of that name is to keep finished layers until "
            f"'{str(directory).removesuffix(SUFFIX)}' is whole: move it, or write to another file with -o"
        ) from None


def _count_finished_layers(directory: Path) -> int:
    return sum(1 for path in directory.glob("layer_*.pt") if re.fullmatch(LAYER, path.name))


def _is_written(path: Path) -> bool:
    return WRITTEN.fullmatch(path.name) is not None and not path.is_dir()


def _clear(directory: Path) -> None:
    """Remove what a journal wrote, and the directory if nothing else is in it."""
    for path in [*directory.iterdir()]:
        if _is_written(path):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # something else is there, or it is a link to a directory
        directory.rmdir()


def _remove(directory: Path, team: Team) -> None:
    if team.leads:
        with suppress(OSError):  # the file is written, or another error is on its way
            _clear(directory)
