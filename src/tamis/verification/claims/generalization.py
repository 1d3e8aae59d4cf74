"""This claim bounds how often the small network is wrong from training data alone, by its short description."""

from __future__ import annotations

from dataclasses import replace

from tamis.artifact import message
from tamis.bounds import Bound, occam
from tamis.verification.claim import Case, Kind, Limits, Numbers
from tamis.verification.measurement import classes_of
from tamis.verification.settings import Settings
from tamis.verification.wording import format_rate, state_confidence

PRIOR = "the prior, if there is one, does not depend on any data"


class Generalization(Kind):
    """Generalization is bounded by Occam's bound from the code length and the training error."""

    name, needs, statistical = "generalization", "training", True
    numbers = ("errors", "samples", "bits", "classes")
    part: float | None = 0.01  # of δ; a third would save 6 bits of thousands, and others have more use for it

    def applies(self, case: Case) -> bool:
        return classes_of(case.original) is not None

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.training is not None
        return {
            "errors": case.training.errors(1),
            "samples": case.training.samples,
            "bits": message(case.small, case.prior).bits,
            "classes": classes_of(case.original),
        }

    def limits(self, case: Case, delta: float) -> Limits:
        assert case.training is not None
        exact = {name: (value, value) for name, value in self.measure(case, delta).items()}
        return {**exact, "errors": (case.training.errors(0), case.training.errors(2))}

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        # Guessing is wrong on so many; a bound above that says nothing.
        trivial = 1 - 1 / max(2, measured["classes"])
        bound = occam(measured["errors"], measured["samples"], measured["bits"], delta, trivial=trivial)
        return replace(bound, assumptions=(*bound.assumptions, PRIOR))

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        known = f"it is wrong on {measured['errors']:,} of its {measured['samples']:,} training examples"
        code = f"{measured['bits']:,} bits describe it"
        if not bound.informative:
            return f"That {known} says nothing of other inputs, since {code}: too many for so few examples."
        return (
            f"{state_confidence(settings, held_out=False)} over the draw of the training data, the small network is "
            f"wrong on at most {format_rate(bound.value)} of inputs drawn like them: {known}, and {code}."
        )
