"""Settings that are more than a word or a number, read from what is typed on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tamis.errors import InvalidInput

AMOUNTS = "a fraction (0.8), a percentage (80%), a count (1000), or NAME= and one of these for each layer"


class Parser(NamedTuple):
    """A parser reads a setting from text, and has the sentence that tells users how to write it."""

    parse: Callable[[Any], Any]
    written: str


def parse_levels(text: str) -> int | list[float]:
    """Read how many levels there are, or which.

    Example:
        >>> parse_levels("3"), parse_levels("-0.5,0,0.5")
        (3, [-0.5, 0.0, 0.5])
    """
    if text.strip().isdecimal():
        return int(text)
    return _parse_numbers(text, "--levels must be how many levels (3), or a sorted list of them (-0.5,0,0.5)")


def parse_c_alpha(text: str) -> float | list[float]:
    """Read C_α, or several to choose from.

    Example:
        >>> parse_c_alpha("2.5"), parse_c_alpha("1,2,3")
        (2.5, [1.0, 2.0, 3.0])
    """
    numbers = _parse_numbers(text, "--c-alpha must be a positive number (2.5), or several to choose from (1,2,3)")
    return numbers if len(numbers) > 1 else numbers[0]


def parse_amount(entries: Sequence[str], option: str = "--amount") -> float | int | Mapping[str, float | int]:
    """Read how much to prune: one number, or one for each layer.

    Example:
        >>> parse_amount(["80%"]), parse_amount(["conv1=0.5", "fc=100"])
        (0.8, {'conv1': 0.5, 'fc': 100})
    """
    if len(entries) == 1 and "=" not in entries[0]:
        return _parse_amount(entries[0], entries[0], option)
    amounts: dict[str, float | int] = {}
    for entry in entries:
        name, _, number = entry.rpartition("=")
        if not name:
            raise InvalidInput(f"{option} must be {AMOUNTS}; got '{entry}' among {len(entries)} of them")
        if name in amounts:
            raise InvalidInput(f"{option} names '{name}' twice")
        amounts[name] = _parse_amount(number, entry, option)
    return amounts


def parse_keep(text: str) -> tuple[str, ...]:
    """Read which layers stay as they are.

    Example:
        >>> parse_keep("first,last,*.downsample.*"), parse_keep("")
        (('first', 'last', '*.downsample.*'), ())
    """
    return tuple(word for word in (each.strip() for each in text.split(",")) if word)


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read whole numbers with commas between.

    Example:
        >>> parse_numbers("1,2,3", "--layers")
        (1, 2, 3)
    """
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise InvalidInput(f"{option} must be whole numbers with commas between, as 1,2,3; got '{text}'")
    return tuple(int(number) for number in numbers)


def parse_subsample(number: int) -> int | None:
    """Read how many past rounds are seen; 0 stands for all of them.

    Example:
        >>> parse_subsample(32), parse_subsample(0)
        (32, None)
    """
    return number or None


def _parse_amount(text: str, entry: str, option: str) -> float | int:
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)%?", text):
        raise InvalidInput(f"{option} must be {AMOUNTS}; got '{entry}'")
    fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if fraction > 1:
        raise InvalidInput(f"{option} '{entry}' is more than all there is; a whole number is a count")
    return fraction


def _parse_numbers(text: str, wanted: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{wanted}; got '{text}'") from None


PARSERS = {
    "levels": Parser(parse_levels, "Written 3, or -0.5,0,0.5."),
    "c_alpha": Parser(parse_c_alpha, "Written 2.5, or 1,2,3."),
    "amount": Parser(parse_amount, "Written 0.8, 80% or 1000; for a layer conv1=0.5, once for each layer."),
    "keep": Parser(parse_keep, "Several have commas between."),
    "layers": Parser(partial(parse_numbers, option="--layers"), "Written 1,2,3."),
    "filters": Parser(partial(parse_numbers, option="--filters"), "Written 2,4."),
    "sizes": Parser(partial(parse_numbers, option="--sizes"), "Written 3,5."),
    "subsample": Parser(parse_subsample, "Written 0 for all."),
}
