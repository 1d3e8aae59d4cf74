"""The layout of packed bits and packed weights, in numbers; tamis.kernels.binary describes it in words."""

from __future__ import annotations

WORD = 64  # bits in a word
OCT = 8  # output channels side by side in packed weights
COUNT = 16  # bits for how many weights are 1 at a tap


def count_words(channels: int) -> int:
    """Return how many words the bits of this many channels take."""
    return -(-channels // WORD)


def count_taps_per_word(each: int) -> int:
    """Return how many taps share one word of packed weights for their counts of ones."""
    return WORD // COUNT if each < 1 << COUNT else 1


def count_packed_rows(each: int, taps: int) -> tuple[int, int]:
    """Return the number of rows of bits, and of counts of ones, in packed weights."""
    return -(-taps * count_words(each) // 3) * 3, -(-taps // count_taps_per_word(each))
