"""Theorem 2.1 of Colombo and Gao bounds how two-temperature mask search converges, as its proof supports it.

Numbered departures from the text:
1. Printed: the last iterate, ‖v − v*‖² ≤ 1, and Σ_t 1/t where the steps give Σ_t 1/√t. The proof supports a bound for
   the averaged iterate, with ‖v − v*‖² ≤ d and Σ_t 1/√t ≤ 2√T (ERRATA 28).
2. Printed: E r^t = 0. From (48) to (49) the proof drops E ∇f·r, for which the error r must average to zero for each
   sample, not only over samples.

Reference: colombo2021architecture.
"""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_count, check_number, check_positive
from tamis.bounds.bound import EPSILON, Bound, exp_rounded_up, log_of_product, log_of_sum, log_rounded_up

CONVEX = "the loss is convex in the mask v ∈ [0, 1]^d for each sample, with gradients of norm at most G"
STEPS = "step t moves v by −(c/√t)(∇f(v, z_t) − r_t), z_t drawn uniformly from the samples, and v stays in [0, 1]^d"
UNBIASED = (
    "the error r_t of the gradient averages to zero given the iterate and the sample, and ‖r_t‖² ≤ C G² (the theorem "
    "assumes so; the two-temperature gradient itself is a shrunk gradient, whose error does not average to zero)"
)

LARGEST_ROOT = 1e154  # its square is in float64


def two_temperature(d: int, G: float, C: float, c: float, T: int) -> Bound:
    """Return a bound of E[F(v̄) − F(v*)], v̄ the average of the iterates v_1, …, v_T (Theorem 2.1, corrected):

        E[F(v̄) − F(v*)] ≤ d / (2c√T) + c G² (1 + C) / √T.

    Printed, for the last iterate: 1/(c√T) + c G² (1 + C)(1 + log T)/T, which does not hold; it stands in the terms, so
    named (ERRATA 28).

    Args:
        d: how many entries the mask has.
        G: the largest norm of the gradient of one sample's loss in the mask.
        C: how large the error of the gradient may be, ‖r‖² ≤ C G²; `gradient_error` for two temperatures.
        c: the steps are c/√t.
        T: how many steps there are.

    Example:
        >>> round(two_temperature(d=4, G=1.0, C=0.0, c=1.0, T=4).value, 12)
        1.5

    Reference: colombo2021architecture.
    """
    check_count("d", d)
    check_count("T", T)
    check_number("G", G)
    check_number("C", C)
    check_positive("c", c)
    # ‖v_1 − v*‖² ≤ d on [0, 1]^d; with steps c/√t it is divided by 2c√T when T steps are averaged.
    log_start = log_of_product(math.log(d), -math.log(2), -math.log(c), -math.log(T) / 2)
    log_noise = log_of_product(math.log(c), 2 * log_rounded_up(G), math.log1p(C), -math.log(T) / 2)
    log_value = log_of_sum(log_start, log_noise)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=exp_rounded_up(log_value) < G * math.sqrt(d),  # F is G-Lipschitz, and [0, 1]^d has the diameter √d
        source="colombo2021architecture, Theorem 2.1",
        assumptions=(CONVEX, STEPS, UNBIASED),
        terms={
            "distance from the start": exp_rounded_up(log_start),
            "noise of the gradients": exp_rounded_up(log_noise),
            "as printed, for the last iterate (does not hold)": (
                1 / (c * math.sqrt(T)) + c * G * G * (1 + C) * (1 + math.log(T)) / T
            ),
        },
    )


def gradient_error(t_l: float, t_s: float, largest: float) -> float:
    """Compute C of (11), rounded up: how far the two-temperature gradient may be from the exact one, ‖r‖² ≤ C G².

        C = 1 − 2 t_l t_s g(t_l) g(t_s) + (t_l t_s / 16)²,      g(t) = σ(tM)(1 − σ(tM)).

    Args:
        t_l: the inverse of the low temperature, of the mask σ(t_l w).
        t_s: the inverse of the high temperature, of the gradient.
        largest: M, the largest |w| of any iterate.

    Example:
        >>> round(gradient_error(t_l=4.0, t_s=4.0, largest=0.0), 12)
        0.0

    Reference: colombo2021architecture.
    """
    for name, value in (("t_l", t_l), ("t_s", t_s), ("largest", largest)):
        check_number(name, value)
    # σ' is at most 1/4, at zero, and at least g(t) on [−M, M]: |r|² = |∇|² (1 − p)² for a factor p between the products
    # of these, of which the middle term takes the smallest and the last one the largest.
    steepest = (t_l / 4) * (t_s / 4)
    if steepest > LARGEST_ROOT:
        return math.inf
    smallest = (t_l * _slope(t_l * largest)) * (t_s * _slope(t_s * largest))
    rounding = 16 * EPSILON * (1 + 2 * smallest + steepest * steepest)  # the three may cancel, and what they lost stays
    return 1 - 2 * smallest + steepest * steepest + rounding


def _slope(s: float) -> float:
    """Compute σ(s)(1 − σ(s)) for s ≥ 0."""
    return math.exp(-s) / (1 + math.exp(-s)) ** 2
