"""How far outputs can move for any input at all: the Lipschitz bound in θ, by the ℓ¹ path-metric."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tamis.bounds.bound import Bound, exp_of, log_of
from tamis.bounds.lipschitz_parameters import lipschitz_parameters
from tamis.certify.claim import Case, Kind, Numbers, Settings, amount
from tamis.certify.evidence import ROUNDING
from tamis.errors import UnsupportedOp
from tamis.graph.ops import Capability, require


class PathMetric(Kind):
    """‖R_θ(x) − R_θ'(x)‖₁ ≤ max(1, B)·‖Φ(θ) − Φ(θ')‖₁ for every x with ‖x‖_∞ ≤ B, the largest that was seen."""

    name, needs, statistical = "path_metric", "networks", False

    def applies(self, case: Case) -> bool:
        if any(not dtype.is_floating_point for dtype in case.original.input_dtypes):
            return False
        try:
            require(case.original, Capability.LIPSCHITZ, self.name)
        except UnsupportedOp:  # the theorem does not speak of such networks
            return False
        return True

    def measure(self, case: Case, delta: float) -> Numbers:
        bound = lipschitz_parameters(case.original, case.small.network, case.largest_input, case.largest_outputs)
        scale = {"largest_input": case.largest_input, "largest_outputs": case.largest_outputs}
        return scale if bound.log_value == -math.inf else {**scale, "log_bound": bound.log_value}

    def tolerance(self, case: Case) -> Mapping[str, float]:
        return {"log_bound": 1e-6, "largest_outputs": ROUNDING * case.largest_outputs}

    def bound(self, measured: Mapping[str, float], settings: Settings, delta: float) -> Bound:
        log_value = measured.get("log_bound", -math.inf)
        return Bound(
            value=exp_of(log_value),
            log_value=log_value,
            informative=log_value < log_of(measured["largest_outputs"]),
            source="gonon2024thesis, Theorem 3.4.1",
            checked=("every operation is homogeneous, or 1-Lipschitz and 0 at 0",),
            terms=dict(measured),
        )

    def sentence(self, bound: Bound, measured: Mapping[str, float], settings: Settings) -> str:
        most = f"{measured['largest_input']:.6g}"
        vacuous = "" if bound.informative else " This says nothing: no outputs seen here are so large."
        return (
            f"For every input with entries between −{most} and {most}, the outputs of the two networks differ by at "
            f"most {amount(bound)} in all.{vacuous}"
        )
