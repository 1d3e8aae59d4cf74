"""Files that say something else than they should, with a checksum that is right, and what becomes of them."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from any_tensors import same
from artifact.versions import Said, closed, opened, packed, put_together, taken_apart, unpacked, version_of
from torch import Tensor

from tamis.artifact.format import read, write
from tamis.errors import CorruptArtifact

Kinds = dict[str, tuple[tuple[int, ...], torch.dtype]]
STATE = {"fc.weight": torch.tensor([[0.0, 1.5, 0.0], [-2.0, 0.0, 0.1]]), "fc.bias": torch.tensor([0.3, 0.7])}
MASKS = {"fc.weight": STATE["fc.weight"] != 0}
HOSTILE = ["[]", "[" * 300 + "]" * 300, "{}", '{"":0}', '"\U0001f600"', "0"]


def kinds(tensors: dict[str, Tensor]) -> Kinds:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def assert_same_state(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    assert all(same(mine[name], theirs[name]) for name in mine)


def written(path: Path, tensors: Any, about: Any, masks: Any = None, codes: Any = None) -> bytes:
    write(path, tensors, masks or {}, about, codes)
    return path.read_bytes()


def forged(content: bytes, change: Callable[[Said], Any], version: int | None = None) -> bytes:
    """The file, or another version of it, after a change of what it holds."""
    said = taken_apart(content)
    change(said)
    return put_together(version_of(content) if version is None else version, said)


def rewritten(content: bytes, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> bytes:
    """A file of version 1 after a change of its description and of the entries of its parts."""
    description, entries, data = opened(content)
    change(description, entries)
    return closed(description, entries, data)


def redescribed(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A file of version 2 after a change of its description."""
    data, row = unpacked(content)
    description = json.loads(zlib.decompress(row))
    change(description)
    return packed(data, zlib.compress(json.dumps(description).encode()))


def peak_of_refusing(path: Path, expected: Kinds, error: type[Exception], message: str) -> int:
    """The most memory that Python and numpy held at once, in bytes; the file's content is part of it."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            read(path, expected)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def hostile_json(hostile: str, size: int) -> bytes:
    """One character beyond 16 bits, and every character of the text takes 4 bytes."""
    return f',"\U0001f600":[{",".join([hostile] * (size // (len(hostile.encode()) + 1)))}]}}'.encode()


def assert_corrupt(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptArtifact, match=message) as caught:
        read(path, kinds(STATE))
    assert str(path) in str(caught.value)
