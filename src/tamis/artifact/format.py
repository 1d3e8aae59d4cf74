"""The `.tamis` file: named tensors, each in its shortest exact encoding, with a checksum over every byte.

It is one safetensors file; docs/format.md specifies it. Nothing here knows what the tensors are for.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.atomic import replacing
from tamis.artifact.codes import Codes
from tamis.artifact.encodings import ENCODINGS, Decoded, Encoded, shortest
from tamis.artifact.encodings.base import Array, bits, zero_bits
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, listed

FORMAT, VERSION = "tamis", 1
START = rb'{"__metadata__":{"tamis":"{\"sha256\":\"'  # how the header of every file begins, from byte 8 on
CHECKSUM = slice(8 + len(START), 8 + len(START) + 64)  # where its hexadecimal digits stand
LONGEST_HEADER = 100_000_000  # what safetensors libraries read
# What a header may take for `about`, for each tensor, and for each character of its name. Without this limit, a small
# file could fill the memory: JSON becomes Python objects of up to 60 times its length.
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
class Contents:
    """What a file holds.

    Attributes:
        tensors: every tensor, contiguous and on the CPU.
        masks: which entries are kept, for those that were saved with a mask.
        about: what the writer had to say of them.
        codes: what entries are made of, for those that were saved with codes.
    """

    tensors: dict[str, Tensor]
    masks: dict[str, Tensor]
    about: dict[str, Any]
    codes: dict[str, Codes]


def write(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    about: Mapping[str, Any],
    codes: Mapping[str, Codes] | None = None,
) -> int:
    """Write tensors to a file, whole or not at all; the same content gives the same bytes.

    Args:
        path: the file to write or replace.
        tensors: any names, shapes and devices; dtypes that safetensors knows. Each is read back bit for bit.
        masks: for some of the names, a boolean tensor. Where it is False, the tensor is exactly +0.0.
        about: anything that is JSON.
        codes: for those that are quantized, what they are made of. Where the mask is True, or there is none, the tensor
            is exactly what these say.

    Returns:
        The number of bytes written.

    Example:
        >>> write("small.tamis", {"fc.weight": weight}, {"fc.weight": weight != 0}, {"recipe": []})
    """
    header, parts = _lay_out(tensors, masks, about, codes or {})
    digest = hashlib.sha256(header)
    for part in parts:
        digest.update(bits(part).data)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        file.write(header[: CHECKSUM.start] + digest.hexdigest().encode() + header[CHECKSUM.stop :])
        for part in parts:
            file.write(bits(part).data)
        return file.tell()


def size(
    tensors: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    about: Mapping[str, Any],
    codes: Mapping[str, Codes] | None = None,
) -> int:
    """How many bytes `write` would write.

    Example:
        >>> size(tensors, masks, about) == write("small.tamis", tensors, masks, about)
        True
    """
    header, parts = _lay_out(tensors, masks, about, codes or {})
    return len(header) + sum(part.nbytes for part in parts)


def read(path: str | Path, expected: Mapping[str, tuple[Shape, torch.dtype]]) -> Contents:
    """Read the tensors of a file that is meant for a model.

    The whole file is read into memory before it is checked, and nothing that is returned refers to it: whoever
    changes or truncates it afterwards changes no tensor.

    Args:
        path: a file that `write` wrote.
        expected: shape and dtype of each tensor of the model. A file that claims others is refused before anything is
            decoded, so that a hostile one takes no more memory than a small multiple of the model and of itself, which
            docs/format.md states under "Limits".

    Raises:
        CorruptArtifact: if the file is truncated, changed, forged, or of another kind.
        InvalidParameters: if it is sound, but made for another model.

    Example:
        >>> read("small.tamis", {"fc.weight": ((10, 64), torch.float32)}).tensors["fc.weight"]
    """
    path = Path(path)
    content = _content(path)
    with ThreadPoolExecutor(max_workers=1) as other_thread:  # the checksum takes about as long as all the rest
        verification = other_thread.submit(_verify, path, content)
        try:
            return _decoded(path, content, expected)
        finally:
            verification.result()  # bytes that were changed explain whatever else is wrong


def stored_bytes(path: str | Path) -> dict[str, int]:
    """How many bytes of a file each tensor takes; what is left over is its header.

    Example:
        >>> stored_bytes("small.tamis")["fc.weight"]
        176
    """
    path = Path(path)
    content = _content(path)
    _verify(path, content)
    stored = _stored(path, content, _described(path, content, LONGEST_HEADER))
    return {name: encoded.nbytes for name, encoded in stored.items()}


# -- writing -------------------------------------------------------------------------------------------------------


def _lay_out(
    tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor], about: Mapping[str, Any], codes: Mapping[str, Codes]
) -> tuple[bytes, list[Tensor]]:
    """The file's first bytes, with zeros for the checksum, and the tensors that follow them."""
    for kind, names in (("masks", list(masks)), ("codes", list(codes))):
        if strangers := [name for name in names if name not in tensors]:
            raise InvalidParameters(f"there are {kind} for {listed(_quoted(strangers), most=4)}, but no such tensors")
    claims: dict[str, Any] = {}
    parts: dict[str, Tensor] = {}
    for name in sorted(tensors):
        tensor = _prepared_tensor(name, tensors[name])
        mask = _prepared_mask(name, tensor, masks[name]) if name in masks else None
        quantized = _prepared_codes(name, tensor, mask, codes[name]) if name in codes else None
        encoding, stored = shortest(Decoded(tensor, mask, quantized))
        claims[name] = {**stored.parameters, "encoding": encoding}
        claims[name] |= {"shape": list(tensor.shape), "dtype": NAMES[tensor.dtype]}
        parts |= {f"{name}/{part}": value for part, value in stored.parts.items()}
    # Wide types first: every part then starts at a multiple of its own width.
    order = sorted(parts, key=lambda name: (-parts[name].itemsize, name))
    header = _header(_text(about, claims), {name: parts[name] for name in order})
    if len(header) - 8 > (room := _longest_header(tensors)):
        raise InvalidInput(
            f"names, shapes and what is said about them take {len(header) - 8:,} bytes, over {room:,} for "
            f"{len(tensors)} tensors"
        )
    return header, [parts[name] for name in order]


