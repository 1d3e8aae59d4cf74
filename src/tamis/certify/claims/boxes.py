"""How far outputs can move for any input near one of those given: a proof for each box, not a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tamis.bounds.bound import Bound, exp_of, log_of
from tamis.bounds.box_deviation import box_deviation
from tamis.certify.claim import Case, Kind, Numbers, Settings, amount
from tamis.certify.evidence import ROUNDING
from tamis.certify.samples import batches_of
from tamis.errors import UnsupportedOp


class Boxes(Kind):
    """The largest of the bounds around the first inputs; each is the best of intervals, linear relaxation and paths."""

    name, needs, statistical = "boxes", "inputs", False

    def applies(self, case: Case) -> bool:
        return case.settings.radius is not None

    def measure(self, case: Case, delta: float) -> Numbers:
        bounds = self._bounds(case)
        largest = max(bounds, key=lambda bound: bound.log_value)
        numbers: Numbers = {
            "inputs": len(bounds),
            "informative": sum(bound.informative for bound in bounds),
            "largest_outputs": case.largest_outputs,
        }
        return numbers if largest.value == 0 else {**numbers, "log_bound": largest.log_value}

    def _bounds(self, case: Case) -> list[Bound]:
        assert case.settings.radius is not None
        first = next(batches_of(case.inputs, None, case.original)).inputs
        if len(first) > 1:
            raise UnsupportedOp("boxes", "a network of one input", "several inputs", "")
        with torch.no_grad():
            return box_deviation(
                case.original, case.small.network, first[0][: case.settings.boxed], case.settings.radius
            )

    def tolerance(self, case: Case) -> Mapping[str, float]:
        return {"log_bound": 1e-6, "largest_outputs": ROUNDING * case.largest_outputs}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        log_value = measured.get("log_bound", -math.inf)
        return Bound(
            value=exp_of(log_value),
            log_value=log_value,
            informative=measured["informative"] == measured["inputs"]
            and log_value < log_of(measured["largest_outputs"]),
            source="zhang2018crown, linear relaxation; the smallest of it, joint intervals and the path-metric",
            terms=dict(measured),
        )

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        vacuous = "" if bound.informative else " This says nothing that was not known before."
        return (
            f"For each of the first {measured['inputs']:,} inputs, and any change of at most {settings.radius:g} in "
            f"each of its entries, no output of the small network is further than {amount(bound)} from the "
            f"original's.{vacuous}"
        )
