"""Thousands of damaged and forged files: each is refused, or read as what it claims to be, within bounded memory.

Run as a script, this file reads most of them, in a process of its own, which a file that takes too long ends.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from artifact.versions import (
    VERSIONS,
    WIDTH,
    Said,
    as_version,
    closed,
    opened,
    packed,
    put_together,
    sealed,
    taken_apart,
    unpacked,
)
from torch import Tensor

from tamis.artifact.codes import Codes
from tamis.artifact.format import Contents, read, write
from tamis.errors import CorruptArtifact, InvalidParameters

MEMORY = 1 << 30  # beyond what torch takes, for files and models of a few kilobytes
PATIENCE = 10  # seconds, for what takes a millisecond
Kinds = dict[str, tuple[tuple[int, ...], torch.dtype]]


def test_no_file_does_anything_but_load_or_be_refused() -> None:
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        check_outcomes(read_all(400), 400)
    finally:
        signal.signal(signal.SIGALRM, before)


def give_up(*_: object) -> None:
    raise TimeoutError(f"a small file takes longer than {PATIENCE} seconds")


@pytest.mark.slow
def test_no_file_of_thousands_does_anything_else() -> None:
    files = 10_000
    search = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, str(files)]
    environment = {**os.environ, "PYTHONPATH": search}
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert run.returncode == 0, run.stderr
    check_outcomes(json.loads(run.stdout), files)


def check_outcomes(outcomes: Mapping[str, int], files: int) -> None:
    assert sum(outcomes.values()) == files
    # Each kind of outcome is reached often: the checks behind the checksum as well.
    assert min(outcomes[kind] for kind in ("CorruptArtifact", "InvalidParameters", "loaded", "forged")) > files / 500


# -- valid files to begin with -------------------------------------------------------------------------------------


def specimens() -> list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any], dict[str, Codes]]]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(9, 7, generator=generator)
    large = weight.where(weight > 0.5, 0.0)
    rare, early = torch.arange(600) % 150 == 7, torch.arange(600) < 40
    long = torch.randn(600, dtype=torch.float64, generator=generator)
    everything = {
        "narrow": torch.ones(5),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "brain": torch.randn(6, generator=generator).bfloat16(),
        "a/b": torch.arange(6, dtype=torch.int16).reshape(2, 3),
    }
    codes = {
        "ternary": Codes((weight > 0).byte() + (weight > 1), torch.tensor([-1.0, 0, 1]), weight[:, :1].abs()),
        "masked": Codes((weight > 0).byte() * 4, torch.arange(5.0) - 2, weight[:3, :1].abs()),
        "many": Codes(torch.arange(600).int() % 300, long[:300].sort().values, torch.ones(1).double()),
    }
    kept = weight > -0.5
    quantized = {name: each.values(kept if name == "masked" else None) for name, each in codes.items()}
    return [
        ({"fc.weight": large, "fc.bias": weight[0]}, {"fc.weight": large > 0}, {"recipe": ["prune"]}, {}),
        ({"gaps": long.where(rare, 0.0), "runs": long.where(early, 0.0)}, {"gaps": rare, "runs": early}, {}, {}),
        (everything, {}, {"nested": {"a": [1, 2.5, None, "é"]}}, {}),
        (quantized, {"masked": kept}, {}, codes),
        entropy_coded(),
        ({}, {}, {}, {}),
    ]


def entropy_coded() -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any], dict[str, Codes]]:
    """Tensors that are entropy-coded."""
    numbers = torch.arange(1200)
    seldom = numbers * 7919 % 1201 < 100
    three = Codes(seldom.byte() + (numbers % 100 == 0), torch.tensor([-1.5, 0, 1]), torch.tensor([0.1]))
    many = Codes(three.indices.int() * 150, torch.arange(302.0), torch.tensor([0.1]))
    codes = {"indices": three, "both": three.apply_mask(~seldom), "many": many}
    masks = {"both": ~seldom, "mask": seldom}
    tensors = {name: each.values(masks.get(name)) for name, each in codes.items()}
    tensors |= {"mask": (numbers / 7).where(seldom, 0.0), "integers": seldom * 1000 + numbers // 600}
    return tensors, masks, {}, codes


# -- damage --------------------------------------------------------------------------------------------------------


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Something that can happen to a file."""
    changed = bytearray(content)
    at, length = draw.randrange(len(changed)), draw.choice([1, 1, 2, 8, 40])
    kind = draw.randrange(7)
    if kind == 0:
        del changed[at:]
    elif kind == 1:
        for _ in range(draw.choice([1, 1, 1, 5])):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    elif kind == 2:
        changed[at:at] = draw.randbytes(length)
    elif kind == 3:
        del changed[at : at + length]
    elif kind == 4:
        hostile = [0, 1, 7, len(content), len(content) - 8, 2**31, 2**63, 2**64 - 1, content[0] + 8]
        changed[:8] = draw.choice(hostile).to_bytes(8, "little")
    elif kind == 5:
        changed[at : at + length] = bytes(len(changed[at : at + length]))
    else:
        changed += draw.randbytes(length)
    return bytes(changed)


