"""Naturals as bytes, positions of kept entries, narrower types: each against its definition, written out."""

from __future__ import annotations

import math
import struct
from itertools import accumulate, product

import numpy as np
import pytest
import torch
from any_tensors import raw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.artifact.encodings import ENCODINGS, Decoded, shortest
from tamis.artifact.encodings import naturals as as_bytes
from tamis.artifact.encodings.base import Array
from tamis.artifact.encodings.narrow_float import NARROWER, narrow_dtype
from tamis.artifact.encodings.naturals import iterate_running_sums, to_bytes
from tamis.artifact.encodings.positions import CODINGS
from tamis.errors import CorruptArtifact

# -- naturals ------------------------------------------------------------------------------------------------------

edges = st.sampled_from([0, 1, 254, 255, 256, 509, 510, 511, 65535])
in_blocks = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
sequences = st.lists(edges | st.integers(0, 5000), max_size=60)


def literally(naturals: list[int]) -> list[int]:
    return [byte for n in naturals for byte in [255] * (n // 255) + [n % 255]]


@given(sequences)
def test_naturals_are_written_as_defined(naturals: list[int]) -> None:
    assert to_bytes(np.array(naturals, dtype=np.int64)).tolist() == literally(naturals)


def sums_of(coded: Array, plus: int = 0) -> list[int]:
    return [end for sums in iterate_running_sums(coded, plus) for end in sums.tolist()]


@pytest.fixture(params=[1, 7, as_bytes.BLOCK])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in blocks; small ones, so that numbers and runs begin in one and end in another."""
    monkeypatch.setattr(as_bytes, "BLOCK", request.param)


@pytest.mark.usefixtures("blocks")
@in_blocks
@given(sequences, st.integers(0, 3))
def test_naturals_come_back_as_running_sums(naturals: list[int], plus: int) -> None:
    coded = to_bytes(np.array(naturals, dtype=np.int64))
    assert sums_of(coded, plus) == list(accumulate(n + plus for n in naturals))


@pytest.mark.usefixtures("blocks")
@in_blocks
@given(st.lists(st.sampled_from([0, 1, 7, 254, 255, 255]), max_size=40))
def test_every_row_of_bytes_is_one_sequence_or_refused(coded: list[int]) -> None:
    row = np.array(coded, dtype=np.uint8)
    if coded and coded[-1] == 255:
        with pytest.raises(CorruptArtifact, match="breaks off"):
            sums_of(row)
    else:
        assert to_bytes(np.diff(sums_of(row), prepend=0).astype(np.int64)).tolist() == coded


# -- positions -----------------------------------------------------------------------------------------------------

flat_masks = st.lists(st.booleans(), max_size=40) | st.lists(
    st.tuples(st.booleans(), st.integers(1, 600)), max_size=6
).map(lambda runs: [kept for kept, length in runs for _ in range(length)])


def bitmask(mask: list[bool]) -> list[int]:
    coded = [0] * math.ceil(len(mask) / 8)
    for i, kept in enumerate(mask):
        coded[i // 8] += kept * 2 ** (7 - i % 8)
    return coded


def gaps(mask: list[bool]) -> list[int]:
    found, gap = [], 0
    for kept in mask:
        if kept:
            found.append(gap)
        gap = 0 if kept else gap + 1
    return literally(found)


def runs(mask: list[bool]) -> list[int]:
    lengths, current = [0], False
    for kept in mask:
        if kept != current:
            lengths.append(0)
            current = kept
        lengths[-1] += 1
    return literally(lengths if len(lengths) % 2 == 0 else lengths[:-1])


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("oracle", [bitmask, gaps, runs])
@in_blocks
@given(flat_masks)
def test_positions_are_written_as_defined_and_come_back(oracle, mask: list[bool]) -> None:  # type: ignore[no-untyped-def]
    coding = CODINGS[oracle.__name__]
    coded = coding.write(np.array(mask, dtype=np.bool_))
    assert coded.dtype == np.uint8 and coded.tolist() == oracle(mask)
    again = coding.read(coded, len(mask))
    assert again.dtype == np.bool_ and again.tolist() == mask


@pytest.mark.parametrize(
    ("name", "coded", "entries", "message"),
    [
        ("bitmask", [0xFF], 9, "1 bytes for 9 entries"),
        ("bitmask", [0xFF, 0xC0], 9, "after the last of 9"),
        ("gaps", [3, 5], 9, "entry 9 of 9"),
        ("gaps", [255, 255], 9, "breaks off"),
        ("runs", [1, 2, 3], 9, "do not alternate"),
        ("runs", [1, 2, 0, 2], 9, "do not alternate"),
        ("runs", [1, 0], 9, "do not alternate"),
        ("runs", [9], 9, "do not alternate"),
        ("runs", [1, 9], 9, "10 entries of 9"),
        ("gaps", [0] * 10, 9, "10 bytes for 9 entries"),
        ("runs", [0] + [1] * 10, 9, "11 bytes for 9 entries"),
    ],
)
@pytest.mark.usefixtures("blocks")
def test_impossible_positions_are_refused(name: str, coded: list[int], entries: int, message: str) -> None:
    with pytest.raises(CorruptArtifact, match=message):
        CODINGS[name].read(np.array(coded, dtype=np.uint8), entries)


@pytest.mark.parametrize(("name", "above"), [("gaps", 0), ("runs", 1)])
def test_the_bounds_of_their_length_are_reached_and_never_passed(name: str, above: int) -> None:
    for entries in range(1, 12):
        masks = [np.array(bits, dtype=np.bool_) for bits in product([False, True], repeat=entries)]
        longest = max(len(CODINGS[name].write(mask)) for mask in masks)
        assert longest == entries + (above if entries % 2 else 0)  # the last run is of kept ones
    for length in (254, 255, 256, 511, 5000):
        for mask in (np.arange(length) == length - 1, np.ones(length, dtype=np.bool_)):
            assert len(CODINGS[name].write(mask)) <= length + above


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", CODINGS)
@in_blocks
@given(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 254, 255]), max_size=12), st.integers(0, 520))
def test_whatever_bytes_are_a_mask_that_they_code_or_refused(name: str, coded: list[int], entries: int) -> None:
    row = np.array(coded, dtype=np.uint8)
    try:
        mask = CODINGS[name].read(row, entries)
    except CorruptArtifact:
        return
    assert mask.shape == (entries,) and set(mask.view(np.uint8).tolist()) <= {0, 1}
    assert CODINGS[name].write(mask).tolist() == coded


@pytest.mark.parametrize(
    ("coding", "kept"),
    [
        ("bitmask", [i % 3 == 0 for i in range(800)]),
        ("gaps", [i % 100 == 0 for i in range(800)]),
        ("runs", [i < 700 for i in range(800)]),
    ],
)
def test_positions_take_the_shortest_coding(coding: str, kept: list[bool]) -> None:
    mask = torch.tensor(kept)
    assert set(ENCODINGS["sparse"].encode(Decoded(mask.float() * 0.1, mask)).parts) == {"values", coding}


# -- narrower types ------------------------------------------------------------------------------------------------


def survives(value: float, dtype: torch.dtype) -> bool:
    """By the definition of the types: bits of mantissa, exponents, and nothing that processors disagree on."""
    if math.isnan(value) or 0 < abs(value) < 2.0**-126:
        return False
    if value == 0 or math.isinf(value):
        return True
    digits, lowest, highest = {
        torch.float16: (11, -24, 16),
        torch.bfloat16: (8, -133, 128),
        torch.float32: (24, -149, 128),
    }[dtype]
    mantissa, exponent = math.frexp(abs(value))
    step = 2.0 ** max(exponent - digits, lowest)
    return value % step == 0 and exponent <= highest and mantissa > 0


half_values = st.integers(0, 2**16 - 1).map(lambda n: struct.unpack("<e", n.to_bytes(2, "little"))[0])
single_values = st.integers(0, 2**32 - 1).map(lambda n: struct.unpack("<f", n.to_bytes(4, "little"))[0])
powers = st.builds(lambda m, e: math.ldexp(m, e), st.integers(-3, 3), st.integers(-160, 130))


@pytest.mark.parametrize("dtype", NARROWER)
@given(st.lists(half_values | single_values | powers | st.floats(), min_size=1, max_size=3))
def test_values_are_narrowed_where_and_only_where_they_survive(dtype: torch.dtype, values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    fitting = [narrow for narrow in NARROWER[dtype] if all(survives(value, narrow) for value in tensor.tolist())]
    narrow = narrow_dtype(tensor)
    assert (None if narrow is None else narrow.dtype) == next(iter(fitting), None)
    assert narrow is None or raw(narrow.to(dtype)) == raw(tensor)


def test_every_half_number_is_stored_as_such() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    numbers = every[~every.isnan()].float()
    name, stored = shortest(Decoded(numbers))
    assert (name, stored.parts["values"].dtype) == ("narrow", torch.float16)
    again = ENCODINGS["narrow"].decode(stored, tuple(numbers.shape), torch.float32)
    assert raw(again.tensor) == raw(numbers)


def test_a_thread_that_flushes_denormals_reads_the_same_bits() -> None:
    numbers = torch.tensor([2.0**-149, 2.0**-130, 2.0**-126, 1.0], dtype=torch.float64)
    halves = torch.tensor([2.0**-24, 3 * 2.0**-20, 1.0])
    stored = [shortest(Decoded(tensor)) for tensor in (numbers, numbers[2:], halves)]
    assert [name for name, _ in stored] == ["dense", "narrow", "narrow"]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        again = [
            ENCODINGS[name].decode(encoded, tuple(tensor.shape), tensor.dtype).tensor
            for (name, encoded), tensor in zip(stored, (numbers, numbers[2:], halves), strict=True)
        ]
    finally:
        torch.set_flush_denormal(False)
    assert [raw(tensor) for tensor in again] == [raw(numbers), raw(numbers[2:]), raw(halves)]
