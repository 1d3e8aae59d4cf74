"""The .tamis file: exact, deterministic, as docs/format.md says, and refused when anything about it is wrong."""

from __future__ import annotations

import json
import math
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from any_tensors import from_raw, masked_tensors, quantized_tensors, raw, same_codes
from artifact.forging import (
    MASKS,
    STATE,
    Kinds,
    assert_corrupt,
    assert_same_state,
    forged,
    kinds,
    peak_of_refusing,
    rewritten,
    written,
)
from artifact.literal import read_row
from artifact.versions import (
    VERSIONS,
    WIDTH,
    Said,
    as_version,
    opened,
    packed,
    put_together,
    sealed,
    taken_apart,
    unpacked,
    version_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.artifact.codes import Codes
from tamis.artifact.encodings import ENCODINGS, Decoded
from tamis.artifact.encodings.coded_digits import to_row
from tamis.artifact.encodings.packing import pack
from tamis.artifact.format import read, size, stored_bytes, write
from tamis.artifact.header import CODES
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters

SPECIFICATION = Path(__file__).parents[2] / "docs" / "format.md"
one_file = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
States = dict[str, Decoded]

names = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    [
        "",
        "/",
        "a",
        "a/",
        "a/values",
        "a/values/values",
        "a/bitmask",
        "__metadata__",
        "../../etc/x",
        "/etc/x",
        'q"\\',
        "é\0",
    ]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
abouts = st.dictionaries(st.text(), json_values, max_size=3)
states = st.dictionaries(names, masked_tensors() | quantized_tensors(), max_size=4)


def split(state: States) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Codes]]:
    tensors = {name: each.tensor for name, each in state.items()}
    masks = {name: each.mask for name, each in state.items() if each.mask is not None}
    return tensors, masks, {name: each.codes for name, each in state.items() if each.codes is not None}


# -- a reader that knows the specification only --------------------------------------------------------------------


def widen(entry: bytes, code: str, dtype: str) -> bytes:
    """One number of a narrower type as one of the tensor's own."""
    if dtype not in ("float32", "float64") or WIDTH[code] == (own := 4 if dtype == "float32" else 8):
        return entry
    if code == "BF16":
        entry, code = b"\0\0" + entry, "F32"
        if own == 4:
            return entry
    (number,) = struct.unpack("<e" if code == "F16" else "<f", entry)
    return struct.pack("<f" if own == 4 else "<d", number)


def read_naturals(row: bytes) -> list[int]:
    naturals, current = [], 0
    for byte in row:
        current += byte
        if byte != 255:
            naturals.append(current)
            current = 0
    return naturals


