"""What a network has seen in its file: written and read back, in 2% of it or 128 bytes, and refused where forged."""

import base64
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import tamis
from tamis.artifact import seen_filter
from tamis.artifact.compressed import Compressed
from tamis.artifact.weights_file import save_weights, seen_in
from tamis.errors import CorruptArtifact
from tamis.graph import CELLS, NOTHING_SEEN, SeenSamples, remember, sample_digests


def seen_of(count: int, seed: int = 0, purpose: str = "calibration") -> SeenSamples:
    digests = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    return SeenSamples.of(digests, purpose)  # type: ignore[arg-type]


def same(one: SeenSamples, other: SeenSamples) -> bool:
    return one.cells.tolist() == other.cells.tolist() and (one.limit, one.purposes) == (other.limit, other.purposes)


@cache
def traced(width: int = 64) -> tamis.Network:
    torch.manual_seed(0)
    return tamis.trace(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)), torch.zeros(1, width))


@given(st.sets(st.integers(0, CELLS - 1), min_size=1, max_size=80), st.data())
def test_any_set_of_cells_is_read_back(cells: set[int], data: st.DataObject) -> None:
    limit = data.draw(st.integers(max(cells) + 1, CELLS))
    seen = SeenSamples(np.array(sorted(cells)), limit, ("training", "search"))
    assert same(seen_filter.read("file", seen_filter.encode(seen)), seen)


@pytest.mark.parametrize("count", [1, 10, 1000, 50_000])
def test_a_sample_takes_as_many_bits_as_the_code_promises(count: int) -> None:
    seen = seen_of(count)
    bits = 8 * (len(base64.b64decode(seen_filter.encode(seen))) - seen_filter.HEAD) / count
    least = np.log2(CELLS / count) + 1.44
    assert bits < least + (0.3 if count >= 1000 else 9)
    assert same(seen_filter.read("file", seen_filter.encode(seen)), seen)


@pytest.mark.parametrize(
    "text",
    [
        1,
        ["x"],
        "",
        "é",
        "AAAA",
        base64.b64encode(bytes(40)).decode(),  # no samples
        base64.b64encode(bytes([255, *bytes(40)])).decode(),  # purposes that there are not
        base64.b64encode(bytes([1, 41, *bytes(40)])).decode(),  # more low bits than a cell has
        base64.b64encode(bytes([1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0])).decode(),  # more than fit
        base64.b64encode(bytes([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0b01000000])).decode(),  # cell 1 beyond the limit 1
        base64.b64encode(bytes([1, 0, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0b01000001])).decode(),  # bits after the last
        base64.b64encode(bytes([1, 0, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0b01000000, 0])).decode(),  # a byte too many
        base64.b64encode(bytes([1, 40, 9, 0, 0, 0, 0, 1, 0, 0, 0, 0b00110000, 0, 0, 0, 0, 0])).decode(),  # gap 2 · 2^40
    ],
)
def test_what_was_forged_is_refused(text: object) -> None:
    with pytest.raises(CorruptArtifact, match=r"'small\.tamis' does not say what its network has seen"):
        seen_filter.read("small.tamis", text)


