"""Values that callers pass are turned into Python's own types, and checked with messages that repeat them."""

from __future__ import annotations

import operator
from typing import Any

from tamis.errors import InvalidInput

LARGEST_BATCH = 2**63 - 1  # torch counts in 64 bits


def require(name: str, value: object, wanted: str, right: bool) -> None:
    """Raise InvalidInput, saying what was wanted and what was passed, unless the value is right."""
    if not right:
        raise InvalidInput(f"{name} must be {wanted}, got {value!r}")


def check_batch(batch: int) -> None:
    """Raise InvalidInput unless torch can split data into batches of this many examples."""
    require("batch", batch, "a whole number ≥ 1", is_int(batch, least=1))
    require("batch", batch, f"at most {LARGEST_BATCH}", batch <= LARGEST_BATCH)


def is_int(value: object, least: int) -> bool:
    """Return whether a value is an int of at least `least` and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_float(value: object) -> bool:
    """Return whether a value is a float."""
    return isinstance(value, float)


# The conversions below leave what they cannot convert as it is, so that the check after them repeats the user's value.


def as_plain_int(value: Any) -> Any:
    """Return the int that a value stands for, or the value itself where it stands for none."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def as_plain_ints(values: Any) -> Any:
    """Return the ints that values stand for, as a tuple, or the argument itself where it is no sequence."""
    try:
        return tuple(map(as_plain_int, values))
    except TypeError:
        return values


def as_plain_bool(value: Any) -> Any:
    """Return the bool that a value stands for, or the value itself where it stands for none."""
    try:
        return bool(value) if value in (True, False) else value
    except (ValueError, RuntimeError):  # an array or a tensor, of which each entry has its own answer
        return value


def as_plain_float(value: Any) -> Any:
    """Return the float that a value stands for, or the value itself where it stands for none, such as a text."""
    try:
        return value if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return value
