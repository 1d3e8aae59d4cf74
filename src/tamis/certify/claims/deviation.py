"""How far outputs move, for all but a small part of inputs; this needs no labels and no classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tamis.bounds.bound import Bound
from tamis.bounds.deviation_quantile import deviation_quantile
from tamis.certify.claim import Case, Kind, Numbers, Settings, amount, confidence, finite
from tamis.certify.evidence import ROUNDING


class Deviation(Kind):
    """A distribution-free bound of a quantile of ‖R_θ(x) − R_θ'(x)‖_∞."""

    name, needs, statistical = "deviation", "inputs", True

    def applies(self, case: Case) -> bool:
        return True

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.held_out is not None
        distance = deviation_quantile(case.held_out.distances, case.settings.coverage, delta).value
        samples: Numbers = {"samples": case.held_out.samples}
        return samples if finite(distance) is None else {**samples, "distance": distance}

    def tolerance(self, case: Case) -> Mapping[str, float]:
        assert case.held_out is not None
        return {"distance": 2 * ROUNDING * case.held_out.largest_score}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        # Of the sorted distances only one counts, so that all may be equal to it.
        distances = torch.full((int(measured["samples"]),), measured.get("distance", 0.0), dtype=torch.float64)
        return deviation_quantile(distances, settings.coverage, delta)

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        share = f"{100 * settings.coverage:.6g}%"
        if finite(bound.value) is None:
            return f"{measured['samples']:,} inputs are too few to say anything of the outputs for {share} of inputs."
        return (
            f"{confidence(settings)}, for at least {share} of inputs drawn like these, no output of the small network "
            f"is further than {amount(bound)} from the original's."
        )
