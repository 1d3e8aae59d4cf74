"""Entropy-coded rows and messages as docs/format.md defines them, read slowly, with nothing of tamis."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import struct
from collections.abc import Sequence

# -- entropy-coded rows --------------------------------------------------------------------------------------------


def group_of(base: int) -> int:
    return max(1, next(size for size in itertools.count() if base ** (size + 1) > 256))


@functools.cache
def digits_of_symbols(base: int) -> list[list[int]]:
    group = group_of(base)
    return [[symbol // base**place % base for place in range(group)] for symbol in range(base**group)]


def frequencies_of(weights: Sequence[int]) -> list[int]:
    occurring = sum(1 for weight in weights if weight > 0)
    total = sum(weights)
    found = [0 if weight == 0 else 1 + weight * (2**24 - occurring) // total for weight in weights]
    found[weights.index(max(weights))] += 2**24 - sum(found)
    return found


def read_row(row: bytes, count: int, base: int) -> list[int]:
    """The digits of an entropy-coded row."""
    length, width = 1 + row[0] + 256 * row[1], row[2]
    assert length <= base and width in (1, 2)
    table = [int.from_bytes(row[3 + i * width : 3 + (i + 1) * width], "little") for i in range(length)]
    assert table[-1] != 0
    table += [0] * (base - length)
    rest = row[3 + length * width :]
    assert len(rest) % 4 == 0
    words = list(struct.unpack(f"<{len(rest) // 4}I", rest))
    group, symbols = group_of(base), digits_of_symbols(base)
    freqs = frequencies_of([math.prod(table[digit] for digit in digits) for digits in symbols])
    found: list[int] = []
    for symbol in _read_symbols(words, freqs, -(-count // group)):
        found += symbols[symbol]
    assert set(found[count:]) <= {table.index(max(table))}
    return found[:count]


def _read_symbols(words: list[int], freqs: list[int], count: int) -> list[int]:
    if max(freqs) == 2**24:
        assert not words
        return [freqs.index(2**24)] * count
    assert words[-1] != 0
    x = 2**32 * words.pop() + words.pop()
    before = [0, *itertools.accumulate(freqs)]
    found = []
    for _ in range(count):
        symbol = bisect.bisect_right(before, x % 2**24) - 1  # before[symbol] <= x % 2**24 < before[symbol + 1]
        found.append(symbol)
        x = freqs[symbol] * (x // 2**24) + x % 2**24 - before[symbol]
        if x < 2**32 and words:
            x = 2**32 * x + words.pop()
    assert x == 2**32 and not words
    return found


def write_symbols(symbols: list[int], freqs: list[int]) -> list[int]:
    """The words of symbols, by undoing each step of the reader."""
    before = [0, *itertools.accumulate(freqs)]
    x, words = 2**32, []
    for symbol in reversed(symbols):
        if x >= 2**40 * freqs[symbol]:
            words.append(x % 2**32)
            x //= 2**32
        x = 2**24 * (x // freqs[symbol]) + before[symbol] + x % freqs[symbol]
    return [*words, x % 2**32, x // 2**32]


# -- messages ------------------------------------------------------------------------------------------------------

FLOATS = {"float64": (11, 52), "float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
FLOATS |= {"float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2)}
WIDTHS = {"bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32}
WIDTHS |= {"int64": 64, "uint64": 64}


class Reader:
    """Reads a message with an interval whose ends are integers of any length."""

    def __init__(self, bits: str) -> None:
        self.bits, self.start = bits, 0
        self.begin()

    def begin(self) -> None:
        self.low, self.size, self.left = 0, 2**64, 0

    def settle(self) -> None:
        while self.size < 2**32:
            self.low, self.size, self.left = self.low * 2**32, self.size * 2**32, self.left + 32

    def distance(self) -> int:
        """How far the bits are above the lower end, in its own unit."""
        self.settle()
        here = self.bits[self.start : self.start + 64 + self.left].ljust(64 + self.left, "0")
        return int(here, 2) - self.low

    def choice(self, number: int) -> int:
        if number == 1:
            return 0
        distance = self.distance()
        share = self.size // number
        value = distance // share
        assert 0 <= value < number
        self.low, self.size = self.low + value * share, share
        return value

    def bit(self, odds: int, total: int) -> int:
        distance = self.distance()
        share = self.size * odds // total
        if distance < share:
            self.size = share
            return 0
        self.low, self.size = self.low + share, self.size - share
        return 1

    def end(self) -> int:
        """The bit that follows the interval's fraction."""
        self.settle()
        for k in range(65):
            step = 2 ** (64 - k)
            multiple = -(-self.low // step) * step
            if multiple + step <= self.low + self.size:
                assert (self.distance() + self.low) // step == multiple // step
                return self.start + self.left + k
        raise AssertionError

    def natural(self) -> int:
        width = 0
        while self.choice(2) == 0:
            width += 1
        return 2**width + self.field(width) - 1

    def field(self, width: int) -> int:
        value = 0
        for shift in range(0, width, 16):
            value += self.choice(2 ** min(16, width - shift)) << shift
        return value

    def bytes(self, length: int) -> bytes:
        start = self.end()
        assert set(self.bits[start : start + -start % 8]) <= {"0"}
        start += -start % 8
        content = self.bits[start : start + 8 * length]
        self.start = start + 8 * length
        self.begin()
        return int(content or "0", 2).to_bytes(length, "big")

    def fields(self, count: int, width: int) -> list[int]:
        if count * width <= 2**14:
            return [self.field(width) for _ in range(count)]
        whole, rest = divmod(width, 8)
        content = self.bytes(count * whole + -(-count * rest // 8))
        values = [sum(content[place * count + i] << 8 * place for place in range(whole)) for i in range(count)]
        if rest == 0:
            return values
        packed = int.from_bytes(content[count * whole :], "little")
        return [value + (packed >> rest * i & (2**rest - 1)) * 256**whole for i, value in enumerate(values)]

    def digits(self, count: int, base: int) -> list[int]:
        depth = math.ceil(math.log2(base))
        if count * depth > 2**18:
            length = self.natural()
            return read_row(self.bytes(length), count, base)
        seen: dict[str, list[int]] = {}
        found = []
        for _ in range(count):
            path = ""
            while len(path) < depth:
                if int((path + "1").ljust(depth, "0"), 2) >= base:
                    path += "0"
                    continue
                zeros, ones = seen.setdefault(path, [0, 0])
                bit = self.bit(2 * zeros + 1, 2 * (zeros + ones + 1))
                seen[path][bit] += 1
                path += str(bit)
            found.append(int(path, 2))
        return found

    def numbers(self, count: int, dtype: str, signs: bool = True) -> list[int]:
        """The bits of numbers."""
        if dtype not in FLOATS:
            width = self.choice(WIDTHS[dtype] + 1)
            folded = self.fields(count, width)
            return [(n // 2 if n % 2 == 0 else -(n + 1) // 2) % 2 ** WIDTHS[dtype] for n in folded]
        exponent, mantissa = FLOATS[dtype]
        needed = self.choice(mantissa + 1)
        negative = self.digits(count, 2) if signs else [0] * count
        exponents = self.digits(count, 2**exponent)
        fractions = self.fields(count, needed)
        rows = zip(negative, exponents, fractions, strict=True)
        return [(s << exponent | e) << mantissa | f << mantissa - needed for s, e, f in rows]


def read_tensor(reader: Reader, shape: tuple[int, ...], dtype: str) -> bytes | tuple[list[int], ...]:
    """A tensor's bytes; of one told by levels, their number, bits, units, bits of scales, and indices (−1: pruned)."""
    count, width = math.prod(shape), FLOAT_WIDTHS.get(dtype) or WIDTHS[dtype]
    way = reader.choice(5 if dtype in WITH_LEVELS else 4)
    if way == 4:
        return _read_levels(reader, shape, dtype)
    if way == 0:
        numbers = reader.numbers(1, dtype) * count
    elif way == 1:
        numbers = reader.numbers(count, dtype)
    elif way == 2:
        there = reader.digits(count, 2)
        some = iter(reader.numbers(sum(there), dtype))
        numbers = [next(some) if is_there else 0 for is_there in there]
    else:
        distinct = 2 + reader.choice(255)
        table = reader.numbers(distinct, dtype)
        numbers = [table[digit] for digit in reader.digits(count, distinct)]
    return b"".join(number.to_bytes(width // 8, "little") for number in numbers)


FLOAT_WIDTHS = {name: 1 + exponent + mantissa for name, (exponent, mantissa) in FLOATS.items()}
WITH_LEVELS = ("float16", "bfloat16", "float32", "float64")


def _read_levels(reader: Reader, shape: tuple[int, ...], dtype: str) -> tuple[list[int], ...]:
    number = 2 + reader.natural()
    levels = [] if reader.choice(2) else reader.numbers(number, dtype)  # empty: equispaced
    kind = reader.choice(3)
    units = [1 for _ in shape]
    if kind == 1:
        units[0] = shape[0]
    if kind == 2:
        divisors = [[d for d in range(1, length + 1) if length % d == 0] for length in shape]
        units = [own[reader.choice(len(own))] for own in divisors]
    scales = reader.numbers(math.prod(units), dtype, signs=False)
    kept = reader.digits(math.prod(shape), 2) if reader.choice(2) else [1] * math.prod(shape)
    some = iter(reader.digits(sum(kept), number))
    return [number], levels, units, scales, [next(some) if keep else -1 for keep in kept]
