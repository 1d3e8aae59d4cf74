"""A `Bound` holds what a theorem says of a case, and how the number came about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tamis.bounds.statement import Statement
from tamis.errors import InvalidInput

EPSILON = 2.0**-52
SMALLEST = 5e-324  # above 0


@dataclass(frozen=True)
class Bound(Statement):
    """A `Bound` is an upper bound that a theorem gives, with what it rests on.

    Attributes:
        value: the number, rounded up: infinite where float64 ends.
        log_value: its natural logarithm, rounded up; finite wherever the number is positive and finite; −∞ for zero.
        informative: whether it says more than what is trivially true, such as an error rate of at most 1.
        assumptions: what must hold for it and could not be checked here: for the user to vouch for.
        checked: what must hold for it and was checked.
        terms: the numbers it is made of, by name.
        source: the citation key and the place in that work, as "gonon2024thesis, Theorem 3.3.1".
    """

    value: float
    log_value: float
    informative: bool
    source: str
    assumptions: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    terms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if math.isnan(self.value) or math.isnan(self.log_value):
            raise InvalidInput(f"a bound must be a number, got value {self.value} and log_value {self.log_value}")
        super().__post_init__()

    @property
    def log10(self) -> float:
        """Return the decimal logarithm, for numbers too large to print; rounded up."""
        return round_up(self.log_value / math.log(10))


def round_up(number: float, ulps: int = 4) -> float:
    """Return a float that is no less than what `number` stands for, if that was rounded by so many units in the last
    place.

    Zero stays zero: what could underflow to it is to be computed by its logarithm.
    """
    if number == 0 or not math.isfinite(number):
        return number
    return number + max(ulps * EPSILON * abs(number), SMALLEST)  # the latter where float64 has fewer digits


def log_rounded_up(value: float) -> float:
    """Return the natural logarithm of a number ≥ 0, rounded up; −∞ for zero, and for what is below it."""
    if math.isnan(value):
        raise InvalidInput("a term of a bound is not a number: look for NaN among the arguments")
    return round_up(math.log(value)) if value > 0 else -math.inf


def exp_rounded_up(log_value: float) -> float:
    """Return the number with this natural logarithm, rounded up: infinite where float64 ends, and never 0 but for
    −∞.
    """
    if log_value == -math.inf:
        return 0.0
    try:
        value = math.exp(log_value)
    except OverflowError:
        return math.inf
    return max(round_up(value), SMALLEST) if log_value else value


def log_of_product(*logs: float) -> float:
    """Return the logarithm of a product from those of its factors, rounded up; each may be off by its last few digits.

    −∞ stands for a factor of zero, whatever the others are.

    Example:
        >>> log_of_product(math.log(2), math.log(3)) >= math.log(6)
        True
    """
    if -math.inf in logs:
        return -math.inf
    # Factors far above and below 1 cancel, and their rounding stays: it counts, not the size of the sum.
    return sum(logs) + 16 * EPSILON * sum(1 + abs(log) for log in logs)


def log_of_sum(*logs: float) -> float:
    """Return the logarithm of a sum of numbers ≥ 0 from theirs, rounded up; each may be off by its last few digits."""
    # The largest is taken out, so that no exponential overflows and the sum lies between 1 and the number of terms.
    largest = max(logs)
    if not math.isfinite(largest):
        return largest
    total = math.fsum(math.exp(log - largest) for log in logs)
    return largest + math.log(total) + 16 * EPSILON * (len(logs) + abs(largest))
