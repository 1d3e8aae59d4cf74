"""Entropy-coded rows: exact, the same from every coder, close to the entropy, and refused when anything is wrong."""

from __future__ import annotations

import math
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from any_tensors import NUMBERS_OF_LEVELS, same, same_codes
from artifact.literal import frequencies_of, group_of, read_row, write_symbols
from artifact.versions import taken_apart
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.artifact.codes import Codes
from tamis.artifact.encodings import ENCODINGS, Decoded, Encoded, ans, coded_digits, shortest
from tamis.artifact.encodings.base import Array
from tamis.artifact.encodings.coded_digits import from_row, to_row
from tamis.artifact.format import read, write
from tamis.errors import CorruptArtifact

CODERS = ["extension", "constriction", "python"]
with_coders = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
bases = st.sampled_from([*NUMBERS_OF_LEVELS, 4096, 65536])


def use(coder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide whatever would be faster."""
    if coder != "extension":
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    if coder == "python":
        monkeypatch.setitem(sys.modules, "constriction", None)


@pytest.fixture(params=CODERS)
def coder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "constriction":
        pytest.importorskip("constriction")
    use(request.param, monkeypatch)
    return str(request.param)


def row_of(digits: list[int], base: int) -> Array:
    return np.array(digits, dtype=np.uint8 if base <= 256 else np.int32)


def skewed(base: int, count: int, seed: int, power: float) -> Array:
    """Digits of which small ones are more frequent, the more so the higher the power."""
    drawn = (np.random.default_rng(seed).random(count) ** power * base).astype(np.int64)
    return row_of(drawn.tolist(), base)


# -- the coder -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**130), min_size=1, max_size=300).filter(any))
def test_frequencies_are_as_defined(weights: list[int]) -> None:
    found = ans.frequencies(weights).tolist()
    assert found == frequencies_of(weights) and sum(found) == 2**24
    assert [frequency > 0 for frequency in found] == [weight > 0 for weight in weights]


@pytest.mark.usefixtures("coder")
@with_coders
@given(st.data())
def test_symbols_become_the_words_of_the_definition_whatever_the_table(data: st.DataObject) -> None:
    alphabet = data.draw(st.sampled_from([1, 2, 3, 16, 243, 256, 257, 3000]))
    small = data.draw(st.sampled_from([1, 2, 255, 2**16, 2**128]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    weights = [int(x * small) for x in generator.random(alphabet) ** data.draw(st.sampled_from([1, 20]))]
    weights[data.draw(st.integers(0, alphabet - 1))] = 1 + small
    freqs = ans.frequencies(weights)
    used = np.flatnonzero(freqs)
    symbols = used[generator.integers(len(used), size=data.draw(st.integers(0, 80)))]
    symbols = symbols.astype(np.uint8 if alphabet <= 256 else np.int32)
    words = ans.compress(symbols, freqs)
    assert words.dtype == np.uint32
    assert words.tolist() == ([] if len(used) == 1 else write_symbols(symbols.tolist(), freqs.tolist()))
    again = ans.decompress(words, freqs, len(symbols))
    assert again.dtype == symbols.dtype and again.tolist() == symbols.tolist()


@pytest.mark.usefixtures("coder")
@with_coders
@given(st.lists(st.integers(0, 2**32 - 1), max_size=6), st.integers(0, 60), st.integers(0, 2**32))
def test_random_words_are_refused(words: list[int], count: int, seed: int) -> None:
    freqs = ans.frequencies(np.random.default_rng(seed).integers(1, 9, 20).tolist())
    if words == [0, 1]:
        count += 1  # these are the words of no symbols, whatever the table
    with pytest.raises(CorruptArtifact, match="entropy-coded row"):
        ans.decompress(np.array(words, dtype=np.uint32), freqs, count)


@pytest.mark.usefixtures("coder")
def test_more_symbols_than_a_block() -> None:
    freqs = ans.frequencies([5, 0, 3, 1])
    symbols = np.array([0, 2, 3, 0], dtype=np.uint8).repeat(ans.BLOCK // 3)
    assert np.array_equal(ans.decompress(ans.compress(symbols, freqs), freqs, len(symbols)), symbols)


# -- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("coder")
@settings(with_coders, max_examples=20)
@given(bases, st.integers(1, 120), st.integers(0, 2**32), st.sampled_from([1.0, 3.0, 40.0]))
def test_rows_are_what_the_specification_reads(base: int, count: int, seed: int, power: float) -> None:
    digits = skewed(base, count, seed, power)
    row = to_row(digits, base, room=10**9)
    assert row is not None and row.dtype == np.uint8
    assert read_row(row.tobytes(), count, base) == digits.tolist()
    again = from_row(row, count, base)
    assert again.dtype == digits.dtype and np.array_equal(again, digits)
    assert to_row(digits, base, room=len(row) - 1) is None and to_row(digits, base, room=len(row)) is not None


@pytest.mark.parametrize("base", [2, 3, 5, 7, 16, 100, 256, 300])
def test_every_coder_writes_the_same_bytes(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = [skewed(base, count, base, 5.0) for count in (1, 7, 1000, coded_digits.FEW + 3)]
    written = []
    for name in CODERS:
        use(name, monkeypatch)
        rows = [to_row(each, base, room=10**9) for each in digits]
        assert all(np.array_equal(from_row(row, len(d), base), d) for row, d in zip(rows, digits, strict=True))
        written.append([row.tobytes() for row in rows if row is not None])
    assert written[0] == written[1] == written[2] and len(written[0]) == 4


@pytest.mark.parametrize(
    ("base", "power"), [(2, 4.0), (3, 3.0), (4, 1.5), (16, 3.0), (11, 2.0), (200, 9.0), (1000, 30.0)]
)
def test_rows_take_hardly_more_than_their_entropy(base: int, power: float) -> None:
    digits = skewed(base, 100_000, 0, power)
    shares = np.unique(digits, return_counts=True)[1] / len(digits)
    entropy = -float(np.sum(shares * np.log2(shares))) * len(digits) / 8
    row = to_row(digits, base, room=10**9)
    table = 3 + 2 * (int(digits.max()) + 1)
    assert row is not None and entropy < len(row) - table + 8 < entropy * 1.001 + 24


def test_a_group_is_as_many_digits_as_a_byte_holds() -> None:
    assert [group_of(base) for base in (2, 3, 4, 5, 6, 7, 15, 16, 17, 256, 65536)] == [8, 5, 4, 3, 3, 2, 2, 2, 1, 1, 1]
    assert [coded_digits._count_digits_per_symbol(base) for base in range(2, 300)] == [
        group_of(base) for base in range(2, 300)
    ]


GOOD = np.array([*skewed(3, 500, 0, 4.0)], dtype=np.uint8)
ROW: Array = to_row(GOOD, 3, room=10**6)  # type: ignore[assignment]


def changed(at: int, *values: int) -> Array:
    row = ROW.copy()
    row[at : at + len(values)] = values
    return row


@pytest.mark.usefixtures("coder")
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW[:0], "0 bytes that is none"),
        (ROW[:2], "2 bytes that is none"),
        (ROW[:-1], "that is none"),
        (ROW[:-4], "not one of 100 symbols"),
        (ROW[: 3 + 3], "not one of 100 symbols"),
        (np.concatenate([ROW, ROW[:1]]), "that is none"),
        (np.concatenate([ROW, ROW[-4:]]), "not one of 100 symbols"),
        (np.concatenate([ROW, np.zeros(4, dtype=np.uint8)]), "not one of 100 symbols"),
        (np.concatenate([ROW, np.ones(4000, dtype=np.uint8)]), "words for 100 symbols"),
        (changed(0, 3), "of 3 digits"),
        (changed(0, 255, 255), "of 3 digits"),
        (changed(2, 0), "that is none"),
        (changed(2, 3), "that is none"),
        (changed(3, 0, 0, 0), "ends with a digit that does not occur"),
        (changed(3, 1, 0, 1), "not one of 100 symbols"),
        (changed(3, 0, 0, 9), "not one of 100 symbols"),
    ],
)
def test_rows_that_cannot_be_are_refused(row: Array, message: str) -> None:
    assert ROW[2] == 1
    with pytest.raises(CorruptArtifact, match=message):
        from_row(row, 500, 3)


@pytest.mark.usefixtures("coder")
@pytest.mark.parametrize("count", [1, 499, 501, 505, 100_000])
def test_a_row_is_one_of_so_many_digits_and_no_other(count: int) -> None:
    with pytest.raises(CorruptArtifact):
        from_row(ROW, count, 3)


def test_what_fills_up_the_last_symbol_is_checked() -> None:
    digits = row_of([1] * 11, 3)
    symbols = [1 + 3 + 9 + 27 + 81] * 2
    freqs = ans.frequencies([math.prod([1, 9, 1][symbol // 3**i % 3] for i in range(5)) for symbol in range(243)])
    for last, sound in ((121, True), (121 - 81, False), (121 + 81, False)):
        words = ans.compress(np.array([*symbols, last], dtype=np.uint8), freqs)
        row = np.concatenate([np.array([2, 0, 1, 1, 9, 1], dtype=np.uint8), words.view(np.uint8)])
        if sound:
            assert np.array_equal(from_row(row, 11, 3), digits)
        else:
            with pytest.raises(CorruptArtifact, match="after the last of 11"):
                from_row(row, 11, 3)


@pytest.mark.usefixtures("coder")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.sampled_from([2, 3, 7, 16, 256, 300, 65536]), st.integers(1, 500))
def test_whatever_bytes_are_digits_or_refused(content: bytes, base: int, count: int) -> None:
    try:
        digits = from_row(np.frombuffer(content, dtype=np.uint8), count, base)
    except CorruptArtifact:
        return
    assert len(digits) == count and int(digits.max()) < base
    assert read_row(content, count, base) == digits.tolist()


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_refusing_a_row_takes_no_more_memory_than_its_digits_and_itself(size: int) -> None:
    """A long row for few digits, and a short one for many."""
    row = np.concatenate([ROW[:6], np.full(size // 4 * 4, 7, dtype=np.uint8)])
    count = 10 if size > 10 else 10_000_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptArtifact):
            from_row(row, count, 3)
        assert tracemalloc.get_traced_memory()[1] < 2 * (len(row) + count) + 2_000_000
    finally:
        tracemalloc.stop()


# -- the encoding --------------------------------------------------------------------------------------------------


def assert_entropy_coded(content: Decoded, parts: set[str]) -> Encoded:
    name, stored = shortest(content)
    assert name == "entropy" and set(stored.parts) == parts
    again = ENCODINGS[name].decode(stored, tuple(content.tensor.shape), content.tensor.dtype)
    assert same(again.tensor, content.tensor) and same_codes(again.codes, content.codes)
    return stored


def ternary(count: int, levels: torch.Tensor | None = None) -> Codes:
    indices = torch.from_numpy(skewed(3, count, 1, 4.0))
    return Codes(indices, torch.tensor([-1.0, 0, 1]) if levels is None else levels, torch.tensor([0.1]))


def test_each_row_is_coded_where_that_is_shorter() -> None:
    codes, numbers = ternary(3000), torch.arange(3000)
    seldom, block = numbers * 7919 % 3001 < 300, numbers < 1000
    flat = Codes(numbers.byte() % 3, codes.levels, codes.scales)
    assert_entropy_coded(Decoded(codes.values(), None, codes), {"codedindices", "levels", "scales"})
    for mask, where in ((seldom, "codedmask"), (block, "runs")):
        masked = codes.apply_mask(mask)
        parts = {where, "codedindices", "levels", "scales"}
        assert_entropy_coded(Decoded(masked.values(mask), mask, masked), parts)
    masked = flat.apply_mask(seldom)
    parts = {"codedmask", "codes", "levels", "scales"}
    assert_entropy_coded(Decoded(masked.values(seldom), seldom, masked), parts)
    values = torch.randn(3000).where(seldom, torch.zeros(()))
    assert_entropy_coded(Decoded(values, seldom), {"codedmask", "values"})
    assert shortest(Decoded(values * block, block))[0] == "sparse"
    assert shortest(Decoded(flat.values(), None, flat))[0] == "levels"


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint64]
)
def test_integers_of_few_values(dtype: torch.dtype) -> None:
    few = torch.tensor([1, 0] if dtype is torch.bool else [100, 0, 3]).to(dtype)
    stored = assert_entropy_coded(
        Decoded(few[torch.from_numpy(skewed(len(few), 3000, 0, 6.0)).long()]), {"table", "codedindices"}
    )
    assert stored.nbytes < 500
    assert_entropy_coded(Decoded(few[:1].expand(30, 100).contiguous()), {"table", "codedindices"})
    assert shortest(Decoded(torch.arange(3000).to(torch.int64) * 2**40))[0] == "dense"


def test_a_mask_so_thin_that_gaps_are_long() -> None:
    mask = torch.rand(200_000, generator=torch.Generator().manual_seed(0)) < 0.001
    stored = assert_entropy_coded(Decoded(mask * 0.1, mask), {"codedmask", "values"})
    plain = ENCODINGS["sparse"].encode(Decoded(mask * 0.1, mask))
    assert plain is not None and stored.parts["codedmask"].nbytes < 0.5 * plain.parts["gaps"].nbytes


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.sampled_from([2, 3, 4, 16, 200]), st.floats(1, 30), st.integers(0, 99))
def test_the_file_is_never_longer_for_it(count: int, levels: int, power: float, seed: int) -> None:
    """Names of parts and of the encoding stand in the header, which is part of the file."""
    codes = Codes(
        torch.from_numpy(skewed(levels, count, seed, power)), torch.arange(float(levels)), torch.tensor([0.1])
    )
    content = Decoded(codes.values(), None, codes)
    name, stored = shortest(content)
    plain = ENCODINGS["levels"].encode(content)
    assert plain is not None
    if name == "entropy":
        longer = sum(map(len, stored.parts)) + len(name) - sum(map(len, plain.parts)) - len("levels")
        assert stored.nbytes + longer < plain.nbytes


def test_files_are_the_same_whoever_codes_and_are_read_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = ternary(5000)
    mask = torch.from_numpy(skewed(2, 5000, 3, 9.0)).bool()
    tensors = {"w": codes.values(), "m": torch.randn(5000).where(mask, torch.zeros(())), "i": mask.long()}
    kinds = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    contents = []
    for coder in CODERS:
        use(coder, monkeypatch)
        write(tmp_path / f"{coder}.tamis", tensors, {"m": mask}, {}, {"w": codes})
        contents.append((tmp_path / f"{coder}.tamis").read_bytes())
        found = read(tmp_path / "extension.tamis", kinds)
        assert all(same(found.tensors[name], value) for name, value in tensors.items())
    assert contents[0] == contents[1] == contents[2]
    assert {entry["encoding"] for entry in taken_apart(contents[0]).tensors.values()} == {"entropy"}


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("table", lambda t: t.flip(0), "do not ascend"),
        ("table", lambda t: t[:0], "table of torch.int64 and shape"),
        ("table", lambda t: t.int(), "table of torch.int32"),
        ("table", lambda t: t[None], "table of torch.int64 and shape"),
        ("table", lambda t: torch.arange(257), "table of torch.int64 and shape"),
        ("table", lambda t: t[:1], "entropy-coded row|beyond a table"),
        ("codedindices", lambda r: r.int(), "not a row of bytes"),
        ("codedindices", lambda r: r[:-4], "entropy-coded row"),
    ],
)
def test_forged_integers(part: str, change: Callable[[torch.Tensor], torch.Tensor], message: str) -> None:
    stored = ENCODINGS["entropy"].encode(Decoded(torch.from_numpy(skewed(3, 3000, 0, 6.0)).long() * 7))
    assert stored is not None
    parts = stored.parts | {part: change(stored.parts[part])}
    with pytest.raises(CorruptArtifact, match=message):
        ENCODINGS["entropy"].decode(Encoded(parts), (3000,), torch.int64)


def test_integers_are_no_weights() -> None:
    stored = ENCODINGS["entropy"].encode(Decoded(torch.zeros(3000, dtype=torch.int32)))
    assert stored is not None
    with pytest.raises(CorruptArtifact, match=r"for integers of torch\.float32"):
        ENCODINGS["entropy"].decode(stored, (3000,), torch.float32)
    forged = {"table": torch.zeros(1), "codedindices": stored.parts["codedindices"]}
    with pytest.raises(CorruptArtifact, match=r"for integers of torch\.float32"):
        ENCODINGS["entropy"].decode(Encoded(forged), (3000,), torch.float32)
