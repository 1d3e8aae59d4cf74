"""`Claim`: one thing that a certificate says; `Kind`: how such claims are made, and made again by a verifier."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from tamis.artifact import Compressed, fingerprint
from tamis.bounds import UNSEEN, Bound
from tamis.certificates.evidence import Evidence
from tamis.certificates.schema import LARGEST_FLOAT, LEAST_SHARE, MOST_BOXES, MOST_CANDIDATES, finite
from tamis.errors import InvalidInput
from tamis.graph import Network

Numbers = Mapping[str, Any]  # counts and floats by name; None for what is infinite, or the logarithm of zero
Limits = Mapping[str, tuple[Any, Any]]
Needs = Literal["networks", "inputs", "labels", "training"]
PROOF = "both networks are computed in exact arithmetic: what rounding adds to their outputs is not counted"
SAME = 1e-9  # relative: numbers that follow from the same numbers, by another version of a library
PAD = 1e-9  # of logarithms that float64 may round down


@dataclass(frozen=True)
class Settings:
    """What was asked for, and what a certificate must say so that it can be made again.

    Attributes:
        delta: the probability that any of the claims may be wrong.
        candidates: how many small networks were tried on the same data, this one among them.
        coverage: of how many inputs the bound of the deviation speaks.
        radius: of boxes around inputs; None: no boxes.
        boxed: around how many of the first inputs.
        sequential: whether what is claimed of held-out data holds however often one looks as samples come in.
    """

    delta: float
    candidates: int
    coverage: float
    radius: float | None
    boxed: int
    sequential: bool = False


def checked_settings(delta: Any, candidates: Any, coverage: Any, radius: Any, boxed: Any, sequential: Any) -> Settings:
    """Settings, if they can be; InvalidInput says what cannot."""
    for name, value in (("delta", delta), ("coverage", coverage)):
        if not _is(Real, value) or not LEAST_SHARE <= value < 1:
            raise InvalidInput(f"{name} must be a number between 0 and 1, of at least {LEAST_SHARE}, got {value!r:.50}")
    for name, value, most in (("candidates", candidates, MOST_CANDIDATES), ("boxed", boxed, MOST_BOXES)):
        if not _is(Integral, value) or not 1 <= value <= most:
            raise InvalidInput(f"{name} must be a whole number of at least 1, and up to {most:,}, got {value!r:.50}")
    if radius is not None and not (_is(Real, radius) and 0 <= radius <= LARGEST_FLOAT):
        raise InvalidInput(f"radius must be a finite number of at least 0, got {radius!r:.50}")
    if not isinstance(sequential, bool):
        raise InvalidInput(f"sequential must be True or False, got {sequential!r:.50}")
    radius = None if radius is None else float(radius)
    return Settings(float(delta), int(candidates), float(coverage), radius, int(boxed), sequential)


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True)
class Case:
    """All that claims are made from.

    Attributes:
        original, small: the two networks, `small` as it was read from its file.
        settings: what was asked for.
        largest_input: the largest magnitude of an entry of the held-out inputs.
        held_out, training: what the networks did on data; None: not there.
        prior: the network that was known before any data; None: none.
    """

    original: Network
    small: Compressed
    settings: Settings
    largest_input: float
    held_out: Evidence | None = None
    training: Evidence | None = None
    prior: Network | None = None

    @cached_property
    def one_graph(self) -> bool:
        """Whether both networks are the same operations with other weights, as a proof about weights needs it."""
        return fingerprint(self.original) == fingerprint(self.small.network)


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        name: of its kind.
        sentence: what it says, in plain words.
        bound: the number, its assumptions and its source.
        delta: the probability that it may be wrong; None where it cannot be.
        measured: what the number was computed from, by name.
    """

    name: str
    sentence: str
    bound: Bound
    delta: float | None
    measured: Numbers

    def as_json(self) -> dict[str, Any]:
        """As a certificate has it; what float64 or JSON cannot hold is null, and its log₁₀ stands beside it."""
        return {
            "claim": self.name,
            "sentence": self.sentence,
            "value": finite(self.bound.value),
            "log10": finite(self.bound.log10),
            "informative": self.bound.informative,
            "delta": self.delta,
            "assumptions": list(self.bound.assumptions),
            "checked": list(self.bound.checked),
            "source": self.bound.source,
            "terms": {name: finite(value) for name, value in self.bound.terms.items()},
            "measured": dict(self.measured),
        }


