"""The sparsity patterns that chapter 5 of the thesis measures: figure D.1 for time, section D.2.1 for energy.

Where the text leaves freedom:

1. It speaks of 600 patterns; its code, figure D.1, gives 627, which are the ones here. Nothing printed says which of
   them, if any, were left out.
2. Appendix D.2.1 prints "b = c or b = 4c or c = 4d". The code has c = 4b, as section 5.4 has, and so have we.
3. The code orders patterns by size. `spread` takes some of them from all over the list, for a shorter run.

Reference: gonon2024thesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tamis.errors import InvalidInput
from tamis.kronecker import Pattern

BATCH = 128 * 196  # 128 images of 196 tokens
LARGEST = 2**31 - 1  # entries of a tensor: the text's kernel counts them in 32 bits
REPEATS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SIDES = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# With a > 1 these are left out: others have about the same (b + c)/(bc) and are faster to measure.
NEARLY_MEASURED = {(1024, 256), (256, 1024), (128, 512), (512, 128), (64, 256), (256, 64)}


def benchmark_patterns(batch: int = BATCH) -> list[Pattern]:
    """Return the patterns of figure D.1, in its order: first those with a = 1, then the others.

    Args:
        batch: inputs or outputs of so many vectors must not have more than 2³¹ − 1 entries. The text has 25088.

    Example:
        >>> len(benchmark_patterns()), str(benchmark_patterns()[0])
        (627, '(1, 48, 48, 1)')
    """
    alone = [Pattern(1, b, c, d) for b, c, d in product(SIDES, SIDES, REPEATS)]
    repeated = [
        Pattern(a, b, c, d)
        for a, b, c, d in product(REPEATS, SIDES, SIDES, (4, 16, 64))
        if a != 1 and (b, c) not in NEARLY_MEASURED
    ]
    return [pattern for pattern in alone + repeated if _is_as_in_transformers(pattern) and _fits(pattern, batch)]


def list_energy_patterns(batch: int = BATCH) -> list[Pattern]:
    """Return the patterns of the measurements of energy (D.2.1); that sizes are limited there, too, is our guess."""
    every = [Pattern(a, b, c, d) for a, b, c, d in product((1, 4, 16, 32, 64), SIDES, SIDES, REPEATS[:-2])]
    return [
        pattern
        for pattern in every
        if (pattern.b, pattern.c) not in NEARLY_MEASURED and _is_as_in_transformers(pattern) and _fits(pattern, batch)
    ]


def spread(patterns: Sequence[Pattern], count: int | None) -> list[Pattern]:
    """Return so many of the patterns, evenly from the whole list in its order; all of them for None or a larger count.

    Example:
        >>> [str(pattern) for pattern in spread(benchmark_patterns(), 2)]
        ['(1, 256, 64, 4)', '(8, 64, 64, 16)']
    """
    if count is None or count >= len(patterns):
        return list(patterns)
    if count < 1:
        raise InvalidInput(f"a run needs at least one pattern, got {count}")
    return [patterns[(2 * place + 1) * len(patterns) // (2 * count)] for place in range(count)]


def _is_as_in_transformers(pattern: Pattern) -> bool:
    """Return whether a pattern is square, or four times as wide on one side."""
    b, c = pattern.b, pattern.c
    return b == c or b == 4 * c or c == 4 * b


def _fits(pattern: Pattern, batch: int) -> bool:
    return max(batch * pattern.columns, batch * pattern.rows, pattern.nonzeros) <= LARGEST
