"""Theorem 1 of Yang bounds the Rademacher complexity of L1,∞-normalized networks."""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_count
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_of_sum, log_rounded_up
from tamis.bounds.l1inf_class import (
    IN_THE_BOX,
    VANISHES,
    L1InfConstants,
    check_class,
    log_growth,
    log_largest,
    log_power,
)


def l1inf_rademacher(k: int, c: float, o: float, inputs: int, n: int, activation: str = "relu") -> Bound:
    """Return a bound of the empirical Rademacher complexity of SN_{c,o} on any n points of [−1, 1]^m (Theorem 1):

        E sup_f (1/n) Σ_i ε_i f(x_i)
        ≤ (o/√n) (√((k+1) log 16) (Σ_{l=0}^k (γ_σ c)^l + (γ_σ c)^k) + (γ_σ c)^k √(2 log 2m)).

    It does not depend on the widths of the layers.

    Args:
        k: how many hidden layers the networks have.
        c: the largest ℓ1-norm of a hidden neuron's incoming weights with its bias.
        o: the same norm of the one output.
        inputs: m, how many numbers one input consists of.
        n: how many points there are.
        activation: "relu", "tanh" or "shifted sigmoid", whose Lipschitz constant is γ_σ.

    Example:
        >>> round(l1inf_rademacher(k=1, c=0.5, o=1.0, inputs=10, n=10_000).value, 4)
        0.0593

    Reference: yang2021l1inf.
    """
    check_class(k, c, o, inputs)
    check_count("n", n)
    log_biases, log_inputs = log_parts(k, c, inputs, activation)
    scale = log_of_product(log_rounded_up(o), -math.log(n) / 2)
    log_value = log_of_product(scale, log_of_sum(log_biases, log_inputs))
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=log_value < log_rounded_up(o) + log_largest(k, c, activation),  # no |f(x)| exceeds this (Lemma 2)
        source="yang2021l1inf, Theorem 1",
        assumptions=(IN_THE_BOX,),
        checked=(VANISHES,),
        terms={
            "of the biases and the depth": exp_rounded_up(scale + log_biases),
            "of the inputs": exp_rounded_up(scale + log_inputs),
        },
    )


def log_complexity(networks: L1InfConstants) -> float:
    """Return the logarithm of √n/o times the bound, which the generalization bounds share."""
    return log_of_sum(*log_parts(networks.k, networks.c, networks.inputs, networks.activation))


def log_parts(k: int, c: float, inputs: int, activation: str) -> tuple[float, float]:
    """Return the logarithms of √((k+1) log 16) (Σ_l (γ_σ c)^l + (γ_σ c)^k) and of (γ_σ c)^k √(2 log 2m)."""
    log_ratio = log_growth(c, activation)
    log_last = log_power(log_ratio, k)
    # All in logarithms: (γ_σ c)^k leaves float64 for a few hundred layers, and the bound must still be compared.
    log_sum = log_of_sum(log_geometric_sum(log_ratio, k), log_last)
    # Halved logarithms are square roots. The 2m are the inputs and their negatives, over which Massart's lemma
    # maximizes.
    log_depth, log_widths = math.log((k + 1) * math.log(16)) / 2, math.log(2 * math.log(2 * inputs)) / 2
    return log_of_product(log_depth, log_sum), log_of_product(log_last, log_widths)


def log_geometric_sum(log_ratio: float, k: int) -> float:
    """Compute log Σ_{l=0}^k r^l from log r, where neither the powers nor the sum need be representable."""
    if log_ratio == 0:
        return math.log(k + 1)
    decay = abs(log_ratio)  # Σ r^l = r^k Σ r^{−l}, so that only falling powers are summed
    falling = math.log(-math.expm1(-(k + 1) * decay)), -math.log(-math.expm1(-decay))
    return log_of_product(*falling, log_power(log_ratio, k) if log_ratio > 0 else 0.0)
