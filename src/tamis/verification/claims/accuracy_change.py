"""This claim bounds the loss of accuracy, from the samples on which only one of the two networks is right."""

from __future__ import annotations

import math

from tamis.bounds import Bound, accuracy_change
from tamis.verification.claim import Case, Kind, Limits, Numbers
from tamis.verification.measurement import classes_of
from tamis.verification.settings import Settings
from tamis.verification.wording import format_rate, state_confidence


class AccuracyChange(Kind):
    """An accuracy change is bounded by the paired difference of the two error rates."""

    name, needs, statistical = "accuracy_change", "labels", True
    numbers = ("worse", "better", "samples")

    def applies(self, case: Case) -> bool:
        return classes_of(case.original) is not None

    def measure(self, case: Case, delta: float) -> Numbers:
        seen = case.held_out
        assert seen is not None
        return {"worse": seen.worse(1), "better": seen.better(1), "samples": seen.samples}

    def limits(self, case: Case, delta: float) -> Limits:
        seen = case.held_out
        assert seen is not None
        return {
            "worse": (seen.worse(0), seen.worse(2)),
            "better": (seen.better(2), seen.better(0)),
            "samples": (seen.samples, seen.samples),
        }

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        worse, better = measured["worse"], measured["better"]
        return accuracy_change(worse, better, measured["samples"], delta, settings.sequential)

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        points = format_rate(bound.value).removesuffix("%")
        change = f"at most {points} percentage points below"
        if bound.value < 0:
            change = f"at least {math.floor(-bound.value * 1e4) / 100:.2f} percentage points above"
        return (
            f"{state_confidence(settings)}, on inputs drawn like these, the accuracy of the small network is {change} "
            f"that of the original (here it alone is wrong on {measured['worse']:,} of {measured['samples']:,}, "
            f"and the original alone on {measured['better']:,})."
        )