class Kind(ABC):
    """A kind of claim.

    Attributes:
        name: in the certificate.
        needs: what it is computed from.
        statistical: whether it may be wrong by chance, and so takes a share of δ.
        part: how much of δ it takes; None: as much as each of the others that do not say, of what is left.
        numbers: the names of what is measured.
    """

    name: str
    needs: Needs
    statistical: bool
    part: float | None = None
    numbers: tuple[str, ...]

    @abstractmethod
    def applies(self, case: Case) -> bool:
        """Whether there is such a claim to make of such networks and settings, whatever the data."""

    @abstractmethod
    def measure(self, case: Case, delta: float) -> Numbers:
        """What must be computed from the networks and the data, what is in doubt counted as the worse."""

    @abstractmethod
    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        """What follows from that alone."""

    @abstractmethod
    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        """The claim in plain words."""

    def limits(self, case: Case, delta: float) -> Limits:
        """Between which numbers those of another machine may lie: never better than what is seen here."""
        return {name: (value, value) for name, value in self.measure(case, delta).items()}

    def claim(self, measured: Numbers, settings: Settings, delta: float) -> Claim:
        """The claim, from what was measured; `delta` is its part of δ."""
        bound = self.bound(measured, settings, delta)
        if settings.candidates > 1:
            bound = _among_candidates(bound, settings.candidates)
        sentence = self.sentence(bound, measured, settings)
        return Claim(self.name, sentence, bound, delta if self.statistical else None, measured)

    def available(self, case: Case) -> bool:
        """Whether what it needs is there."""
        there = {
            "networks": True,
            "inputs": case.held_out is not None,
            "labels": case.held_out is not None and case.held_out.labels is not None,
            "training": case.training is not None,
        }
        return there[self.needs]


def _among_candidates(bound: Bound, candidates: int) -> Bound:
    """With what is left to assume of held-out data where a choice by it is paid for."""
    if UNSEEN not in bound.assumptions:
        return bound  # no claim about held-out data
    choice = f"all {candidates:,} candidates were made without a look at how any of them does on these samples"
    return replace(bound, assumptions=tuple(choice if text == UNSEEN else text for text in bound.assumptions))


# -- words -------------------------------------------------------------------------------------------------------------


def whole(number: int) -> str:
    """A count.

    Example:
        >>> whole(12345)
        '12,345'
    """
    return f"{number:,}"


def confidence(settings: Settings, held_out: bool = True) -> str:
    """How every sentence begins that may be wrong by chance. All of them hold together with this confidence.

    What is said of held-out data holds at one look at it, or at every one.
    """
    looks = ", however often one looks" if settings.sequential and held_out else ""
    return f"With {part(1 - Decimal(repr(settings.delta)))} confidence{looks}"


def part(share: Decimal) -> str:
    """A share of all in per cent, to the last digit."""
    return f"{(100 * share).normalize():f}%"


def percent(rate: float) -> str:
    """Rounded up, so that a bound stays one.

    Example:
        >>> percent(0.012301)
        '1.24%'
    """
    return f"{math.ceil(rate * 1e4 - 1e-9) / 100:.2f}%"


def short_form(value: float) -> float:
    """The number with the fewest digits that float32 takes for this one, if it is one of float32.

    Example:
        >>> short_form(2.640000104904175)
        2.64
    """
    is_single = abs(value) < np.finfo(np.float32).max and float(np.float32(value)) == value
    return float(str(np.float32(value))) if is_single else value


def shortest(value: float) -> str:
    """A limit for inputs in as few digits as can be, and not above it: what holds up to it holds up to less.

    Example:
        >>> shortest(2.640000104904175)
        '2.64'
    """
    return repr(min(short_form(value), value))


def amount(bound: Bound) -> str:
    """Three digits, rounded up; as a power of ten where it is very large or small."""
    power = bound.log10
    if power == -math.inf:
        return "0"
    if not -4 <= power < 6:
        return f"10^{math.ceil(power * 100 - 1e-9) / 100:.2f}"
    unit = 10.0 ** (math.floor(power) - 2)
    return f"{math.ceil(bound.value / unit - 1e-9) * unit:.{max(0, 2 - math.floor(power))}f}"