def _prepared_tensor(name: str, tensor: Tensor) -> Tensor:
    """A tensor, checked, contiguous and on the CPU."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameters(f"the name {name!r} cannot be written as UTF-8") from error
    if tensor.dtype not in CODES or tensor.layout is not torch.strided or tensor.is_meta:
        raise InvalidParameters(
            f"'{name}' is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}; a file holds dense tensors "
            f"of {', '.join(BY_NAME)}"
        )
    if not _possible(list(tensor.shape)):
        raise InvalidParameters(
            f"'{name}' has the shape {tuple(tensor.shape)}, beyond {MOST_DIMENSIONS} dimensions or 2^60 entries"
        )
    return tensor.detach().cpu().contiguous()


def _prepared_mask(name: str, tensor: Tensor, mask: Tensor) -> Tensor:
    """The mask of a prepared tensor, checked likewise."""
    if mask.dtype is not torch.bool or mask.shape != tensor.shape:
        raise InvalidParameters(
            f"the mask of '{name}' must be boolean and of shape {tuple(tensor.shape)}, "
            f"got {mask.dtype} and {tuple(mask.shape)}"
        )
    mask = mask.detach().cpu().contiguous()
    if not zero_bits(tensor, ~mask):
        raise InvalidParameters(
            f"'{name}' has entries other than +0.0 where its mask is False; Masks.zeroed sets them to zero"
        )
    return mask


def _prepared_codes(name: str, tensor: Tensor, mask: Tensor | None, codes: Codes) -> Codes:
    """The codes of a prepared tensor and its mask, checked likewise."""
    if codes.levels.dtype is not tensor.dtype or codes.indices.shape != tensor.shape:
        raise InvalidParameters(
            f"the codes of '{name}' must be of {tensor.dtype} and shape {tuple(tensor.shape)}, "
            f"got {codes.levels.dtype} and {tuple(codes.indices.shape)}"
        )
    codes = codes.to("cpu")
    if not np.array_equal(bits(codes.values(mask)), bits(tensor)):
        raise InvalidParameters(f"'{name}' has entries other than its codes say; Codes.values gives those")
    return codes


def _text(about: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """The file's description of itself; the checksum comes first, so that it always stands in the same place."""
    checksum = {"sha256": "0" * 64}
    try:
        content = {"about": dict(about), "format": FORMAT, "tensors": claims, "version": VERSION}
        return _compact(checksum)[:-1] + "," + _compact(content)[1:]
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"what is said about the tensors must be JSON, and is not: {error}") from error


