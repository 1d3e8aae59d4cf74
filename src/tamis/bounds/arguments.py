"""The arguments of bounds are checked here: counts, sizes, probabilities."""

from __future__ import annotations

import math

from tamis.errors import InvalidInput

MOST_BITS = 500  # of a count: products of two are within float64


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise InvalidInput for what is not an integer of at least `least`, or one that float64 cannot hold."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} must be an integer of at least {least}, got {name} = {value!r}")
    if value.bit_length() > MOST_BITS:
        raise InvalidInput(f"{name} must be an integer below 2^{MOST_BITS}, got one of {value.bit_length()} bits")


def check_number(name: str, value: float) -> None:
    """Raise InvalidInput for what is not a finite number of at least 0."""
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{name} must be a finite number of at least 0, got {name} = {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise InvalidInput for what is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise InvalidInput(f"{name} must be a finite number above 0, got {name} = {value!r}")


def check_delta(delta: float) -> None:
    """Raise InvalidInput for what is not a probability between 0 and 1."""
    if not 0 < delta < 1:
        raise InvalidInput(f"delta must lie between 0 and 1, got delta = {delta!r}")
