"""Covering numbers bound the Rademacher complexity of a path-norm ball (thesis, Theorem 4.3.1)."""

from __future__ import annotations

import math

from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.bounds.rademacher_arguments import BALL, SAMPLES, resolve_log_norm, resolve_sigma
from tamis.bounds.shape import GraphShape

CONSTANT = 144.0
SIGMA = "sigma is at least E(Σ max(1, ‖x_i‖²_∞))^(1/2)"
SHARING = "weights are shared as in Definition C.2.2: no padding, and no edge without a parameter of its own"


def rademacher_covering(
    shape: GraphShape,
    path_norm: float | None = None,
    sigma: float | None = None,
    log_path_norm: float | None = None,
) -> Bound:
    """Bound R({R_θ: ‖Φ(θ)‖₁ ≤ r}) by 144 σ max(D, d_out) √#params · r, (4.15).

    R is the un-normalised sum E sup_θ Σ_i ⟨ε_i, R_θ(x_i)⟩ (printed: (4.8) divides by n; see ERRATA 13). The last line
    of the printed proof loses max(D, d_out), the statement has it (ERRATA 14). D counts identity neurons here, because
    each of them has parameters to cover.

    Args:
        shape: the graph, as `read_shape` gives it.
        path_norm: r; or else
        sigma: σ, such as `sigma_of_box(n, radius)`.
        log_path_norm: the natural logarithm of r, where r itself leaves float64.

    Returns:
        The bound, informative where it is below σ²·r, which follows from n ≤ σ² samples and |R_θ| ≤ r·max(1, ‖x‖_∞)
        alone.

    Example:
        >>> from tamis.bounds.shape import read_shape
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> rademacher_covering(read_shape(net), log_path_norm=tamis.path_norm(net, log=True), sigma=100.0).informative
        False

    Reference: gonon2024thesis.
    """
    sigma, log_norm = resolve_sigma(sigma), resolve_log_norm(path_norm, log_path_norm)
    # Not `depth`: identity neurons count in D here, where they must not in `rademacher_peeling`.
    factor = CONSTANT * max(shape.longest_path, shape.d_out) * math.sqrt(shape.params)
    log_value = log_of_product(log_rounded_up(factor), log_rounded_up(sigma), log_norm)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        # The value and what it is compared with, σ² r, share a factor σ r.
        informative=factor < sigma,
        source=f"gonon2024thesis, Theorem {'C.2.2' if shape.weight_sharing else '4.3.1'}",
        assumptions=(SAMPLES, SIGMA, BALL, *((SHARING,) if shape.weight_sharing else ())),
        checked=() if shape.weight_sharing else ("no weight is shared, and every edge has a parameter",),
        terms={
            "log_path_norm": log_norm,
            "sigma": sigma,
            "longest_path": float(shape.longest_path),
            "d_out": float(shape.d_out),
            "params": float(shape.params),
            "factor": factor,
        },
    )
