"""This claim bounds how often the small network is wrong."""

from __future__ import annotations

from tamis.bounds import Bound, error_rate
from tamis.verification.claim import Case, Kind, Limits, Numbers
from tamis.verification.measurement import classes_of
from tamis.verification.settings import Settings
from tamis.verification.wording import format_rate, state_confidence


class ErrorRate(Kind):
    """An error rate is bounded by an upper limit of the rate of wrong answers."""

    name, needs, statistical = "error_rate", "labels", True
    numbers = ("errors", "samples")

    def applies(self, case: Case) -> bool:
        return classes_of(case.original) is not None

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.held_out is not None
        return {"errors": case.held_out.errors(1), "samples": case.held_out.samples}

    def limits(self, case: Case, delta: float) -> Limits:
        seen = case.held_out
        assert seen is not None
        return {"errors": (seen.errors(0), seen.errors(2)), "samples": (seen.samples, seen.samples)}

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        return error_rate(measured["errors"], measured["samples"], delta, settings.sequential)

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        return (
            f"{state_confidence(settings)}, on inputs drawn like these, the small network is wrong on at most "
            f"{format_rate(bound.value)} of them (here it is on {measured['errors']:,} of "
            f"{measured['samples']:,})."
        )
