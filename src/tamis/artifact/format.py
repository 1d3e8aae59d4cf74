"""A `.tamis` file holds named tensors, each in its shortest exact encoding, with a checksum over every byte.

It is one safetensors file; docs/format.md specifies it. Nothing here knows what the tensors are for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tamis.artifact import format_v1, format_v2
from tamis.artifact.atomic_file import replace_file
from tamis.artifact.codes import Codes
from tamis.artifact.encodings import ENCODINGS, Decoded, Encoded, shortest
from tamis.artifact.encodings.base import Array, view_bits, zero_bits
from tamis.artifact.file import CHECKSUM, File
from tamis.artifact.header import (
    BY_NAME,
    CODES,
    FORMAT,
    LONGEST_HEADER,
    MOST_DIMENSIONS,
    Claim,
    Description,
    Shape,
    is_possible_shape,
    longest_description,
    parse_json,
)
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, join_names
from tamis.graph import NOTHING_SEEN, SeenSamples

LARGE = 1 << 16  # entries that are worth a thread
MOST_THREADS = 4  # beside the calling one


@dataclass(frozen=True)
class Contents:
    """The contents of a file.

    Attributes:
        tensors: every tensor, contiguous and on the CPU.
        masks: which entries are kept, for those that were saved with a mask.
        about: what the writer stored about them.
        codes: the codes of those that were saved with codes.
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
    seen: SeenSamples = NOTHING_SEEN,
) -> int:
    """Write tensors to a file, whole or not at all; the same content gives the same bytes.

    Args:
        path: the file to write or replace.
        tensors: any names, shapes and devices; dtypes that safetensors knows. Each is read back bit for bit.
        masks: for some of the names, a boolean tensor. Where it is False, the tensor is exactly +0.0.
        about: anything that is JSON.
        codes: the codes of the quantized ones. Where the mask is True, or there is none, the tensor is exactly what
            the codes say.
        seen: the samples that the tensors were made with; what fits into 2% of the file is stored as "seen" in `about`.

    Returns:
        The number of bytes written.

    Example:
        >>> weight = torch.eye(8)
        >>> write("small.tamis", {"fc.weight": weight}, {"fc.weight": weight != 0}, {"recipe": []}) < 600
        True
    """
    ready = _pack(tensors, masks, about, codes or {}, seen)
    digest = hashlib.sha256()
    with replace_file(path) as unfinished, unfinished.open("wb") as file:
        for block in ready.blocks():
            digest.update(block)
            file.write(block)
        # The digest is that of the file with zeros here, so it can be filled in after all else is written.
        file.seek(CHECKSUM.start)
        file.write(digest.hexdigest().encode())
    return ready.nbytes


def size(
    tensors: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    about: Mapping[str, Any],
    codes: Mapping[str, Codes] | None = None,
    seen: SeenSamples = NOTHING_SEEN,
) -> int:
    """Compute how many bytes `write` would write.

    Example:
        >>> tensors, note = {"fc.weight": torch.eye(8)}, {"recipe": []}
        >>> size(tensors, {}, note) == write("small.tamis", tensors, {}, note)
        True
    """
    return _pack(tensors, masks, about, codes or {}, seen).nbytes


def read(file: str | Path | File, expected: Mapping[str, tuple[Shape, torch.dtype]]) -> Contents:
    """Read the tensors of a file that is meant for a model.

    The whole file is read into memory before it is checked, and nothing that is returned refers to it: whoever
    changes or truncates it afterwards changes no tensor.

    Args:
        file: one that `write` wrote, or what was read of it already.
        expected: shape and dtype of each tensor of the model. A file that claims others is refused before anything is
            decoded, so that a hostile one takes no more memory than a small multiple of the model and of itself, which
            docs/format.md states under "Limits".

    Raises:
        CorruptArtifact: if the file is truncated, changed, forged, or of another kind.
        InvalidParameters: if it is sound, but made for another model.

    Example:
        >>> _ = write("small.tamis", {"fc.bias": torch.tensor([0.5, -1.0])}, {}, {})
        >>> read("small.tamis", {"fc.bias": ((2,), torch.float32)}).tensors["fc.bias"]
        tensor([ 0.5000, -1.0000])
    """
    opened = File.read(file)
    path, content = opened.path, opened.content
    with ThreadPoolExecutor(max(1, min(torch.get_num_threads() - 1, MOST_THREADS))) as threads:
        verification = threads.submit(_verify, path, content)
        try:
            return _decode(path, content, expected, threads)
        finally:
            verification.result()  # if bytes were changed, say that rather than what follows from it