def _header(text: str, parts: Mapping[str, Tensor]) -> bytes:
    """The header of a safetensors file and, before it, its length."""
    entries: dict[str, Any] = {}
    end = 0
    for name, part in parts.items():
        start, end = end, end + part.nbytes
        entries[name] = {"dtype": CODES[part.dtype], "shape": list(part.shape), "data_offsets": [start, end]}
    header = json.dumps({"__metadata__": {FORMAT: text}, **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _longest_header(names: Iterable[str]) -> int:
    """How many bytes the header of a file with these tensors may have."""
    rooms = (ROOM_FOR_TENSOR + ROOM_FOR_CHARACTER * len(name) for name in names)
    return min(LONGEST_HEADER, ROOM_FOR_ABOUT + sum(rooms))


def _compact(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


# -- reading: from here on, nothing is taken on trust ---------------------------------------------------------------


@dataclass(frozen=True)
class _Claim:
    """What a file says of one of its tensors."""

    encoding: str
    shape: Shape
    dtype: torch.dtype
    parameters: dict[str, Any]


@dataclass(frozen=True)
class _Part:
    """What the header says of one part: its numbers, and where they begin and end, counted from the header's end."""

    dtype: torch.dtype
    shape: Shape
    offsets: tuple[int, int]


@dataclass(frozen=True)
class _Description:
    """What a file says of itself: its writer's words, its tensors, and where their parts stand."""

    about: dict[str, Any]
    claims: dict[str, _Claim]
    parts: dict[str, Any]
    data: int  # where the header ends


def _content(path: Path) -> Array:
    """All bytes of a file that begins as ours do. One of another kind is not read any further."""
    with path.open("rb") as file:
        first = file.read(CHECKSUM.stop)
        if first[8 : CHECKSUM.start] != START or len(first) < CHECKSUM.stop:
            found = "empty" if not first else "not a .tamis file, or one whose beginning was changed"
            raise CorruptArtifact(f"{path} is {found}")
        content = np.empty(file.seek(0, os.SEEK_END), dtype=np.uint8)
        file.seek(0)
        return content[: file.readinto(content.data)]


def _verify(path: Path, content: Array) -> None:
    digest = hashlib.sha256(content[: CHECKSUM.start].data)
    digest.update(b"0" * 64)
    digest.update(content[CHECKSUM.stop :].data)
    if content[CHECKSUM].tobytes() != digest.hexdigest().encode():
        raise CorruptArtifact(f"{path} is truncated or was changed since it was written: its checksum does not fit it")


def _decoded(path: Path, content: Array, expected: Mapping[str, tuple[Shape, torch.dtype]]) -> Contents:
    described = _described(path, content, _longest_header(expected))
    stored = _stored(path, content, described)
    _check_expected(path, described.claims, expected)
    decoded: dict[str, Decoded] = {}
    for name, claim in described.claims.items():
        try:
            decoded[name] = ENCODINGS[claim.encoding].decode(stored[name], claim.shape, claim.dtype)
        except CorruptArtifact as error:
            raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} {error}") from error
    return Contents(
        tensors={name: each.tensor for name, each in decoded.items()},
        masks={name: each.mask for name, each in decoded.items() if each.mask is not None},
        about=described.about,
        codes={name: each.codes for name, each in decoded.items() if each.codes is not None},
    )


def _described(path: Path, content: Array, longest_header: int) -> _Description:
    data = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if data > min(len(content), 8 + LONGEST_HEADER):
        raise CorruptArtifact(f"{path} is corrupt: its header of {data - 8} bytes is too long")
    if data > 8 + longest_header:
        raise InvalidParameters(
            f"{path} was made for another model than this one, or forged: its header has {data - 8:,} bytes, and that "
            f"of a file for this model at most {longest_header:,}"
        )
    parts = _parsed(path, content[8:data].tobytes())
    metadata = parts.pop("__metadata__")
    if not isinstance(metadata, dict) or list(metadata) != [FORMAT] or not isinstance(metadata[FORMAT], str):
        raise CorruptArtifact(f"{path} is corrupt: its metadata must be one text, under the name '{FORMAT}'")
    text = _parsed(path, metadata[FORMAT])
    _check_version(path, text)
    about, tensors = text.get("about"), text.get("tensors")
    if len(text) != 5 or not isinstance(about, dict) or not isinstance(tensors, dict):
        raise CorruptArtifact(f"{path} is corrupt: it must have 'about' and 'tensors', and nothing it should not have")
    return _Description(about, {name: _claim(path, name, entry) for name, entry in tensors.items()}, parts, data)


def _check_version(path: Path, text: Mapping[str, Any]) -> None:
    kind, version = text.get("format"), text.get("version")
    if kind != FORMAT or type(version) is not int or version < 1:
        raise CorruptArtifact(f"{path} is corrupt: it calls itself {kind!r:.40}, version {version!r:.40}")
    if version > VERSION:
        raise CorruptArtifact(
            f"{path} was written by a newer tamis: it has format version {version}, and this one reads up to {VERSION}"
        )


def _claim(path: Path, name: str, entry: Any) -> _Claim:
    if not isinstance(entry, dict):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} is not described by an object")
    parameters = dict(entry)
    encoding, shape, dtype = (parameters.pop(key, None) for key in ("encoding", "shape", "dtype"))
    if not _naturals(shape):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the shape {shape!r:.80}")
    if not isinstance(dtype, str) or dtype not in BY_NAME:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the dtype {dtype!r:.80}")
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise CorruptArtifact(
            f"{path} has {name!r:.200} in an encoding that this tamis does not know, {encoding!r:.80}: "
            f"it was written by a newer tamis, or is corrupt"
        )
    return _Claim(encoding, tuple(shape), BY_NAME[dtype], parameters)


def _part(path: Path, name: str, entry: Any) -> _Part:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} is not described as safetensors does")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has a dtype that tamis does not write, {code!r:.80}")
    if not _naturals(shape) or not _possible(shape):
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the shape {shape!s:.80}")
    if not _naturals(offsets) or len(offsets) != 2:
        raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} has the offsets {offsets!s:.80}")
    return _Part(DTYPES[code], tuple(shape), (offsets[0], offsets[1]))


