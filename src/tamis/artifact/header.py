"""What a `.tamis` file says of itself, in whichever version, taken apart and checked. Nothing is taken on trust."""

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
    """What a file says of one of its tensors."""

    encoding: str
    shape: Shape
    dtype: torch.dtype
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What a file says of one part.

    Attributes:
        dtype, shape: of its numbers.
        start: where they begin, which each version counts in its own way.
        shared: whether these are the numbers of another part as well, for which they were counted already.
    """

    dtype: torch.dtype
    shape: Shape
    start: int
    shared: bool = False

    @property
    def entries(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take as they are."""
        return self.entries * self.dtype.itemsize


class Data(Protocol):
    """Where the numbers of parts lie."""

    def ready(self) -> None:
        """Undo what all parts were compressed by, once; until then there are numbers of one byte alone."""

    def numbers(self, part: Part) -> Tensor:
        """Those of one part, possibly in the memory of the file's content."""

    def taken(self, part: Part) -> int:
        """How many bytes of the file they take."""


@dataclass(frozen=True)
class Description:
    """What a file says of itself: its writer's words, its tensors, and the parts of each."""

    about: dict[str, Any]
    claims: dict[str, Claim]
    parts: dict[str, dict[str, Part]]
    data: Data

    def encoded(self, name: str, begun: Mapping[str, Future[Array]]) -> Encoded:
        """What is stored of a tensor, of which other threads have begun to read some parts."""
        made: dict[tuple[torch.dtype, Shape, int], Tensor] = {}  # once, however often a forged file has a part
        stored: dict[str, Tensor] = {}
        for label, part in self.parts[name].items():
            place = (part.dtype, part.shape, part.start)
            if place not in made:
                made[place] = self.data.numbers(part)
            stored[label] = made[place]
        for label, numbers in stored.items():
            if numbers.dtype is torch.bool and (numbers.view(torch.uint8) > 1).any():
                raise CorruptArtifact(f"has truth values other than 0 and 1 in its part {label!r:.200}")
        return Encoded(stored, self.claims[name].parameters, begun)

    def taken(self, name: str) -> int:
        """How many bytes of the file a tensor takes."""
        return sum(self.data.taken(part) for part in self.parts[name].values())


def longest_description(names: Iterable[str]) -> int:
    """How many bytes what a file says of itself may have, if these are its tensors."""
    rooms = (ROOM_FOR_TENSOR + ROOM_FOR_CHARACTER * len(name) for name in names)
    return min(LONGEST_HEADER, ROOM_FOR_ABOUT + sum(rooms))


def compact(content: Mapping[str, Any]) -> str:
    """JSON of which the same content gives the same text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parsed(path: Path, text: str | bytes) -> dict[str, Any]:
    """A JSON object, each of whose objects has every key once."""
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise CorruptArtifact(f"{path} is corrupt: what it says of itself is not JSON: {error!s:.200}") from error
    if not isinstance(content, dict):
        raise CorruptArtifact(f"{path} is corrupt: what it says of itself is not a JSON object")
    return content


def claim_of(path: Path, name: str, entry: Any) -> Claim:
    """What the description says of one tensor."""
    if not isinstance(entry, dict):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} is not described")
    parameters = dict(entry)
    encoding, shape, dtype = (parameters.pop(key, None) for key in ("encoding", "shape", "dtype"))
    if not naturals(shape):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the shape {shape!r:.80}")
    if not isinstance(dtype, str) or dtype not in BY_NAME:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the dtype {dtype!r:.80}")
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise CorruptArtifact(
            f"{path} has {name!r:.200} in an encoding that this tamis does not know, {encoding!r:.80}: "
            f"it was written by a newer tamis, or is corrupt"
        )
    return Claim(encoding, tuple(shape), BY_NAME[dtype], parameters)


def part_of(path: Path, name: str, code: Any, shape: Any, start: int) -> Part:
    """A part of this dtype, by its code, and shape, if there can be such a one."""
    if not isinstance(code, str) or code not in DTYPES:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has a dtype that tamis does not write, {code!r:.80}")
    if not naturals(shape) or not possible(shape):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the shape {shape!s:.80}")
    return Part(DTYPES[code], tuple(shape), start)


def entries_of(path: Path, entries: Mapping[str, Any], content: Array, data: int) -> dict[str, Part]:
    """The entries of a safetensors header, in the order of their data, which they must fill from its first byte on.

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
        part, offsets = part_of(path, name, entry["dtype"], entry["shape"], 0), entry["data_offsets"]
        if not naturals(offsets) or len(offsets) != 2:
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


def naturals(value: Any) -> bool:
    """Whether this is a list of integers, none of them negative."""
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def possible(shape: list[int]) -> bool:
    """Whether torch can make a tensor of this shape, in which a length of 0 may stand beside any other."""
    return len(shape) <= MOST_DIMENSIONS and math.prod(max(length, 1) for length in shape) <= MOST_ENTRIES


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return content


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
