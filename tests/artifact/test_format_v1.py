"""Version 1 of the file, which is no longer written: files of it are read, and refused when they are wrong.

test_format.py has what both versions have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from artifact.forging import (
    HOSTILE,
    MASKS,
    STATE,
    assert_corrupt,
    hostile_json,
    kinds,
    peak_of_refusing,
    rewritten,
    written,
)
from artifact.versions import as_version, sealed

from tamis.artifact.format import read, write
from tamis.errors import CorruptArtifact, InvalidParameters


def test_a_header_longer_than_its_tensors_can_need_is_not_read(tmp_path: Path) -> None:
    path, state = tmp_path / "x.tamis", {"fc": torch.ones(2)}
    room = 2**20 + 2**12 + 64 * len("fc")
    spent = int.from_bytes(as_version(1, written(path, state, {"note": ""}))[:8], "little")
    write(path, state, {}, {"note": "x" * (room - spent)})
    path.write_bytes(as_version(1, path.read_bytes()))
    assert int.from_bytes(path.read_bytes()[:8], "little") == room
    assert len(read(path, kinds(state)).about["note"]) == room - spent
    with pytest.raises(InvalidParameters, match=rf"another model .* {room:,} bytes, .* at most {2**20:,}"):
        read(path, {})


def test_forged_headers(tmp_path: Path) -> None:
    path = tmp_path / "small.tamis"
    content = as_version(1, written(path, STATE, {"note": 1}, MASKS))
    changes: list[tuple[str, Callable[[dict[str, Any], dict[str, Any]], Any]]] = [
        ("'about' and 'tensors'", lambda text, _: text.update(tensors=[])),
        ("'fc.weight' is not described", lambda text, _: text["tensors"].update({"fc.weight": 3})),
        ("belongs to no tensor", lambda text, _: text["tensors"].pop("fc.weight")),
        ("belongs to no tensor", lambda _, parts: parts.update({"../../etc/x": parts.pop("fc.weight/values")})),
        ("belongs to no tensor", lambda _, parts: parts.update({"plain": parts.pop("fc.weight/values")})),
        ("not stand where", lambda _, parts: parts["fc.weight/values"].update(data_offsets=[0, 2**63])),
        ("has the offsets", lambda _, parts: parts["fc.weight/values"].update(data_offsets=[0, 4, 8])),
        ("as safetensors does", lambda _, parts: parts["fc.weight/values"].update(more=0)),
        ("belong to nothing", lambda _, parts: parts.pop("fc.weight/bitmask")),
    ]
    for message, change in changes:
        assert_corrupt(path, rewritten(content, change), message)


def test_misplaced_parts(tmp_path: Path) -> None:
    path, tensors = tmp_path / "x.tamis", {"b": torch.tensor([True, False]), "w": torch.tensor([0.1, 0.2])}
    content = as_version(1, written(path, tensors, {}))

    def swapped(_: dict[str, Any], parts: dict[str, Any]) -> None:
        parts["b/values"]["data_offsets"], parts["w/values"]["data_offsets"] = [0, 2], [2, 10]

    floats, truths = content[-10:-2], content[-2:]
    path.write_bytes(rewritten(sealed(content[:-10] + truths + floats), swapped))
    with pytest.raises(CorruptArtifact, match="not stand where"):
        read(path, kinds(tensors))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_header_takes_no_more_than_sixty_times_its_length(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "x.tamis"
    state = {"w": torch.zeros(8)}
    content = as_version(1, written(path, state, {}))
    data = 8 + int.from_bytes(content[:8], "little")

    def padded(size: int) -> int:
        header = content[8:data].rstrip()[:-1] + hostile_json(hostile, size)
        header += b" " * (-len(header) % 8)
        path.write_bytes(sealed(len(header).to_bytes(8, "little") + header + content[data:]))
        return len(header)

    length = padded(100_000)
    assert peak_of_refusing(path, kinds(state), CorruptArtifact, "as safetensors does") < 60 * length
    length = padded(2**20 + 2**15)  # more than there is room for
    assert peak_of_refusing(path, kinds(state), InvalidParameters, "another model") < 2 * length + 700_000
