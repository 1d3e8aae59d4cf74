"""A `.tamis` file of version 2 has a compressed description, and all numbers by their width and byte by byte.

The highest byte of a floating-point number holds its sign and most of its exponent, and takes few values: the highest
bytes of all numbers of one width are compressed together. The other bytes look random, and are stored as they are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.encodings import Encoded
from tamis.artifact.encodings.base import Array, view_bits
from tamis.artifact.header import (
    CODES,
    FORMAT,
    NAMES,
    Claim,
    Description,
    Part,
    dump_json,
    is_list_of_naturals,
    parse_json,
    read_claim,
    read_entries,
    read_part,
)
from tamis.artifact.seen_filter import compute_room, encode_within
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters
from tamis.graph import NOTHING_SEEN, SeenSamples
from tamis.kernels import dispatch

VERSION = 2
WIDTHS = (8, 4, 2)  # of numbers whose bytes are parted
MOST_SHARED = 1 << 20  # bytes of a part that is compared with all others: levels never have more


# -- writing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedFile:
    """A packed file has all its pieces and its size, and is ready to be written.

    Attributes:
        head: its length field and header, with zeros for the checksum.
        parts: the numbers that follow, by their width.
        tops: their highest bytes, by their width: as they are, or compressed.
        description: the compressed description, which comes last.
        description_length: how many bytes the description has before it is compressed.
    """

    head: bytes
    parts: Mapping[int, Sequence[Tensor]]
    tops: Mapping[int, Array]
    description: bytes
    description_length: int

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return len(self.head) + _compute_data_length(self.parts, self.tops) + len(self.description)

    def blocks(self) -> Iterator[bytes | memoryview]:
        """Yield the whole file, piece by piece."""
        yield self.head
        for width in WIDTHS:
            for place in range(width - 1):
                yield from (_take_bytes(part, place).data for part in self.parts[width])
            yield self.tops[width].data
        yield from (view_bits(part).data for part in self.parts[1])
        yield self.description


def pack_file(
    about: Mapping[str, Any],
    claims: Mapping[str, Claim],
    stored: Mapping[str, Encoded],
    seen: SeenSamples = NOTHING_SEEN,
) -> PackedFile:
    """Prepare a file with what is said about tensors, their descriptions and their stored parts.

    The samples that the network has seen are stored as "seen", as many of them as fit into a fiftieth of the file, or
    into 128 bytes where that is more.
    """
    parts: dict[int, list[Tensor]] = {width: [] for width in (*WIDTHS, 1)}
    tensors, parts_before, listed = [], _PartIndex(), 0
    for name, claim in claims.items():
        described: list[list[Any]] = []
        for label, part in sorted(stored[name].parts.items()):
            earlier = parts_before.place(part, listed)
            listed += 1
            if earlier is not None:
                described.append([label, earlier])
                continue
            described.append([label, CODES[part.dtype], list(part.shape)])
            parts[part.itemsize].append(part)
        said = {"name": name, "encoding": claim.encoding, "dtype": NAMES[claim.dtype], "shape": list(claim.shape)}
        tensors.append({**claim.parameters, **said, "parts": described})
    tops = {width: _collect_tops(parts[width], width) for width in WIDTHS}

    def ready(said: Mapping[str, Any]) -> PackedFile:
        try:
            text = dump_json({"about": dict(said), "tensors": tensors, "tops": [len(tops[width]) for width in WIDTHS]})
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"what is said about the tensors must be JSON, and is not: {error}") from error
        description = zlib.compress(text.encode(), 9)
        head = _write_head(_compute_data_length(parts, tops), len(description))
        return PackedFile(head, parts, tops, description, len(text))

    plain = ready(about)
    text = encode_within(
        seen, lambda text: ready({**about, "seen": text}).nbytes - plain.nbytes, compute_room(plain.nbytes)
    )
    return plain if text is None else ready({**about, "seen": text})


class _PartIndex(dict[tuple[torch.dtype, tuple[int, ...], bytes], int]):
    """The places where parts were first listed: most layers of a network have the same levels."""

    def place(self, part: Tensor, here: int) -> int | None:
        """Return the place of an earlier part with the same numbers; else remember this one, and return None."""
        if part.nbytes > MOST_SHARED:
            return None
        first = self.setdefault((part.dtype, tuple(part.shape), view_bits(part).tobytes()), here)
        return None if first == here else first


def _take_bytes(part: Tensor, place: int) -> Array:
    """Return one byte of each number of a part; place 0 is the lowest."""
    return np.ascontiguousarray(view_bits(part).view(np.uint8).reshape(-1, part.itemsize)[:, place])


def _collect_tops(parts: Sequence[Tensor], width: int) -> Array:
    """Collect the highest bytes of all numbers of one width, compressed if that is shorter.

    Z_RLE, which looks for runs alone, is sixty times as fast here as zlib's default strategy, and shorter: what matches
    beyond runs in a row of exponents is chance.
    """
    row = np.concatenate([np.empty(0, dtype=np.uint8), *(_take_bytes(part, width - 1) for part in parts)])
    compressor = zlib.compressobj(9, strategy=zlib.Z_RLE)
    short = compressor.compress(row.data) + compressor.flush()
    return np.frombuffer(short, dtype=np.uint8) if len(short) < len(row) else row


def _compute_data_length(parts: Mapping[int, Sequence[Tensor]], tops: Mapping[int, Array]) -> int:
    lower = sum((width - 1) * sum(part.numel() for part in parts[width]) + len(tops[width]) for width in WIDTHS)
    return lower + sum(part.numel() for part in parts[1])


def _write_head(data: int, description: int) -> bytes:
    """Write a safetensors header after its length, with the checksum always in the same place."""
    text = dump_json({"sha256": "0" * 64})[:-1] + "," + dump_json({"format": FORMAT, "version": VERSION})[1:]
    ends = {"data": (0, data), "description": (data, data + description)}
    entries = {
        name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
        for name, (start, end) in ends.items()
    }
    header = json.dumps({"__metadata__": {FORMAT: text}, **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


# -- reading: nothing is taken on trust ----------------------------------------------------------------------------


class Planes:
    """The data of a file: for each width, one row for each byte of its numbers; starts count numbers of that width."""

    def __init__(self, path: Path, data: Array, counts: Mapping[int, int], tops: Sequence[int]) -> None:
        self._lower: dict[int, Array] = {}  # a row for each byte of the numbers but the highest
        self._tops: dict[int, Array] = {}
        self._path = path
        self._stored_tops = dict(zip(WIDTHS, tops, strict=True))
        self._counts = counts
        end = 0
        for width, top in self._stored_tops.items():
            count, start = counts[width], end
            end = start + (width - 1) * count + top
            if top > count or end > len(data):
                raise CorruptArtifact(f"{path} is corrupt: it has no room for {count} numbers of {width} bytes")
            self._lower[width] = data[start : end - top].reshape(width - 1, count)
            self._tops[width] = data[end - top : end]
        if len(data) - end != counts[1]:
            raise CorruptArtifact(
                f"{path} is corrupt: {len(data) - end} bytes are left where parts of {counts[1]} bytes should stand"
            )
        self._bytes = data[end:]

    def inflate(self) -> None:
        for width, row in self._tops.items():
            self._tops[width] = _inflate_tops(self._path, row, self._counts[width])

    def numbers(self, part: Part) -> Tensor:
        width, own = part.dtype.itemsize, slice(part.start, part.start + part.entries)
        row = self._bytes[own] if width == 1 else _join_bytes(self._lower[width][:, own], self._tops[width][own])
        return torch.from_numpy(row).view(part.dtype).reshape(part.shape)

    def count_stored_bytes(self, part: Part) -> int:
        """Count a part's bytes; of the compressed ones it has its share by numbers, so that all parts add up."""
        width = part.dtype.itemsize
        if part.shared or part.entries == 0:
            return 0
        if width == 1:
            return part.nbytes
        top, count = self._stored_tops[width], self._counts[width]
        share = (part.start + part.entries) * top // count - part.start * top // count
        return (width - 1) * part.entries + share


