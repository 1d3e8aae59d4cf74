"""Patterns on the command line: 1,192,48,2 is one, 1,192,48,2/2,48,192,1 a product of two, monarch:4 a family."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tamis.errors import InvalidInput
from tamis.kronecker import Pattern, as_chain, block_butterfly, butterfly, kaleidoscope, low_rank, monarch, suggest

Chooser = Callable[[int, int], Sequence[Pattern] | None]
FAMILIES = "monarch:P, low_rank:R, butterfly, block_butterfly:T, kaleidoscope, or suggest:BUDGET"


def parse_pattern(text: str) -> Pattern:
    """Read one pattern (a, b, c, d).

    Example:
        >>> parse_pattern("1,192,48,2")
        Pattern(a=1, b=192, c=48, d=2)
    """
    sizes = [size.strip() for size in text.strip("() ").split(",")]
    if len(sizes) != 4 or not all(size.isdecimal() for size in sizes):
        raise InvalidInput(f"a pattern is four whole numbers a,b,c,d such as 1,192,48,2; got '{text}'")
    return Pattern(*map(int, sizes))


def parse_budget(text: str, option: str = "--budget") -> int | float:
    """Read a number of weights, or a share of all.

    Example:
        >>> parse_budget("36864"), parse_budget("0.25"), parse_budget("25%")
        (36864, 0.25, 0.25)
    """
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)%?", text):
        raise InvalidInput(f"{option} must be a share (0.25), a percentage (25%) or a number of weights; got '{text}'")
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def parse_chains(texts: Sequence[str]) -> Chooser:
    """Read products; a layer of the size of one of them becomes that product, and others stay.

    Example:
        >>> parse_chains(["1,192,48,2/2,48,192,1"])(384, 384)
        (Pattern(a=1, b=192, c=48, d=2), Pattern(a=2, b=48, c=192, d=1))
    """
    chains: dict[tuple[int, int], tuple[Pattern, ...]] = {}
    for text in texts:
        chain = as_chain([parse_pattern(part) for part in text.split("/")])
        size = chain[0].rows, chain[-1].columns
        if size in chains:
            raise InvalidInput(f"--patterns has two products of {size[0]} × {size[1]}, '{text}' and one before it")
        chains[size] = chain
    return lambda rows, columns: chains.get((rows, columns))


def parse_family(text: str) -> Chooser:
    """Read a family, which has a product for each size. In families of square matrices, other layers stay.

    Example:
        >>> [str(pattern) for pattern in parse_family("monarch:4")(16, 8)]
        ['(1, 4, 2, 4)', '(4, 2, 2, 1)']
    """
    name, colon, number = text.partition(":")
    if name == "suggest" and number:
        budget = parse_budget(number, "--family suggest:")
        return lambda rows, columns: suggest(rows, columns, budget)[0].patterns
    if name in ("butterfly", "kaleidoscope") and not colon:
        square = butterfly if name == "butterfly" else kaleidoscope
        return lambda rows, columns: square(rows) if rows == columns else None
    if name in ("monarch", "low_rank", "block_butterfly") and number.isdecimal():
        size = int(number)
        if name == "block_butterfly":
            return lambda rows, columns: block_butterfly(rows, size) if rows == columns else None
        family = monarch if name == "monarch" else low_rank
        return lambda rows, columns: family(rows, columns, size)
    raise InvalidInput(f"--family must be {FAMILIES}; got '{text}'")
