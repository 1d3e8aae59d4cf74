"""`Claim`: one thing that a certificate says; `Kind`: how such claims are made, and made again by a verifier."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tamis.artifact.compressed import Compressed
from tamis.bounds.bound import Bound
from tamis.certify.evidence import Evidence
from tamis.certify.samples import Inputs
from tamis.errors import CorruptArtifact
from tamis.graph.network import Network

Numbers = dict[str, float]
Needs = Literal["networks", "inputs", "labels", "training"]
SAME = 1e-9  # numbers computed from the same numbers, by another version of a library


@dataclass(frozen=True)
class Settings:
    """What was asked for, and what a certificate must say so that it can be made again.

    Attributes:
        delta: the probability that any of the claims may be wrong.
        candidates: how many small networks were tried on the same data, this one among them.
        coverage: of how many inputs the bound of the deviation speaks.
        radius: of boxes around inputs; None: no boxes.
        boxed: around how many of the first inputs.
    """

    delta: float
    candidates: int
    coverage: float
    radius: float | None
    boxed: int


@dataclass(frozen=True)
class Case:
    """All that claims are made from.

    Attributes:
        original, small: the two networks, `small` as it was read from its file.
        settings: what was asked for.
        largest_input, largest_outputs: as `Evidence` has them, from the certificate where there is no data.
        inputs: the data itself; None: not there.
        held_out, training: what the networks did on it; None: not there.
        prior: the network that was known before any data; None: none.
    """

    original: Network
    small: Compressed
    settings: Settings
    largest_input: float
    largest_outputs: float
    inputs: Inputs = None
    held_out: Evidence | None = None
    training: Evidence | None = None
    prior: Network | None = None


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
    measured: Mapping[str, float]

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


def finite(value: float) -> float | None:
    """A number for JSON."""
    return float(value) if math.isfinite(value) else None


class Kind(ABC):
    """A kind of claim.

    Attributes:
        name: in the certificate.
        needs: what it is computed from.
        statistical: whether it may be wrong by chance, and so takes a share of δ.
    """

    name: str
    needs: Needs
    statistical: bool

    @abstractmethod
    def applies(self, case: Case) -> bool:
        """Whether there is such a claim to make; only asked where what it needs is there."""

    @abstractmethod
    def measure(self, case: Case, delta: float) -> Numbers:
        """What must be computed from the networks and the data."""

    @abstractmethod
    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        """What follows from that alone."""

    @abstractmethod
    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        """The claim in plain words."""

    def tolerance(self, case: Case) -> Mapping[str, float]:
        """By how much each number may be another on another machine; what is not named must be the same."""
        return {}

    def claim(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Claim:
        """The claim, from what was measured; `delta` is its part of δ."""
        bound = self.bound(measured, settings, delta)
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


# -- words -------------------------------------------------------------------------------------------------------------


def confidence(settings: Settings) -> str:
    """How every sentence begins that may be wrong by chance. All of them hold together with this confidence."""
    return f"With {100 * (1 - settings.delta):.6g}% confidence"


def percent(rate: float) -> str:
    """Rounded up, so that a bound stays one.

    Example:
        >>> percent(0.012301)
        '1.24%'
    """
    return f"{math.ceil(rate * 1e4 - 1e-9) / 100:.2f}%"


def amount(bound: Bound) -> str:
    """Three digits, rounded up; as a power of ten where it is very large or small."""
    if bound.value == 0:
        return "0"
    power = bound.log10
    if not -4 <= power < 6:
        return f"10^{math.ceil(power * 100 - 1e-9) / 100:.2f}"
    unit = 10.0 ** (math.floor(power) - 2)
    return f"{math.ceil(bound.value / unit - 1e-9) * unit:.{max(0, 2 - math.floor(power))}f}"


# -- reading -----------------------------------------------------------------------------------------------------------


def same_number(one: float | None, other: float | None, tolerance: float) -> bool:
    """Whether two numbers of certificates agree; null agrees with null only."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= tolerance


def measured_in(entry: Any) -> Numbers:
    """What a claim in a certificate says was measured."""
    measured = entry.get("measured") if isinstance(entry, Mapping) else None
    if not isinstance(measured, Mapping) or not all(_is_number(value) for value in measured.values()):
        raise CorruptArtifact(f"a claim of the certificate has no numbers that were measured: {entry!r:.200}")
    return dict(measured)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
