"""The arithmetic coder: as the specification says, exact to the bit, self-delimiting, and near the entropy."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from artifact.literal import Reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.artifact import arithmetic
from tamis.artifact.arithmetic import LengthMeter, Receiver, Sender
from tamis.artifact.encodings import coded_digits
from tamis.errors import CorruptArtifact

Item = tuple[str, Any, int]  # what is sent: a kind, a value or values, and a number, base or width


@st.composite
def items(draw: st.DrawFn) -> Item:
    kind = draw(st.sampled_from(["choice", "natural", "symbols", "fields"]))
    if kind == "choice":
        number = draw(st.sampled_from([1, 2, 3, 5, 255, 65536]))
        return kind, draw(st.integers(0, number - 1)), number
    if kind == "natural":
        return kind, draw(st.sampled_from([0, 1, 2, 3, 2**20, 2**40 - 1]) | st.integers(0, 2**50)), 0
    if kind == "symbols":
        base = draw(st.sampled_from([2, 3, 4, 5, 16, 17, 256, 300]))
        digit = st.integers(0, base - 1) | st.just(base - 1) | st.just(0)
        return kind, np.array(draw(st.lists(digit, max_size=40)), dtype=np.uint8 if base <= 256 else np.int32), base
    width = draw(st.integers(0, 64))
    return kind, np.array(draw(st.lists(st.integers(0, 2**width - 1), max_size=6)), dtype=np.uint64), width


def send(out: Any, item: Item) -> None:
    kind, value, number = item
    getattr(out, kind)(*((value,) if kind == "natural" else (value, number)))


def receive(receiver: Receiver, item: Item) -> Any:
    kind, value, number = item
    if kind == "natural":
        return receiver.natural(0)
    if kind == "choice":
        return receiver.choice(0, number)
    return (receiver.symbols if kind == "symbols" else receiver.fields)(len(value), number).tolist()


def receive_literally(reader: Reader, item: Item) -> Any:
    kind, value, number = item
    if kind == "natural":
        return reader.natural()
    if kind == "choice":
        return reader.choice(number)
    return (reader.digits if kind == "symbols" else reader.fields)(len(value), number)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def binary(data: bytes, bits: int) -> str:
    return "".join(f"{byte:08b}" for byte in data)[:bits]


def sent(row: list[Item]) -> tuple[bytes, int]:
    sender = Sender()
    for item in row:
        send(sender, item)
    data, bits, _ = sender.finish()
    assert len(data) == math.ceil(bits / 8) and set(binary(data, 8 * len(data))[bits:]) <= {"0"}
    return data, bits


@pytest.fixture(params=["as they are", "as bytes"])
def long_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows are sent as bytes; with lower bounds, also those that fit a test."""
    if request.param == "as bytes":
        monkeypatch.setattr(arithmetic, "MOST_STEPS", 20)
        monkeypatch.setattr(arithmetic, "MOST_FIELD_BITS", 60)


both = pytest.mark.usefixtures("long_rows")
many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@both
@many
@given(st.lists(items(), max_size=12), st.binary(max_size=20))
def test_what_is_sent_is_received_whatever_follows(row: list[Item], more: bytes) -> None:
    data, bits = sent(row)
    unused = int.from_bytes(more[:1], "big") & (0xFF >> bits % 8 if bits % 8 else 0)
    followed = (data[:-1] + bytes([data[-1] | unused]) if data else b"") + more
    for content in (data, followed):
        receiver = Receiver(content)
        assert [receive(receiver, item) for item in row] == [plain(value) for _, value, _ in row]
        assert receiver.finish() == bits


@many
@given(st.lists(items(), max_size=8), st.text("01", max_size=20))
def test_a_reader_written_from_the_specification_reads_the_same(row: list[Item], more: str) -> None:
    data, bits = sent(row)
    reader = Reader(binary(data, bits) + more)
    assert [receive_literally(reader, item) for item in row] == [plain(value) for _, value, _ in row]
    assert reader.end() == bits


def test_long_rows_are_bytes_as_the_specification_says() -> None:
    generator = np.random.default_rng(0)
    digits = (generator.random(2**17 + 1) ** 9 * 3).astype(np.uint8)
    fields = generator.integers(0, 2**23, 1000).astype(np.uint64)
    row: list[Item] = [("choice", 2, 3), ("symbols", digits, 3), ("fields", fields, 23), ("choice", 1, 2)]
    data, bits = sent(row)
    receiver, reader = Receiver(data), Reader(binary(data, bits))
    assert [receive(receiver, item) for item in row] == [plain(value) for _, value, _ in row]
    assert receiver.finish() == bits
    assert [receive_literally(reader, item) for item in row[:1]] == [2]
    length = reader.natural()
    content = reader.bytes(length)
    assert np.array_equal(coded_digits.from_row(np.frombuffer(content, np.uint8), len(digits), 3), digits)
    assert [receive_literally(reader, item) for item in row[2:]] == [fields.tolist(), 1] and reader.end() == bits


@both
@many
@given(st.lists(items(), max_size=12))
def test_a_ruler_measures_what_is_sent(row: list[Item]) -> None:
    sender, ruler = Sender(), LengthMeter()
    for item in row:
        send(sender, item)
        send(ruler, item)
    if arithmetic.MOST_STEPS > 20:
        assert ruler.bits == pytest.approx(sender.information, abs=1e-3)
    bits = sender.finish()[1]
    assert bits <= ruler.bits + 2 or arithmetic.MOST_STEPS == 20


