"""Theorems 3.1 and 3.2 of Chee and Loustau bound the regret of a learner that draws networks from a sparsity prior.

Both follow from Theorem 4.1 (Audibert), which holds for any losses and any λ > 0: where the learner of Algorithm 1
draws w_t from π_t at each round,

    E Σ_t ℓ_t(w_t) ≤ E_{w~ρ} Σ_t ℓ_t(w) + (λ/2) V_T + KL(ρ, π)/λ,      V_T = E Σ_t E_{w~ρ} (ℓ_t(w) − ℓ_t(w_t))²,

for any ρ, the expectation E being over the learner's draws. The theorems take for ρ the prior shifted to an expert.

Printed: λ multiplies what it should divide (ERRATA 1). Printed: (H − H')² ≤ min(1, max(H, H')²), which is not true;
V_T is the sum as observed (ERRATA 7).

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tamis.bounds.arguments import check_count, check_number, check_positive
from tamis.bounds.bound import EPSILON, Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.bounds.regret_penalties import Penalties
from tamis.errors import InvalidInput

LEARNER = "the learner is Algorithm 1: it draws w_t from the prior reweighted by exp(−λ h_{t−1}), at the λ given here"
OBLIVIOUS = "the inputs and labels do not depend on the learner's draws"
EXPECTED = "squared_differences is its expectation over the learner's draws, as the bound is of the expected loss"


@dataclass(frozen=True)
class Expert:
    """An expert is a network w* that the learner is compared with.

    Attributes:
        loss: Σ_t H(y_t, g_w*(x_t)), what it loses over all rounds.
        kl: KL(ρ, π), of the prior shifted to it from the prior.
    """

    loss: float
    kl: float


def sparse_regret(
    expert: Expert,
    penalty: Penalties,
    input_norms: Sequence[float],
    squared_differences: float,
    lam: float,
    classes: int,
) -> Bound:
    """Return a bound of the learner's expected cross-entropy over T rounds, by way of one expert w* (Theorem 3.1,
    corrected):

        E Σ_t H_t(w_t) ≤ Σ_t H_t(w*) + 2 pen₁ Σ_t ‖x_t‖ + 2T pen₂ + (λ/2) V_T + KL/λ.

    The smallest over all experts is a bound as well.

    Args:
        expert: w*, with the KL of `regret_divergence.kl_exact` or `kl_bound`.
        penalty: pen₁ and pen₂ of the expert, from `regret_penalties.perturbation_penalties`.
        input_norms: ‖x_t‖ for each round, Euclidean.
        squared_differences: V_T, the sum over rounds of E_{w~ρ} (H_t(w) − H_t(w_t))².
        lam: λ.
        classes: how many there are.

    Example:
        >>> penalty = Penalties(pen1=0.1, pen2=0.2)
        >>> expert = Expert(loss=10.0, kl=5.0)
        >>> bound = sparse_regret(expert, penalty, [1.0] * 50, squared_differences=4.0, lam=1.0, classes=10)
        >>> round(bound.value, 9)
        47.0

    Reference: chee2021xnor.
    """
    rounds = len(input_norms)
    for norm in input_norms:
        check_number("each of input_norms", norm)
    return _add_up(
        expert,
        penalty.rise(input_norms),
        _price(expert, squared_differences, lam),
        _uniform_loss(rounds, classes),
        "chee2021xnor, Theorem 3.1",
        "the expert is a chain of layers with ReLU between them and a softmax after the last",
    )


def xnor_regret(
    expert: Expert,
    loss_rise: float,
    squared_differences: float,
    lam: float,
    rounds: int,
    classes: int,
) -> Bound:
    """Return a bound of the expected cross-entropy of a learner of XNOR networks (Theorem 3.2, corrected):

        E Σ_t H_t(w_t) ≤ Σ_t H_t(w*) + rise + (λ/2) V_T + KL/λ.

    Printed with a residual "of order √T" whose constant is not given. A sign may flip under any perturbation of what it
    is taken of, so that no recursion bounds the rise: it is to be measured, by drawing from the shifted prior.

    Args:
        expert: w*, with the KL of `regret_divergence.kl_xnor`.
        loss_rise: E_{w~ρ} Σ_t H_t(w) − Σ_t H_t(w*), measured; may be negative.
        squared_differences: V_T, the sum over rounds of E_{w~ρ} (H_t(w) − H_t(w_t))².
        lam: λ.
        rounds: T.
        classes: how many there are.

    Example:
        >>> expert = Expert(loss=10.0, kl=5.0)
        >>> bound = xnor_regret(expert, 1.0, squared_differences=4.0, lam=1.0, rounds=50, classes=10)
        >>> round(bound.value, 9)
        18.0

    Reference: chee2021xnor.
    """
    check_count("rounds", rounds)
    # A measured rise may be negative, but with the expert's loss it is an expected sum of cross-entropies, and is not.
    if not 0 <= expert.loss + loss_rise < math.inf:
        raise InvalidInput(
            f"expert.loss + loss_rise is a cross-entropy, finite and at least 0: got {expert.loss!r} + {loss_rise!r}"
        )
    return _add_up(
        expert,
        loss_rise,
        _price(expert, squared_differences, lam),
        _uniform_loss(rounds, classes),
        "chee2021xnor, Theorem 3.2",
        "loss_rise is the expectation over the shifted prior that expert.kl speaks of",
    )


def _price(expert: Expert, squared_differences: float, lam: float) -> tuple[float, float]:
    """Return (λ/2) V_T and KL/λ of an expert, after a check of what they are made of."""
    check_number("expert.loss", expert.loss)
    check_number("squared_differences", squared_differences)
    check_number("expert.kl", expert.kl)
    check_positive("lam", lam)
    return price_of_lambda(squared_differences, expert.kl, lam)


def _uniform_loss(rounds: int, classes: int) -> float:
    """Return what a uniform guess loses over all rounds: log K in each."""
    check_count("classes", classes, least=2)
    return rounds * math.log(classes)


def _add_up(
    expert: Expert, rise: float, price: tuple[float, float], guess: float, source: str, assumption: str
) -> Bound:
    """Return the bound that is the sum of an expert's loss, its rise under the shifted prior, and the price of λ."""
    # Everything is rounded up, term by term and in the sum, so that the printed number is a bound and not near one.
    value = sum_rounded_up(expert.loss, rise, *price)
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < guess,  # less than a uniform guess loses
        source=source,
        assumptions=(LEARNER, OBLIVIOUS, EXPECTED, assumption),
        terms={
            "loss of the expert": expert.loss,
            "rise of its loss under the shifted prior": rise,
            "(λ/2) V_T": price[0],
            "KL/λ": price[1],
            "regret": value - expert.loss,
            "loss of a uniform guess": guess,
        },
    )


def price_of_lambda(squared_differences: float, kl: float, lam: float) -> tuple[float, float]:
    """Compute (λ/2) V_T and KL/λ of Theorem 4.1, rounded up, by logarithms: a product may leave float64 on either
    side.
    """
    log_lam = math.log(lam)
    # V_T = 0 and KL = 0 have the logarithm −∞, which `log_of_product` takes for a factor of zero.
    variance = exp_rounded_up(log_of_product(-math.log(2), log_lam, log_rounded_up(squared_differences)))
    return variance, exp_rounded_up(log_of_product(log_rounded_up(kl), -log_lam))


def sum_rounded_up(*parts: float) -> float:
    """Return the sum of a few numbers, rounded up; some may be negative, and what rounding took from the others
    stays.
    """
    # Relative to the sizes and not to the sum: a negative rise may cancel most of the loss, but not what was rounded.
    return sum(parts) + 8 * EPSILON * sum(map(abs, parts))
