"""Arithmetic coding of self-delimiting messages has a sender, a receiver, and a meter that measures without sending.

A message is a row of bits that narrows an interval within [0, 1): what has the probability p keeps the fraction p of
it. The shortest binary fraction whose continuations all stay inside is what is sent. The receiver goes the same way, so
it knows where the fraction ends: no length is sent, whatever follows changes nothing, and no message is the beginning
of another.

    choice      one of n, each of them equally likely: log₂ n bits
    symbols     a row of digits below a base. A digit is a path in a binary tree, from its highest bit on, and a one has
                the probability (n₁ + ½) / (n₀ + n₁ + 1) after n₀ zeros and n₁ ones at the same branch (Krichevsky,
                Trofimov): about ½ log₂ n bits above the entropy for each branch, and no table. Branches where every
                digit below the base goes on with a zero are left out.
    fields      a row of numbers of so many bits each, all equally likely

Long rows would take long this way. The interval ends before them (at most two bits more), the next byte begins, and
there follow the bytes of `encodings/coded_digits.py`, whose number is sent before, or fields as they are; then a new
interval.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise

import numpy as np

from tamis.artifact.encodings import coded_digits, packing
from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact

WORD, WINDOW = 32, 64  # bits that leave at a time, and that the interval's ends are kept with
LOW, ALL = (1 << WORD) - 1, (1 << WINDOW) - 1
WHOLE = 1 << WINDOW
MOST_STEPS = 1 << 18  # branches of a row of symbols; beyond, it is sent as bytes
MOST_FIELD_BITS = 1 << 14  # of a row of fields; likewise
PIECE = 16  # bits of a field that are sent at a time


class Coder(ABC):
    """The common base of senders, length meters and receivers."""

    @abstractmethod
    def choice(self, value: int, number: int) -> int:
        """Code one of 0 … number − 1; a receiver ignores the value that it is given, and returns the one sent."""

    def natural(self, value: int) -> int:
        """Code a number ≥ 0 of any size, in 2 ⌊log₂(n + 1)⌋ + 1 bits (Elias, gamma)."""
        # n + 1 has a leading one, which is not sent: its width in unary says where it stands, and n = 0 has width 0. A
        # receiver does not know the value, so the loop below ends by what `choice` returns, not by the width.
        width = (value + 1).bit_length() - 1
        sent = 0
        while not self.choice(int(sent >= width), 2):
            sent += 1
            if sent > WINDOW:
                raise CorruptArtifact("has a number of more than 64 bits")
        return (self.wide(value + 1 - (1 << width), sent) | 1 << sent) - 1

    def wide(self, value: int, width: int) -> int:
        """Code a number of so many bits, from the lowest piece on."""
        # In pieces, since a choice among 2^width would leave nothing of an interval of 2^32: its shares must be ≥ 1.
        found = 0
        for shift in range(0, width, PIECE):
            number = 1 << min(PIECE, width - shift)
            found |= self.choice(value >> shift & (number - 1), number) << shift
        return found


class MessageWriter(Coder):
    """The common base of senders and length meters."""

    heading = ""

    @abstractmethod
    def symbols(self, row: Array, base: int) -> None:
        """Write a row of digits below a base of 2 to 65536."""

    @abstractmethod
    def fields(self, row: Array, width: int) -> None:
        """Write a row of uint64 numbers of so many bits each."""

    @abstractmethod
    def mark(self, label: str) -> None:
        """Label what was sent since the last mark: the label follows the heading and a slash."""


class Sender(MessageWriter):
    """A sender builds a message."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float]] = []
        self._bytes = bytearray()  # what is finished, of which the last byte may not be full
        self._finished = 0  # bits of it
        self._begin()

    def _begin(self) -> None:
        self._low, self._range, self._words = 0, WHOLE, [0]  # the first word takes a carry that never comes

    @property
    def information(self) -> float:
        """Return the number of bits of the message so far, before its interval ends."""
        return self._finished + WORD * (len(self._words) - 1) + WINDOW - math.log2(self._range)

    def choice(self, value: int, number: int) -> int:
        if number > 1:
            # The remainder of this division belongs to no choice: a receiver refuses a code that points there.
            share = self._range // number
            self._low, self._range = self._low + value * share, share
            self._settle()
        return value

    def mark(self, label: str) -> None:
        self._marks.append((f"{self.heading}/{label}", self.information))

    def symbols(self, row: Array, base: int) -> None:
        if len(row) * _compute_depth(base) > MOST_STEPS:
            self._append_aligned(code_digits(row, base), counted=True)
            return
        # `choice` and `_settle` written out, on local names: this loop runs once for each branch of each digit.
        low, size, words = self._low, self._range, self._words
        branches, zeros, totals = (
            _list_paths(base),
            [1] * (2 << _compute_depth(base)),
            [2] * (2 << _compute_depth(base)),
        )
        for digit in row.tolist():
            for node, bit in branches[digit]:
                # Counts are doubled, so that the ½ of Krichevsky and Trofimov stays an integer.
                below = size * zeros[node] // totals[node]
                totals[node] += 2
                if bit:
                    low += below
                    size -= below
                else:
                    zeros[node] += 2
                    size = below
                if size <= LOW:
                    if low > ALL:
                        _carry(words)
                        low &= ALL
                    words.append(low >> WORD)
                    low = (low & LOW) << WORD
                    size <<= WORD
        self._low, self._range = low, size

    def fields(self, row: Array, width: int) -> None:
        if len(row) * width > MOST_FIELD_BITS:
            self._append_aligned(_write_fields(row, width), counted=False)
            return
        for value in row.tolist():
            self.wide(value, width)

    def finish(self) -> tuple[bytes, int, dict[str, int]]:
        """Return the message, padded with zeros to whole bytes, its bits, and the bits of each label.

        A bit may belong to several things; it is given to the one that it begins with. To end the message takes up to
        two bits, which are called "end".
        """
        self._end()
        parts: dict[str, int] = {}
        before = 0
        # Rounded sums, not rounded differences: so the parts add up to the whole message, whatever was rounded.
        for label, after in [*self._marks, ("end", self._finished)]:
            parts[label] = parts.get(label, 0) + round(after) - before
            before = round(after)
        return bytes(self._bytes), self._finished, parts

    def _settle(self) -> None:
        # Words leave as soon as the interval is narrower than one; a later carry may still raise them.
        while self._range <= LOW:
            if self._low > ALL:
                _carry(self._words)
                self._low &= ALL
            self._words.append(self._low >> WORD)
            self._low, self._range = (self._low & LOW) << WORD, self._range << WORD

    def _end(self) -> None:
        """Append the shortest binary fraction that the interval holds with all that may follow."""
        # The number may have more bits than the width, where `low` has passed the end of its window. So it is added,
        # not or-ed: what is too much carries into the words.
        width, number = _find_ending(self._low, self._range)
        whole = int.from_bytes(np.array(self._words, dtype=">u4").tobytes(), "big")
        length = WORD * (len(self._words) - 1) + width
        self._append((whole << width) + number, length)
        self._begin()

    def _append(self, number: int, length: int) -> None:
        # First the free bits of the last byte, then whole bytes, of which the last may be filled up with zeros.
        free = -self._finished % 8
        fill = -(length - free) % 8
        number <<= fill
        if free:
            self._bytes[-1] |= number >> (length + fill - free)
            number &= (1 << (length + fill - free)) - 1
        self._bytes += number.to_bytes(max(0, length + fill - free) // 8, "big")
        self._finished += length

    def _append_aligned(self, content: Array, counted: bool) -> None:
        if counted:
            self.natural(len(content))
        self._end()
        self._finished += -self._finished % 8
        self._bytes += content.tobytes()
        self._finished += 8 * len(content)


class Receiver(Coder):
    """A receiver reads a message, and leaves whatever follows it alone."""

    def __init__(self, data: bytes) -> None:
        self._data, self._start = data, 0
        self._begin()

    def _begin(self) -> None:
        """Begin a new interval at the bit where the last one ended."""
        self._low, self._range, self._read = 0, WHOLE, 0
        self._code = self._read_next() << WORD | self._read_next()

    def _find_end(self) -> int:
        """Find where the message continues if the interval ends here, just as a sender would end it."""
        width, number = _find_ending(self._low, self._range)
        if (self._low + self._code) >> (WINDOW - width) != number:
            raise CorruptArtifact("is no message: an interval does not end as it should")
        return self._start + self._read - WINDOW + width

    def _read_next(self) -> int:
        """Return the next 32 bits of the message; after its end, zeros, which `finish` notices."""
        # An honest message is read at most a window beyond its end. A forged one must not go on for ever on zeros.
        first, shift = divmod(self._start + self._read, 8)
        if first > len(self._data) + 2 * WINDOW // 8:
            raise CorruptArtifact("ends before the message does")
        self._read += WORD
        # An interval may begin within a byte, so that 32 bits lie in up to five of them.
        five = self._data[first : first + 5].ljust(5, b"\0")
        return int.from_bytes(five, "big") >> (8 - shift) & LOW

    def choice(self, value: int, number: int) -> int:
        if number <= 1:
            return 0
        # The same division as the sender's, to the last unit: both keep the same interval, or all that follows is lost.
        share = self._range // number
        value = self._code // share
        if value >= number:
            raise CorruptArtifact("is no message: it points between choices")
        self._code -= value * share
        self._low, self._range = (self._low + value * share) & ALL, share
        self._settle()
        return value

    def symbols(self, count: int, base: int) -> Array:
        """Read the digits that `Sender.symbols` sent, in the dtype of `Codes`."""
        if count * _compute_depth(base) > MOST_STEPS:
            length = self.natural(0)
            return coded_digits.from_row(np.frombuffer(self._read_aligned(length), dtype=np.uint8), count, base)
        # The code is kept relative to `low`, so that carries, which only raise `low`, never reach it.
        low, size, code = self._low, self._range, self._code
        zeros, totals = [1] * (2 << _compute_depth(base)), [2] * (2 << _compute_depth(base))
        only, top = _find_only_zero(base), 1 << _compute_depth(base)
        digits = []
        for _ in range(count):
            node = 1
            while node < top:
                if only[node]:
                    node *= 2
                    continue
                below = size * zeros[node] // totals[node]
                totals[node] += 2
                if code >= below:
                    low += below
                    size -= below
                    code -= below
                    node += node + 1
                else:
                    zeros[node] += 2
                    size = below
                    node += node
                if size <= LOW:
                    low = (low & LOW) << WORD
                    size <<= WORD
                    code = code << WORD | self._read_next()
            digits.append(node - top)
        self._low, self._range, self._code = low & ALL, size, code
        return np.array(digits, dtype=np.uint8 if base <= 256 else np.int32)

    def fields(self, count: int, width: int) -> Array:
        """Read the numbers that `Sender.fields` sent, uint64."""
        if count * width > MOST_FIELD_BITS:
            return _read_fields(self._read_aligned(_compute_fields_size(count, width)), count, width)
        return np.array([self.wide(0, width) for _ in range(count)], dtype=np.uint64)

    def finish(self) -> int:
        """Return how many bits the message has, and refuse data that ends before it."""
        bits = self._find_end()
        if bits > 8 * len(self._data):
            raise CorruptArtifact(f"ends after {8 * len(self._data)} bits, the message after {bits}")
        return bits

    def _settle(self) -> None:
        while self._range <= LOW:
            self._low, self._range = (self._low & LOW) << WORD, self._range << WORD
            self._code = self._code << WORD | self._read_next()

    def _read_aligned(self, length: int) -> bytes:
        bits = self._find_end()
        first, rest = -(-bits // 8), bits % 8
        if first + length > len(self._data):
            raise CorruptArtifact(f"ends after {len(self._data)} bytes, within {length} of them that begin at {first}")
        # A sender leaves zeros there. Were others taken as well, several messages would say the same.
        if rest and self._data[first - 1] & (0xFF >> rest):
            raise CorruptArtifact("has bits other than 0 before the next byte begins")
        self._start = 8 * (first + length)
        self._begin()
        return self._data[first : first + length]


class LengthMeter(MessageWriter):
    """A length meter measures what a sender would send, in bits, without sending it."""

    def __init__(self) -> None:
        self.bits = 0.0

    def mark(self, label: str) -> None:
        pass

    def choice(self, value: int, number: int) -> int:
        self.bits += math.log2(max(number, 1))
        return value

    def symbols(self, row: Array, base: int) -> None:
        counts = np.bincount(row, minlength=base)
        if len(row) * _compute_depth(base) > MOST_STEPS:
            # An estimate, of the table's bytes, the coder's last words and the length as well: it only chooses a way.
            used = counts[counts > 0]
            entropy = float(np.sum(used * np.log2(len(row) / used)))
            self.bits += entropy + 8 * (coded_digits.HEAD + 2 * int(np.flatnonzero(counts)[-1] + 1) + 8) + 40
            return
        depth, only = _compute_depth(base), _find_only_zero(base)
        # From the leaves to the root: pairs of neighbours are the zeros and ones at their branch, their sums the next
        # level. By Krichevsky's and Trofimov's rule the order of digits does not matter, so that counts are enough.
        level = np.zeros(1 << depth, dtype=np.int64)
        level[:base] = counts
        while len(level) > 1:
            zeros, ones = level[::2], level[1::2]
            for place in np.flatnonzero(zeros + ones).tolist():
                if not only[len(zeros) + place]:
                    self.bits += _branch_bits(int(zeros[place]), int(ones[place]))
            level = zeros + ones

    def fields(self, row: Array, width: int) -> None:
        self.bits += len(row) * width


def code_digits(row: Array, base: int) -> Array:
    """Code digits as entropy-coded bytes, however many these are."""
    found = coded_digits.to_row(row, base, room=1 << 62)
    assert found is not None, "a row of digits is never too long for so much room"
    return found


def _carry(words: list[int]) -> None:
    # As in 0.1999… + 0.0001: full words become 0, and the one before them grows. The first word, a 0 that no message
    # needs, ends this at the latest.
    place = len(words) - 1
    while words[place] == LOW:
        words[place] = 0
        place -= 1
    words[place] += 1


def _find_ending(low: int, size: int) -> tuple[int, int]:
    """Find the fewest bits, and their number, with which a fraction stays in [low, low + size) whatever follows."""
    for width in range(WINDOW + 1):
        step = 1 << (WINDOW - width)
        # Rounded up to a multiple of the step, and all that begins with it lies below the next multiple.
        number = -(-low // step)
        if (number + 1) * step <= low + size:
            return width, number
    raise AssertionError("an interval is never narrower than its last bit")


def _compute_depth(base: int) -> int:
    return (base - 1).bit_length()


def _find_only_zero(base: int) -> list[bool]:
    """Tell, for each node of the tree, whether every digit below the base that passes it goes on with a zero."""
    depth = _compute_depth(base)
    only = [False] * (1 << depth)
    for node in range(1, 1 << depth):
        left = depth - node.bit_length() + 1  # bits that a path through this node has yet to take
        # The least digit that goes on with a one here; nodes are numbered as in a heap, digits from 1 << depth on.
        only[node] = (2 * node + 1 << left - 1) - (1 << depth) >= base
    return only


def _list_paths(base: int) -> list[list[tuple[int, int]]]:
    """List, for each digit, the nodes it passes and the bit it takes at each, without nodes where it must be 0."""
    depth, only = _compute_depth(base), _find_only_zero(base)
    paths = []
    for digit in range(base):
        nodes = [(digit | 1 << depth) >> shift for shift in range(depth, -1, -1)]
        paths.append([(node, after & 1) for node, after in pairwise(nodes) if not only[node]])
    return paths


def _branch_bits(zeros: int, ones: int) -> float:
    """Compute −log₂ of the probability of so many zeros and ones by Krichevsky's and Trofimov's rule."""
    # The product of (n₁ + ½) / (n + 1) over a row is B(zeros + ½, ones + ½) / B(½, ½), whatever its order.
    gamma = math.lgamma
    log = gamma(zeros + 0.5) + gamma(ones + 0.5) - gamma(zeros + ones + 1) - 2 * gamma(0.5)
    return -log / math.log(2)


def _compute_fields_size(count: int, width: int) -> int:
    return count * (width // 8) + (packing.compute_packed_size(count, 1 << width % 8) if width % 8 else 0)


def _write_fields(row: Array, width: int) -> Array:
    """Write the whole bytes of each number, all lowest ones first; then the bits that are left, packed."""
    planes = [(row >> np.uint64(8 * place) & np.uint64(255)).astype(np.uint8) for place in range(width // 8)]
    if width % 8:
        planes.append(packing.pack((row >> np.uint64(width // 8 * 8)).astype(np.uint8), 1 << width % 8))
    return np.concatenate(planes)


def _read_fields(content: bytes, count: int, width: int) -> Array:
    rows, row = np.frombuffer(content, dtype=np.uint8), np.zeros(count, dtype=np.uint64)
    for place in range(width // 8):
        row |= rows[place * count : (place + 1) * count].astype(np.uint64) << np.uint64(8 * place)
    if width % 8:
        rest = packing.unpack(rows[width // 8 * count :], count, 1 << width % 8)
        row |= rest.astype(np.uint64) << np.uint64(width // 8 * 8)
    return row