def stored_bytes(file: str | Path | File, names: Iterable[str]) -> dict[str, int]:
    """Count the bytes of a file that each tensor takes; the rest is the header and the description.

    Args:
        file: one that `write` wrote, or what was read of it already.
        names: of the tensors of the model that it is for; a file that says more than theirs can need is refused.

    Example:
        >>> _ = write("small.tamis", {"fc.bias": torch.tensor([0.5, -1.0])}, {}, {})
        >>> stored_bytes("small.tamis", ["fc.bias"])  # 16 bits hold either number exactly
        {'fc.bias': 4}
    """
    described = _describe_verified(File.read(file), names)
    return {name: described.count_stored_bytes(name) for name in described.claims}


def about(file: str | Path | File, names: Iterable[str]) -> dict[str, Any]:
    """Read what a file says about its tensors, such as how to build the model that they are for.

    Args:
        file: one that `write` wrote, or what was read of it already.
        names: of tensors, about as many as the file should have; one that says more than theirs can need is refused.

    Example:
        >>> _ = write("small.tamis", {"fc.bias": torch.ones(2)}, {}, {"recipe": [{"step": "prune"}]})
        >>> about("small.tamis", ["fc.bias"])["recipe"]
        [{'step': 'prune'}]
    """
    return _describe_verified(File.read(file), names).about


# -- writing -------------------------------------------------------------------------------------------------------


def _pack(
    tensors: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    about: Mapping[str, Any],
    codes: Mapping[str, Codes],
    seen: SeenSamples,
) -> format_v2.PackedFile:
    """Prepare the file, without writing it."""
    for kind, names in (("masks", list(masks)), ("codes", list(codes))):
        if strangers := [name for name in names if name not in tensors]:
            raise InvalidParameters(
                f"there are {kind} for {join_names(_quote(strangers), most=4)}, but no such tensors"
            )
    claims: dict[str, Claim] = {}
    stored: dict[str, Encoded] = {}
    for name in sorted(tensors):
        tensor = _prepare_tensor(name, tensors[name])
        mask = _prepare_mask(name, tensor, masks[name]) if name in masks else None
        quantized = _prepare_codes(name, tensor, mask, codes[name]) if name in codes else None
        encoding, stored[name] = shortest(Decoded(tensor, mask, quantized))
        claims[name] = Claim(encoding, tuple(tensor.shape), tensor.dtype, stored[name].parameters)
    ready = format_v2.pack_file(about, claims, stored, seen)
    if ready.description_length > (room := longest_description(tensors)):
        raise InvalidInput(
            f"names, shapes and what is said about them take {ready.description_length:,} bytes, over {room:,} for "
            f"{len(tensors)} tensors"
        )
    return ready


