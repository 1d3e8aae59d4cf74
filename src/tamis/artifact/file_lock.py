"""The lock of a file: `try_lock` takes it, or waits for it, unless another process has it."""

from __future__ import annotations

import os
from typing import IO, Any


def try_lock(file: IO[Any] | int, *, wait: bool = False) -> bool:
    """Take the lock of an open file, or of a descriptor, as of a directory; False if another process has it.

    The system takes it back when the file is closed or the process ends, however it ends. Where there are no locks, as
    on some file systems and outside of POSIX, every process gets every lock.

    Args:
        file: the open file, or its descriptor.
        wait: until the other process gives it back; then the answer is always True.

    Example:
        >>> with open("held", "a") as file:
        ...     try_lock(file)
        True
    """
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
