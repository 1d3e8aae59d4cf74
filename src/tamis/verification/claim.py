"""A `Claim` is one statement of a certificate; its `Kind` says how it is made, and made again by a verifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from tamis.artifact import Compressed, fingerprint
from tamis.bounds import UNSEEN, Bound
from tamis.graph import Network
from tamis.verification.evidence import Evidence
from tamis.verification.schema import store_finite
from tamis.verification.settings import Settings

Numbers = Mapping[str, Any]  # counts and floats by name; None for what is infinite, or the logarithm of zero
Limits = Mapping[str, tuple[Any, Any]]
Needs = Literal["networks", "inputs", "labels", "training"]
PROOF = "both networks are computed in exact arithmetic: what rounding adds to their outputs is not counted"
SAME = 1e-9  # relative: numbers that follow from the same numbers, by another version of a library
PAD = 1e-9  # of logarithms that float64 may round down


@dataclass(frozen=True)
class Case:
    """A case holds everything that claims are derived from.

    Attributes:
        original, small: the two networks, `small` as it was read from its file.
        settings: what was asked for.
        largest_input: the largest magnitude of an entry of the held-out inputs.
        held_out, training: what the networks did on data; None: there is no such data.
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
        """Return whether both networks have the same operations, with other weights: a proof about weights needs it."""
        return fingerprint(self.original) == fingerprint(self.small.network)


@dataclass(frozen=True)
class Claim:
    """A claim is one statement of a certificate.

    Attributes:
        name: the name of its kind.
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
        """Return the claim as a certificate has it; what JSON cannot hold is null, and its log₁₀ stands beside it."""
        return {
            "claim": self.name,
            "sentence": self.sentence,
            "value": store_finite(self.bound.value),
            "log10": store_finite(self.bound.log10),
            "informative": self.bound.informative,
            "delta": self.delta,
            "assumptions": list(self.bound.assumptions),
            "checked": list(self.bound.checked),
            "source": self.bound.source,
            "terms": {name: store_finite(value) for name, value in self.bound.terms.items()},
            "measured": dict(self.measured),
        }


class Kind(ABC):
    """A kind of claim derives what it says from a few measured numbers, so that anybody can derive it again.

    Attributes:
        name: what certificates call it.
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
        """Return whether such a claim can be made of these networks and settings, whatever the data."""

    @abstractmethod
    def measure(self, case: Case, delta: float) -> Numbers:
        """Measure what the bound is derived from; an answer in doubt counts as the worse one."""

    @abstractmethod
    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        """Derive the bound from the measured numbers alone."""

    @abstractmethod
    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        """Write the claim in plain words."""

    def limits(self, case: Case, delta: float) -> Limits:
        """Return the range in which another machine may have measured each number: never better than seen here."""
        return {name: (value, value) for name, value in self.measure(case, delta).items()}

    def claim(self, measured: Numbers, settings: Settings, delta: float) -> Claim:
        """Make the claim from what was measured; `delta` is its part of δ."""
        bound = self.bound(measured, settings, delta)
        if settings.candidates > 1:
            bound = _assume_among_candidates(bound, settings.candidates)
        sentence = self.sentence(bound, measured, settings)
        return Claim(self.name, sentence, bound, delta if self.statistical else None, measured)

    def is_available(self, case: Case) -> bool:
        """Return whether the data that it needs is there."""
        there = {
            "networks": True,
            "inputs": case.held_out is not None,
            "labels": case.held_out is not None and case.held_out.labels is not None,
            "training": case.training is not None,
        }
        return there[self.needs]


def _assume_among_candidates(bound: Bound, candidates: int) -> Bound:
    """Replace the assumption of unseen data by what is left of it where the choice among candidates is paid for."""
    if UNSEEN not in bound.assumptions:
        return bound  # it claims nothing of held-out data
    choice = f"all {candidates:,} candidates were made without a look at how any of them does on these samples"
    return replace(bound, assumptions=tuple(choice if text == UNSEEN else text for text in bound.assumptions))
