"""Certificates write numbers in as few digits as possible, rounded so that "at most" stays true."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

from tamis.bounds import Bound
from tamis.verification.settings import Settings

SLACK = 1e-9  # of the last digit shown: what float64 may add to a number that is already round


def state_confidence(settings: Settings, held_out: bool = True) -> str:
    """Return the beginning of a sentence that may be wrong by chance; all of them hold together with this confidence.

    Args:
        settings: those of the certificate.
        held_out: whether the sentence speaks of held-out data, which one may look at once, or at any time.
    """
    looks = ", however often one looks" if settings.sequential and held_out else ""
    # Decimal: 1 - 0.05 is 0.95 there, and not 0.95 to sixteen digits.
    return f"With {format_share(1 - Decimal(repr(settings.delta)))} confidence{looks}"


def format_share(share: Decimal) -> str:
    """Write a share of all in per cent, to its last digit.

    Example:
        >>> format_share(Decimal("0.995"))
        '99.5%'
    """
    return f"{(100 * share).normalize():f}%"


def format_rate(rate: float) -> str:
    """Write a rate in per cent with two digits, rounded up, so that a bound stays one.

    Example:
        >>> format_rate(0.012301)
        '1.24%'
    """
    return f"{math.ceil(rate * 1e4 - SLACK) / 100:.2f}%"


def shorten_float(value: float) -> float:
    """Return the number with the fewest digits that float32 takes for this one, if it is one of float32.

    Example:
        >>> shorten_float(2.640000104904175)
        2.64
    """
    is_single = abs(value) < np.finfo(np.float32).max and float(np.float32(value)) == value
    return float(str(np.float32(value))) if is_single else value


def format_limit(value: float) -> str:
    """Write a limit of inputs in few digits, and never above it: what holds up to it holds up to less.

    Example:
        >>> format_limit(2.640000104904175)
        '2.64'
    """
    return repr(min(shorten_float(value), value))


def format_bound(bound: Bound) -> str:
    """Write a bound with three digits, rounded up; as a power of ten where it is very large or small."""
    power = bound.log10
    if power == -math.inf:
        return "0"
    if not -4 <= power < 6:
        return f"10^{math.ceil(power * 100 - SLACK) / 100:.2f}"
    unit = 10.0 ** (math.floor(power) - 2)
    return f"{math.ceil(bound.value / unit - SLACK) * unit:.{max(0, 2 - math.floor(power))}f}"