def _join_bytes(lower: Array, top: Array) -> Array:
    """Interleave a row for each of the lower bytes of numbers, and one of the highest, into whole numbers."""
    numbers = np.empty((len(top), len(lower) + 1), dtype=np.uint8)
    if (extension := dispatch.native()) is not None:
        extension.join_bytes(lower, top, numbers)
    else:
        numbers[:, :-1], numbers[:, -1] = lower.T, top
    return numbers.reshape(-1)


def read_description(
    path: Path, text: Mapping[str, Any], entries: Mapping[str, Any], content: Array, data: int, longest: int
) -> Description:
    """Read the description of a file of version 2.

    Args:
        path: for messages.
        text: the metadata.
        entries: the header without the metadata.
        content: the whole file.
        data: where the header ends.
        longest: how many bytes the description may have when it is not compressed.
    """
    if len(text) != 3:
        raise CorruptArtifact(f"{path} is corrupt: its metadata must have 'sha256', 'format' and 'version' alone")
    if set(entries) != {"data", "description"}:
        raise CorruptArtifact(f"{path} is corrupt: its header must have 'data' and 'description' alone")
    places = read_entries(path, entries, content, data)
    rows = {name: _read_row(path, name, part, content, data) for name, part in places.items()}
    said = parse_json(path, _inflate_description(path, rows["description"], longest))
    about, tensors = said.get("about"), said.get("tensors")
    tops: Any = said.get("tops")
    if len(said) != 3 or not isinstance(about, dict) or not isinstance(tensors, list):
        raise CorruptArtifact(f"{path} is corrupt: it must have 'about', 'tensors' and 'tops', and nothing else")
    if not is_list_of_naturals(tops) or len(tops) != len(WIDTHS):
        raise CorruptArtifact(f"{path} is corrupt: its 'tops' are {tops!s:.80}, not {len(WIDTHS)} lengths")
    claims: dict[str, Claim] = {}
    parts: dict[str, dict[str, Part]] = {}
    counts = dict.fromkeys((*WIDTHS, 1), 0)
    listed: list[Part] = []
    for entry in tensors:
        name, own, claimed = _split_entry(path, entry)
        if name in claims:
            raise CorruptArtifact(f"{path} is corrupt: it has {name!r:.200} twice")
        claims[name], parts[name] = read_claim(path, name, claimed), _place_parts(path, name, own, counts, listed)
    return Description(about, claims, parts, Planes(path, rows["data"], counts, tops))


