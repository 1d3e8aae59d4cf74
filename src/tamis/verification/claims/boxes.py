"""This claim proves, for each box around an input that was given, how far outputs can move inside it."""

from __future__ import annotations

import math

from tamis.bounds import Bound, box_deviation, exp_rounded_up, interval_rule, log_rounded_up
from tamis.graph import Network, fold_batch_norm
from tamis.verification.claim import PAD, PROOF, Case, Kind, Limits, Numbers
from tamis.verification.schema import LARGEST_FLOAT
from tamis.verification.settings import Settings
from tamis.verification.wording import format_bound

# Stands in a certificate for the logarithm of an infinite bound. It is one: finite weights cannot give as much.
ENDLESS = LARGEST_FLOAT


class Boxes(Kind):
    """The largest of the bounds around the first inputs; each is the best of intervals, linear relaxation and paths."""

    name, needs, statistical = "boxes", "inputs", False
    numbers = ("inputs", "informative", "largest_score", "log_bound")

    def applies(self, case: Case) -> bool:
        return case.settings.radius is not None and case.one_graph

    def measure(self, case: Case, delta: float) -> Numbers:
        assert case.held_out is not None and case.settings.radius is not None
        bounds = box_deviation(case.original, case.small.network, case.held_out.first, case.settings.radius)
        return {
            "inputs": len(bounds),
            "informative": sum(bound.informative for bound in bounds),
            "largest_score": case.held_out.largest_score,
            "log_bound": _store_log(max(bound.log_value for bound in bounds) + PAD),
        }

    def limits(self, case: Case, delta: float) -> Limits:
        assert case.held_out is not None
        seen = self.measure(case, delta)
        log_bound, largest = seen["log_bound"], case.held_out.largest_score
        rounding = 2 * case.held_out.rounding * largest
        near = (None, None) if log_bound is None else (log_bound - PAD, log_bound + PAD)
        return {
            "inputs": (seen["inputs"], seen["inputs"]),
            "informative": (seen["informative"], seen["informative"]),
            "largest_score": (largest - rounding, largest + rounding),
            "log_bound": near,
        }

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        log_bound, largest = measured.get("log_bound"), measured.get("largest_score") or 0.0
        log_value = -math.inf if log_bound is None else math.inf if log_bound >= ENDLESS else log_bound
        return Bound(
            value=exp_rounded_up(log_value),
            log_value=log_value,
            informative=measured["informative"] == measured["inputs"] and log_value < log_rounded_up(2 * largest),
            source="zhang2018crown, linear relaxation; the smallest of it, joint intervals and the path-metric",
            assumptions=(PROOF,),
            checked=("every operation is affine, monotone or a maximum",),
            terms={name: -math.inf if value is None else value for name, value in measured.items()},
        )

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        where = f"any change of at most {settings.radius!r} in each of its entries"
        if bound.log_value == math.inf:
            return (
                f"Nothing can be said of how far outputs move for each of the first {measured['inputs']:,} inputs "
                f"and {where}: values on the way leave float64's range."
            )
        some = f" For {measured['informative']:,} of them this is more than is trivially true."
        return (
            f"For each of the first {measured['inputs']:,} inputs, and {where}, no output of the small network is "
            f"further than {format_bound(bound)} from the original's.{'' if bound.informative else some}"
        )


def _store_log(log_bound: float) -> float | None:
    """Return a logarithm as a certificate has it: None is that of zero, and so cannot be that of infinity."""
    return None if log_bound == -math.inf else min(log_bound, ENDLESS)


def check_boxes(net: Network) -> None:
    """Raise UnsupportedOp where an operation does not treat boxes."""
    folded = fold_batch_norm(net)
    for node in folded.data_nodes:
        interval_rule(folded, node, "boxes")
