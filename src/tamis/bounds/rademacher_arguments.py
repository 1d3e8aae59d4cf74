"""All bounds of the Rademacher complexity of a path-norm ball take these arguments and state these assumptions."""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_count, check_number
from tamis.bounds.bound import log_rounded_up, round_up
from tamis.errors import InvalidInput

SAMPLES = "the samples are drawn independently from one distribution"
BALL = "the bound on path-norms was fixed before the samples were seen, and every network in question obeys it"
UP_TO_CONSTANTS = "it holds up to a universal constant only, which is left out: for comparison, not a certificate"


def sigma_of_box(n: int, radius: float) -> float:
    """Compute √n · max(1, radius), a σ that is large enough for n samples without entries above `radius` in magnitude.

    It is at least (E max(n, Σ‖x_i‖²_∞))^{1/2} of Theorem 4.4.1 and E(Σ max(1, ‖x_i‖²_∞))^{1/2} of Theorem 4.3.1, and
    rounded up.
    """
    check_count("n", n)
    check_number("radius", radius)
    # Both expressions are largest where every sample has an entry of size `radius`.
    return round_up(math.sqrt(n) * max(1.0, radius))


def resolve_sigma(sigma: float | None) -> float:
    """Return σ, or raise an error that says where it comes from."""
    # It has a default only because `path_norm` before it has one: there is no σ that would be right without being told.
    if sigma is None or not 0 < sigma < math.inf:
        raise InvalidInput(
            f"sigma must be a positive finite number such as sigma_of_box(n, radius), got sigma = {sigma!r}"
        )
    return float(sigma)


def resolve_log_norm(path_norm: float | None, log_path_norm: float | None) -> float:
    """Return the logarithm of a path-norm that is given itself or as its logarithm."""
    if (path_norm is None) == (log_path_norm is None):
        raise InvalidInput(
            "give the path-norm or its logarithm, one of the two: "
            f"got path_norm = {path_norm!r} and log_path_norm = {log_path_norm!r}"
        )
    if log_path_norm is not None:
        if math.isnan(log_path_norm) or log_path_norm == math.inf:
            raise InvalidInput(f"log_path_norm must be a number below ∞, got log_path_norm = {log_path_norm!r}")
        return float(log_path_norm)
    assert path_norm is not None
    if not 0 <= path_norm < math.inf:
        raise InvalidInput(f"a path-norm must be a finite number ≥ 0, got {path_norm!r}: pass log_path_norm instead")
    return log_rounded_up(float(path_norm))
