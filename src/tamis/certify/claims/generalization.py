"""How often the small network is wrong, from its training data alone: what has a short description cannot overfit."""

from __future__ import annotations

from collections.abc import Mapping

from tamis.artifact.codelength import message
from tamis.bounds.bound import Bound
from tamis.bounds.occam import occam
from tamis.certify.claim import Case, Kind, Numbers, Settings, confidence, percent
from tamis.certify.evidence import classes_of


class Generalization(Kind):
    """Occam's bound from the code length and the training error."""

    name, needs, statistical = "generalization", "training", True

    def applies(self, case: Case) -> bool:
        return True

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.training is not None and case.training.small_wrong is not None
        errors, samples = int(case.training.small_wrong.sum()), case.training.samples
        classes = classes_of(case.original)
        assert classes is not None, "labels were checked against the classes"
        return {
            "errors": errors,
            "samples": samples,
            "bits": message(case.small, case.prior).bits,
            "classes": classes,
        }

    def tolerance(self, case: Case) -> Mapping[str, float]:
        assert case.training is not None
        return {"errors": case.training.undecided}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        # Guessing is wrong on so many; a bound above that says nothing.
        trivial = 1 - 1 / measured["classes"]
        return occam(int(measured["errors"]), int(measured["samples"]), int(measured["bits"]), delta, trivial=trivial)

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        known = f"it is wrong on {measured['errors']:,} of its {measured['samples']:,} training examples"
        code = f"{measured['bits']:,} bits describe it"
        if not bound.informative:
            return f"That {known} says nothing of other inputs, since {code}: too many for so few examples."
        return (
            f"{confidence(settings)} over the draw of the training data, the small network is wrong on at most "
            f"{percent(bound.value)} of inputs drawn like them: {known}, and {code}."
        )
