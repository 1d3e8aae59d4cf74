"""Reading what `torch.save` wrote, and noticing where it has changed since."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from tamis.errors import CorruptArtifact


def load_archive(path: Path, device: str | torch.device = "cpu") -> Any:
    """Plain values and tensors of a file of `torch.save`, if every part of it has the checksum that it was given.

    Raises:
        CorruptArtifact: a part has another one.
        Exception: whatever torch, pickle and zipfile raise for a file that is none of theirs.

    Example:
        >>> load_archive(directory / "checkpoint.pt")["epoch"]
        12
    """
    with zipfile.ZipFile(path) as archive:  # torch.load does not compare checksums
        damaged = archive.testzip()
    if damaged is not None:
        raise CorruptArtifact(f"the checksum of {damaged} is wrong")
    return torch.load(path, map_location=device, weights_only=True)
