"""The samples that a network has seen as a short text: the gaps between their cells, by the code of Golomb and Rice.

Cells are as good as random, so gaps are geometric, and this code spends on each about 1.6 bits more than log₂ of the
mean gap, where the least possible is 1.44 more. docs/format.md specifies it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tamis.artifact.file import File
from tamis.errors import CorruptArtifact
from tamis.graph import CELL_BITS, CELLS, NOTHING_SEEN, PURPOSES, Array, SeenSamples

PART_OF_FILE = 50  # a file has 50 bytes for each byte of this, unless it is so small that these would be fewer than
LEAST_ROOM = 128  # bytes: they hold a dozen samples at least, enough to recognise any larger part of those it has seen
LONGEST = 2**19  # characters: half of what a description may take for all that is said about a network
HEAD = 11  # bytes: purposes, low bits, limit (5), samples (4)


def compute_room(nbytes: int) -> int:
    """Return how many bytes a file with so many bytes of its own may spend on the samples that were seen."""
    # A fiftieth of the file with the samples in it is a forty-ninth of the file without them.
    return max(nbytes // (PART_OF_FILE - 1), LEAST_ROOM)


def encode_within(seen: SeenSamples, growth: Callable[[str], int], room: int) -> str | None:
    """Write as many of the samples as there is room for; return None if there is none for a single one.

    Args:
        seen: the samples.
        growth: by how many bytes a text makes the file longer.
        room: how many it may.
    """
    while seen:
        text = encode(seen)
        excess = max(growth(text) / max(room, 1), len(text) / LONGEST)
        if excess <= 1:
            return text
        seen = seen.first(min(len(seen.cells) - 1, math.floor(len(seen.cells) / excess)))
    return None


def encode(seen: SeenSamples) -> str:
    """Write all samples as a text: base64 of a head, all unary quotients of gaps, and all their low bits.

    Example:
        >>> from tamis.graph import sample_digests
        >>> digests = sample_digests((torch.arange(30.0).reshape(10, 3),), (torch.float32,))
        >>> seen = SeenSamples.of(digests, "calibration")
        >>> read("small.tamis", encode(seen)).count(digests) == seen.count(digests) == 10
        True
    """
    gaps = np.diff(seen.cells, prepend=-1) - 1
    low = _choose_low_bits(gaps)
    ends = np.cumsum((gaps >> low) + 1)
    quotients = np.zeros(int(ends[-1]), dtype=np.uint8)
    quotients[ends - 1] = 1
    remainders = np.empty((len(gaps), low), dtype=np.uint8)
    for place in range(low):  # a column at a time: all of them as 64-bit numbers would take eight times the memory
        remainders[:, place] = gaps >> (low - 1 - place) & 1
    bits = np.packbits(np.concatenate((quotients, remainders.reshape(-1))))
    purposes = sum(1 << place for place, purpose in enumerate(PURPOSES) if purpose in seen.purposes)
    head = bytes([purposes, low]) + (seen.limit - 1).to_bytes(5, "little") + len(gaps).to_bytes(4, "little")
    return base64.b64encode(head + bits.tobytes()).decode()


def read(path: str | Path | File, text: Any) -> SeenSamples:
    """Read what `encode` wrote; a file without it has seen nothing that it knows of.

    Raises:
        CorruptArtifact: the text is something else, or too long.
    """
    if text is None:
        return NOTHING_SEEN
    if isinstance(text, str) and len(text) > LONGEST:  # before eight times its bytes are taken for its bits
        raise CorruptArtifact(
            f"'{path}' says in {len(text):,} characters what its network has seen, and at most {LONGEST:,} are read"
        )
    try:
        return _read(base64.b64decode(text, validate=True))
    except (TypeError, ValueError) as error:
        raise CorruptArtifact(f"'{path}' does not say what its network has seen as a .tamis file does") from error


def _read(content: bytes) -> SeenSamples:
    """Take nothing on trust: whatever `encode` would not have written is a ValueError."""
    head, bits = content[:HEAD], np.unpackbits(np.frombuffer(content[HEAD:], dtype=np.uint8))
    if len(head) < HEAD or head[0] >= 1 << len(PURPOSES) or head[1] > CELL_BITS:
        raise ValueError("its head cannot be")
    low, limit, count = head[1], int.from_bytes(head[2:7], "little") + 1, int.from_bytes(head[7:], "little")
    if not 0 < count <= len(bits) or limit > CELLS:
        raise ValueError("its counts cannot be")
    ends = np.flatnonzero(bits)[:count] + 1
    if len(ends) < count or -(-(int(ends[-1]) + low * count) // 8) * 8 != len(bits):
        raise ValueError("it has another length")
    after = int(ends[-1]) + low * count
    if bits[after:].any() or int(ends[-1]) - count > CELLS >> low:
        raise ValueError("it goes on where it must not")
    remainders = bits[int(ends[-1]) : after].reshape(count, low)
    gaps = (np.diff(ends, prepend=0) - 1).astype(np.int64) << low
    for place in range(low):
        gaps += remainders[:, place].astype(np.int64) << (low - 1 - place)
    cells = np.cumsum(gaps + 1) - 1
    if int(cells[-1]) >= limit:
        raise ValueError("a cell lies beyond its limit")
    return SeenSamples(cells, limit, tuple(each for place, each in enumerate(PURPOSES) if head[0] >> place & 1))


def _choose_low_bits(gaps: Array) -> int:
    """Return how many low bits of each gap to write as they are, so that the whole is shortest."""
    guess = int(math.log2(max(1.0, float(gaps.mean()))))
    around = range(max(0, guess - 1), min(CELL_BITS, guess + 1) + 1)
    return min(around, key=lambda low: len(gaps) * low + int((gaps >> low).sum()))