def test_the_message_ends_within_two_bits_of_its_information() -> None:
    for numbers in product([2, 3, 5, 7], [3, 11, 1000]):
        for values in product(*map(range, (numbers[0], min(numbers[1], 11)))):
            _, bits = sent([("choice", value, number) for value, number in zip(values, numbers, strict=True)])
            assert math.log2(math.prod(numbers)) <= bits + 1e-9 < math.log2(math.prod(numbers)) + 2


def test_no_message_is_the_beginning_of_another() -> None:
    """All rows of up to four ternary digits, after their number; the lengths satisfy Kraft's inequality."""
    rows: list[list[Item]] = [
        [("natural", count, 0), ("symbols", np.array(digits, dtype=np.uint8), 3)]
        for count in range(5)
        for digits in product(range(3), repeat=count)
    ]
    messages = [binary(*sent(row)) for row in rows]
    assert len(set(messages)) == len(messages) == 121
    assert not any(one.startswith(other) or other.startswith(one) for one, other in combinations(messages, 2))
    assert sum(2.0 ** -len(message) for message in messages) <= 1


def test_nothing_takes_no_bits() -> None:
    assert sent([]) == (b"", 0)
    empty: list[Item] = [("choice", 0, 1), ("symbols", np.zeros(0, np.uint8), 3), ("fields", np.zeros(0, np.uint64), 9)]
    assert sent(empty) == (b"", 0)
    assert Receiver(b"").finish() == 0


@pytest.mark.parametrize(("base", "share"), [(2, 0.5), (2, 0.01), (3, 0.3), (16, 0.1), (256, 0.02)])
def test_digits_take_half_a_logarithm_for_each_branch_above_their_entropy(base: int, share: float) -> None:
    """Krichevsky and Trofimov: at most ½ log₂ n + 1 bits for each branch."""
    generator = np.random.default_rng(0)
    digits = (generator.geometric(share, 5000) - 1).clip(0, base - 1).astype(np.uint8)
    shares = np.unique(digits, return_counts=True)[1] / len(digits)
    entropy = -float(np.sum(shares * np.log2(shares))) * len(digits)
    _, bits = sent([("symbols", digits, base)])
    branches = min(base - 1, len(shares) * (base - 1).bit_length())
    assert entropy < bits <= entropy + branches * (0.5 * math.log2(5000) + 1) + 2


def test_carries_go_through_words_that_are_full() -> None:
    """Choices of the last of many push the lower end up against the next word again and again."""
    for seed in range(80):
        generator = np.random.default_rng(seed)
        row: list[Item] = []
        for _ in range(12):
            number = int(generator.integers(2, 65537))
            row.append(("choice", number - 1 - int(generator.integers(0, 2)), number))
        data, bits = sent(row)
        receiver = Receiver(data)
        assert [receive(receiver, item) for item in row] == [value for _, value, _ in row]
        assert receiver.finish() == bits


def test_a_carry_adds_one_to_the_number_that_the_words_write() -> None:
    """However many words are full, and wherever others are full before them."""
    base = arithmetic.LOW + 1
    for row in product((0, 1, arithmetic.LOW - 1, arithmetic.LOW), repeat=4):
        words = [0, *row]
        arithmetic._carry(words)
        assert all(0 <= word < base for word in words)
        number, grown = (sum(word * base**place for place, word in enumerate(reversed(w))) for w in (row, words))
        assert grown == number + 1


@both
@many
@given(st.lists(items(), min_size=1, max_size=8), st.data())
def test_a_message_that_is_cut_off_is_never_taken_for_the_whole(row: list[Item], data: st.DataObject) -> None:
    content, bits = sent(row)
    if bits == 0:
        return
    cut = content[: data.draw(st.integers(0, (bits - 1) // 8))]
    receiver = Receiver(cut)
    with pytest.raises(CorruptArtifact):
        for item in row:
            receive(receiver, item)
        receiver.finish()


@both
@many
@given(st.lists(items(), max_size=8), st.binary(max_size=60))
def test_random_bits_are_read_as_something_or_refused(row: list[Item], content: bytes) -> None:
    receiver = Receiver(content)
    try:
        for item in row:
            found = receive(receiver, item)
            values = found if isinstance(found, list) else [found]
            limit = {"choice": item[2], "symbols": item[2], "fields": 2 ** item[2], "natural": 2**66}[item[0]]
            assert all(0 <= value < limit for value in values)
        assert receiver.finish() <= 8 * len(content)
    except CorruptArtifact:
        pass


def test_parts_sum_to_the_whole() -> None:
    sender = Sender()
    for number in (3, 3, 5, 1000):
        sender.heading = f"of {number}"
        sender.choice(number - 1, number)
        sender.mark("choice")
    _, bits, parts = sender.finish()
    assert sum(parts.values()) == bits and list(parts) == ["of 3/choice", "of 5/choice", "of 1000/choice", "end"]
    assert parts["of 3/choice"] == 3 and parts["of 1000/choice"] in (9, 10, 11) and 0 <= parts["end"] <= 2
