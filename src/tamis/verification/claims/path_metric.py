"""This claim bounds how far outputs can move for any input at all: the Lipschitz bound in θ, by the ℓ¹ path-metric."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tamis.bounds import Bound, exp_rounded_up, lipschitz_parameters, log_rounded_up
from tamis.errors import UnsupportedOp
from tamis.graph import Network
from tamis.graph.ops import Capability, require
from tamis.verification.claim import PAD, PROOF, Case, Kind, Limits, Numbers
from tamis.verification.measurement import compute_outputs
from tamis.verification.schema import LARGEST_FLOAT, store_finite
from tamis.verification.settings import Settings
from tamis.verification.wording import format_bound, format_limit

PROBES = 64  # random inputs that say how large outputs are
PROBED = 1e-2  # how far that may be off on another machine, relatively; no bound rests on it


class PathMetric(Kind):
    """‖R_θ(x) − R_θ'(x)‖₁ ≤ max(1, B)·‖Φ(θ) − Φ(θ')‖₁ for every x with ‖x‖_∞ ≤ B, the largest that was seen."""

    name, needs, statistical = "path_metric", "networks", False
    numbers = ("largest_input", "usual_outputs", "log_bound")

    def applies(self, case: Case) -> bool:
        if any(not dtype.is_floating_point for dtype in case.original.input_dtypes):
            return False
        try:
            require(case.original, Capability.LIPSCHITZ, self.name)
        except UnsupportedOp:  # the theorem does not speak of such networks
            return False
        return case.one_graph

    def measure(self, case: Case, delta: float) -> Numbers:
        bound = lipschitz_parameters(case.original, case.small.network, case.largest_input, trivial=1.0)
        usual = _measure_usual_outputs(case.original, case.small.network, case.largest_input)
        return {
            "largest_input": case.largest_input,
            "usual_outputs": usual,
            "log_bound": store_finite(bound.log_value + PAD),
        }

    def limits(self, case: Case, delta: float) -> Limits:
        seen = self.measure(case, delta)
        usual, log_bound = seen["usual_outputs"], seen["log_bound"]
        near = (None, None) if log_bound is None else (log_bound - PAD, log_bound + PAD)
        return {
            "largest_input": (case.largest_input, case.largest_input),
            "usual_outputs": (usual * (1 - PROBED), usual * (1 + PROBED)),
            "log_bound": near,
        }

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        log_bound = measured.get("log_bound")
        log_value = -math.inf if log_bound is None else log_bound
        return Bound(
            value=exp_rounded_up(log_value),
            log_value=log_value,
            informative=log_value < log_rounded_up(measured["usual_outputs"]),
            source="gonon2024thesis, Theorem 3.4.1",
            assumptions=(PROOF,),
            checked=("every operation is homogeneous, or 1-Lipschitz and 0 at 0",),
            terms={name: -math.inf if value is None else value for name, value in measured.items()},
        )

    def sentence(self, bound: Bound, measured: Numbers, settings: Settings) -> str:
        most = format_limit(measured["largest_input"])
        vacuous = "" if bound.informative else " This says nothing: outputs are not so large."
        return (
            f"For every input with entries between −{most} and {most}, the outputs of the two networks differ by at "
            f"most {format_bound(bound)} in all.{vacuous}"
        )


@torch.inference_mode()
def _measure_usual_outputs(net: Network, small: Network, radius: float) -> float:
    """Return the largest ‖R_θ(x)‖₁ + ‖R_θ'(x)‖₁ of some random inputs with entries between −radius and radius."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = PROBES if net.batched else shape[0]
        uniform = torch.rand(count, *shape[1:], generator=generator, dtype=torch.float64) * 2 - 1
        return (uniform * radius).to(dtype)

    pairs = zip(net.input_shapes, net.input_dtypes, strict=True)
    inputs = tuple(draw(shape, dtype).to(net.device) for shape, dtype in pairs)
    norms = sum(
        compute_outputs(each, inputs, which).abs().sum(1) for each, which in ((net, "original"), (small, "small"))
    )
    assert isinstance(norms, Tensor)
    # Outputs that overflow are large, whatever they are; to call them smaller makes no bound informative.
    return float(norms.nan_to_num(math.inf).clamp(max=LARGEST_FLOAT / 2).max())
