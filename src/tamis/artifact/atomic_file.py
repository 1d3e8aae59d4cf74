"""Atomic files: they appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_NAME = 255  # bytes, on nearly every file system


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Open a block that writes a new file, which replaces `path` when the block ends without an error.

    Whoever opens `path` sees the old content or the new, whatever happens meanwhile: a kill, a full disk, a second
    process that writes the same path. A kill can leave a file `.NAME.*.part` behind, which is safe to delete.

    Where `path` is a link, the file that it leads to is replaced. The new file has the permissions of the old one. A
    path that exists and is no regular file, such as a directory, a pipe or a device, raises an `OSError`. So does a
    full disk, with the name of the file, whichever library wrote it.

    Example:
        >>> with replace_file("weights.bin") as part:
        ...     part.write_bytes(b"all of it")
        9
    """
    permissions = _read_permissions(path)
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(target.parent))
    part = target.with_name(_make_part_name(target.name))
    try:
        # Never open to more than the old file was, but open to its writer, even where the old one is read-only.
        part.touch(mode=0o666 if permissions is None else permissions | stat.S_IRUSR | stat.S_IWUSR, exist_ok=False)
        yield part
        _flush(part)
        if permissions is not None:
            part.chmod(permissions)
        os.replace(part, target)
        _flush(target.parent)  # the name itself must survive a power cut, too
    except Exception as error:
        number = _find_system_error(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def _find_system_error(error: BaseException) -> int | None:
    """Find the number of a system error that names no file, such as that of a full disk, in what a library raised."""
    if isinstance(error, OSError):
        return None if error.filename is not None else error.errno
    if said := re.search(r"\(os error (\d+)\)", str(error)):  # safetensors
        return int(said[1])
    if isinstance(error, RuntimeError) and error.__context__ is not None:  # torch, closing its archive after an error
        return _find_system_error(error.__context__)
    return None


def _read_permissions(path: str | Path) -> int | None:
    """Return the permissions of the file that is to be replaced; None if there is none."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file, so it is not replaced", str(path))
    return mode & 0o777


def _make_part_name(name: str) -> str:
    """Make a name that no other part has; a `name` that is too long for it is shortened."""
    suffix = f".{os.getpid()}.{secrets.token_hex(4)}.part"
    while len(os.fsencode(f".{name}{suffix}")) > LONGEST_NAME:
        name = name[:-1]
    return f".{name}{suffix}"


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
