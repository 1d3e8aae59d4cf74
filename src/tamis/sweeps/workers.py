"""Each worker of a sweep holds a lock for as long as it lives, and its trials have heartbeats."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tamis.artifact import try_lock

INTERVAL = 5.0  # seconds between two beats
GRACE = 30.0  # seconds without a beat after which a worker elsewhere counts as dead
SEPARATOR = "~"  # between the parts of a worker's name


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait for a lock and hold it; the system takes it back when the process ends, however it ends."""
    # To append, so that a file which others hold is not emptied.
    with path.open("a") as file:
        try_lock(file, wait=True)
        yield


def is_held(path: Path) -> bool:
    """Say whether some process holds a lock."""
    with path.open("a") as file:
        # Where nobody holds it, it is taken for a moment, and given back as the file is closed.
        return not try_lock(file)


class Workers:
    """Workers are the processes at work in a folder, this one among them.

    Args:
        folder: where their locks are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A random part, because numbers of processes are used again, and are the same in many containers.
        self.own = SEPARATOR.join((socket.gethostname(), str(os.getpid()), secrets.token_hex(4)))

    @contextmanager
    def enlist(self) -> Iterator[None]:
        """Hold this worker's lock meanwhile, by which others see that it lives."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(self._find_lock(self.own)):
            yield
        self._find_lock(self.own).unlink(missing_ok=True)  # not after an error: what was begun is to be found dead

    def is_alive(self, worker: str) -> bool | None:
        """Say whether a worker lives; None where only heartbeats can tell: on another machine, or in another folder."""
        # Locks are trusted on one machine only: many network file systems do not pass them on.
        same_machine = worker.split(SEPARATOR)[0] == socket.gethostname()
        if not same_machine or not self._find_lock(worker).exists():
            return None
        if worker == self.own or is_held(self._find_lock(worker)):
            return True
        # Where the file system has no locks, nobody's is held, not even this worker's own, and that says nothing.
        own = self._find_lock(self.own)
        return None if own.exists() and not is_held(own) else False

    def _find_lock(self, worker: str) -> Path:
        return self.folder / f"{worker}.lock"


class Heartbeats:
    """Heartbeats are timed by this machine's clock when they are seen, so that clocks of machines need not agree."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, float]] = {}

    def is_silent(self, trial: int, beat: object) -> bool:
        """Say whether a trial's last beat has been the same for too long."""
        now = time.monotonic()  # which no correction of the clock turns back
        # From when it was first seen here: how old the beat was by then is not known.
        last, since = self._seen.setdefault(trial, (beat, now))
        if last != beat:
            self._seen[trial] = (beat, now)
            return False
        return now - since > GRACE


@contextmanager
def send_heartbeats(beat: Callable[[int], None]) -> Iterator[None]:
    """Call `beat(1)`, `beat(2)`, … every few seconds meanwhile; it raises `StopIteration` when nobody listens."""
    over = threading.Event()

    def send() -> None:
        count = 0
        while not over.wait(INTERVAL):
            count += 1
            try:
                beat(count)
            except StopIteration:
                return
            except Exception:  # a database that does not answer now may do so next time
                continue

    # A thread beside the work, which may be in one call for minutes; as a daemon it never keeps a process alive.
    thread = threading.Thread(target=send, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        # No beat may come after this: the trial is about to be finished.
        over.set()
        thread.join()
