"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A new file to write, which takes the place of `path` when the block ends without an error.

    Whoever opens `path` sees the old content or the new, whatever happens meanwhile: a kill, a full disk, a second
    process that writes the same path. A kill can leave a file `.NAME.*.part` behind, which is safe to delete.

    Example:
        >>> with replacing("weights.bin") as part:
        ...     part.write_bytes(content)
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(path.parent))
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)
        yield part
        _flush(part)
        os.replace(part, path)
        _flush(path.parent)  # the name itself must survive a power cut, too
    finally:
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
