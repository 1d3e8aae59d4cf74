"""Rates as people write them: 0.01, 1%, or 1pt for a percentage point."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

UNITS = {"": 1, "%": 100, "pt": 100}
_RATE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)\s*(%|pt|)")


def as_rate(value: Any) -> float | None:
    """Read a rate from 0 to 1, given as a number or as text, as the nearest float; return None for anything else.

    Example:
        >>> as_rate("1 pt"), as_rate("0.7%"), as_rate(0.02), as_rate("1e-3"), as_rate(2)
        (0.01, 0.007, 0.02, 0.001, None)
    """
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    # In decimal, and rounded once: 0.7 / 100 in floats is not the float nearest to 0.007.
    rate = float(Decimal(match[1]) / UNITS[match[2]]) if match else value
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        return None
    return float(rate)
