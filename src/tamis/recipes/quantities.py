"""People write numbers in recipes as 80% or 200KB, and these functions read them."""

from __future__ import annotations

import re
from typing import Any

from tamis.rates import as_rate

# As the standards have it, KB are thousands and KiB are 1024s.
UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
MOST_BYTES = 2**63  # of no file there are so many
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_PERCENT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*%")


def as_bytes(value: Any) -> int:
    """Read a number of bytes, which may have a unit.

    Example:
        >>> as_bytes("200KB"), as_bytes("1.5 MiB"), as_bytes(4096)
        (200000, 1572864, 4096)
    """
    match = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None and match[2].upper() in UNITS:
        count = float(match[1]) * UNITS[match[2].upper()]
        # What is too large stays as it was written, for the message to repeat.
        value = round(count) if count < MOST_BYTES else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MOST_BYTES:
        raise ValueError(f"it must be a number of bytes, as 200KB, 1.5MB or 4096; got {value!r:.50}")
    return value


def as_fraction(value: Any) -> float:
    """Read a fraction, which may be written in per cent, or as a text, as options of a command are.

    Example:
        >>> as_fraction("1%"), as_fraction(0.05), as_fraction("0.05")
        (0.01, 0.05, 0.05)
    """
    fraction = as_rate(value)
    if fraction is None or not 0 < fraction < 1:
        raise ValueError(f"it must be a fraction above 0 and below 1, as 0.01 or 1%; got {value!r:.50}")
    return fraction


def without_percent(value: Any) -> Any:
    """Convert a text like "80%" to the fraction it stands for; return anything else as it is.

    Example:
        >>> without_percent("80%"), without_percent(100)
        (0.8, 100)
    """
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else float(match[1]) / 100
