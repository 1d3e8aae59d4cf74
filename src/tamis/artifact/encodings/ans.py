"""Asymmetric numeral systems (ANS) code symbols of known frequencies as 32-bit words, close to their entropy.

A state x, at first 2³², takes the symbols from the last to the first. With frequencies f that sum to 2²⁴ and
F_s = Σ_{r<s} f_r, a symbol s turns x into

    x ← 2²⁴ ⌊x / f_s⌋ + F_s + x mod f_s,

after the lower 32 bits of x were put out if x ≥ 2⁴⁰ f_s. What is left of x follows at the end, in two words, the lower
first. A reader begins at the end and undoes each step: s is the symbol for which F_s ≤ x mod 2²⁴ < F_s + f_s, and x
becomes f_s ⌊x / 2²⁴⌋ + x mod 2²⁴ − F_s, to which a word is added below if it is less than 2³². After the last symbol, x
is 2³² again and no word is left; otherwise the words do not code so many symbols. Where only one symbol occurs, there
are no words.

All of it is integer arithmetic, so every implementation writes the same words: the extension where it is built, else
the package constriction where it is installed, else Python, slowly.

Reference: bamler2022constriction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from types import ModuleType

import numpy as np

from tamis.artifact.encodings.base import Array
from tamis.errors import CorruptArtifact
from tamis.kernels import dispatch

PRECISION = 24
TOTAL = 1 << PRECISION
WORD = (1 << 32) - 1
START = 1 << 32  # the state before the first symbol
BLOCK = 1 << 16  # symbols at a time: each becomes an integer of four bytes, of which few should exist at once


def frequencies(weights: Sequence[int]) -> Array:
    """Compute whole frequencies that sum to 2²⁴, in proportion to weights, and at least 1 where the weight is not 0.

    f_s = 1 + ⌊w_s (2²⁴ − S) / Σw⌋ for the S weights that are not 0. What is missing to 2²⁴ goes to the largest weight,
    the first of them.

    Args:
        weights: integers ≥ 0 of any size, at most 65536 of them, not all 0.

    Example:
        >>> frequencies([1, 0, 3]).tolist()
        [4194304, 0, 12582912]
    """
    # In Python's integers: weights are products of up to eight counts, and floating-point numbers would round them
    # differently on other machines, whose files could then not be read here.
    free, total = TOTAL - len(weights) + weights.count(0), sum(weights)
    share = {weight: 1 + weight * free // total if weight else 0 for weight in set(weights)}  # most occur often
    shares = [share[weight] for weight in weights]
    shares[weights.index(max(weights))] += TOTAL - sum(shares)
    return np.array(shares, dtype=np.int64)


def compress(symbols: Array, freqs: Array) -> Array:
    """Compress a row of symbols to words, uint32.

    Args:
        symbols: small integers, each of a frequency that is not 0.
        freqs: of each symbol, as `frequencies` gives them.
    """
    shares = freqs[freqs > 0]
    # The only symbol there is tells nothing: no words, not even those of a state.
    if len(shares) == 1:
        return np.empty(0, dtype=np.uint32)
    if (extension := dispatch.native()) is not None:
        words = np.empty(most_words(len(symbols)), dtype=np.uint32)
        used = extension.ans_compress(np.ascontiguousarray(symbols), freqs.astype(np.uint32), words)
        return words[:used].copy()
    ranks = (np.cumsum(freqs > 0) - 1).astype(np.int32)
    # From the last block to the first: ANS is a stack, and a reader pops the first symbol first.
    blocks = (ranks[symbols[start : start + BLOCK]] for start in reversed(range(0, len(symbols), BLOCK)))
    if (library := _import_library()) is None:
        return _compress_slowly(blocks, shares)
    coder, model = library.stream.stack.AnsCoder(_split_state(START)), _make_model(library, shares)
    for block in blocks:
        coder.encode_reverse(block, model)
    found: Array = coder.get_compressed()
    return found


def most_words(count: int) -> int:
    """Compute an upper bound on the words for so many symbols: no frequency is below 1, and the state takes two."""
    return 3 + count * (PRECISION + 1) // 32


def decompress(words: Array, freqs: Array, count: int) -> Array:
    """Decompress a row of words to symbols, uint8 or, where there are more than 256 of them, int32.

    Args:
        words: uint32, as `compress` gives them. Others raise CorruptArtifact.
        freqs: of each symbol.
        count: of the symbols.
    """
    # Before anything is made: a forged row may be long, and its count of symbols small.
    check_length(len(words), count)
    used, shares = np.flatnonzero(freqs), freqs[freqs > 0]
    symbols = np.empty(count, dtype=np.uint8 if len(freqs) <= 256 else np.int32)
    if len(shares) == 1:
        symbols[:] = used[0]
        sound = len(words) == 0
    elif not _ends_in_state(words):
        sound = False
    elif (extension := dispatch.native()) is not None:
        sound = extension.ans_decompress(np.ascontiguousarray(words), freqs.astype(np.uint32), symbols)
    else:
        sound = _decompress(words, shares, used.astype(symbols.dtype), symbols)
    _check_sound(sound, count)
    return symbols


def decompress_digits(words: Array, freqs: Array, lookup: Array, digits: Array) -> None:
    """Decompress a row of words, and write the digits that its symbols stand for, symbol by symbol.

    Args:
        words, freqs: as `decompress` takes them.
        lookup: the digits of each symbol, at most eight, (symbols, digits), uint8.
        digits: those of as many symbols as the words must be, uint8.
    """
    extension, count = dispatch.native(), len(digits) // lookup.shape[1]
    if extension is None or freqs.max() == TOTAL:  # one symbol alone takes no words
        _look_up(decompress(words, freqs, count), lookup, digits.reshape(-1, lookup.shape[1]))
        return
    check_length(len(words), count)
    sound = _ends_in_state(words) and extension.ans_decompress_digits(
        np.ascontiguousarray(words), freqs.astype(np.uint32), lookup, digits
    )
    _check_sound(sound, count)


def check_length(words: int, count: int) -> None:
    """Raise CorruptArtifact for more words than so many symbols can take."""
    if words > most_words(count):
        raise CorruptArtifact(f"has an entropy-coded row of {words} words for {count} symbols")


def _ends_in_state(words: Array) -> bool:
    """Tell whether the last two words can be a state, which is 2³² or more."""
    return len(words) >= 2 and words[-1] != 0


def _check_sound(sound: bool, count: int) -> None:
    if not sound:
        raise CorruptArtifact(f"has an entropy-coded row that is not one of {count} symbols")


def _look_up(symbols: Array, lookup: Array, digits: Array) -> None:
    """Write a row of digits for each symbol, block by block, since numpy converts indices to 8-byte integers."""
    for start in range(0, len(symbols), BLOCK):
        digits[start : start + BLOCK] = lookup.take(symbols[start : start + BLOCK], axis=0)


def _decompress(words: Array, shares: Array, used: Array, symbols: Array) -> bool:
    """Write the symbols of words, and tell whether the words are exactly those of so many symbols."""
    library, places = _import_library(), [slice(start, start + BLOCK) for start in range(0, len(symbols), BLOCK)]
    if library is None:
        return _decompress_slowly(words.tolist(), shares, used, symbols)
    coder, model = library.stream.stack.AnsCoder(np.ascontiguousarray(words)), _make_model(library, shares)
    for place in places:
        symbols[place] = used[coder.decode(model, len(symbols[place]))]
    # Decoding undoes encoding step by step, so that only the words of exactly these symbols end in the first state.
    return np.array_equal(coder.get_compressed(), _split_state(START))


def _import_library() -> ModuleType | None:
    try:
        import constriction  # type: ignore[import-untyped]
    except ImportError:  # a machine that only runs networks may lack it
        return None
    library: ModuleType = constriction
    return library


def _split_state(state: int) -> Array:
    return np.array([state & WORD, state >> 32], dtype=np.uint32)


def _make_model(library: ModuleType, shares: Array) -> object:
    """Make the library's model of exactly these frequencies.

    It adds 1 to each of the numbers that it is given, after scaling them to 2²⁴ less their count. They sum to that
    already, and are integers that floating-point numbers hold, as are their sums: nothing is rounded.
    """
    return library.stream.model.Categorical((shares - 1).astype(np.float64), perfect=False)


def _compress_slowly(blocks: Iterator[Array], shares: Array) -> Array:
    share, first = shares.tolist(), [0, *accumulate(shares.tolist())]
    state, words = START, []
    for block in blocks:
        for symbol in reversed(block.tolist()):
            own = share[symbol]
            # Putting out a word first keeps the new state below 2⁶⁴, as the other implementations need it.
            if state >> (64 - PRECISION) >= own:
                words.append(state & WORD)
                state >>= 32
            # The state's quotient by the frequency goes up, and its remainder picks one of the symbol's own 2²⁴ places:
            # the state grows by the factor 2²⁴ / own, which are the symbol's bits (Duda's range variant of ANS).
            state = (state // own << PRECISION) + first[symbol] + state % own
    return np.concatenate([np.array(words, dtype=np.uint32), _split_state(state)])


def _decompress_slowly(words: list[int], shares: Array, used: Array, symbols: Array) -> bool:
    share, first = shares.tolist(), [0, *accumulate(shares.tolist())]
    state = words.pop() << 32 | words.pop()
    for place in range(len(symbols)):
        rest = state & (TOTAL - 1)
        symbol = bisect_right(first, rest) - 1
        symbols[place] = used[symbol]
        state = (state >> PRECISION) * share[symbol] + rest - first[symbol]
        if state <= WORD and words:
            state = state << 32 | words.pop()
    return state == START and not words
