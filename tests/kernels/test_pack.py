"""Counting, packing and coding of bytes in the extension; that they agree with the slow ones is in tests/artifact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.kernels import dispatch

pytestmark = pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())
FREQUENCIES = np.array([2**24 - 5, 0, 5], dtype=np.uint32)


@given(st.binary(max_size=300), st.integers(0, 9))
def test_bytes_are_counted(content: bytes, before: int) -> None:
    counts = np.full(256, before, dtype=np.uint64)
    dispatch.native().count_bytes(np.frombuffer(content, dtype=np.uint8), counts)
    assert counts.tolist() == [before + content.count(byte) for byte in range(256)]


@pytest.mark.parametrize(("base", "group"), [(2, 8), (3, 5), (4, 4), (16, 2)])
@given(drawn=st.binary(max_size=60))
def test_digits_are_packed(base: int, group: int, drawn: bytes) -> None:
    digits = [byte % base for byte in drawn]
    out = np.empty(-(-len(digits) // group), dtype=np.uint8)
    dispatch.native().pack_digits(np.array(digits, dtype=np.uint8), base, group, out)
    groups = [digits[start : start + group] for start in range(0, len(digits), group)]
    assert out.tolist() == [sum(digit * base**place for place, digit in enumerate(each)) for each in groups]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=50), st.integers(0, 2**32))
def test_what_is_compressed_is_decompressed(weights: list[int], seed: int) -> None:
    freqs = np.array(weights, dtype=np.uint32)
    freqs[0] += 2**24 - freqs.sum()
    for dtype in (np.uint8, np.int32):
        symbols = np.random.default_rng(seed).integers(len(weights), size=200).astype(dtype)
        words = np.empty(200, dtype=np.uint32)
        used = dispatch.native().ans_compress(symbols, freqs, words)
        again = np.empty_like(symbols)
        assert dispatch.native().ans_decompress(words[:used], freqs, again) and np.array_equal(again, symbols)
        assert not dispatch.native().ans_decompress(words[: used - 1], freqs, again)
        assert not dispatch.native().ans_decompress(words[:1], freqs, again)


def test_what_does_not_fit_is_refused() -> None:
    extension, row = dispatch.native(), np.zeros(10, dtype=np.uint8)
    words = np.empty(20, dtype=np.uint32)
    with pytest.raises(ValueError, match="256 counts"):
        extension.count_bytes(row, np.zeros(255, dtype=np.uint64))
    with pytest.raises(ValueError, match="one byte for each group"):
        extension.pack_digits(row, 3, 5, np.empty(3, dtype=np.uint8))
    for base, group in ((5, 3), (3, 4), (0, 5)):
        with pytest.raises(ValueError, match="base 2, 3, 4 or 16"):
            extension.pack_digits(row, base, group, np.empty(-(-10 // group), dtype=np.uint8))
    with pytest.raises(ValueError, match="sum to 2"):
        extension.ans_compress(row, FREQUENCIES - np.uint32(1), words)
    with pytest.raises(ValueError, match="no frequency"):
        extension.ans_compress(row + np.uint8(1), FREQUENCIES, words)
    for symbols in (row + np.uint8(3), np.array([-1], dtype=np.int32)):
        with pytest.raises(ValueError, match="too large"):
            extension.ans_compress(symbols, FREQUENCIES, words)
    with pytest.raises(ValueError, match="do not suffice"):
        extension.ans_compress(row + np.uint8(2), FREQUENCIES, words[:3])
    with pytest.raises(TypeError):
        extension.ans_compress(row.astype(np.float32), FREQUENCIES, words)
