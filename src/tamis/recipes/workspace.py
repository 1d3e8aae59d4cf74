"""OUT/.tamis-compress: what a run has finished, so that a kill loses no step, and within a step no layer or epoch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tamis.artifact import try_lock
from tamis.errors import InvalidInput, TamisError
from tamis.recipes.lock import Lock

FOLDER = ".tamis-compress"
QUESTION, HELD = "lock.yaml", "held"
STEPS = "step_[0-9][0-9]*_*"  # files and folders, all of a step


class Workspace:
    """The folder of one run inside its output folder.

    Args:
        out: the output folder.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def begun(self) -> Lock | None:
        """What the run that left off here was about; None if there is none."""
        path = self.folder / QUESTION
        return Lock.read(path) if path.exists() else None

    def belongs_to(self, lock: Lock) -> bool:
        """Whether the run that left off here is this one."""
        begun = self.begun()
        return begun is not None and not lock.differs(begun)

    def begin(self, lock: Lock, force: bool = False) -> Lock:
        """Go on with the run that was begun here, if it is this one, or begin; the lock of that run.

        Args:
            lock: of this run.
            force: remove the steps of another run that is not finished.

        Raises:
            InvalidInput: another run was begun here, and is not finished.
        """
        begun = self.begun()
        differs = "" if begun is None else lock.differs(begun)
        if begun is not None and not differs:
            return begun
        if differs and not force:
            raise InvalidInput(
                f"'{self.folder}' holds another run that is not finished: {differs}. Repeat that one to go on; name "
                "another folder as out=, or pass force=True to write over it, to begin anew"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_steps()  # of the other run, or of nobody knows which
        lock.write(self.folder / QUESTION)
        return lock

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only process at work here; however it ends, the next one may.

        Raises:
            InvalidInput: another one is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / HELD).open("a") as file:
            if not try_lock(file):
                raise InvalidInput(
                    f"another process is at work in '{self.folder}': wait for it, or name another folder with -o"
                )
            yield

    @contextmanager
    def given_up_on_errors(self) -> Iterator[None]:
        """An error of the user before any step is finished leaves nothing: another recipe could not use it."""
        try:
            yield
        except TamisError:
            if not any(self.folder.glob("step_*.tamis")):
                self.remove()
                with suppress(OSError):  # something else is there
                    self.folder.parent.rmdir()
            raise

    def file(self, number: int, name: str) -> Path:
        """Where the network after a step lies."""
        return self.folder / f"step_{number:02d}_{name}.tamis"

    def directory(self, number: int, name: str) -> Path:
        """For what a step leaves on its way; made if it is not there."""
        path = self.folder / f"step_{number:02d}_{name}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def notes(self, number: int, name: str) -> Path:
        """What a step wants to be known of it when the run is over; it need not be there."""
        return self.folder / f"step_{number:02d}_{name}.json"

    def tidy(self, number: int, name: str) -> None:
        """Remove what a step, now finished, left on its way."""
        shutil.rmtree(self.folder / f"step_{number:02d}_{name}", ignore_errors=True)

    def remove(self) -> None:
        """All of it, when the run is over; its lock after its steps: a kill must not leave these without it."""
        with suppress(OSError):  # the next run tries again, and says what is in the way
            self._remove_steps()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_steps(self) -> None:
        for path in [*self.folder.glob(STEPS)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
