"""Version 2 of the file: whatever is wrong with its compressed description or its numbers is refused in time.

test_format.py has what both versions have in common.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from artifact.forging import (
    HOSTILE,
    MASKS,
    STATE,
    Kinds,
    assert_corrupt,
    assert_same_state,
    hostile_json,
    kinds,
    peak_of_refusing,
    redescribed,
    rewritten,
    written,
)
from artifact.versions import as_version, closed, opened, packed, unpacked

from tamis.artifact import header
from tamis.artifact.codes import Codes
from tamis.artifact.format import read, stored_bytes, write
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    return written(tmp_path / "small.tamis", STATE, {"note": 1}, MASKS)


def test_a_description_no_library_would_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "LONGEST_HEADER", 1000)
    with pytest.raises(InvalidInput, match="over 1,000 for 0 tensors"):
        write(tmp_path / "x.tamis", {}, {}, {"note": "x" * 1000})


def test_a_description_longer_than_its_tensors_can_need_is_neither_written_nor_read(tmp_path: Path) -> None:
    path, state = tmp_path / "x.tamis", {"fc": torch.ones(2)}
    room = 2**20 + 2**12 + 64 * len("fc")
    spent = len(zlib.decompress(unpacked(written(path, state, {"note": ""}))[1]))
    write(path, state, {}, {"note": "x" * (room - spent)})
    assert len(zlib.decompress(unpacked(path.read_bytes())[1])) == room
    assert len(read(path, kinds(state)).about["note"]) == room - spent
    with pytest.raises(InvalidInput, match=rf"take {room + 1:,} bytes, over {room:,} for 1 tensors"):
        write(path, state, {}, {"note": "x" * (room - spent + 1)})
    with pytest.raises(InvalidParameters, match=rf"another model .* more than {2**20:,} bytes"):
        read(path, {})
    with pytest.raises(InvalidParameters, match=rf"another model .* more than {2**20:,} bytes"):
        stored_bytes(path, [])


def test_forged_headers(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "small.tamis"
    size = opened(small)[1]["data"]["shape"][0]
    changes: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("'data' and 'description' alone", lambda header: header.pop("data")),
        ("'data' and 'description' alone", lambda header: header.update(more=header["data"])),
        ("'data' and 'description' alone", lambda header: header.update({"fc.bias/values": header.pop("data")})),
        ("'data' must be a row of bytes", lambda header: header["data"].update(dtype="I8")),
        ("'data' must be a row of bytes", lambda header: header["data"].update(shape=[1, size])),
        ("not stand where", lambda header: header["data"].update(data_offsets=[0, size - 1], shape=[size - 1])),
        ("not stand where", lambda header: header["data"].update(data_offsets=[1, size], shape=[size - 1])),
        ("not stand where", lambda header: header["description"].update(data_offsets=[0, size], shape=[size])),
        ("as safetensors does", lambda header: header["data"].update(more=0)),
        ("cannot be read", lambda header: header.update(data=header["description"], description=header["data"])),
    ]
    for message, change in changes:
        assert_corrupt(path, rewritten(small, lambda _, header, change=change: change(header)), message)  # type: ignore[misc]
    data, description = unpacked(small)
    backwards = {
        "description": {"dtype": "U8", "shape": [len(description)], "data_offsets": [0, len(description)]},
        "data": {"dtype": "U8", "shape": [size], "data_offsets": [len(description), len(description) + size]},
    }
    path.write_bytes(closed({"format": "tamis", "version": 2}, backwards, description + data))
    assert_same_state(read(path, kinds(STATE)).tensors, STATE)


def test_forged_descriptions(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "small.tamis"
    first: Callable[[dict[str, Any]], dict[str, Any]] = lambda said: said["tensors"][0]  # noqa: E731
    changes: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("'about', 'tensors' and 'tops'", lambda said: said.update(more=1)),
        ("'about', 'tensors' and 'tops'", lambda said: said.pop("about")),
        ("'about', 'tensors' and 'tops'", lambda said: said.update(tensors={})),
        ("'tops' are None", lambda said: (said.pop("tops"), said.update(x=1))),
        ("'tops' are \\[0, 5\\]", lambda said: said.update(tops=[0, 5])),
        ("'tops' are \\[0, -1, 0\\]", lambda said: said.update(tops=[0, -1, 0])),
        ("'tops' are \\[0, 5.0, 0\\]", lambda said: said.update(tops=[0, 5.0, 0])),
        ("no room for 5 numbers of 4 bytes", lambda said: said.update(tops=[0, 6, 0])),
        ("no room for 0 numbers of 8 bytes", lambda said: said.update(tops=[1, 5, 0])),
        ("2 bytes are left where parts of 1 bytes", lambda said: said.update(tops=[0, 4, 0])),
        ("6 bytes are left where parts of 1 bytes", lambda said: said.update(tops=[0, 0, 0])),
        ("'fc.bias' twice", lambda said: said["tensors"].append(first(said))),
        ("without a name or parts is not described", lambda said: said["tensors"].append(3)),
        ("without a name or parts is not described", lambda said: first(said).pop("parts")),
        ("without a name or parts is not described", lambda said: first(said).update(name=["x"])),
        ("'fc.bias' has a part that is not described", lambda said: first(said)["parts"].append("values")),
        ("'fc.bias' has a part that is not described", lambda said: first(said)["parts"].append(["x"])),
        ("'fc.bias' has a part that is not described", lambda said: first(said)["parts"].append(["values", 0])),
        ("'fc.bias/x' should be part 'U8' again", lambda said: first(said)["parts"].append(["x", "U8"])),
        ("'fc.bias/x' should be part 1 again, and 1 parts", lambda said: first(said)["parts"].append(["x", 1])),
        ("'fc.bias/x' should be part -1 again", lambda said: first(said)["parts"].append(["x", -1])),
        ("'fc.bias/x' should be part True again", lambda said: first(said)["parts"].append(["x", True])),
        ("'fc.bias' has the parts", lambda said: first(said)["parts"].append(["more", 0])),
        ("'fc.bias' has a part that is not described", lambda said: first(said)["parts"].append([1, "U8", [0]])),
        ("'fc.bias' has a part that is not described", lambda said: first(said)["parts"].append(["values", "U8", [0]])),
        ("'fc.bias' has the parts", lambda said: first(said)["parts"].append(["more", "U8", [0]])),
        ("1 bytes are left where parts of 0 bytes", lambda said: said["tensors"][1]["parts"].pop(0)),
        ("1 bytes are left where parts of 9 bytes", lambda said: first(said)["parts"].append(["more", "U8", [8]])),
        ("no room for 13 numbers of 4 bytes", lambda said: first(said)["parts"].append(["more", "F32", [8]])),
        ("no room for .* numbers of 2 bytes", lambda said: first(said)["parts"].append(["more", "F16", [2**40]])),
        ("has the shape", lambda said: first(said)["parts"].append(["more", "U8", [2**61]])),
    ]
    for message, change in changes:
        assert_corrupt(path, redescribed(small, change), message)


def test_compressed_rows_must_end_where_they_should(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "small.tamis"
    data, row = unpacked(small)
    text = zlib.decompress(row)
    with_dictionary = zlib.compressobj(zdict=text)
    raw_deflate = zlib.compressobj(wbits=-15)
    for changed, message in (
        (row + b"\0", "does not end where"),
        (row + row, "does not end where"),
        (row[:-1], "does not end where"),
        (row[:-8], "does not end where"),
        (b"", "does not end where"),
        (row[:-1] + bytes([row[-1] ^ 1]), "cannot be read"),
        (text, "cannot be read"),
        (gzip.compress(text), "cannot be read"),
        (raw_deflate.compress(text) + raw_deflate.flush(), "cannot be read"),
        (with_dictionary.compress(text) + with_dictionary.flush(), "cannot be read"),
        (zlib.compress(text + text), "not JSON"),
        (zlib.compress(b"[1]"), "not a JSON object"),
        (zlib.compress(text.replace(b'"note":1', b'"note":1,"note":1')), "twice"),
        (zlib.compress(text.replace(b'"note":1', b'"note":NaN')), "NaN is no number"),
        (zlib.compress(b"\xff" + text), "not JSON"),
    ):
        assert_corrupt(path, packed(data, changed), message)


def with_tops(content: bytes, lengths: list[int]) -> bytes:
    return redescribed(content, lambda said: said.update(tops=lengths))


def ones(path: Path) -> tuple[bytes, Kinds]:
    """A file of version 2 of a hundred times 0.1, whose highest bytes are compressed."""
    state = {"w": torch.full((100,), 0.1)}
    return written(path, state, {}), kinds(state)


def test_highest_bytes_must_be_those_of_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.tamis"
    content, expected = ones(path)
    data, row = unpacked(content)
    (top,) = [length for length in json.loads(zlib.decompress(row))["tops"] if length]
    lower, tops = data[:-top], zlib.decompress(data[-top:])
    assert tops == b"\x3d" * 100 and len(lower) == 300
    for changed in (tops[:-1], tops + tops[:1], b""):
        short = zlib.compress(changed)
        path.write_bytes(with_tops(packed(lower + short, row), [0, len(short), 0]))
        with pytest.raises(CorruptArtifact, match="are not the highest bytes of 100 numbers"):
            read(path, expected)
    for short, message in (
        (data[-top:] + b"\0", "are not the highest"),
        (data[-top:-1], "are not the highest"),
        (bytes(top), "cannot be read"),
    ):
        path.write_bytes(with_tops(packed(lower + short, row), [0, len(short), 0]))
        with pytest.raises(CorruptArtifact, match=message):
            read(path, expected)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_description_takes_no_more_than_sixty_times_its_length(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "x.tamis"
    state = {"w": torch.zeros(8)}
    data, row = unpacked(written(path, state, {}))
    text = zlib.decompress(row)[:-1] + hostile_json(hostile, 100_000)
    path.write_bytes(packed(data, zlib.compress(text)))
    message = "'about', 'tensors' and 'tops'"
    assert peak_of_refusing(path, kinds(state), CorruptArtifact, message) < 60 * len(text)


@pytest.mark.parametrize("filling", [b" ", b"[", b'{"x":'])
def test_a_description_is_not_decompressed_beyond_its_room(tmp_path: Path, filling: bytes) -> None:
    """16 MB that were compressed a thousandfold, of which one is read."""
    path = tmp_path / "x.tamis"
    data, _ = unpacked(written(path, {}, {}))
    bomb = zlib.compress(filling * (16_000_000 // len(filling)), 1)
    assert len(bomb) < 125_000
    path.write_bytes(packed(data, bomb))
    assert peak_of_refusing(path, {}, InvalidParameters, "another model") < 2 * 2**20 + 2 * len(bomb) + 500_000
    tracemalloc.start()
    with pytest.raises(InvalidParameters, match="another model"):
        stored_bytes(path, [])
    assert tracemalloc.get_traced_memory()[1] < 2 * 2**20 + 2 * len(bomb) + 500_000
    tracemalloc.stop()


def one_part(dtype: str, code: str, numbers: int, data: bytes, tops: list[int]) -> bytes:
    """A file of one tensor of a hundred entries that has so many numbers."""
    said = {"name": "w", "encoding": "dense", "dtype": dtype, "shape": [100], "parts": [["values", code, [numbers]]]}
    return packed(data, zlib.compress(json.dumps({"about": {}, "tensors": [said], "tops": tops}).encode()))


def test_highest_bytes_are_not_decompressed_beyond_their_number(tmp_path: Path) -> None:
    path = tmp_path / "x.tamis"
    content, expected = ones(path)
    lower = unpacked(content)[0][:300]
    bomb = zlib.compress(bytes(16_000_000), 9)
    assert len(bomb) > 100  # for a hundred numbers there is no room for it
    path.write_bytes(with_tops(packed(lower + bomb, unpacked(content)[1]), [0, len(bomb), 0]))
    assert peak_of_refusing(path, expected, CorruptArtifact, "no room for 100 numbers") < 1_000_000
    numbers = len(bomb) + 1
    path.write_bytes(one_part("float32", "F32", numbers, bytes(3 * numbers) + bomb, [0, len(bomb), 0]))
    message = f"{len(bomb)} bytes are not the highest bytes of {numbers} numbers"
    assert peak_of_refusing(path, expected, CorruptArtifact, message) < 4 * path.stat().st_size + 1_000_000


def test_a_part_that_is_there_many_times_is_made_once(tmp_path: Path) -> None:
    path, numbers = tmp_path / "x.tamis", 1_000_000
    content = one_part("float32", "F32", numbers, bytes(4 * numbers), [0, numbers, 0])

    def repeated(said: dict[str, Any]) -> None:
        said["tensors"][0]["parts"] += [[f"x{place}", 0] for place in range(1000)]

    path.write_bytes(redescribed(content, repeated))
    peak = peak_of_refusing(path, {"w": ((100,), torch.float32)}, CorruptArtifact, "'w' has the parts")
    assert peak < 4 * path.stat().st_size


def test_reading_takes_no_more_than_four_times_the_file_and_the_tensor(tmp_path: Path) -> None:
    """Numbers of two bytes of which one was compressed to nothing: as much as can become of a file."""
    path, numbers = tmp_path / "x.tamis", 4_000_000
    top = zlib.compress(bytes(numbers))
    path.write_bytes(one_part("float16", "F16", numbers, bytes(numbers) + top, [0, 0, len(top)]))
    peak = peak_of_refusing(path, {"w": ((100,), torch.float16)}, CorruptArtifact, "but claims torch.float16")
    assert peak < 4 * path.stat().st_size + 1_000_000


def test_parts_with_the_same_numbers_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "x.tamis"
    levels = torch.linspace(-1, 1, 255)
    codes = {
        name: Codes(torch.arange(30, dtype=torch.uint8).reshape(6, 5) * 8 + place, levels, torch.ones(6, 1))
        for place, name in enumerate("abc")
    }
    tensors = {name: each.values() for name, each in codes.items()} | {"d": levels, "e": levels.double()}
    tensors |= {"f": -levels, "g": levels.view(torch.int32)}
    content = written(path, tensors, {}, {}, codes)
    contents = read(path, kinds(tensors))
    assert_same_state(contents.tensors, tensors)
    listed = {t["name"]: t["parts"] for t in json.loads(zlib.decompress(unpacked(content)[1]))["tensors"]}
    assert listed["a"][1] == ["levels", "F32", [255]] and listed["b"][1] == listed["c"][1] == ["levels", 1]
    assert listed["d"] == listed["e"] == [["values", 1]]  # whatever the name of a part; float64 is narrowed
    assert len(listed["f"][0]) == len(listed["g"][0]) == 3  # another sign, another type
    taken = stored_bytes(path, tensors)
    assert taken["d"] == 0 and sum(taken.values()) == opened(content)[1]["data"]["shape"][0]
    assert max(taken["b"], taken["c"]) < taken["a"] - 3 * 255


def test_large_parts_are_not_compared(tmp_path: Path) -> None:
    one = torch.rand((1 << 18) + 1, generator=torch.Generator().manual_seed(0))
    content = written(tmp_path / "x.tamis", {"a": one, "b": one, "c": one[1:], "d": one[1:]}, {})
    assert opened(content)[1]["data"]["shape"][0] > 3 * 3 * len(one)
    assert len(content) < 3 * 4 * len(one)


def test_a_small_network_takes_less_than_the_gzipped_file_of_version_one(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state, codes = {}, {}
    for layer in range(20):
        weight = torch.randn(16, 16, 3, 3, generator=generator)
        scales = weight.abs().amax((1, 2, 3), keepdim=True)
        own = Codes((weight > 0.3).byte() + (weight > -0.3), torch.tensor([-1.0, 0, 1]), scales)
        codes[f"layer{layer}.conv.weight"] = own
        state[f"layer{layer}.conv.weight"] = own.values()
        for name in ("weight", "bias", "running_mean", "running_var"):
            state[f"layer{layer}.bn.{name}"] = torch.rand(16, generator=generator)
    content = written(tmp_path / "x.tamis", state, {}, {}, codes)
    first = as_version(1, content)
    assert len(content) < len(gzip.compress(first, 9)) < 0.7 * len(first)
    assert len(gzip.compress(content, 9)) > 0.99 * len(content)  # there is little left to take off