# -- forgery: damage to the meaning, with a checksum that is right --------------------------------------------------


HOSTILE: list[Any] = [-1, 0, 1, 2**31, 2**62, 2**63, 2**64, 10**40, 1.5, 1e308, None, True, {}]
HOSTILE += [
    "",
    "../../etc/x",
    "/etc/x",
    "x" * 5000,
    "dense",
    "narrow",
    "sparse",
    "levels",
    "entropy",
    "float32",
    "float64",
    "bool",
    "uint64",
]
HOSTILE += ["F32", "U8", "BOOL", "F4", "C64", [], [0], [-1], [2**40, 2**40], [0, 2**63], [1] * 70, [7, 9], [0, 8]]
HOSTILE += [json.loads("[" * 400 + "]" * 400)]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container within a JSON value, with each of its keys."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in items] + [place for _, inner in items for place in places(inner)]


def alter(value: Any, draw: random.Random) -> None:
    """Change, remove, rename, double or exchange something somewhere within a JSON value."""
    found = places(value)
    if not found:
        return
    container, key = draw.choice(found)
    kind = draw.randrange(6)
    if kind <= 2:
        container[key] = copy(draw.choice(HOSTILE))
    elif kind == 3:
        del container[key]
    elif kind == 4 and isinstance(container, dict):
        name = draw.choice(["x", "x/values", "../../etc/x", "/etc/x", f"{key}/values", "shape"])
        container[name] = container.pop(key)
    else:
        other, its_key = draw.choice(found)
        container[key] = copy(other[its_key])


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def forged(content: bytes, draw: random.Random) -> bytes:
    """A file that says something else, with a right checksum."""
    kind = draw.randrange(5)
    if kind == 0:  # whatever bytes, if only the beginning stays
        changed = damaged(content[112:], draw) if len(content) > 112 else b""
        return sealed(content[:112] + changed)
    metadata, entries, data = opened(content)
    if kind == 1:
        return other_numbers(content, draw)
    if kind == 2:
        return put_together(metadata["version"], resized(taken_apart(content), draw))
    if metadata["version"] == 1:
        return altered(metadata, entries, data, [metadata, metadata["tensors"], entries], draw)
    if draw.random() < 0.2:
        return altered(metadata, entries, data, [metadata, entries], draw)
    return redescribed(content, draw)


def other_numbers(content: bytes, draw: random.Random) -> bytes:
    """A file with other bytes in its data."""
    metadata, entries, data = opened(content)
    row = bytearray(data if metadata["version"] == 1 else unpacked(content)[0])
    for _ in range(draw.choice([1, 3, 20]) if row else 0):
        row[draw.randrange(len(row))] = draw.choice([0, 1, 255, draw.randrange(256)])
    if metadata["version"] == 1:
        return closed(metadata, entries, bytes(row))
    return packed(bytes(row), unpacked(content)[1])


def altered(
    metadata: dict[str, Any], entries: dict[str, Any], data: bytes, within: list[Any], draw: random.Random
) -> bytes:
    """A file with something else in its header."""
    for _ in range(draw.choice([1, 1, 2])):
        alter(draw.choice(within), draw)
    metadata.pop("sha256", None)
    text = hostile_about(json.dumps({"sha256": "0" * 64, **metadata}, separators=(",", ":")), draw)
    whole: dict[str, Any] = {"tamis": text} if draw.random() < 0.95 else {"tamis": text, "more": "x"}
    header = json.dumps({"__metadata__": whole, **entries}, separators=(",", ":")).encode()
    if draw.random() < 0.05 and entries:
        header = header[:-1] + b"," + json.dumps(entries).encode()[1:]  # every key twice
    header += b" " * (-len(header) % 8)
    return sealed(len(header).to_bytes(8, "little") + header + data)