def read_positions(parts: dict[str, tuple[str, bytes]], entries: int) -> list[bool]:
    kept = [False] * entries
    if "bitmask" in parts:
        return [bool(parts["bitmask"][1][i // 8] >> (7 - i % 8) & 1) for i in range(entries)]
    if "gaps" in parts:
        here = -1
        for gap in read_naturals(parts["gaps"][1]):
            here += gap + 1
            kept[here] = True
        return kept
    here = 0
    for number, length in enumerate(read_naturals(parts["runs"][1])):
        for _ in range(length):
            kept[here] = number % 2 == 1
            here += 1
    return kept


PACKED = {"float16": "<e", "float32": "<f", "float64": "<d"}
FLOORS = {"float16": 2.0**-24, "bfloat16": 2.0**-125, "float32": 2.0**-125, "float64": 2.0**-1021}


def to_number(entry: bytes, dtype: str) -> float:
    entry, dtype = (b"\0\0" + entry, "float32") if dtype == "bfloat16" else (entry, dtype)
    (number,) = struct.unpack(PACKED[dtype], entry)
    return float(number)


def from_product(scale: float, level: float, dtype: str) -> bytes:
    """Products of two numbers of at most 24 bits are exact in Python; that of two float64 is rounded there."""
    number = scale * level
    if dtype == "bfloat16" and number:
        mantissa, exponent = math.frexp(number)
        number = math.ldexp(round(mantissa * 2**8), exponent - 8)
    packed = struct.pack(PACKED.get(dtype, "<f"), number)
    rounded = packed[2:] if dtype == "bfloat16" else packed
    small = min(abs(value) for value in (scale, level, to_number(rounded, dtype))) < FLOORS[dtype]
    return bytes(len(rounded)) if small else rounded


def read_indices(row: bytes, levels: int, count: int) -> list[int]:
    if levels == 3:
        assert len(row) == -(-count // 5) and all(byte < 243 for byte in row)
        digits = [byte // 3**digit % 3 for byte in row for digit in range(5)]
        assert not any(digits[count:])
        return digits[:count]
    width = math.ceil(math.log2(levels))
    assert len(row) == -(-width * count // 8)
    integer = int.from_bytes(row, "little")
    assert integer < 2 ** (width * count)
    return [integer // 2 ** (width * i) % 2**width for i in range(count)]


def read_mask(parts: dict[str, tuple[str, bytes]], entries: int) -> list[bool] | None:
    if "codedmask" in parts:
        return [digit == 1 for digit in read_row(parts["codedmask"][1], entries, 2)]
    return read_positions(parts, entries) if {"bitmask", "gaps", "runs"} & parts.keys() else None


def read_table(entry: dict[str, Any], parts: dict[str, tuple[str, bytes]]) -> list[bytes]:
    code, data = parts["table"]
    table = [data[i : i + WIDTH[code]] for i in range(0, len(data), WIDTH[code])]
    ranks = [int.from_bytes(each, "little", signed=WIDTH[code] > 1) for each in table]
    assert parts.keys() == {"table", "codedindices"} and ranks == sorted(set(ranks))
    digits = read_row(parts["codedindices"][1], math.prod(entry["shape"]), max(len(table), 2))
    return [table[digit] for digit in digits]


def read_levels(
    entry: dict[str, Any], parts: dict[str, tuple[str, bytes]], shapes: dict[str, list[int]]
) -> tuple[str, list[int], bytes, list[bool] | None]:
    dtype, shape, units = entry["dtype"], entry["shape"], shapes["scales"]
    numbers = {}
    for label in ("levels", "scales"):
        code, data = parts[label]
        entries = [data[i : i + WIDTH[code]] for i in range(0, len(data), WIDTH[code])]
        numbers[label] = [to_number(widen(each, code, dtype), dtype) for each in entries]
    kept = read_mask(parts, math.prod(shape))
    count = math.prod(shape) if kept is None else sum(kept)
    if "codedindices" in parts:
        indices = iter(read_row(parts["codedindices"][1], count, len(numbers["levels"])))
    else:
        indices = iter(read_indices(parts["codes"][1], len(numbers["levels"]), count))
    content = []
    for number, place in enumerate(product(*map(range, shape))):
        if kept is not None and not kept[number]:
            content.append(from_product(0.0, 0.0, dtype))
            continue
        unit = 0
        for i, u, n in zip(place, units, shape, strict=True):
            unit = unit * u + i * u // n
        content.append(from_product(numbers["scales"][unit], numbers["levels"][next(indices)], dtype))
    return dtype, shape, b"".join(content), kept


def read_literally(content: bytes) -> tuple[dict[str, Any], dict[str, tuple[str, list[int], bytes, list[bool] | None]]]:
    """`about`, and of each tensor its dtype, shape, bytes and mask."""
    said = taken_apart(content)
    found = {}
    for name, entry in said.tensors.items():
        own = {each.rpartition("/")[2]: part for each, part in said.parts.items() if each.rpartition("/")[0] == name}
        parts = {label: (code, data) for label, (code, _, data) in own.items()}
        shapes = {label: shape for label, (_, shape, _) in own.items()}
        if "levels" in parts:
            assert entry["encoding"] in ("levels", "entropy")
            found[name] = read_levels(entry, parts, shapes)
            continue
        if "table" in parts:
            assert entry["encoding"] == "entropy"
            found[name] = entry["dtype"], entry["shape"], b"".join(read_table(entry, parts)), None
            continue
        code, data = parts["values"]
        numbers = [data[i : i + WIDTH[code]] for i in range(0, len(data), WIDTH[code])]
        if entry["encoding"] != "dense":
            numbers = [widen(number, code, entry["dtype"]) for number in numbers]
        kept = None
        if entry["encoding"] in ("sparse", "entropy"):
            kept = read_mask(parts, math.prod(entry["shape"]))
            own_width = {"float32": 4, "float64": 8}.get(entry["dtype"], WIDTH[code])
            left = iter(numbers)
            numbers = [next(left) if keep else bytes(own_width) for keep in kept]
        found[name] = entry["dtype"], entry["shape"], b"".join(numbers), kept
    return said.about, found


# -- what is written is what is read -------------------------------------------------------------------------------


@one_file
@given(states, abouts)
def test_everything_comes_back_bit_for_bit(tmp_path: Path, state: States, about: dict[str, Any]) -> None:
    tensors, masks, codes = split(state)
    path = tmp_path / "any.tamis"
    written = write(path, tensors, masks, about, codes)
    contents = read(path, kinds(tensors))
    assert_same_state(contents.tensors, tensors)
    assert_same_state(contents.masks, masks)
    assert contents.codes.keys() == codes.keys()
    assert all(same_codes(contents.codes[name], codes[name]) for name in codes)
    assert contents.about == about
    assert written == path.stat().st_size == size(tensors, masks, about, codes)
    write(tmp_path / "again.tamis", contents.tensors, contents.masks, contents.about, contents.codes)
    assert (tmp_path / "again.tamis").read_bytes() == path.read_bytes()


@one_file
@given(states, abouts)
def test_a_reader_written_from_the_specification_reads_the_same(
    tmp_path: Path, state: States, about: dict[str, Any]
) -> None:
    tensors, masks, codes = split(state)
    path = tmp_path / "any.tamis"
    write(path, tensors, masks, about, codes)
    content = path.read_bytes()
    assert version_of(content) == 2
    its_about, found = read_literally(content)
    assert its_about == about and found.keys() == tensors.keys()
    for name, (dtype, shape, content, kept) in found.items():
        assert f"torch.{dtype}" == str(tensors[name].dtype) and shape == list(tensors[name].shape)
        assert content == raw(tensors[name])
        assert (kept is None) == (name not in masks)
        assert kept is None or kept == masks[name].reshape(-1).tolist()


@one_file
@given(states, abouts, st.sampled_from(VERSIONS), st.sampled_from([0, 1, 9]))
def test_files_written_from_the_specification_are_read(
    tmp_path: Path, state: States, about: dict[str, Any], version: int, level: int
) -> None:
    """In either version, with tensors and parts in another order, and compressed in another way."""
    tensors, masks, codes = split(state)
    path = tmp_path / "any.tamis"
    said = taken_apart(written(path, tensors, about, masks, codes))
    backwards = Said(said.about, dict(reversed(said.tensors.items())), dict(reversed(said.parts.items())))
    path.write_bytes(put_together(version, backwards, lambda row: zlib.compress(row, level)))
    contents = read(path, kinds(tensors))
    assert_same_state(contents.tensors, tensors)
    assert_same_state(contents.masks, masks)
    assert contents.codes.keys() == codes.keys() and contents.about == about
    assert all(same_codes(contents.codes[name], codes[name]) for name in codes)
    taken = stored_bytes(path, tensors)
    _, header, data = opened(path.read_bytes())
    assert sum(taken.values()) == (len(data) if version == 1 else header["data"]["shape"][0])


@one_file
@given(states, abouts)
def test_safetensors_reads_it_and_order_does_not_matter(tmp_path: Path, state: States, about: dict[str, Any]) -> None:
    tensors, masks, codes = split(state)
    write(tmp_path / "one.tamis", tensors, masks, about, codes)
    backwards: list[Any] = [dict(reversed(each.items())) for each in (tensors, masks, about, codes)]
    write(tmp_path / "two.tamis", *backwards)
    assert (tmp_path / "one.tamis").read_bytes() == (tmp_path / "two.tamis").read_bytes()
    rows = safetensors.torch.load_file(tmp_path / "one.tamis")
    assert {name: (row.dtype, row.dim()) for name, row in rows.items()} == {
        "data": (torch.uint8, 1),
        "description": (torch.uint8, 1),
    }
    with safetensors.safe_open(tmp_path / "one.tamis", "pt") as file:
        assert list(file.metadata()) == ["tamis"]


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_dtype_and_every_byte(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = from_raw(bytes(range(256)) * 8, (256 // dtype.itemsize, 8), dtype)
    mask = torch.arange(tensor.numel()).reshape(tensor.shape) % 2 == 0
    zeroed = from_raw(
        b"".join(
            raw(tensor)[i * (w := dtype.itemsize) : (i + 1) * w] if i % 2 == 0 else bytes(w)
            for i in range(mask.numel())
        ),
        tuple(tensor.shape),
        dtype,
    )
    write(tmp_path / "x.tamis", {"x": tensor, "y": zeroed}, {"y": mask}, {})
    contents = read(tmp_path / "x.tamis", kinds({"x": tensor, "y": zeroed}))
    assert_same_state(contents.tensors, {"x": tensor, "y": zeroed})
    assert_same_state(contents.masks, {"y": mask})


def examples() -> dict[int, bytes]:
    """The files that the specification shows, by their version."""
    page = SPECIFICATION.read_text(encoding="utf-8")
    found = re.findall(r"^```\n((?:[0-9a-f]{4}  .*\n)+)```$", page, re.MULTILINE)
    files = [bytes.fromhex("".join(line[6:53] for line in dump.splitlines())) for dump in found]
    return {version_of(content): content for content in files}


def test_the_examples_of_the_specification(tmp_path: Path) -> None:
    w = torch.zeros(2, 5)
    w[0, 1], w[1, 0], w[1, 4] = 1.5, -2.0, 0.1
    state = {"w": w, "b": torch.tensor([0.5, -1.0])}
    page, files = SPECIFICATION.read_text(encoding="utf-8"), examples()
    assert files.keys() == set(VERSIONS)
    for version, content in files.items():
        (tmp_path / "x.tamis").write_bytes(content)
        contents = read(tmp_path / "x.tamis", kinds(state))
        assert_same_state(contents.tensors, state)
        assert_same_state(contents.masks, {"w": w != 0})
        assert contents.about == {"note": "é"} and f"Version {version} takes {len(content)} bytes" in page
    mine = written(tmp_path / "x.tamis", state, {"note": "é"}, {"w": w != 0})
    assert taken_apart(mine) == taken_apart(files[2])
    _, description = unpacked(mine)
    assert zlib.decompress(description) == zlib.decompress(unpacked(files[2])[1])
    assert zlib.decompress(description).decode() in page
    assert mine == files[2] or "zlib-ng" in zlib.ZLIB_RUNTIME_VERSION


def test_the_examples_of_levels_in_the_specification() -> None:
    page = SPECIFICATION.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(codes|levels|scales)` \| `(\w+)` \| (\[.*\]) \| `([0-9a-f ]+)` \|$", page, re.MULTILINE)
    indices = torch.tensor([[2, 1, 0, 2], [1, 1, 0, 0]], dtype=torch.uint8)
    codes = Codes(indices, torch.tensor([-1.0, 0, 1]), torch.tensor([[0.5], [0.1]]))
    assert codes.values().tolist() == torch.tensor([[0.5, 0, -0.5, 0.5], [0, 0, -0.1, -0.1]]).tolist()
    stored = ENCODINGS["levels"].encode(Decoded(codes.values(), None, codes))
    assert stored is not None
    assert {part: (code, json.loads(shape), bytes.fromhex(row)) for part, code, shape, row in rows} == {
        part: (CODES[value.dtype], list(value.shape), raw(value)) for part, value in stored.parts.items()
    }
    kept = torch.ones(2, 4, dtype=torch.bool)
    kept[0, 3] = False
    stored = ENCODINGS["levels"].encode(Decoded(codes.values(kept), kept, codes))
    assert stored is not None and f"the codes `{raw(stored.parts['codes']).hex(' ')}`" in page
    fields = pack(indices.new_tensor([1, 4, 0, 3]).numpy(), 5).tobytes().hex(" ")
    assert f"The indices 1, 4, 0, 3 of five levels are `{fields}`" in page


def test_the_example_of_an_entropy_coded_row_in_the_specification() -> None:
    page = SPECIFICATION.read_text(encoding="utf-8")
    digits = [1] * 8 + [2] + [1] * 3
    row = to_row(np.array(digits, dtype=np.uint8), 3, room=100)
    assert f"their row is `{row.tobytes().hex(' ')}`" in page
    assert read_row(row.tobytes(), 12, 3) == digits
    assert "the symbols 121, 148 and, filled up with 1 1 1, 121" in page
    assert [sum(d * 3**i for i, d in enumerate(five)) for five in ([1] * 5, [1, 1, 1, 2, 1])] == [121, 148]


# -- what the caller passed and gets -------------------------------------------------------------------------------


def test_tensors_that_are_not_contiguous_or_need_gradients(tmp_path: Path) -> None:
    square = torch.arange(12.0).reshape(3, 4)
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    tensors = {"t": square.t(), "p": torch.nn.Parameter(square), "e": torch.ones(1, 3).expand(5, 3), "i": images}
    mask = (square % 2 == 0).t()
    tensors["t"] = tensors["t"] * mask
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    write(tmp_path / "x.tamis", tensors, {"t": mask}, {})
    contents = read(tmp_path / "x.tamis", kinds(tensors))
    assert_same_state(contents.tensors, before)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in contents.tensors.values())
    assert_same_state(contents.masks, {"t": mask})
    assert all(torch.equal(tensors[name], before[name]) for name in before)


def test_nothing_read_refers_to_the_file(tmp_path: Path) -> None:
    tensors = {"dense": torch.randn(100), "narrow": torch.ones(100), "sparse": torch.eye(10)}
    path = tmp_path / "x.tamis"
    write(path, tensors, {"sparse": torch.eye(10).bool()}, {})
    contents = read(path, kinds(tensors))
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
        file.truncate(10)
    assert_same_state(contents.tensors, tensors)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in contents.tensors.values())


def test_the_writer_repeats_what_is_wrong(tmp_path: Path) -> None:
    path, one = tmp_path / "x.tamis", torch.ones(2, 3)
    kept = torch.tensor([[True, True, False], [True, True, True]])
    refused: list[tuple[type[Exception], str, Any, Any, Any]] = [
        (InvalidParameters, r"masks for 'fc\.bias'", {"fc.weight": one}, {"fc.bias": kept}, {}),
        (InvalidParameters, r"'fc\.weight' has entries other than \+0\.0", {"fc.weight": one}, {"fc.weight": kept}, {}),
        (InvalidParameters, r"'w' has entries other than \+0\.0", {"w": -0.0 * one}, {"w": ~kept}, {}),
        (
            InvalidParameters,
            r"mask of 'w' .* \(2, 3\), got torch.bool and \(6,\)",
            {"w": one},
            {"w": kept.flatten()},
            {},
        ),
        (InvalidParameters, r"mask of 'w' .* got torch.float32", {"w": one}, {"w": one}, {}),
        (InvalidParameters, r"'w' .* torch.complex64", {"w": one.to(torch.complex64)}, {}, {}),
        (InvalidParameters, r"'w' .* beyond 64 dimensions", {"w": one.reshape(2, 3, *[1] * 63)}, {}, {}),
        (InvalidParameters, r"'w' .* meta", {"w": one.to("meta")}, {}, {}),
        (InvalidParameters, r"'w' is a torch.sparse_coo tensor", {"w": one.to_sparse()}, {}, {}),
        (InvalidParameters, r"\\ud800", {"\ud800": one}, {}, {}),
        (InvalidInput, "must be JSON", {"w": one}, {}, {"x": math.nan}),
        (InvalidInput, "must be JSON", {"w": one}, {}, {"x": one}),
    ]
    for error, message, tensors, masks, about in refused:
        with pytest.raises(error, match=message):
            write(path, tensors, masks, about)
        with pytest.raises(error, match=message):
            size(tensors, masks, about)
    assert not list(tmp_path.iterdir())


def test_the_writer_repeats_what_is_wrong_with_codes(tmp_path: Path) -> None:
    codes = Codes(torch.tensor([[0, 1, 2]], dtype=torch.uint8), torch.tensor([-1.0, 0, 1]), torch.ones(1, 1))
    mask = torch.tensor([[False, True, True]])
    refused: list[tuple[str, Any, Any, Any]] = [
        (r"codes for 'fc\.bias', but no such", {"w": codes.values()}, {}, {"fc.bias": codes}),
        (r"codes of 'w' .* \(3,\), got torch.float32 and \(1, 3\)", {"w": codes.values()[0]}, {}, {"w": codes}),
        (r"codes of 'w' must be of torch.float64", {"w": codes.values().double()}, {}, {"w": codes}),
        (r"'w' has entries other than its codes say", {"w": codes.values() * 2}, {}, {"w": codes}),
        (r"'w' has entries other than its codes say", {"w": -codes.values().abs()}, {}, {"w": codes}),
        (r"'w' has entries other than its codes say", {"w": codes.values(mask)}, {}, {"w": codes}),
    ]
    for message, tensors, masks, its_codes in refused:
        with pytest.raises(InvalidParameters, match=message):
            write(tmp_path / "x.tamis", tensors, masks, {}, its_codes)
    write(tmp_path / "x.tamis", {"w": codes.values(mask)}, {"w": mask}, {}, {"w": codes})
    assert read(tmp_path / "x.tamis", {"w": ((1, 3), torch.float32)}).codes["w"].indices.tolist() == [[0, 1, 2]]


def test_names_and_shapes_always_fit_into_their_room(tmp_path: Path) -> None:
    """Characters, shapes and dtypes that take the most bytes in JSON, in names as long as room is counted for."""
    names = [chr(0x10000 + i) * 100 for i in range(200)]
    shape, mask = (*[0] * 63, 2**60), torch.ones(1, dtype=torch.bool)
    sparse = {name: torch.ones(1, dtype=torch.float8_e4m3fn) for name in names}
    dense = {name: torch.empty(shape, dtype=torch.float8_e4m3fn) for name in names}
    codes = Codes(
        torch.zeros([1] * 64, dtype=torch.uint8), torch.tensor([0.0, 1.0]).bfloat16(), torch.ones([1] * 64).bfloat16()
    )
    quantized = dict.fromkeys(names, codes.values())
    masks = dict.fromkeys(names, mask.reshape(codes.indices.shape))
    for state, its_masks, its_codes in (
        (sparse, dict.fromkeys(names, mask), {}),
        (dense, {}, {}),
        (quantized, masks, dict.fromkeys(names, codes)),
    ):
        content = written(tmp_path / "x.tamis", state, {}, its_masks, its_codes)
        room = sum(2**12 + 64 * len(name) for name in names)
        assert len(zlib.decompress(unpacked(content)[1])) < room


# -- files that are refused ----------------------------------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of either version."""
    write(tmp_path / "small.tamis", STATE, MASKS, {"note": 1})
    (tmp_path / "small.tamis").write_bytes(as_version(request.param, (tmp_path / "small.tamis").read_bytes()))
    return tmp_path / "small.tamis"


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    """The same in version 2."""
    return written(tmp_path / "small.tamis", STATE, {"note": 1}, MASKS)


def test_every_flipped_bit_and_every_truncation_is_found(path: Path) -> None:
    content = path.read_bytes()
    for position in range(len(content)):
        for changed in (
            content[:position],
            content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :],
        ):
            path.write_bytes(changed)
            with pytest.raises(CorruptArtifact, match=re.escape(str(path))):
                read(path, kinds(STATE))
    assert_corrupt(path, content + b"\0", "checksum")


def test_files_of_other_kinds(path: Path) -> None:
    assert_corrupt(path, b"", "is empty")
    assert_corrupt(path, b"PK\3\4 a zip archive" * 50, "not a .tamis file")
    assert_corrupt(path, safetensors.torch.save(STATE), "not a .tamis file")
    assert_corrupt(path, safetensors.torch.save(STATE, {"format": "pt"}), "not a .tamis file")
    for missing in (path.parent / "absent.tamis", path.parent):
        with pytest.raises(OSError):
            read(missing, {})


def test_a_device_without_end_is_not_read() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    with pytest.raises(CorruptArtifact, match=r"not a \.tamis file"):
        read("/dev/zero", {})


def test_forged_claims(path: Path) -> None:
    content = path.read_bytes()
    weight: Callable[[Said], dict[str, Any]] = lambda said: said.tensors["fc.weight"]  # noqa: E731
    changes: list[tuple[str, Callable[[Said], Any]]] = [
        ("nothing", lambda said: setattr(said, "about", [])),
        ("does not know, 'zip': it was written by a newer tamis", lambda said: weight(said).update(encoding="zip")),
        ("does not know", lambda said: weight(said).update(encoding=["dense"])),
        ("shape \\[-2, -3\\]", lambda said: weight(said).update(shape=[-2, -3])),
        ("shape \\[2.0, 3\\]", lambda said: weight(said).update(shape=[2.0, 3])),
        ("shape \\[True", lambda said: weight(said).update(shape=[True, 6])),
        ("shape None", lambda said: weight(said).pop("shape")),
        ("dtype 'object'", lambda said: weight(said).update(dtype="object")),
        ("dtype \\['float32'\\]", lambda said: weight(said).update(dtype=["float32"])),
        ("'fc.weight' has the parameters \\['x'\\]", lambda said: weight(said).update(x=1)),
        (
            "'fc.weight' has the parts",
            lambda said: said.parts.update({"fc.weight/bits": said.parts.pop("fc.weight/bitmask")}),
        ),
        ("'fc.weight' has the parts", lambda said: said.parts.pop("fc.weight/bitmask")),
        ("has the shape", reshaped([2**62, 0])),
        ("has the shape", reshaped([-3])),
        ("has the shape", reshaped([2**63] * 10_000)),
        ("not stand where|no room", reshaped([2**59])),
        ("not stand where|no room|left where", reshaped([2])),
        ("does not write, 'F4'", recoded("F4")),
        ("not stand where|left where", recoded("U8")),
    ]
    for message, change in changes:
        assert_corrupt(path, forged(content, change), message)


def reshaped(shape: Any) -> Callable[[Said], Any]:
    def change(said: Said) -> None:
        code, _, row = said.parts["fc.weight/values"]
        said.parts["fc.weight/values"] = (code, shape, row)

    return change


def recoded(code: str) -> Callable[[Said], Any]:
    def change(said: Said) -> None:
        _, shape, row = said.parts["fc.weight/values"]
        said.parts["fc.weight/values"] = (code, shape, row)

    return change


def test_forged_metadata(path: Path) -> None:
    content = path.read_bytes()
    changes: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("written by a newer tamis.* version 3, .* up to 2", lambda text: text.update(version=3)),
        ("calls itself 'tamis', version True", lambda text: text.update(version=True)),
        ("calls itself 'tamis', version 0", lambda text: text.update(version=0)),
        ("calls itself 'other'", lambda text: text.update(format="other")),
        ("calls itself None", lambda text: text.pop("format")),
        ("must have", lambda text: text.update(more=1)),
        ("must have", lambda text: text.update(version=3 - text["version"])),
    ]
    for message, change in changes:
        assert_corrupt(path, rewritten(content, lambda text, _, change=change: change(text)), message)  # type: ignore[misc]


QUANTIZED = {  # seven entries of three levels, of five, and of five with a mask
    name: Codes(torch.arange(7, dtype=torch.uint8) % levels, torch.arange(float(levels)) - 1, torch.tensor([0.5]))
    for name, levels in (("fields", 5), ("masked", 5), ("ternary", 3))
}


@pytest.mark.parametrize(
    ("name", "part", "content", "message"),
    [
        ("ternary", "codes", b"\xf3\0", "byte 243 where five ternary digits make at most 242"),
        ("ternary", "codes", b"\0\x09", "codes that go on after the last of 7 entries"),
        ("ternary", "codes", b"\0\xff", "byte 255"),
        ("ternary", "codes", b"\0", "1 bytes of codes for 7 entries of 3 levels"),
        ("ternary", "codes", b"\0\0\0", "3 bytes of codes for 7 entries of 3 levels"),
        ("fields", "codes", b"\5\0\0", "indices must be 0 to 4, of 5 levels, but go from 0 to 5"),
        ("fields", "codes", b"\0\0\x20", "codes that go on after the last of 7 entries"),
        ("masked", "codes", b"\0\0\4", "codes that go on after the last of 6 entries"),
        ("masked", "codes", b"\0\0", "2 bytes of codes for 6 entries of 5 levels"),
        ("masked", "bitmask", b"\xff", "after the last of 7"),
        ("masked", "bitmask", b"\x80", "3 bytes of codes for 1 entries of 5 levels"),
        ("ternary", "levels", struct.pack("<3e", -1, 0, 0), "ascending, but level 2 is 0.0 after 0.0"),
        ("ternary", "levels", struct.pack("<3e", 1, 0, 2), "ascending, but level 1 is 0.0 after 1.0"),
        ("ternary", "levels", struct.pack("<3e", -1, -0.0, 1), "a level of −0.0"),
        ("ternary", "levels", struct.pack("<3e", -1, 0, math.inf), "finite and ascending, but level 2 is inf"),
        ("ternary", "levels", struct.pack("<3e", math.nan, 0, 1), "finite and ascending, but level 0 is nan"),
        ("ternary", "levels", struct.pack("<1e", 0), "levels of shape .1,., not 2 to 65536"),
        ("ternary", "levels", struct.pack("<2e", 0, 1), "2 bytes of codes for 7 entries of 2 levels"),
        ("ternary", "levels", bytes(2 * 65537), "levels of shape .65537,., not 2 to 65536"),
        ("ternary", "scales", struct.pack("<e", 0), "positive and finite, but there is 0.0"),
        ("ternary", "scales", struct.pack("<e", -1), "positive and finite, but there is -1.0"),
        ("ternary", "scales", struct.pack("<e", math.nan), "positive and finite, but there is nan"),
        ("ternary", "scales", struct.pack("<e", math.inf), "positive and finite, but there is inf"),
        ("ternary", "scales", struct.pack("<2e", 1, 1), r"scales of shape \(2,\), which does not divide \(7,\)"),
        ("ternary", "scales", b"", r"scales of shape \(0,\), which does not divide \(7,\)"),
        ("ternary", "scales", struct.pack("<14e", *[1] * 14), r"scales of shape \(14,\), which does not divide"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_forged_codes(tmp_path: Path, name: str, part: str, content: bytes, message: str, version: int) -> None:
    path, mask = tmp_path / "x.tamis", torch.arange(7) != 3
    tensors = {each: codes.values(mask if each == "masked" else None) for each, codes in QUANTIZED.items()}
    whole = written(path, tensors, {}, {"masked": mask}, QUANTIZED)

    def replaced(said: Said) -> None:
        code = said.parts[f"{name}/{part}"][0]
        said.parts[f"{name}/{part}"] = (code, [len(content) // WIDTH[code]], content)

    path.write_bytes(forged(whole, replaced, version))
    with pytest.raises(CorruptArtifact, match=f"'{name}' has .*{message}"):
        read(path, kinds(tensors))


@pytest.mark.parametrize("version", VERSIONS)
def test_codes_longer_than_their_tensor_are_not_unpacked(tmp_path: Path, version: int) -> None:
    codes = QUANTIZED["ternary"]
    whole = written(tmp_path / "x.tamis", {"w": codes.values()}, {}, {}, {"w": codes})
    long = 8_000_000

    def lengthened(said: Said) -> None:
        said.parts["w/codes"] = ("U8", [2 + long], said.parts["w/codes"][2] + bytes(long))

    (tmp_path / "x.tamis").write_bytes(forged(whole, lengthened, version))
    expected: Kinds = {"w": ((7,), torch.float32)}
    message = "8000002 bytes of codes for 7 entries of 3 levels"
    assert peak_of_refusing(tmp_path / "x.tamis", expected, CorruptArtifact, message) < long + 2_000_000


def test_json_that_is_not_json(path: Path, small: bytes) -> None:
    content = as_version(1, small)
    data = 8 + int.from_bytes(content[:8], "little")

    def about(text: bytes) -> bytes:
        header = content[8:data].rstrip().replace(b'{\\"note\\":1}', text)
        header += b" " * (-len(header) % 8)
        return sealed(len(header).to_bytes(8, "little") + header + content[data:])

    for text, message in (
        (b"[" * 100_000 + b"]" * 100_000, "recursion"),
        (b'{\\"x\\":' * 100_000 + b"1" + b"}" * 100_000, "recursion"),
        (b'{\\"note\\":1,\\"note\\":2}', "twice"),
        (b'{\\"note\\":NaN}', "NaN is no number"),
        (b'{\\"note\\":' + b"9" * 5000 + b"}", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
    ):
        assert_corrupt(path, about(text), message)
        data_row, row = unpacked(small)
        changed = zlib.decompress(row).replace(b'{"note":1}', text.replace(b"\\", b""))
        assert_corrupt(path, packed(data_row, zlib.compress(changed)), message)
    header = content[8:data]
    assert_corrupt(path, sealed((2**63).to_bytes(8, "little") + content[8:]), "too long")
    assert_corrupt(
        path, sealed(content[:8] + header.replace(b'"},', b'"},"__metadata__":{},', 1)[: len(header)]), "not JSON"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_foreign_truth_values(tmp_path: Path, version: int) -> None:
    path, tensors = tmp_path / "x.tamis", {"b": torch.tensor([True, False]), "w": torch.tensor([0.1, 0.2])}
    content = written(path, tensors, {})
    path.write_bytes(forged(content, lambda said: said.parts.update({"b/values": ("BOOL", [2], b"\1\2")}), version))
    with pytest.raises(CorruptArtifact, match="'b' has truth values other than 0 and 1"):
        read(path, kinds(tensors))


def test_a_hostile_name_cannot_command_the_terminal(path: Path) -> None:
    def renamed(said: Said) -> None:
        said.tensors = {"\x1b[2J\ud800" + name: claim for name, claim in said.tensors.items()}
        said.parts = {"\x1b[2J\ud800" + name: part for name, part in said.parts.items()}

    path.write_bytes(forged(path.read_bytes(), renamed))
    with pytest.raises(InvalidParameters) as caught:
        read(path, kinds(STATE))
    assert str(caught.value).isprintable() and "[2J" in str(caught.value)


def test_a_sound_file_for_another_model(path: Path) -> None:
    expected = kinds(STATE)
    del expected["fc.bias"]
    expected |= {"head.weight": ((7,), torch.int64), "fc.weight": ((2, 4), torch.float32)}
    with pytest.raises(InvalidParameters) as caught:
        read(path, expected)
    message = str(caught.value)
    assert f"{path} was made for another model" in message
    assert "it lacks 'head.weight'" in message and "it also has 'fc.bias'" in message
    assert "'fc.weight' ([2, 3] of torch.float32 in the file, [2, 4] of torch.float32 in the model)" in message
    with pytest.raises(InvalidParameters, match="float16 in the model"):
        read(path, kinds(STATE) | {"fc.bias": ((2,), torch.float16)})


def test_reading_warns_of_nothing(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(path, kinds(STATE)).about == {"note": 1}


def test_changed_bytes_explain_whatever_else_is_wrong(path: Path) -> None:
    """A mask that cannot be decoded, a part out of place and another model are found first, and not reported."""
    content = path.read_bytes()
    place = content.index(taken_apart(content).parts["fc.weight/bitmask"][2], 8 + int.from_bytes(content[:8], "little"))
    changed = content[:place] + b"\xff" + content[place + 1 :]
    assert_corrupt(path, sealed(changed), "after the last of 6")
    assert_corrupt(path, changed, "checksum")
    assert_corrupt(path, content[:-1], "checksum")
    path.write_bytes(changed)
    with pytest.raises(CorruptArtifact, match="checksum"):
        read(path, {"other": ((2,), torch.float32)})


@pytest.mark.parametrize("version", VERSIONS)
def test_of_several_corrupt_tensors_the_largest_is_named(tmp_path: Path, version: int) -> None:
    sizes = {f"w{entries}": entries for entries in (9, 17, 33, 65, 129)}
    tensors = {name: torch.full((entries,), 0.1) for name, entries in sizes.items()}
    masks = {name: torch.ones(entries, dtype=torch.bool) for name, entries in sizes.items()}
    for name in tensors:
        tensors[name][::2], masks[name][::2] = 0, False  # bitmasks are then the shortest
    path = tmp_path / "x.tamis"

    def filled(said: Said) -> None:
        for name, (code, shape, row) in said.parts.items():
            if name.endswith("/bitmask"):
                said.parts[name] = (code, shape, b"\xff" * len(row))

    path.write_bytes(forged(written(path, tensors, {}, masks), filled, version))
    for _ in range(20):
        with pytest.raises(CorruptArtifact, match="'w129' has a bitmask that keeps entries after the last of 129"):
            read(path, kinds(tensors))


# -- memory --------------------------------------------------------------------------------------------------------


def with_positions(path: Path, coding: str, positions: bytes, entries: int, version: int) -> Kinds:
    """A file of one tensor with nothing but positions, however long, and a right checksum."""

    def lengthened(said: Said) -> None:
        said.tensors["w"]["shape"] = [entries]
        del said.parts["w/gaps"]
        said.parts[f"w/{coding}"] = ("U8", [len(positions)], positions)

    whole = written(path, {"w": torch.zeros(8)}, {}, {"w": torch.zeros(8, dtype=torch.bool)})
    path.write_bytes(forged(whole, lengthened, version))
    return {"w": ((entries,), torch.float32)}


@pytest.mark.parametrize("coding", ["bitmask", "gaps", "runs"])
@pytest.mark.parametrize("byte", [b"\0", b"\1", b"\xfe", b"\xff"])
@pytest.mark.parametrize("version", VERSIONS)
def test_positions_longer_than_their_tensor_are_not_decoded(
    tmp_path: Path, coding: str, byte: bytes, version: int
) -> None:
    expected = with_positions(tmp_path / "x.tamis", coding, byte * 2_000_000, 1, version)
    message = rf"'w' has (a {coding}|{coding}) of 2000000 bytes for 1 entries"
    assert peak_of_refusing(tmp_path / "x.tamis", expected, CorruptArtifact, message) < 2_000_000 + 1_000_000


@pytest.mark.parametrize(
    ("coding", "positions", "kept"),
    [("gaps", b"\0" * 4_000_000, 4_000_000), ("runs", b"\0" + b"\1" * 3_999_999, 2_000_000)],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_longest_positions_take_the_memory_of_a_mask(
    tmp_path: Path, coding: str, positions: bytes, kept: int, version: int
) -> None:
    expected = with_positions(tmp_path / "x.tamis", coding, positions, 4_000_000, version)
    peak = peak_of_refusing(tmp_path / "x.tamis", expected, CorruptArtifact, f"for {kept} kept entries")
    assert peak < len(positions) + 2 * 4_000_000 + 6_000_000
