"""How often the small network is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from tamis.bounds.bound import Bound
from tamis.bounds.error_rate import error_rate
from tamis.certify.claim import Case, Kind, Numbers, Settings, confidence, percent


class ErrorRate(Kind):
    """Clopper–Pearson on the rate of wrong answers."""

    name, needs, statistical = "error_rate", "labels", True

    def applies(self, case: Case) -> bool:
        return True

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.held_out is not None and case.held_out.small_wrong is not None
        return {"errors": int(case.held_out.small_wrong.sum()), "samples": case.held_out.samples}

    def tolerance(self, case: Case) -> Mapping[str, float]:
        assert case.held_out is not None
        return {"errors": case.held_out.undecided}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        return error_rate(int(measured["errors"]), int(measured["samples"]), delta)

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        return (
            f"{confidence(settings)}, on inputs drawn like these, the small network is wrong on at most "
            f"{percent(bound.value)} of them (here it is on {measured['errors']:,} of {measured['samples']:,})."
        )
