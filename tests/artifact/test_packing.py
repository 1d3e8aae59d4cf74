"""Indices as bytes, against one Python integer that holds them all."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from any_tensors import NUMBERS_OF_LEVELS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.artifact.codes import Codes
from tamis.artifact.encodings import Decoded, packing, shortest
from tamis.artifact.encodings.base import Array
from tamis.artifact.encodings.packing import compute_packed_size, pack, unpack
from tamis.errors import CorruptArtifact

in_blocks = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers_of_levels = st.sampled_from([*NUMBERS_OF_LEVELS, 4096, 32768, 32769, 65536])


def literally(indices: list[int], levels: int) -> list[int]:
    if levels == 3:
        fives = [indices[start : start + 5] for start in range(0, len(indices), 5)]
        return [sum(digit * 3**place for place, digit in enumerate(five)) for five in fives]
    width = next(width for width in range(1, 17) if 2**width >= levels)
    integer = sum(index * 2 ** (width * place) for place, index in enumerate(indices))
    return list(integer.to_bytes(math.ceil(width * len(indices) / 8), "little"))


def row(indices: list[int], levels: int) -> Array:
    return np.array(indices, dtype=np.uint8 if levels <= 256 else np.int32)


@pytest.fixture(params=[1, 7, packing.BLOCK, None])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are packed in blocks; small ones, so that there are several, and a last one that is not full.

    The extension, where it is built, packs some of them whole: None leaves it to that.
    """
    if request.param is not None:
        monkeypatch.setattr(packing, "BLOCK", request.param)
        monkeypatch.setitem(sys.modules, "tamis._native", None)


@pytest.mark.usefixtures("blocks")
@in_blocks
@given(st.data())
def test_indices_are_packed_as_defined_and_come_back(data: st.DataObject) -> None:
    levels = data.draw(numbers_of_levels)
    indices = data.draw(st.lists(st.integers(0, levels - 1), max_size=100))
    packed = pack(row(indices, levels), levels)
    assert packed.dtype == np.uint8 and packed.tolist() == literally(indices, levels)
    assert len(packed) == compute_packed_size(len(indices), levels)
    again = unpack(packed, len(indices), levels)
    assert again.dtype == row([], levels).dtype and again.tolist() == indices


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("levels", NUMBERS_OF_LEVELS)
def test_rows_of_every_length_and_longer_than_a_block(
    levels: int, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hidden:
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    generator = np.random.default_rng(levels)
    for length in (*range(30), 8 * packing.BLOCK - 3, 8 * packing.BLOCK, 20 * packing.BLOCK + 5):
        indices = row([], levels).dtype.type(generator.integers(levels, size=length))
        packed = pack(indices, levels)
        assert np.array_equal(unpack(packed, length, levels), indices)
        assert packed[:30].tolist() == literally(indices[:240].tolist(), levels)[:30]


@pytest.mark.usefixtures("blocks")
@in_blocks
@given(st.sampled_from([2, 3, 4, 5, 8, 11, 16, 100, 256]), st.lists(st.integers(0, 255), max_size=20), st.data())
def test_whatever_bytes_are_indices_that_they_pack_or_refused(
    levels: int, packed: list[int], data: st.DataObject
) -> None:
    most = 5 * len(packed) if levels == 3 else 8 * len(packed) // math.ceil(math.log2(levels))
    count = max(0, most - data.draw(st.integers(0, 9)))
    try:
        indices = unpack(np.array(packed, dtype=np.uint8), count, levels)
    except CorruptArtifact:
        return
    assert literally(indices.tolist(), levels) == packed


@pytest.mark.parametrize(
    ("levels", "packed", "count", "message"),
    [
        (3, [243], 5, "byte 243 where five ternary digits make at most 242"),
        (3, [27], 3, "after the last of 3 entries"),
        (3, [0, 0], 5, "2 bytes of codes for 5 entries of 3 levels"),
        (2, [0], 9, "1 bytes of codes for 9 entries of 2 levels"),
        (2, [8], 3, "after the last of 3 entries"),
        (7, [0, 0, 0, 1], 8, "4 bytes of codes for 8 entries of 7 levels"),
        (257, [0, 2], 1, "after the last of 1 entries"),
        (9, [1], 0, "1 bytes of codes for 0 entries of 9 levels"),
    ],
)
def test_impossible_rows_are_refused(levels: int, packed: list[int], count: int, message: str) -> None:
    with pytest.raises(CorruptArtifact, match=message):
        unpack(np.array(packed, dtype=np.uint8), count, levels)


def test_ternary_weights_take_a_fifth_of_a_byte_each() -> None:
    indices = torch.randint(3, (100, 100), generator=torch.Generator().manual_seed(0)).byte()
    codes = Codes(indices, torch.tensor([-1.0, 0, 1]), torch.full((100, 1), 0.1))
    name, stored = shortest(Decoded(codes.values(), None, codes))
    assert name == "levels" and stored.parts["codes"].nbytes == 2000
    assert stored.nbytes == 2000 + 3 * 2 + 100 * 4, "bytes of codes, levels in float16, and scales"
