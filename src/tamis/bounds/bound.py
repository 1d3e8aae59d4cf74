"""`Bound`: what a theorem says of a case, and how the number came about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tamis.citations import CITATIONS
from tamis.errors import InvalidInput


@dataclass(frozen=True)
class Bound:
    """An upper bound.

    Attributes:
        value: the number, infinite where float64 ends.
        log_value: its natural logarithm, finite wherever the number is positive and finite; −∞ for zero.
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
        if self.citation not in CITATIONS:
            raise InvalidInput(f"the source '{self.source}' does not begin with a citation key and a comma")
        object.__setattr__(self, "terms", MappingProxyType(dict(self.terms)))

    @property
    def citation(self) -> str:
        """The key of the work in `tamis.citations`."""
        return self.source.split(",")[0]

    @property
    def log10(self) -> float:
        """The decimal logarithm, for numbers too large to print."""
        return self.log_value / math.log(10)


def log_of(value: float) -> float:
    """The natural logarithm of a number ≥ 0, −∞ for zero."""
    return math.log(value) if value > 0 else -math.inf


def exp_of(log_value: float) -> float:
    """The number with this natural logarithm, infinite where float64 ends."""
    try:
        return math.exp(log_value)
    except OverflowError:
        return math.inf