def _stored(path: Path, content: Array, described: _Description) -> dict[str, Encoded]:
    """The parts of each tensor, in the memory of the file's content."""
    stored = {name: Encoded({}, claim.parameters) for name, claim in described.claims.items()}
    parts = {name: _part(path, name, entry) for name, entry in described.parts.items()}
    data = content[described.data :]
    end = 0
    for full_name, part in sorted(parts.items(), key=lambda item: item[1].offsets):
        name, _, label = full_name.rpartition("/")  # the name of a part has no slash, the name of a tensor may
        if name not in stored:
            raise CorruptArtifact(f"{path} is corrupt: it has {full_name!r:.200}, which belongs to no tensor of it")
        start, stop = part.offsets
        misplaced = start != end or stop > len(data) or (described.data + start) % part.dtype.itemsize != 0
        if misplaced or stop - start != math.prod(part.shape) * part.dtype.itemsize:
            raise CorruptArtifact(f"{path} is corrupt: {full_name!r:.200} does not stand where it should")
        if part.dtype is torch.bool and (data[start:stop] > 1).any():
            raise CorruptArtifact(f"{path} is corrupt: {full_name!r:.200} has truth values other than 0 and 1")
        stored[name].parts[label] = torch.from_numpy(data[start:stop]).view(part.dtype).reshape(part.shape)
        end = stop
    if end != len(data):
        raise CorruptArtifact(f"{path} is corrupt: {len(data) - end} bytes of it belong to nothing")
    return stored


def _check_expected(
    path: Path, claims: Mapping[str, _Claim], expected: Mapping[str, tuple[Shape, torch.dtype]]
) -> None:
    missing = [name for name in expected if name not in claims]
    unexpected = [name for name in claims if name not in expected]
    different: list[str] = []
    for name, claim in claims.items():
        if name in expected and (claim.shape, claim.dtype) != (tuple(expected[name][0]), expected[name][1]):
            here, there = (_kind(claim.shape, claim.dtype), _kind(*expected[name]))
            different.append(f"{name!r:.200} ({here} in the file, {there} in the model)")
    differences = {"it lacks": _quoted(missing), "it also has": _quoted(unexpected), "different are": different}
    if problems := [f"{what} {listed(names, most=4)}" for what, names in differences.items() if names]:
        raise InvalidParameters(f"{path} was made for another model than this one: {'; '.join(problems)}")


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _possible(shape: list[int]) -> bool:
    """Whether torch can make a tensor of this shape, in which a length of 0 may stand beside any other."""
    return len(shape) <= MOST_DIMENSIONS and math.prod(max(length, 1) for length in shape) <= MOST_ENTRIES


def _parsed(path: Path, text: str | bytes) -> dict[str, Any]:
    """A JSON object, each of whose objects has every key once."""
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise CorruptArtifact(f"{path} is corrupt: what it says of itself is not JSON: {error!s:.200}") from error
    if not isinstance(content, dict):
        raise CorruptArtifact(f"{path} is corrupt: what it says of itself is not a JSON object")
    return content


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return content


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


# -- words ---------------------------------------------------------------------------------------------------------


def _kind(shape: Shape, dtype: torch.dtype) -> str:
    return f"{list(shape)!s:.80} of {dtype}"


def _quoted(names: list[str]) -> list[str]:
    """Names in quotes and not too long; what a terminal would take for a command is escaped."""
    return [f"{name!r:.200}" for name in names]