@given(st.binary(min_size=0, max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        seen = seen_filter.read("file", base64.b64encode(content).decode())
    except CorruptArtifact:
        return
    assert len(seen.cells) and (np.diff(seen.cells) > 0).all() and seen.cells[0] >= 0 and seen.cells[-1] < seen.limit


@pytest.mark.parametrize("samples", [3, 300, 30_000])
@pytest.mark.parametrize("width", [2, 64, 256])
def test_it_takes_a_fiftieth_of_the_file_or_128_bytes_and_as_much_of_that_as_it_can(
    samples: int, width: int, tmp_path: Path
) -> None:
    plain = Compressed(traced(width))
    small = plain.with_seen(seen_of(samples))
    small.save(tmp_path / "small.tamis")
    size = os.path.getsize(tmp_path / "small.tamis")
    room = max(size / 50, 128)
    assert size == small.nbytes and size - plain.nbytes <= room
    found = tamis.load(tmp_path / "small.tamis", small.network).seen
    assert found.count(np.zeros(1, dtype=np.uint64)) == 0
    assert found.cells.tolist() == small.seen.cells[: len(found.cells)].tolist()
    if found.share < 1:  # a quarter of the room may be lost to rounding
        assert size - plain.nbytes > 0.75 * room - 32


@pytest.mark.parametrize("samples", [12, 13, 20, 600, 60_000])
def test_the_smallest_file_remembers_a_dozen_samples(samples: int) -> None:
    """Gaps between few samples are long, and each takes more bits: fewest of them fit where all nearly do."""
    seen = seen_of(samples)
    text = seen_filter.encode_within(seen, lambda text: len(text) + len(',"seen":""'), seen_filter.compute_room(0))
    assert text is not None and len(text) + len(',"seen":""') <= 128
    assert len(seen_filter.read("file", text).cells) >= 12


def test_equal_networks_have_equal_bytes_and_what_is_read_is_written_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Compressed(traced()).with_seen(seen_of(5000)).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    tamis.load(tmp_path / "one", traced()).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "one").read_bytes()


def test_a_module_that_loads_a_file_has_seen_what_the_file_has(tmp_path: Path) -> None:
    net, model = traced(), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    Compressed(net).with_seen(seen_of(20, purpose="training")).save(tmp_path / "small.tamis")
    small = tamis.load(tmp_path / "small.tamis", model)
    assert len(small.seen.cells) == len(small.network.seen.cells) == 20
    for module in (small.apply_to(model), small.to_module()):
        assert len(tamis.trace(module, torch.zeros(1, 64)).seen.cells) == 20


def test_files_without_it_have_seen_nothing(tmp_path: Path) -> None:
    Compressed(traced()).save(tmp_path / "small.tamis")
    assert not tamis.load(tmp_path / "small.tamis", traced()).seen
    assert b"seen" not in (tmp_path / "small.tamis").read_bytes()


def test_weights_remember_beside_them(tmp_path: Path) -> None:
    model = nn.Linear(256, 64)
    save_weights(model, tmp_path / "plain.safetensors")
    remember(model, seen_of(50, purpose="training"))
    save_weights(model, tmp_path / "w.safetensors")
    assert len(seen_in(tmp_path / "w.safetensors").cells) == 50 and not seen_in(tmp_path / "plain.safetensors")
    grown = os.path.getsize(tmp_path / "w.safetensors") - os.path.getsize(tmp_path / "plain.safetensors")
    assert grown <= os.path.getsize(tmp_path / "w.safetensors") / 50


def test_what_looks_at_data_remembers_it_and_what_does_not_adds_nothing() -> None:
    net = traced()
    data = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    digests = sample_digests((data,), (torch.float32,))
    pruned = tamis.prune(net, 0.5)
    assert pruned.seen is NOTHING_SEEN
    quantized = tamis.quantize(pruned, data[:20], levels=3, progress=False)
    assert quantized.seen.count(digests) == quantized.seen.count(digests[:20]) == 20
    repaired = tamis.repair(net, quantized, [data[10:30].double()], progress=False)
    assert repaired.seen.count(digests) == repaired.seen.count(digests[:30]) == 30
    assert repaired.seen.purposes == ("calibration",)
    surgeon = tamis.prune(net, 0.5, by="obs", calibration=data[5:9], progress=False)
    assert surgeon.seen.count(digests) == surgeon.seen.count(digests[5:9]) == 4
    assert tamis.prune(repaired, 0.1).seen.count(digests) == 30


def test_more_than_tamis_writes_is_not_read(tmp_path: Path) -> None:
    text = base64.b64encode(bytes(seen_filter.LONGEST)).decode()
    with pytest.raises(CorruptArtifact, match=rf"'small.tamis' says in {len(text):,} characters .* at most 524,288"):
        seen_filter.read("small.tamis", text)
    save_file({"weight": torch.ones(1)}, tmp_path / "m.safetensors", {"tamis.seen": text})
    with pytest.raises(CorruptArtifact, match="at most 524,288 are read"):
        seen_in(tmp_path / "m.safetensors")
