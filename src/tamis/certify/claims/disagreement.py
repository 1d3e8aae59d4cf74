"""How often the small network answers differently from the original; this needs no labels."""

from __future__ import annotations

from collections.abc import Mapping

from tamis.bounds.bound import Bound
from tamis.bounds.disagreement import disagreement
from tamis.certify.claim import Case, Kind, Numbers, Settings, confidence, percent


class Disagreement(Kind):
    """Clopper–Pearson on the rate of different answers."""

    name, needs, statistical = "disagreement", "inputs", True

    def applies(self, case: Case) -> bool:
        assert case.held_out is not None
        return case.held_out.different is not None

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.held_out is not None and case.held_out.different is not None
        return {"different": int(case.held_out.different.sum()), "samples": case.held_out.samples}

    def tolerance(self, case: Case) -> Mapping[str, float]:
        assert case.held_out is not None
        return {"different": case.held_out.undecided}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        return disagreement(int(measured["different"]), int(measured["samples"]), delta)

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        return (
            f"{confidence(settings)}, on inputs drawn like these, the small network answers differently from the "
            f"original on at most {percent(bound.value)} of them (here it does on {measured['different']:,} of "
            f"{measured['samples']:,})."
        )
