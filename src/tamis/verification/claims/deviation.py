"""This claim bounds how far outputs move, for all but a small part of inputs, without labels or classes."""

from __future__ import annotations

from decimal import Decimal

from tamis.bounds import Bound, deviation_at_rank, deviation_quantile
from tamis.verification.claim import Case, Kind, Limits, Numbers
from tamis.verification.schema import store_finite
from tamis.verification.settings import Settings
from tamis.verification.wording import format_bound, format_share, state_confidence


class Deviation(Kind):
    """A deviation is bounded at a quantile of ‖R_θ(x) − R_θ'(x)‖_∞, whatever the distribution of inputs."""

    name, needs, statistical = "deviation", "inputs", True
    numbers = ("samples", "distance")

    def applies(self, case: Case) -> bool:
        return True

    def measure(self, case: Case, delta: float) -> Numbers:
        return self._at(case, delta, 1)

    def limits(self, case: Case, delta: float) -> Limits:
        least, most = self._at(case, delta, 0), self._at(case, delta, 3)
        return {name: (least[name], most[name]) for name in self.numbers}

    def _at(self, case: Case, delta: float, width: float) -> Numbers:
        """Measure the distance that counts, with so many times the rounding of outputs added; zero stays zero."""
        assert case.held_out is not None
        settings, distances = case.settings, case.held_out.largest_distances()
        distance = deviation_quantile(distances, settings.coverage, delta, settings.sequential).value
        rounding = width * case.held_out.rounding * case.held_out.largest_score
        return {"samples": case.held_out.samples, "distance": store_finite(distance + rounding if distance else 0.0)}

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        distance = measured.get("distance") or 0.0
        return deviation_at_rank(distance, measured["samples"], settings.coverage, delta, settings.sequential)

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        share = format_share(Decimal(repr(settings.coverage)))
        if store_finite(bound.value) is None:
            return f"{measured['samples']:,} inputs are too few to say how far outputs move for {share} of inputs."
        return (
            f"{state_confidence(settings)}, for at least {share} of inputs drawn like these, no output of the small "
            f"network is further than {format_bound(bound)} from the original's."
        )
