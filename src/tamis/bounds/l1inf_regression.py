"""Lemma 4 and Theorem 5 of Yang bound the generalization error of L1,∞-normalized networks in regression.

Printed: log(1/δ). Lemma 3 bounds a one-sided gap; for the absolute value it is log(2/δ) (ERRATA 23).

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_count, check_delta, check_number
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_of_sum, log_rounded_up, round_up
from tamis.bounds.l1inf_class import (
    FIXED_CLASS,
    FIXED_OUTPUT,
    IN_THE_BOX,
    INDEPENDENT,
    VANISHES,
    L1InfConstants,
)
from tamis.bounds.l1inf_rademacher import log_complexity
from tamis.errors import InvalidInput


def l1inf_lipschitz_loss(
    networks: L1InfConstants,
    n: int,
    delta: float,
    lipschitz_loss: float,
    largest_loss: float,
) -> Bound:
    """Return a bound of |E L(f) − Ê L(f)| that holds for all f of SN_{c,o} at once, with probability 1 − δ (Lemma 4):

        A₀ √(log(2/δ) / 2n) + 2 ρ R,      R the bound of Theorem 1.

    Args:
        networks: the class SN_{c,o}, of one output.
        n: how many samples there are.
        delta: δ, how likely the bound may fail.
        lipschitz_loss: ρ, the Lipschitz constant of the loss in the prediction.
        largest_loss: A₀, when losses lie in [0, A₀].

    Example:
        >>> networks = L1InfConstants(k=1, c=0.5, o=(1.0,), inputs=10)
        >>> l1inf_lipschitz_loss(networks, n=10**6, delta=0.05, lipschitz_loss=1.0, largest_loss=2.0).informative
        True

    Reference: yang2021l1inf.
    """
    o = check_one_output(networks)
    check_samples(n, delta)
    check_number("lipschitz_loss", lipschitz_loss)
    check_number("largest_loss", largest_loss)
    log_confidence = log_of_product(log_rounded_up(largest_loss), log_deviation(log_inverse(delta), n))
    # `log_complexity` is √n/o times R, so 2R is it times o · 2/√n, and 2/√n = √(4/n).
    log_two_rademacher = log_of_product(log_rounded_up(o), log_complexity(networks), math.log(4 / n) / 2)
    return generalization_bound(
        log_confidence,
        log_of_product(log_rounded_up(lipschitz_loss), log_two_rademacher),
        log_rounded_up(largest_loss),
        "yang2021l1inf, Lemma 4",
        assumptions=(FIXED_OUTPUT, "losses lie in [0, largest_loss], Lipschitz in the prediction as stated"),
        terms={"largest loss": largest_loss, "Lipschitz constant of the loss": lipschitz_loss},
    )


def l1inf_regression(network: L1InfConstants, n: int, delta: float, largest_target: float) -> Bound:
    """Return a bound of |E L(f) − Ê L(f)|, L(f(x), y) = ½(y − f(x))², for all f at once, with probability 1 − δ
    (Theorem 5).

    With t = ‖T_{k+1}‖₁ + 1 and M = max(1, (γ_σ c)^k) it is

        √((log(2/δ) + 2 log(t + 1)) / 2n) (B₀² + t² M²) + 2 (B₀ + t M) t R,      R the bound of Theorem 1 for o = 1.

    The output layer is not constrained: its norm may be read off the trained network.

    Args:
        network: its class, where o is ‖T_{k+1}‖₁ of its one output.
        n: how many samples there are.
        delta: δ, how likely the bound may fail.
        largest_target: B₀, where |y| ≤ B₀.

    Example:
        >>> network = L1InfConstants(k=1, c=0.5, o=(1.0,), inputs=10)
        >>> l1inf_regression(network, n=10**6, delta=0.05, largest_target=1).informative
        True

    Reference: yang2021l1inf.
    """
    output_norm = check_one_output(network)
    check_samples(n, delta)
    check_number("largest_target", largest_target)
    # The union bound is over the classes of o = 1, 2, …: the network is in one with o ≤ ‖T_{k+1}‖₁ + 1.
    wider = output_norm + 1
    log_layers = network.log_largest
    # t M bounds |f(x)| by Lemma 2; ½(y − f)² is then at most B₀² + t² M², and has a slope of at most B₀ + t M in f.
    log_widest = log_of_product(log_rounded_up(wider), log_layers)
    log_loss = log_of_sum(2 * log_rounded_up(largest_target), 2 * log_widest)
    log_slope = log_of_sum(log_rounded_up(largest_target), log_widest)
    # The class of o gets δ/(o(o + 1)), which adds up to δ over all o, and (t + 1)² is more than o(o + 1).
    exponent = log_inverse(delta) + 2 * log_rounded_up(wider + 1)
    log_one = log_of_product(log_rounded_up(wider), log_complexity(network), math.log(4 / n) / 2)
    log_error = log_of_sum(log_rounded_up(largest_target), log_of_product(log_rounded_up(output_norm), log_layers))
    return generalization_bound(
        log_of_product(log_loss, log_deviation(exponent, n)),
        log_of_product(log_slope, log_one),
        2 * log_error - math.log(2),  # ½(|y| + |f(x)|)², by Lemma 2
        "yang2021l1inf, Theorem 5",
        assumptions=("every target lies in [−largest_target, largest_target]",),
        terms={"largest loss": exp_rounded_up(log_loss), "Lipschitz constant of the loss": exp_rounded_up(log_slope)},
    )


def check_one_output(networks: L1InfConstants) -> float:
    """Return the norm of the one output; raise InvalidInput where there are several, or where there is no class."""
    networks.check()
    if len(networks.o) != 1:
        raise InvalidInput(f"regression is of networks of one output, got o = {list(networks.o)}")
    return networks.o[0]


def check_samples(n: int, delta: float) -> None:
    """Raise InvalidInput where there is no sample, or where δ is no probability."""
    check_count("n", n)
    check_delta(delta)


def log_inverse(delta: float) -> float:
    """Compute log(2/δ). Printed: log(1/δ); see ERRATA 23."""
    return round_up(math.log(2) - math.log(delta))


def log_deviation(exponent: float, n: int) -> float:
    """Return the logarithm of √(exponent / 2n), for the mean of n numbers in [0, 1]."""
    return log_of_product(math.log(exponent), -math.log(2 * n)) / 2


def generalization_bound(
    log_confidence: float,
    log_complexity: float,
    log_trivial: float,
    source: str,
    assumptions: tuple[str, ...],
    terms: dict[str, float],
) -> Bound:
    """Return the sum of the two parts, where no difference of losses exceeds exp(`log_trivial`) in any case."""
    log_value = log_of_sum(log_confidence, log_complexity)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=log_value < log_trivial,
        source=source,
        assumptions=(IN_THE_BOX, INDEPENDENT, FIXED_CLASS, *assumptions),
        checked=(VANISHES,),
        terms={"confidence": exp_rounded_up(log_confidence), "complexity": exp_rounded_up(log_complexity), **terms},
    )
