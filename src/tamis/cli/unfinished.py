"""FILE.partial beside a file that takes long to make: layers that are finished wait there until all of them are."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tamis.errors import InvalidInput, TamisError
from tamis.layerwise.journal import ORIGIN
from tamis.train.distributed import Team

SUFFIX = ".partial"


@contextmanager
def unfinished(out: Path, team: Team) -> Iterator[Path]:
    """The directory for what is finished of `out`; gone when the block ends, and whoever writes `out` does so in it.

    It is made before the work, so that nobody waits for a file that cannot be written. What an interruption leaves
    there is where the next run goes on. An error of the user leaves nothing that was not there before: the same command
    would end in the same error, and another one could not use it.
    """
    directory = out.with_name(out.name + SUFFIX)
    finished = _finished_layers(directory)
    team.wait()  # all have looked before one of them changes anything
    if team.leads:
        _begin(directory, finished)
    team.wait()
    try:
        yield directory
    except BaseException as error:
        if not finished and (isinstance(error, TamisError) or not _finished_layers(directory)):
            _remove(directory, team)
        raise
    _remove(directory, team)


def _begin(directory: Path, finished: int) -> None:
    if finished:
        layers = "1 layer is" if finished == 1 else f"{finished} layers are"
        print(f"going on from {directory}, where {layers} finished", file=sys.stderr, flush=True)
        return
    if directory.is_dir() and not (directory / ORIGIN).exists() and any(directory.iterdir()):
        raise InvalidInput(f"'{directory}' is where finished layers would go, but there is something else: move it")
    if directory.is_dir():  # of a run that came to nothing, perhaps another one than this
        shutil.rmtree(directory)
    directory.mkdir()


def _finished_layers(directory: Path) -> int:
    return sum(1 for _ in directory.glob("layer_*.pt"))


def _remove(directory: Path, team: Team) -> None:
    if team.leads:
        shutil.rmtree(directory, ignore_errors=True)
