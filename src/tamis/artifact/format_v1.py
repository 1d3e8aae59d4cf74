"""Version 1 of the `.tamis` file, which is read and no longer written: every part is an entry of the header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact.encodings.base import Array
from tamis.artifact.header import Description, Part, read_claim, read_entries
from tamis.errors import CorruptArtifact

VERSION = 1


class Entries:
    """The data of a file in which the numbers of a part follow one another; starts count bytes."""

    def __init__(self, data: Array) -> None:
        self._data = data

    def inflate(self) -> None:
        pass

    def numbers(self, part: Part) -> Tensor:
        row = self._data[part.start : part.start + part.nbytes]
        return torch.from_numpy(row).view(part.dtype).reshape(part.shape)

    def count_stored_bytes(self, part: Part) -> int:
        return part.nbytes


def read_description(
    path: Path, text: Mapping[str, Any], entries: Mapping[str, Any], content: Array, data: int
) -> Description:
    """Read the description of a file of version 1 from its metadata and the entries of its header.

    Args:
        path: for messages.
        text: the metadata.
        entries: the header without the metadata.
        content: the whole file.
        data: where the header ends.
    """
    about, tensors = text.get("about"), text.get("tensors")
    if len(text) != 5 or not isinstance(about, dict) or not isinstance(tensors, dict):
        raise CorruptArtifact(f"{path} is corrupt: its metadata must have 'about' and 'tensors', and nothing unknown")
    claims = {name: read_claim(path, name, entry) for name, entry in tensors.items()}
    parts: dict[str, dict[str, Part]] = {name: {} for name in claims}
    for full_name, part in read_entries(path, entries, content, data).items():
        name, _, label = full_name.rpartition("/")  # the name of a part has no slash, the name of a tensor may
        if name not in claims:
            raise CorruptArtifact(f"{path} is corrupt: it has {full_name!r:.200}, which belongs to no tensor of it")
        parts[name][label] = part
    return Description(about, claims, parts, Entries(content[data:]))