def _prepare_tensor(name: str, tensor: Tensor) -> Tensor:
    """Check a tensor, and make it contiguous and on the CPU."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameters(f"the name {name!r} cannot be written as UTF-8") from error
    if tensor.dtype not in CODES or tensor.layout is not torch.strided or tensor.is_meta:
        raise InvalidParameters(
            f"'{name}' is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}; a file holds dense tensors "
            f"of {', '.join(BY_NAME)}"
        )
    if not is_possible_shape(list(tensor.shape)):
        raise InvalidParameters(
            f"'{name}' has the shape {tuple(tensor.shape)}, beyond {MOST_DIMENSIONS} dimensions or 2^60 entries"
        )
    return tensor.detach().cpu().contiguous()


def _prepare_mask(name: str, tensor: Tensor, mask: Tensor) -> Tensor:
    """Check the mask of a prepared tensor, and make it contiguous and on the CPU."""
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


def _prepare_codes(name: str, tensor: Tensor, mask: Tensor | None, codes: Codes) -> Codes:
    """Check that codes give exactly the prepared tensor with its mask."""
    if codes.levels.dtype is not tensor.dtype or codes.indices.shape != tensor.shape:
        raise InvalidParameters(
            f"the codes of '{name}' must be of {tensor.dtype} and shape {tuple(tensor.shape)}, "
            f"got {codes.levels.dtype} and {tuple(codes.indices.shape)}"
        )
    codes = codes.to("cpu")
    if not np.array_equal(view_bits(codes.values(mask)), view_bits(tensor)):
        raise InvalidParameters(f"'{name}' has entries other than its codes say; Codes.values gives those")
    return codes


# -- reading: from here on, nothing is taken on trust ---------------------------------------------------------------


def _verify(path: Path, content: Array) -> None:
    digest = hashlib.sha256(content[: CHECKSUM.start].data)
    digest.update(b"0" * 64)
    digest.update(content[CHECKSUM.stop :].data)
    if content[CHECKSUM].tobytes() != digest.hexdigest().encode():
        raise CorruptArtifact(f"{path} is truncated or was changed since it was written: its checksum does not fit it")


def _describe_verified(file: File, names: Iterable[str]) -> Description:
    """Verify the checksum of a file, and read its description."""
    _verify(file.path, file.content)
    described = _read_description(file.path, file.content, longest_description(names))
    described.data.inflate()
    return described


def _decode(
    path: Path, content: Array, expected: Mapping[str, tuple[Shape, torch.dtype]], threads: ThreadPoolExecutor
) -> Contents:
    described = _read_description(path, content, longest_description(expected))
    # Before anything is decoded: from here on, shapes are those of the model, and bound what decoding allocates.
    _check_expected(path, described.claims, expected)
    pending = {name: _start_reading(described, name, threads) for name in described.claims}
    described.data.inflate()
    decoded: dict[str, Decoded] = {}
    for name, claim in described.claims.items():
        try:
            stored = described.collect_encoded(name, pending[name])
            decoded[name] = ENCODINGS[claim.encoding].decode(stored, claim.shape, claim.dtype)
        except CorruptArtifact as error:
            raise CorruptArtifact(f"{path} is corrupt: {name!r:.200} {error}") from error
    return Contents(
        tensors={name: each.tensor for name, each in decoded.items()},
        masks={name: each.mask for name, each in decoded.items() if each.mask is not None},
        about=described.about,
        codes={name: each.codes for name, each in decoded.items() if each.codes is not None},
    )


def _start_reading(described: Description, name: str, threads: ThreadPoolExecutor) -> dict[str, Future[Array]]:
    """Start reading the parts of a tensor that other threads can read."""
    claim, pending = described.claims[name], {}
    if (entries := math.prod(claim.shape)) < LARGE:
        return {}
    for label, part in described.parts[name].items():
        if part.dtype is not torch.uint8:  # wider numbers are joined from planes that are not inflated yet
            continue
        if (read := ENCODINGS[claim.encoding].prefetch(label, entries)) is not None:
            pending[label] = threads.submit(read, described.data.numbers(part))
    return pending


def _read_description(path: Path, content: Array, longest: int) -> Description:
    data = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if data > min(len(content), 8 + LONGEST_HEADER):
        raise CorruptArtifact(f"{path} is corrupt: its header of {data - 8} bytes is too long")
    if data > 8 + longest:
        raise InvalidParameters(
            f"{path} was made for another model than this one, or forged: its header has {data - 8:,} bytes, and that "
            f"of a file for this model at most {longest:,}"
        )
    header = parse_json(path, content[8:data].tobytes())
    metadata = header.pop("__metadata__")
    if not isinstance(metadata, dict) or list(metadata) != [FORMAT] or not isinstance(metadata[FORMAT], str):
        raise CorruptArtifact(f"{path} is corrupt: its metadata must be one text, under the name '{FORMAT}'")
    text = parse_json(path, metadata[FORMAT])
    if _read_version(path, text) == format_v1.VERSION:
        return format_v1.read_description(path, text, header, content, data)
    return format_v2.read_description(path, text, header, content, data, longest)


def _read_version(path: Path, text: Mapping[str, Any]) -> int:
    kind, version = text.get("format"), text.get("version")
    if kind != FORMAT or type(version) is not int or version < format_v1.VERSION:
        raise CorruptArtifact(f"{path} is corrupt: it calls itself {kind!r:.40}, version {version!r:.40}")
    if version > format_v2.VERSION:
        raise CorruptArtifact(
            f"{path} was written by a newer tamis: it has format version {version}, and this one reads up to "
            f"{format_v2.VERSION}"
        )
    return version


def _check_expected(path: Path, claims: Mapping[str, Claim], expected: Mapping[str, tuple[Shape, torch.dtype]]) -> None:
    missing = [name for name in expected if name not in claims]
    unexpected = [name for name in claims if name not in expected]
    different: list[str] = []
    for name, claim in claims.items():
        if name in expected and (claim.shape, claim.dtype) != (tuple(expected[name][0]), expected[name][1]):
            here, there = (_format_kind(claim.shape, claim.dtype), _format_kind(*expected[name]))
            different.append(f"{name!r:.200} ({here} in the file, {there} in the model)")
    differences = {"it lacks": _quote(missing), "it also has": _quote(unexpected), "these differ:": different}
    if problems := [f"{what} {join_names(names, most=4)}" for what, names in differences.items() if names]:
        raise InvalidParameters(f"{path} was made for another model than this one: {'; '.join(problems)}")


# -- words ---------------------------------------------------------------------------------------------------------


def _format_kind(shape: Shape, dtype: torch.dtype) -> str:
    return f"{list(shape)!s:.80} of {dtype}"


def _quote(names: list[str]) -> list[str]:
    """Quote and shorten names; repr escapes what a terminal would take for a control sequence."""
    return [f"{name!r:.200}" for name in names]
