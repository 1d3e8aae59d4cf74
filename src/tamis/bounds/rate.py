"""A `Rate` holds what a theorem says up to a constant that nobody knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tamis.bounds.statement import Statement
from tamis.errors import InvalidInput


@dataclass(frozen=True)
class Rate(Statement):
    """A rate says how a quantity grows or falls with a problem's sizes, up to an unknown constant: it bounds nothing.

    Only the ratio of two rates of one theorem means something, such as "four times the width, half the error". A rate
    is therefore no `Bound`, and cannot be certified.

    Attributes:
        value: the expression without its constant.
        expression: the expression in words of the theorem, as "log(N₀) √m / ‖w‖₂".
        source: the citation key and the place in that work, as "lybrand2021gpfq, Theorem 2".
        assumptions: what must hold for the theorem and could not be checked here.
        checked: what must hold for the theorem and was checked.
        terms: the numbers that the value is made of, by name.
    """

    value: float
    expression: str
    source: str
    assumptions: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    terms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (0 <= self.value < math.inf):
            raise InvalidInput(f"a rate must be a finite number of at least 0, got {self.value}")
        super().__post_init__()
