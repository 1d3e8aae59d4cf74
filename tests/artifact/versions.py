"""Files of both versions, taken apart and put together as docs/format.md says, with nothing of tamis."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}
WIDTH |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1}
VERSIONS = (1, 2)


@dataclass
class Said:
    """What a file holds: `about`, claims of tensors, and for each part "NAME/PART" its code, shape and bytes."""

    about: Any
    tensors: dict[str, Any]
    parts: dict[str, tuple[str, Any, bytes]]


def sealed(content: bytes) -> bytes:
    """With a checksum that is right."""
    return content[:48] + hashlib.sha256(content[:48] + b"0" * 64 + content[112:]).hexdigest().encode() + content[112:]


def opened(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The metadata, the other entries of the header, and the data, of a file whose checksum is right."""
    assert content[8:48] == b'{"__metadata__":{"tamis":"{\\"sha256\\":\\"'
    assert hashlib.sha256(content[:48] + b"0" * 64 + content[112:]).hexdigest().encode() == content[48:112]
    (length,) = struct.unpack("<Q", content[:8])
    assert (8 + length) % 8 == 0
    header = json.loads(content[8 : 8 + length].decode("utf-8"))
    return json.loads(header.pop("__metadata__")["tamis"]), header, content[8 + length :]


def closed(metadata: dict[str, Any], header: dict[str, Any], data: bytes) -> bytes:
    """A file of these, with a checksum that is right."""
    text = {"sha256": "0" * 64} | {key: value for key, value in metadata.items() if key != "sha256"}
    whole = {"__metadata__": {"tamis": json.dumps(text, separators=(",", ":"))}, **header}
    content = json.dumps(whole, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    return sealed(len(content).to_bytes(8, "little") + content + data)


def version_of(content: bytes) -> int:
    metadata, _, _ = opened(content)
    assert metadata["format"] == "tamis"
    return int(metadata["version"])


def taken_apart(content: bytes) -> Said:
    metadata, header, data = opened(content)
    if metadata["version"] == 1:
        assert metadata.keys() == {"sha256", "about", "format", "tensors", "version"}
        parts = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            assert (len(content) - len(data) + start) % WIDTH[entry["dtype"]] == 0
            parts[name] = (entry["dtype"], entry["shape"], data[start:stop])
        return Said(metadata["about"], metadata["tensors"], parts)
    assert metadata.keys() == {"sha256", "format", "version"} and header.keys() == {"data", "description"}
    row, text = (data[slice(*header[name]["data_offsets"])] for name in ("data", "description"))
    description = json.loads(zlib.decompress(text))
    assert description.keys() == {"about", "tensors", "tops"}
    numbers = numbers_of(row, description)
    said = Said(description["about"], {}, {})
    for tensor in description["tensors"]:
        said.tensors[tensor["name"]] = {key: tensor[key] for key in tensor if key not in ("name", "parts")}
        for label, *row in tensor["parts"]:
            if len(row) == 1:
                found = list(said.parts.values())[row[0]]
            else:
                code, shape = row
                found = (code, shape, b"".join(numbers[WIDTH[code]].pop(0) for _ in range(product(shape))))
            said.parts[f"{tensor['name']}/{label}"] = found
    assert not any(numbers.values())
    return said


def numbers_of(row: bytes, description: dict[str, Any]) -> dict[int, list[bytes]]:
    """By width, all numbers of a file of version 2, one after the other."""
    found = {}
    listed = [part for tensor in description["tensors"] for part in tensor["parts"] if len(part) == 3]
    for width, top in zip((8, 4, 2, 1), [*description["tops"], 0], strict=True):
        count = sum(product(shape) for _, code, shape in listed if WIDTH[code] == width)
        planes = []
        for _ in range(max(width - 1, 1)):
            planes.append(row[:count])
            row = row[count:]
        if width > 1:
            planes.append(row[:top] if top == count else zlib.decompress(row[:top]))
            row = row[top:]
        found[width] = [bytes(number) for number in zip(*planes, strict=True)]
        assert len(found[width]) == count
    assert not row
    return found


def product(shape: list[int]) -> int:
    result = 1
    for length in shape:
        result *= length
    return result


def put_together(version: int, said: Said, deflate: Callable[[bytes], bytes] = zlib.compress) -> bytes:
    """A file of this version; in the second, no part is another one again, which it may be and need not."""
    if version == 1:
        header: dict[str, Any] = {}
        data = b""
        for name, (code, shape, row) in sorted(said.parts.items(), key=lambda item: -WIDTH.get(item[1][0], 1)):
            header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(data), len(data) + len(row)]}
            data += row
        return closed({"about": said.about, "format": "tamis", "tensors": said.tensors, "version": 1}, header, data)
    tensors = []
    for name, claim in said.tensors.items():
        own = {full.rpartition("/")[2]: part for full, part in said.parts.items() if full.rpartition("/")[0] == name}
        tensors.append({"name": name, **claim, "parts": [[label, part[0], part[1]] for label, part in own.items()]})
    rows: dict[int, bytes] = {8: b"", 4: b"", 2: b"", 1: b""}
    for tensor in tensors:
        for label, code, _ in tensor["parts"]:
            rows[WIDTH.get(code, 1)] += said.parts[f"{tensor['name']}/{label}"][2]
    data, tops = b"", []
    for width in (8, 4, 2):
        data += b"".join(rows[width][place::width] for place in range(width - 1))
        top = rows[width][width - 1 :: width]
        short = deflate(top)
        data += short if len(short) < len(top) else top
        tops.append(min(len(short), len(top)))
    description = {"about": said.about, "tensors": tensors, "tops": tops}
    return packed(data + rows[1], deflate(json.dumps(description).encode()))


def packed(data: bytes, description: bytes) -> bytes:
    """A file of version 2 of its two rows."""
    middle, end = len(data), len(data) + len(description)
    header = {
        "data": {"dtype": "U8", "shape": [middle], "data_offsets": [0, middle]},
        "description": {"dtype": "U8", "shape": [end - middle], "data_offsets": [middle, end]},
    }
    return closed({"format": "tamis", "version": 2}, header, data + description)


def unpacked(content: bytes) -> tuple[bytes, bytes]:
    """The two rows of a file of version 2, the second still compressed."""
    _, header, data = opened(content)
    row, description = (data[slice(*header[name]["data_offsets"])] for name in ("data", "description"))
    return row, description


def as_version(version: int, content: bytes) -> bytes:
    """The same in another version, or itself."""
    return content if version == version_of(content) else put_together(version, taken_apart(content))