def redescribed(content: bytes, draw: random.Random) -> bytes:
    """A file of version 2 with something else in its compressed description."""
    row, description = unpacked(content)
    said = json.loads(zlib.decompress(description))
    for _ in range(draw.choice([1, 1, 2])):
        alter(draw.choice([said, said["tensors"] if isinstance(said.get("tensors"), list) else said]), draw)
    text = hostile_about(json.dumps(said), draw).encode()
    if draw.random() < 0.05:
        text = draw.choice([text + b" " * 10**7, b"[" * 10**6, text + text])
    short = zlib.compress(text)
    return packed(row, damaged(short, draw) if draw.random() < 0.1 else short)


def hostile_about(text: str, draw: random.Random) -> str:
    if draw.random() > 0.1:
        return text
    instead = draw.choice(['"about":' + "[" * 10**5, '"about":{},"about":', '"about":NaN,"x":'])
    return text.replace('"about":', instead)


def resized(said: Said, draw: random.Random) -> Said:
    """The same with one part that has become shorter or longer, where every offset is right."""
    if said.parts:
        name = draw.choice(sorted(said.parts))
        code, _, row = said.parts[name]
        code = draw.choice(["U8", "F64", "F32", "F16", "BOOL", code])
        entries = max(0, len(row) // 8 + draw.choice([-1, 1, 100]))
        said.parts[name] = (code, [entries], (row + draw.randbytes(2000))[: entries * WIDTH[code]])
    return said


# -- the process that reads them -----------------------------------------------------------------------------------


def check_well_formed(contents: Contents, expected: Kinds) -> None:
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in contents.tensors.items()} == expected
    assert isinstance(contents.about, dict)
    for name, mask in contents.masks.items():
        tensor = contents.tensors[name]
        assert mask.dtype is torch.bool and mask.shape == tensor.shape
        assert not tensor[~mask].any()
    for name, codes in contents.codes.items():
        assert torch.equal(codes.values(contents.masks.get(name)), contents.tensors[name])
    for tensor in contents.tensors.values():
        assert tensor.is_contiguous() and tensor.clone().numel() == tensor.numel()


def outcome(path: Path, expected: Kinds) -> str:
    try:
        contents = read(path, expected)
    except (CorruptArtifact, InvalidParameters) as error:
        assert str(path) in str(error) and len(str(error)) < 5000
        return type(error).__name__
    check_well_formed(contents, expected)
    return "loaded"


@contextmanager
def limited_memory() -> Iterator[None]:
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_all(files: int) -> Counter[str]:
    """Read so many damaged and forged files, and count what becomes of them."""
    draw = random.Random(0)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.tamis"
        valid: list[tuple[bytes, Kinds]] = []
        for tensors, masks, about, codes in specimens():
            write(path, tensors, masks, about, codes)
            content, expected = path.read_bytes(), {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
            for version in VERSIONS:
                valid.append((as_version(version, content), expected))
                path.write_bytes(valid[-1][0])
                assert outcome(path, expected) == "loaded"
        with limited_memory():
            for number in range(files):
                content, expected = draw.choice(valid)
                is_forged = draw.random() < 0.6
                changed = (forged if is_forged else damaged)(content, draw)
                path.write_bytes(changed)
                signal.alarm(PATIENCE)  # which fails the test
                try:
                    result = outcome(path, expected)
                except BaseException as error:
                    raise AssertionError(f"file {number} ended in {error!r}: {changed!r:.3000}") from error
                finally:
                    signal.alarm(0)
                assert is_forged or result == "CorruptArtifact" or changed == content, f"file {number}: {result}"
                outcomes["forged" if is_forged and result == "CorruptArtifact" else result] += 1
        assert [entry.name for entry in Path(folder).iterdir()] == ["any.tamis"]
    return outcomes


if __name__ == "__main__":
    print(json.dumps(read_all(int(sys.argv[1]))))
