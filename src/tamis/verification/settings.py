"""Settings say what a certificate was asked for: δ, the number of candidates, the coverage and the boxes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from tamis.errors import InvalidInput
from tamis.verification.schema import LARGEST_FLOAT, LEAST_SHARE, MOST_BOXES, MOST_CANDIDATES


@dataclass(frozen=True)
class Settings:
    """The settings of a certificate: with them, its claims can be derived again.

    Attributes:
        delta: the probability that any of the claims may be wrong.
        candidates: how many small networks were tried on the same data, this one among them.
        coverage: the part of all inputs that the bound of the deviation speaks of.
        radius: the radius of boxes around inputs; None: no boxes.
        boxed: around how many of the first inputs there are boxes.
        sequential: whether what is claimed of held-out data holds however often one looks as samples come in.
    """

    delta: float
    candidates: int
    coverage: float
    radius: float | None
    boxed: int
    sequential: bool = False


def make_settings(delta: Any, candidates: Any, coverage: Any, radius: Any, boxed: Any, sequential: Any) -> Settings:
    """Make settings of what a user passed; raise InvalidInput for a value that is out of range."""
    for name, value in (("delta", delta), ("coverage", coverage)):
        if not _is_number(Real, value) or not LEAST_SHARE <= value < 1:
            raise InvalidInput(f"{name} must be a number between 0 and 1, of at least {LEAST_SHARE}, got {value!r:.50}")
    for name, value, most in (("candidates", candidates, MOST_CANDIDATES), ("boxed", boxed, MOST_BOXES)):
        if not _is_number(Integral, value) or not 1 <= value <= most:
            raise InvalidInput(f"{name} must be a whole number of at least 1, and up to {most:,}, got {value!r:.50}")
    if radius is not None and not (_is_number(Real, radius) and 0 <= radius <= LARGEST_FLOAT):
        raise InvalidInput(f"radius must be a finite number of at least 0, got {radius!r:.50}")
    if not isinstance(sequential, bool):
        raise InvalidInput(f"sequential must be True or False, got {sequential!r:.50}")
    # Plain floats and integers: numpy's would be written to JSON in another way, or not at all.
    radius = None if radius is None else float(radius)
    return Settings(float(delta), int(candidates), float(coverage), radius, int(boxed), sequential)


def _is_number(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)  # True is an Integral of Python
