"""A `.tamis` file, opened once: what is hashed is what is decoded, whatever becomes of the file meanwhile."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact

START = rb'{"__metadata__":{"tamis":"{\"sha256\":\"'  # how the header of every file begins, from byte 8 on
CHECKSUM = slice(8 + len(START), 8 + len(START) + 64)  # where its hexadecimal digits stand


@dataclass(frozen=True, eq=False)
class File:
    """The bytes of a file, all of one reading.

    Attributes:
        path: where they were read, for messages.
        content: the bytes.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> tamis.prune(model, 0.5, "magnitude", example=torch.zeros(1, 3)).save("small.tamis")
        >>> file = File.read("small.tamis")
        >>> small = tamis.load(file, model)
        >>> len(file.sha256)  # of what was loaded, in hexadecimal digits
        64
    """

    path: Path
    content: Array

    @classmethod
    def read(cls, path: str | Path | File) -> File:
        """Read all bytes of a file that begins as ours do; of a file of another kind, nothing more is read.

        Raises:
            CorruptArtifact: the file is no `.tamis` file.
        """
        if isinstance(path, File):
            return path
        with Path(path).open("rb") as file:
            first = file.read(CHECKSUM.stop)
            if first[8 : CHECKSUM.start] != START or len(first) < CHECKSUM.stop:
                found = "empty" if not first else "not a .tamis file, or one whose beginning was changed"
                raise CorruptArtifact(f"{path} is {found}")
            content = np.empty(file.seek(0, os.SEEK_END), dtype=np.uint8)
            file.seek(0)
            return cls(Path(path), content[: file.readinto(content.data)])

    def __str__(self) -> str:
        return str(self.path)

    @cached_property
    def sha256(self) -> str:
        """Return the sha256 of all bytes, in hexadecimal digits."""
        return hashlib.sha256(self.content.data).hexdigest()

    @property
    def nbytes(self) -> int:
        """Return how many bytes it has."""
        return len(self.content)
