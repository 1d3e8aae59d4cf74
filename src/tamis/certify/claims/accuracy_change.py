"""How much accuracy compression cost, from the samples on which only one of the two networks is right."""

from __future__ import annotations

from collections.abc import Mapping

from tamis.bounds.accuracy_change import accuracy_change
from tamis.bounds.bound import Bound
from tamis.certify.claim import Case, Kind, Numbers, Settings, confidence, percent


class AccuracyChange(Kind):
    """A bound of the paired difference of the two error rates."""

    name, needs, statistical = "accuracy_change", "labels", True

    def applies(self, case: Case) -> bool:
        return True

    def measure(self, case: Case, delta: float) -> Numbers:
        evidence = case.held_out
        assert evidence is not None and evidence.small_wrong is not None and evidence.original_wrong is not None
        worse = evidence.small_wrong & ~evidence.original_wrong
        better = evidence.original_wrong & ~evidence.small_wrong
        return {"worse": int(worse.sum()), "better": int(better.sum()), "samples": evidence.samples}

    def tolerance(self, case: Case) -> Mapping[str, float]:
        assert case.held_out is not None
        return {"worse": case.held_out.undecided, "better": case.held_out.undecided}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        return accuracy_change(int(measured["worse"]), int(measured["better"]), int(measured["samples"]), delta)

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        points = percent(abs(bound.value)).removesuffix("%")
        if bound.value < 0:  # rounding up the magnitude would claim too much
            points = f"{-bound.value * 100 - 0.005:.2f}"
        change = f"at most {points} percentage points below" if bound.value >= 0 else f"at least {points} points above"
        return (
            f"{confidence(settings)}, on inputs drawn like these, the accuracy of the small network is {change} that "
            f"of the original (here it alone is wrong on {measured['worse']:,} of {measured['samples']:,}, and the "
            f"original alone on {measured['better']:,})."
        )
