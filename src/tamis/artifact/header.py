"""The header and description of a `.tamis` file of any version, parsed and checked: nothing in it is trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tamis.artifact.encodings import ENCODINGS, Encoded
from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact

FORMAT = "tamis"
LONGEST_HEADER = 100_000_000  # what safetensors libraries read
# What a description may take for `about`, for each tensor, and for each character of its name. Without this limit, a
# small file could fill the memory: JSON becomes Python objects of up to 60 times its length.
ROOM_FOR_ABOUT, ROOM_FOR_TENSOR, ROOM_FOR_CHARACTER = 2**20, 2**12, 2**6
MOST_DIMENSIONS, MOST_ENTRIES = 64, 2**60
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in CODES}
BY_NAME = {name: dtype for dtype, name in NAMES.items()}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    """The description of one tensor of a file."""

    encoding: str
    shape: Shape
    dtype: torch.dtype
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """The description of one part of a tensor.

    Attributes:
        dtype, shape: those of its numbers.
        start: where the numbers begin, which each version of the format counts in its own way.
        shared: whether an earlier part has the same numbers, and counts their bytes.
    """

    dtype: torch.dtype
    shape: Shape
    start: int
    shared: bool = False

    @property
    def entries(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes that the entries take uncompressed."""
        return self.entries * self.dtype.itemsize


class Data(Protocol):
    """The data of a file, from which the numbers of parts are read."""

    def inflate(self) -> None:
        """Undo, once, the compression that all parts share; before, only parts of one-byte numbers can be read."""

    def numbers(self, part: Part) -> Tensor:
        """Return the numbers of one part, possibly in the memory of the file's content."""

    def count_stored_bytes(self, part: Part) -> int:
        """Count the bytes of the file that a part takes."""


@dataclass(frozen=True)
class Description:
    """The description in a file: what its writer stored about the tensors, the tensors, and the parts of each."""

    about: dict[str, Any]
    claims: dict[str, Claim]
    parts: dict[str, dict[str, Part]]
    data: Data

    def collect_encoded(self, name: str, pending: Mapping[str, Future[Array]]) -> Encoded:
        """Return the stored parts of a tensor, some of which other threads may be reading already."""
        made: dict[tuple[torch.dtype, Shape, int], Tensor] = {}  # a forged file may repeat a part
        stored: dict[str, Tensor] = {}
        for label, part in self.parts[name].items():
            place = (part.dtype, part.shape, part.start)
            if place not in made:
                made[place] = self.data.numbers(part)
            stored[label] = made[place]
        for label, numbers in stored.items():
            if numbers.dtype is torch.bool and (numbers.view(torch.uint8) > 1).any():
                raise CorruptArtifact(f"has truth values other than 0 and 1 in its part {label!r:.200}")
        return Encoded(stored, self.claims[name].parameters, pending)

    def count_stored_bytes(self, name: str) -> int:
        """Count the bytes of the file that a tensor takes."""
        return sum(self.data.count_stored_bytes(part) for part in self.parts[name].values())


def longest_description(names: Iterable[str]) -> int:
    """Compute how many bytes the description of a file with these tensors may have."""
    rooms = (ROOM_FOR_TENSOR + ROOM_FOR_CHARACTER * len(name) for name in names)
    return min(LONGEST_HEADER, ROOM_FOR_ABOUT + sum(rooms))


def dump_json(content: Mapping[str, Any]) -> str:
    """Write JSON so that the same content always gives the same text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_json(path: Path, text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object, and refuse one in which a key occurs twice."""
    try:
        content = json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptArtifact(f"{path} is corrupt: what it says of itself is not JSON: {error!s:.200}") from error
    if not isinstance(content, dict):
        raise CorruptArtifact(f"{path} is corrupt: what it says of itself is not a JSON object")
    return content


def read_claim(path: Path, name: str, entry: Any) -> Claim:
    """Read the description of one tensor."""
    if not isinstance(entry, dict):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} is not described")
    parameters = dict(entry)
    encoding, shape, dtype = (parameters.pop(key, None) for key in ("encoding", "shape", "dtype"))
    if not is_list_of_naturals(shape):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the shape {shape!r:.80}")
    if not isinstance(dtype, str) or dtype not in BY_NAME:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the dtype {dtype!r:.80}")
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise CorruptArtifact(
            f"{path} has {name!r:.200} in an encoding that this tamis does not know, {encoding!r:.80}: "
            f"it was written by a newer tamis, or is corrupt"
        )
    return Claim(encoding, tuple(shape), BY_NAME[dtype], parameters)


def read_part(path: Path, name: str, code: Any, shape: Any, start: int) -> Part:
    """Read a part's dtype code and shape, and refuse those that no tensor has."""
    if not isinstance(code, str) or code not in DTYPES:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has a dtype that tamis does not write, {code!r:.80}")
    if not is_list_of_naturals(shape) or not is_possible_shape(shape):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the shape {shape!s:.80}")
    return Part(DTYPES[code], tuple(shape), start)


def read_entries(path: Path, entries: Mapping[str, Any], content: Array, data: int) -> dict[str, Part]:
    """Read the entries of a safetensors header, which must cover the data without gaps from its first byte on.

    Args:
        path: for messages.
        entries: the header without its metadata.
        content: the whole file.
        data: where the header ends; the starts of parts count from here.
    """
    found: list[tuple[int, int, str, Part]] = []
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} is not described as safetensors does")
        part, offsets = read_part(path, name, entry["dtype"], entry["shape"], 0), entry["data_offsets"]
        if not is_list_of_naturals(offsets) or len(offsets) != 2:
            raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the offsets {offsets!s:.80}")
        start, stop = offsets
        found.append((start, stop, name, Part(part.dtype, part.shape, start)))
    end, length = 0, len(content) - data
    for start, stop, name, part in sorted(found, key=lambda each: each[:2]):
        misplaced = start != end or stop > length or (data + start) % part.dtype.itemsize != 0
        if misplaced or stop - start != part.nbytes:
            raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} does not stand where it should")
        end = stop
    if end != length:
        raise CorruptArtifact(f"{path} is corrupt: {length - end} bytes of it belong to nothing")
    return {name: part for _, _, name, part in found}


def is_list_of_naturals(value: Any) -> bool:
    """Tell whether a value is a list of integers, none of them negative."""
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def is_possible_shape(shape: list[int]) -> bool:
    """Tell whether torch can make a tensor of this shape; a length of 0 does not excuse the others."""
    return len(shape) <= MOST_DIMENSIONS and math.prod(max(length, 1) for length in shape) <= MOST_ENTRIES


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return content


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
