"""This claim bounds how often the small network answers differently from the original, without labels."""

from __future__ import annotations

from tamis.bounds import Bound, disagreement
from tamis.verification.claim import Case, Kind, Limits, Numbers
from tamis.verification.measurement import classes_of
from tamis.verification.settings import Settings
from tamis.verification.wording import format_rate, state_confidence


class Disagreement(Kind):
    """A disagreement is bounded by an upper limit of the rate of different answers."""

    name, needs, statistical = "disagreement", "inputs", True
    numbers = ("different", "samples")

    def applies(self, case: Case) -> bool:
        return classes_of(case.original) is not None

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.held_out is not None
        return {"different": case.held_out.different(1), "samples": case.held_out.samples}

    def limits(self, case: Case, delta: float) -> Limits:
        seen = case.held_out
        assert seen is not None
        return {"different": (seen.different(0), seen.different(2)), "samples": (seen.samples, seen.samples)}

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        return disagreement(measured["different"], measured["samples"], delta, settings.sequential)

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        return (
            f"{state_confidence(settings)}, on inputs drawn like these, the small network answers differently from "
            f"the original on at most {format_rate(bound.value)} of them (here it does on {measured['different']:,} of "
            f"{measured['samples']:,})."
        )
