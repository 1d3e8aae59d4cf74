"""Lemma 4 and Theorem 5 of Yang: the generalization error of L1,∞-normalized networks in regression.

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
    check_class,
    log_largest,
)
from tamis.bounds.l1inf_rademacher import log_complexity


def l1inf_lipschitz_loss(
    k: int,
    c: float,
    o: float,
    inputs: int,
    n: int,
    delta: float,
    lipschitz_loss: float,
    largest_loss: float,
    activation: str = "relu",
) -> Bound:
    """Return a bound of |E L(f) − Ê L(f)| that holds for all f of SN_{c,o} at once, with probability 1 − δ (Lemma 4):

        A₀ √(log(2/δ) / 2n) + 2 ρ R,      R the bound of Theorem 1.

    Args:
        k: how many hidden layers the networks have.
        c: the largest ℓ1-norm of a hidden neuron's incoming weights with its bias.
        o: the same norm of the one output.
        inputs: m, how many numbers one input consists of.
        n: how many samples there are.
        delta: δ, how likely the bound may fail.
        lipschitz_loss: ρ, the Lipschitz constant of the loss in the prediction.
        largest_loss: A₀, when losses lie in [0, A₀].
        activation: "relu", "tanh" or "shifted sigmoid".

    Example:
        >>> l1inf_lipschitz_loss(k=1, c=0.5, o=1.0, inputs=10, n=10**6, delta=0.05, lipschitz_loss=1.0,
        ...                      largest_loss=2.0).informative
        True

    Reference: yang2021l1inf.
    """
    check_class(k, c, o, inputs)
    check_samples(n, delta)
    check_number("lipschitz_loss", lipschitz_loss)
    check_number("largest_loss", largest_loss)
    log_confidence = log_of_product(log_rounded_up(largest_loss), log_deviation(log_inverse(delta), n))
    log_two_rademacher = log_of_product(
        log_rounded_up(o), log_complexity(k, c, inputs, activation), math.log(4 / n) / 2
    )
    return generalization_bound(
        log_confidence,
        log_of_product(log_rounded_up(lipschitz_loss), log_two_rademacher),
        log_rounded_up(largest_loss),
        "yang2021l1inf, Lemma 4",
        assumptions=(FIXED_OUTPUT, "losses lie in [0, largest_loss], Lipschitz in the prediction as stated"),
        terms={"largest loss": largest_loss, "Lipschitz constant of the loss": lipschitz_loss},
    )


def l1inf_regression(
    k: int,
    c: float,
    output_norm: float,
    inputs: int,
    n: int,
    delta: float,
    largest_target: float,
    activation: str = "relu",
) -> Bound:
    """Return a bound of |E L(f) − Ê L(f)|, L(f(x), y) = ½(y − f(x))², for all f at once, with probability 1 − δ
    (Theorem 5).

    With t = ‖T_{k+1}‖₁ + 1 and M = max(1, (γ_σ c)^k) it is

        √((log(2/δ) + 2 log(t + 1)) / 2n) (B₀² + t² M²) + 2 (B₀ + t M) t R,      R the bound of Theorem 1 for o = 1.

    The output layer is not constrained: its norm may be read off the trained network.

    Args:
        k: how many hidden layers the network has.
        c: the largest ℓ1-norm of a hidden neuron's incoming weights with its bias.
        output_norm: ‖T_{k+1}‖₁, the same norm of the one output.
        inputs: m, how many numbers one input consists of.
        n: how many samples there are.
        delta: δ, how likely the bound may fail.
        largest_target: B₀, where |y| ≤ B₀.
        activation: "relu", "tanh" or "shifted sigmoid".

    Example:
        >>> l1inf_regression(k=1, c=0.5, output_norm=1, inputs=10, n=10**6, delta=0.05, largest_target=1).informative
        True

    Reference: yang2021l1inf.
    """
    check_class(k, c, output_norm, inputs)
    check_samples(n, delta)
    check_number("largest_target", largest_target)
    wider = output_norm + 1
    log_layers = log_largest(k, c, activation)
    log_widest = log_of_product(log_rounded_up(wider), log_layers)
    log_loss = log_of_sum(2 * log_rounded_up(largest_target), 2 * log_widest)
    log_slope = log_of_sum(log_rounded_up(largest_target), log_widest)
    exponent = log_inverse(delta) + 2 * log_rounded_up(wider + 1)
    log_one = log_of_product(log_rounded_up(wider), log_complexity(k, c, inputs, activation), math.log(4 / n) / 2)
    log_error = log_of_sum(log_rounded_up(largest_target), log_of_product(log_rounded_up(output_norm), log_layers))
    return generalization_bound(
        log_of_product(log_loss, log_deviation(exponent, n)),
        log_of_product(log_slope, log_one),
        2 * log_error - math.log(2),  # ½(|y| + |f(x)|)², by Lemma 2
        "yang2021l1inf, Theorem 5",
        assumptions=("every target lies in [−largest_target, largest_target]",),
        terms={"largest loss": exp_rounded_up(log_loss), "Lipschitz constant of the loss": exp_rounded_up(log_slope)},
    )


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
