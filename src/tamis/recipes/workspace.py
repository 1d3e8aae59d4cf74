"""A run keeps its finished work in OUT/.tamis-compress, so that a kill loses no step, no layer and no epoch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tamis.artifact import try_lock
from tamis.errors import InvalidInput, TamisError
from tamis.recipes.lock import Lock

WORK_FOLDER = ".tamis-compress"
WORK_LOCK, HELD = "lock.yaml", "held"
STEPS = "step_[0-9][0-9]*_*"  # files and folders, all of a step


class Workspace:
    """A workspace is the folder of unfinished work inside a run's output folder.

    Args:
        out: the output folder.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / WORK_FOLDER

    def read_lock(self) -> Lock | None:
        """Return the lock of the run that was broken off here; None if there is none."""
        path = self.folder / WORK_LOCK
        return Lock.read(path) if path.exists() else None

    def belongs_to(self, lock: Lock) -> bool:
        """Say whether the run that was broken off here is this one."""
        earlier = self.read_lock()
        return earlier is not None and not lock.differs(earlier)

    def begin(self, lock: Lock, force: bool = False) -> Lock:
        """Go on with the run that was begun here, if it is this one, or begin a new one, and return its lock.

        Args:
            lock: of this run.
            force: remove the steps of another run that is not finished.

        Raises:
            InvalidInput: another run was begun here, and is not finished.
        """
        earlier = self.read_lock()
        # Compared by what makes a network: another number of threads goes on with the old one.
        differs = "" if earlier is None else lock.differs(earlier)
        if earlier is not None and not differs:
            return earlier
        if differs and not force:
            raise InvalidInput(
                f"'{self.folder}' holds another run that is not finished: {differs}. Repeat that one to go on; name "
                "another folder as out=, or pass force=True to write over it, to begin anew"
            )
        # Steps first and then the lock: a kill in between leaves a folder that claims nothing.
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_steps()  # of the other run, or of nobody knows which
        lock.write(self.folder / WORK_LOCK)
        return lock

    @contextmanager
    def only_process(self) -> Iterator[None]:
        """Hold the folder for this process alone; however it ends, the next one may work here.

        Raises:
            InvalidInput: another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # A file of its own is held, as lock.yaml is replaced by a new file when it is written, and the lock of the old
        # one would be held by nobody.
        with (self.folder / HELD).open("a") as file:
            if not try_lock(file):
                raise InvalidInput(
                    f"another process is at work in '{self.folder}': wait for it, or name another folder with -o"
                )
            yield

    @contextmanager
    def remove_on_early_error(self) -> Iterator[None]:
        """Remove the folder when an error of the user ends the run before any step is finished."""
        try:
            yield
        except TamisError:
            # A finished step is worth keeping: the same call goes on from it once the error is mended.
            if not any(self.folder.glob("step_*.tamis")):
                self.remove()
                with suppress(OSError):  # something else is there
                    self.folder.parent.rmdir()
            raise

    def file(self, number: int, name: str) -> Path:
        """Return where the network after a step lies."""
        return self.folder / f"step_{number:02d}_{name}.tamis"

    def directory(self, number: int, name: str) -> Path:
        """Make a folder for what a step leaves on its way, and return it."""
        path = self.folder / f"step_{number:02d}_{name}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def notes(self, number: int, name: str) -> Path:
        """Return the file for what a step wants to be known when the run is over; it need not exist."""
        return self.folder / f"step_{number:02d}_{name}.json"

    def tidy(self, number: int, name: str) -> None:
        """Remove what a step, now finished, left on its way."""
        shutil.rmtree(self.folder / f"step_{number:02d}_{name}", ignore_errors=True)

    def remove(self) -> None:
        """Remove all of it when the run is over; the lock after the steps: a kill must not leave these without it."""
        with suppress(OSError):  # the next run tries again, and says what is in the way
            self._remove_steps()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_steps(self) -> None:
        for path in [*self.folder.glob(STEPS)]:
            # A link is removed, and not what it leads to.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
