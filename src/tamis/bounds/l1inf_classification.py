"""Lemma 6 and Theorem 7 of Yang bound the generalization error of L1,∞-normalized networks in classification.

Printed: log(1/δ). Lemma 3 bounds a one-sided gap; for the absolute value it is log(2/δ) (ERRATA 23).

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_number
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_of_sum, log_rounded_up, round_up
from tamis.bounds.l1inf_class import FIXED_OUTPUT, L1InfConstants
from tamis.bounds.l1inf_rademacher import log_complexity
from tamis.bounds.l1inf_regression import check_samples, generalization_bound, log_deviation, log_inverse
from tamis.errors import InvalidInput


def l1inf_lipschitz_vector_loss(
    networks: L1InfConstants,
    n: int,
    delta: float,
    lipschitz_loss: float,
    largest_loss: float,
) -> Bound:
    """Return a bound of |E L(f) − Ê L(f)| that holds for all f of SN_{c,o} at once, with probability 1 − δ (Lemma 6):

        A₀ √(log(2/δ) / 2n) + 2√2 ρ (Σ_j o_j) R,      R the bound of Theorem 1 for o = 1.

    Args:
        networks: the class SN_{c,o}.
        n: how many samples there are.
        delta: δ, how likely the bound may fail.
        lipschitz_loss: ρ, the Lipschitz constant of the loss in the outputs, in the Euclidean norm.
        largest_loss: A₀, when losses lie in [0, A₀].

    Example:
        >>> networks = L1InfConstants(k=1, c=0.5, o=(0.5, 0.5), inputs=10)
        >>> l1inf_lipschitz_vector_loss(networks, 10**6, delta=0.05, lipschitz_loss=1.0, largest_loss=2.0).informative
        True

    Reference: yang2021l1inf.
    """
    networks.check()
    check_samples(n, delta)
    check_number("lipschitz_loss", lipschitz_loss)
    check_number("largest_loss", largest_loss)
    log_outputs = log_of_product(log_of_sum(*map(log_rounded_up, networks.o)), math.log(8 / n) / 2)
    return generalization_bound(
        log_of_product(log_rounded_up(largest_loss), log_deviation(log_inverse(delta), n)),
        log_of_product(log_rounded_up(lipschitz_loss), log_outputs, log_complexity(networks)),
        log_rounded_up(largest_loss),
        "yang2021l1inf, Lemma 6",
        assumptions=(FIXED_OUTPUT, "losses lie in [0, largest_loss], Lipschitz in the outputs as stated"),
        terms={"largest loss": largest_loss, "Lipschitz constant of the loss": lipschitz_loss},
    )


def l1inf_classification(network: L1InfConstants, n: int, delta: float) -> Bound:
    """Return a bound of |E L(f) − Ê L(f)| for the cross-entropy L, for all f at once, with probability 1 − δ (Theorem
    7).

    With m₂ classes and F = (‖T_{k+1}‖_{1,∞} + 1/m₂) max(1, (γ_σ c)^k), which no output exceeds, it is

        (2F + log m₂) √((log(2/δ) + 2 Σ_j log(m₂ ‖T_{k+1}[j]‖₁ + 2)) / 2n)
        + 2√2 (‖T_{k+1}‖_{1,1} + 1) (1 + √(m₂−1) / (1 + (m₂−1) e^{−2F})) R,      R the bound of Theorem 1 for o = 1.

    The output layer is not constrained: its norms may be read off the trained network.

    Args:
        network: its class, where o is ‖T_{k+1}[j]‖₁ of each of its m₂ outputs.
        n: how many samples there are.
        delta: δ, how likely the bound may fail.

    Example:
        >>> l1inf_classification(L1InfConstants(k=1, c=0.5, o=(1.0, 1.0), inputs=10), n=10**6, delta=0.05).informative
        True

    Reference: yang2021l1inf.
    """
    network.check()
    check_samples(n, delta)
    classes = len(network.o)
    if classes < 2:
        raise InvalidInput(f"a classifier has at least two outputs, got o = {list(network.o)}")
    # The union bound of Theorem 7 is over classes whose output norms lie on a grid of step 1/m₂: the network is in the
    # next larger one, whose outputs may reach F.
    log_output = log_of_product(log_rounded_up(max(network.o) + 1 / classes), network.log_largest)
    log_loss = _log_largest_loss(log_output, classes)
    slope = round_up(
        1 + math.sqrt(classes - 1) / (1 + (classes - 1) * math.exp(-2 * exp_rounded_up(log_output))), ulps=16
    )
    logs = [log_rounded_up(norm) for norm in network.o]
    # Σ_j log(m₂ ‖T[j]‖₁ + 2), where the product may leave float64
    union = round_up(sum(log_of_sum(math.log(classes) + log, math.log(2)) for log in logs), ulps=classes + 4)
    exponent = round_up(log_inverse(delta) + 2 * union)
    # ‖T‖_{1,1} + 1, the 0.0 being log 1; and √(8/n) is the 2√2 of vector contraction with the 1/√n of Theorem 1.
    log_outputs = log_of_product(log_of_sum(*logs, 0.0), math.log(8 / n) / 2)
    return generalization_bound(
        log_of_product(log_loss, log_deviation(exponent, n)),
        log_of_product(log_rounded_up(slope), log_outputs, log_complexity(network)),
        # What is trivial is measured by the network itself, not by the larger class around it.
        _log_largest_loss(log_of_product(log_rounded_up(max(network.o)), network.log_largest), classes),
        "yang2021l1inf, Theorem 7",
        assumptions=(),
        terms={"largest loss": exp_rounded_up(log_loss), "Lipschitz constant of the loss": slope},
    )


def _log_largest_loss(log_output: float, classes: int) -> float:
    """Return the logarithm of 2F + log m₂, which no cross-entropy exceeds where no output exceeds F."""
    return log_of_sum(log_of_product(math.log(2), log_output), math.log(math.log(classes)))
