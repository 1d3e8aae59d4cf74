"""Peeling bounds the Rademacher complexity of a path-norm ball (thesis, Theorem 4.4.1 and Remark 4.4.1)."""

from __future__ import annotations

import math

from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.bounds.rademacher_arguments import BALL, SAMPLES, resolve_log_norm, resolve_sigma
from tamis.bounds.shape import GraphShape

SIGMA = "sigma is at least (E max(n, Σ ‖x_i‖²_∞))^(1/2)"
IN_LAYERS = "one kind of pooling at most, in layers that no path goes around"


def rademacher_peeling(
    shape: GraphShape,
    path_norm: float | None = None,
    sigma: float | None = None,
    log_path_norm: float | None = None,
) -> Bound:
    """Bound R({R_θ: ‖Φ(θ)‖₁ ≤ r}) by √2 σ C r, Theorem 4.4.1; R is the un-normalised sum (ERRATA 13).

        C² = D log((3+2P)K) + log((3+2P)/(1+P) · d · d_out),   d = d_in + 1 with biases, d_in without.

    Where pooling comes in M layers that no path goes around, C² may also be that of Remark 4.4.1,

        C² = D log 3 + M log K + log(d · d_out);

    the smaller is used. The thesis states the remark without proof; docs/bounds.md proves it. With A > 1 different
    activation functions, 3 stands for 1 + 2A in both.

    Args:
        shape: the graph, as `read_shape` gives it.
        path_norm: r; or else
        sigma: σ, such as `sigma_of_box(n, radius)`.
        log_path_norm: the natural logarithm of r, where r itself leaves float64.

    Returns:
        The bound, informative where it is below σ²·r, which follows from n ≤ σ² samples and |R_θ| ≤ r·max(1, ‖x‖_∞)
        alone. `terms`: both constants C, the sharpened one where it holds, and whether it was the one used.

    Example:
        >>> from tamis.bounds.shape import read_shape
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> shape = read_shape(net)
        >>> rademacher_peeling(shape, log_path_norm=tamis.path_norm(net, log=True), sigma=100.0).source
        'gonon2024thesis, Remark 4.4.1'

    Reference: gonon2024thesis.
    """
    sigma, log_norm = resolve_sigma(sigma), resolve_log_norm(path_norm, log_path_norm)
    general = _compute_general_constant(shape)
    # The remark's proof peels whole layers of selections at once, which a path around one would prevent.
    sharpened = _compute_sharpened_constant(shape) if shape.pooling_in_layers else math.inf
    constant = min(general, sharpened)
    log_value = log_of_product(math.log(2) / 2, log_rounded_up(sigma), log_rounded_up(constant), log_norm)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=math.sqrt(2) * constant < sigma,
        source=f"gonon2024thesis, {'Remark' if sharpened < general else 'Theorem'} 4.4.1",
        assumptions=(SAMPLES, SIGMA, BALL),
        checked=("every operation is a neuron of a DAG ReLU network", *((IN_LAYERS,) if sharpened < general else ())),
        terms={
            "log_path_norm": log_norm,
            "sigma": sigma,
            "depth": float(shape.depth),
            "kernel": float(shape.kernel),
            "pool_kinds": float(shape.pool_kinds),
            "d_out": float(shape.d_out),
            "constant": constant,
            "constant_general": general,
            **({"constant_sharpened": sharpened} if shape.pooling_in_layers else {}),
            "sharpened": float(sharpened < general),
        },
    )


def _compute_general_constant(shape: GraphShape) -> float:
    """Compute C of Theorem 4.4.1; with one activation function the number of groups is 3 + 2P."""
    # A step of peeling splits neurons into groups: the identity, each activation and each kind of pooling, the latter
    # two twice, for absolute values (Lemma C.4.1). For one activation (3 + 2P)/(1 + P) is 2 · groups/(groups − 1).
    groups = 1 + 2 * shape.activations + 2 * shape.pool_kinds
    ends = math.log(2 * groups / (groups - 1)) + math.log(_count_sources(shape)) + math.log(shape.d_out)
    return math.sqrt(shape.depth * math.log(groups * shape.kernel) + ends)


def _compute_sharpened_constant(shape: GraphShape) -> float:
    """Compute C of Remark 4.4.1."""
    groups = 1 + 2 * shape.activations
    ends = math.log(_count_sources(shape)) + math.log(shape.d_out)
    return math.sqrt(shape.depth * math.log(groups) + shape.pool_layers * math.log(shape.kernel) + ends)


def _count_sources(shape: GraphShape) -> int:
    """Count the input neurons, and one that is always 1 where there are biases."""
    return shape.d_in + shape.biases