def _read_row(path: Path, name: str, part: Part, content: Array, data: int) -> Array:
    if part.dtype is not torch.uint8 or len(part.shape) != 1:
        raise CorruptArtifact(f"{path} is corrupt: {name!r} must be a row of bytes")
    return content[data + part.start : data + part.start + part.nbytes]


def _split_entry(path: Path, entry: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Split the description of a tensor into its name, its parts, and the rest."""
    said = dict(entry) if isinstance(entry, dict) else {}
    name, own = said.pop("name", None), said.pop("parts", None)
    if not isinstance(name, str) or not isinstance(own, list):
        raise CorruptArtifact(f"{path} is corrupt: a tensor without a name or parts is not described: {entry!s:.200}")
    return name, own, said


def _place_parts(path: Path, name: str, own: list[Any], counts: dict[int, int], listed: list[Part]) -> dict[str, Part]:
    """Place the parts of a tensor: each after all counted so far, or where the earlier part is that it repeats."""
    parts: dict[str, Part] = {}
    for row in own:
        if not isinstance(row, list) or len(row) not in (2, 3) or not isinstance(row[0], str) or row[0] in parts:
            raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has a part that is not described: {row!s:.200}")
        if len(row) == 2:
            part = _find_shared_part(path, f"{name}/{row[0]}", row[1], listed)
        else:
            part = read_part(path, f"{name}/{row[0]}", row[1], row[2], 0)
            part = Part(part.dtype, part.shape, counts[part.dtype.itemsize])
            counts[part.dtype.itemsize] += part.entries
        parts[row[0]] = part
        listed.append(part)
    return parts


def _find_shared_part(path: Path, name: str, place: Any, listed: list[Part]) -> Part:
    if type(place) is not int or not 0 <= place < len(listed):
        raise CorruptArtifact(
            f"{path} is corrupt: {name!r:.200} should be part {place!r:.40} again, and {len(listed)} parts precede it"
        )
    return replace(listed[place], shared=True)


def _inflate_description(path: Path, row: Array, longest: int) -> bytes:
    text, whole = _inflate(path, row, longest)
    if len(text) > longest:
        raise InvalidParameters(
            f"{path} was made for another model than this one, or forged: what it says of itself has more than "
            f"{longest:,} bytes, the most that a file for this model may need"
        )
    if not whole:
        raise CorruptArtifact(f"{path} is corrupt: its compressed description does not end where it should")
    return text


def _inflate_tops(path: Path, row: Array, count: int) -> Array:
    """Inflate the highest bytes of so many numbers; the lower bytes in the file already take more memory than these."""
    if len(row) == count:
        return row
    tops, whole = _inflate(path, row, count)
    if len(tops) != count or not whole:
        raise CorruptArtifact(f"{path} is corrupt: {len(row)} bytes are not the highest bytes of {count} numbers")
    return np.frombuffer(tops, dtype=np.uint8)


def _inflate(path: Path, row: Array, most: int) -> tuple[bytes, bool]:
    """Decompress up to one byte more than expected, and tell whether the stream ends just where the row does."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(row.data, most + 1)
    except zlib.error as error:
        raise CorruptArtifact(f"{path} is corrupt: what it compresses cannot be read: {error!s:.200}") from error
    return content, stream.eof and not stream.unused_data
