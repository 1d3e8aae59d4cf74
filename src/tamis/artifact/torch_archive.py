"""Archives of `torch.save`: read them, and notice where they have changed since."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from tamis.errors import CorruptArtifact


def check_uncompressed(path: Path) -> None:
    """Raise CorruptArtifact for an archive with compressed parts: torch writes none, and they could fill the memory.

    A file that is no archive, as torch wrote them long ago, has none.
    """
    if not zipfile.is_zipfile(path):
        return
    for entry in _list_entries(path):
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CorruptArtifact(
                f"'{path}' was not written by torch.save: {entry.filename!r:.80} in it is compressed, "
                f"{entry.compress_size:,} bytes for {entry.file_size:,}"
            )


def _list_entries(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:  # ValueError: of names
        raise CorruptArtifact(f"'{path}' was not written by torch.save: {error!s:.200}") from error


def load_archive(path: Path, device: str | torch.device = "cpu") -> Any:
    """Load plain values and tensors from a file of `torch.save`, after checking the checksum of every part.

    Raises:
        CorruptArtifact: a part has another one.
        Exception: whatever torch, pickle and zipfile raise for a file that is none of theirs.

    Example:
        >>> torch.save({"epoch": 12}, "checkpoint.pt")
        >>> load_archive("checkpoint.pt")["epoch"]
        12
    """
    check_uncompressed(path)
    with zipfile.ZipFile(path) as archive:  # torch.load does not compare checksums
        damaged = archive.testzip()
    if damaged is not None:
        raise CorruptArtifact(f"the checksum of {damaged} is wrong")
    return torch.load(path, map_location=device, weights_only=True)
