"""Lemma 4.6 of Chee and Loustau bounds the Kullback–Leibler divergence of a sparse expert from the sparsity prior.

The prior of a weight has the density c (1 + |w|/τ)^−4 on [−R, R]; for an expert w* it is shifted by w*.
Printed: the shifted prior as it is, which leaves [−R, R] and has an infinite divergence. Here it is truncated to
[−R, R], which adds Σ_u log(c''_u/c): zero where w*_u = 0, and at most log 2 each (ERRATA 4).

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tamis.bounds.arguments import check_count, check_positive
from tamis.bounds.bound import EPSILON, SMALLEST
from tamis.errors import AssumptionViolated, InvalidInput

Floats = NDArray[np.float64]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)
SMALLEST_RATIO = 2.0**-1000  # of R to τ: below, the mass of the truncated prior underflows
FAR = 20.0  # in log(1 + |w|/τ): beyond it lies e^−60 of the prior


def kl_bound(weights: ArrayLike, tau: float, R: float = math.inf, architecture: float = 1.0) -> float:
    """Return a bound of the divergence between the prior shifted to an expert and the prior (Lemma 4.6, corrected):

        4 ‖w*‖₀ log(1 + ‖w*‖₁ / (τ ‖w*‖₀)) + Σ_u log(c''_u/c) − log(α_k β_i γ_j).

    Args:
        weights: w*, all weights and biases of the expert, each in [−R, R].
        tau: τ, the scale of the prior, which without truncation is its standard deviation.
        R: where the prior is truncated; infinite for not at all.
        architecture: α_k β_i γ_j, the prior probability of the expert's architecture.

    Example:
        >>> round(kl_bound([0.5, 0.0, 0.0], tau=0.3, R=1.0), 2)
        3.94

    Reference: chee2021xnor.
    """
    expert = as_expert_weights(weights, tau, R)
    # The first term is Jensen's: Σ log(1 + |w_u|/τ) over the support is largest where all |w_u| are equal.
    extra, surprise = truncation(expert, tau, R), _surprise(architecture)
    value = _sparsity(expert, tau) + float(extra.sum()) + surprise
    # Each of the truncations is a difference of two logarithms, which may cancel.
    logs = sum(float(np.abs(log).sum()) for log in _truncation_logs(expert[expert != 0], tau, R))
    return value + 16 * EPSILON * (len(expert) + 4) * (value + logs)


def kl_exact(weights: ArrayLike, tau: float, R: float = math.inf, architecture: float = 1.0) -> float:
    """Return the divergence itself, a sum of one integral for each weight; arguments as for `kl_bound`.

    Example:
        >>> round(kl_exact([0.5, 0.0, 0.0], tau=0.3, R=1.0), 2)
        2.61

    Reference: chee2021xnor.
    """
    expert = as_expert_weights(weights, tau, R)
    # The prior is even, so that the divergence depends on |w*| alone, and on |w*|/τ and R/τ as it is scale-free. A
    # weight that is zero is not shifted and adds nothing.
    sizes = np.abs(expert[expert != 0]) / tau
    parts = np.array_split(sizes, max(1, len(sizes) // 20_000))  # 64 nodes for each weight are in memory at once
    return sum(float(_compute_one_weight(part, R / tau).sum()) for part in parts) + _surprise(architecture)


def kl_xnor(
    real: ArrayLike, scales: ArrayLike, signs: int, tau: float, R: float = math.inf, architecture: float = 1.0
) -> float:
    """Return a bound of the divergence for an XNOR network: real weights, positive scales, and signs (Theorem 3.2,
    corrected):

        4 Σ_{real, scales} ‖·‖₀ log(1 + ‖·‖₁ / (τ ‖·‖₀)) + p_bin log 2 + Σ_u log(c''_u/c) − log(architecture).

    Printed without the factor 4, which its proof obtains (ERRATA 5). The truncation of the scales to [0, R] never adds
    to the divergence and is left out (ERRATA 4).

    Args:
        real: the real weights and biases, of the first and the last layer.
        scales: the scales of the binary layers, each in [0, R].
        signs: p_bin, how many weights are signs.
        tau: τ, the scale of the prior.
        R: where the prior is truncated; infinite for not at all.
        architecture: the prior probability of the expert's architecture.

    Example:
        >>> round(kl_xnor([0.0], [0.0], signs=10, tau=0.3), 6)  # 10 log 2
        6.931472

    Reference: chee2021xnor.
    """
    check_count("signs", signs, least=0)
    positive = as_expert_weights(scales, tau, R)
    if (positive < 0).any():
        raise InvalidInput(f"scales must not be negative, got {float(positive.min()):g}")
    value = kl_bound(real, tau, R, architecture) + _sparsity(positive, tau) + signs * math.log(2)
    return value + 16 * EPSILON * (len(positive) + 4) * value


def truncation(weights: Floats, tau: float, R: float) -> Floats:
    """Compute log(c''_u/c), what the truncation of the shifted prior to [−R, R] adds for each weight."""
    before, after = _truncation_logs(weights, tau, R)
    return before - after


def _truncation_logs(weights: Floats, tau: float, R: float) -> tuple[Floats, Floats]:
    """Return the logarithms of the mass that a truncation to [−R, R] leaves of the prior, and of the prior shifted."""
    centre = np.full_like(weights, R / tau)
    return _log_mass(centre, centre), _log_mass((R + weights) / tau, (R - weights) / tau)


def _log_mass(left: Floats, right: Floats) -> Floats:
    """Compute the log of the mean mass up to both ends, with a small relative error: by tails where they are small."""
    tails = (np.exp(-3 * np.log1p(left)) + np.exp(-3 * np.log1p(right))) / 2
    mass = (mass_up_to(left) + mass_up_to(right)) / 2
    # Of a mass near 1 the logarithm has few digits left, but log1p(−tails) has all; near 0 it is the other way round.
    return np.where(tails < 0.5, np.log1p(-np.minimum(tails, 0.5)), np.log(mass))


def mass_up_to(x: Floats) -> Floats:
    """Compute ∫_0^x 3 (1 + t)^−4 dt = 1 − (1 + x)^−3, without what cancels where x is small."""
    return -np.expm1(-3 * np.log1p(x))


def as_expert_weights(weights: ArrayLike, tau: float, R: float) -> Floats:
    """Return weights as one array of float64; AssumptionViolated where one lies beyond R."""
    check_positive("tau", tau)
    if not R > 0:
        raise InvalidInput(f"R must be above 0, got R = {R!r}")
    if R / tau < SMALLEST_RATIO:
        raise InvalidInput(f"R must not be so far below tau that their ratio vanishes: got R = {R:g}, tau = {tau:g}")
    flat = np.asarray(weights, dtype=np.float64).reshape(-1)
    if not np.isfinite(flat).all():
        raise InvalidInput("the weights of an expert must be finite")
    largest = float(np.abs(flat).max(initial=0.0))
    if largest > R:
        raise AssumptionViolated(f"the expert must lie in the prior's support [−R, R]: |w| = {largest:g} > R = {R:g}")
    return flat


def _surprise(architecture: float) -> float:
    """Compute −log of the prior probability of an architecture."""
    if not 0 < architecture <= 1:
        raise InvalidInput(f"architecture must be a probability above 0, got architecture = {architecture!r}")
    return -math.log(architecture)


def _sparsity(weights: Floats, tau: float) -> float:
    """Compute 4 ‖w‖₀ log(1 + ‖w‖₁ / (τ ‖w‖₀)), which is never 0 where a weight is not."""
    count = int(np.count_nonzero(weights))
    if not count:
        return 0.0
    largest = float(np.abs(weights).max())  # in whose units no sum or mean leaves float64
    mean = float(np.abs(weights / largest).sum()) / count
    return 4 * count * (math.log1p(largest / tau * mean) + SMALLEST)


def _compute_one_weight(a: Floats, r: float) -> Floats:
    """Return the divergence for weights of size a in units of τ, truncated at r in units of τ.

    ∫ ρ log(ρ/π) = log(c''/c) + 4 ∫ ρ (log(1 + |w|) − log(1 + |w − a|)). With v = log(1 + |w − a|) the integral over
    w ≥ a and that over [0, a] have the density e^−3v, and with s = log(1 + |w|) that over w ≤ 0 is smooth as well.
    """
    right, inner, left = np.log1p(r - a), np.log1p(a), math.log1p(r)
    beyond = _integrate(lambda v: np.log(a[:, None] + np.exp(v)) * np.exp(-3 * v), right)
    between = _integrate(lambda v: np.log(2 + a[:, None] - np.exp(v)) * np.exp(-3 * v), inner)
    behind = _integrate(lambda s: s * np.exp(s) * (a[:, None] + np.exp(s)) ** -4, np.full_like(a, left))
    own = _mean_of_log(right) + _mean_of_log(np.log1p(r + a))
    # The mass of the shifted density, 3/2 (1 + |w − a|)^−4, on [−r, r] is the mean of the two: the factor that makes it
    # 1.
    density = 3 / (mass_up_to(r - a) + mass_up_to(r + a))
    return truncation(a, 1.0, r) + 4 * density * (beyond + between + behind - own)


def _integrate(integrand: Callable[[Floats], Floats], ends: Floats) -> Floats:
    """Integrate from 0 to each end, by Gauss–Legendre quadrature."""
    # Shape (weights, nodes): each weight has an interval of its own, onto which the nodes are stretched.
    half = np.minimum(ends, FAR)[:, None] / 2
    return (integrand(half * (1 + NODES)) * WEIGHTS).sum(1) * half[:, 0]


def _mean_of_log(ends: Floats) -> Floats:
    """Compute ∫_0^V v e^−3v dv = (1 − (1 + 3V) e^−3V) / 9."""
    ends = np.minimum(ends, FAR)
    return (1 - (1 + 3 * ends) * np.exp(-3 * ends)) / 9
