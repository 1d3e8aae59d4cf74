"""Theorems 3.1 and 3.2 of Chee and Loustau: the regret of an online learner that draws networks from a sparsity prior.

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

from tamis.bounds.arguments import check_count, check_number, check_positive
from tamis.bounds.bound import EPSILON, Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.bounds.regret_penalties import Penalties
from tamis.errors import InvalidInput

LEARNER = "the learner is Algorithm 1: it draws w_t from the prior reweighted by exp(−λ h_{t−1}), at the λ given here"
OBLIVIOUS = "the inputs and labels do not depend on the learner's draws"
EXPECTED = "squared_differences is its expectation over the learner's draws, as the bound is of the expected loss"


def sparse_regret(
    expert_loss: float,
    penalty: Penalties,
    input_norms: Sequence[float],
    squared_differences: float,
    kl: float,
    lam: float,
    classes: int,
) -> Bound:
    """Return a bound of the learner's expected cross-entropy over T rounds, by way of one expert w* (Theorem 3.1,
    corrected):

        E Σ_t H_t(w_t) ≤ Σ_t H_t(w*) + 2 pen₁ Σ_t ‖x_t‖ + 2T pen₂ + (λ/2) V_T + KL/λ.

    The smallest over all experts is a bound as well.

    Args:
        expert_loss: Σ_t H(y_t, g_w*(x_t)).
        penalty: pen₁ and pen₂ of the expert, from `regret_penalties.perturbation_penalties`.
        input_norms: ‖x_t‖ for each round, Euclidean.
        squared_differences: V_T, the sum over rounds of E_{w~ρ} (H_t(w) − H_t(w_t))².
        kl: of `regret_divergence.kl_exact` or `kl_bound` for the expert.
        lam: λ.
        classes: how many there are.

    Example:
        >>> penalty = Penalties(pen1=0.1, pen2=0.2)
        >>> bound = sparse_regret(10.0, penalty, [1.0] * 50, squared_differences=4.0, kl=5.0, lam=1.0, classes=10)
        >>> round(bound.value, 9)
        47.0

    Reference: chee2021xnor.
    """
    rounds = len(input_norms)
    for norm in input_norms:
        check_number("each of input_norms", norm)
    return _assembled(
        expert_loss,
        penalty.rise(input_norms),
        squared_differences,
        kl,
        lam,
        rounds,
        classes,
        "chee2021xnor, Theorem 3.1",
        assumptions=("the expert is a chain of layers with ReLU between them and a softmax after the last",),
    )


def xnor_regret(
    expert_loss: float,
    loss_rise: float,
    squared_differences: float,
    kl: float,
    lam: float,
    rounds: int,
    classes: int,
) -> Bound:
    """Return a bound of the expected cross-entropy of a learner of XNOR networks (Theorem 3.2, corrected):

        E Σ_t H_t(w_t) ≤ Σ_t H_t(w*) + rise + (λ/2) V_T + KL/λ.

    Printed with a residual "of order √T" whose constant is not given. A sign may flip under any perturbation of what it
    is taken of, so that no recursion bounds the rise: it is to be measured, by drawing from the shifted prior.

    Args:
        expert_loss: Σ_t H(y_t, g_w*(x_t)).
        loss_rise: E_{w~ρ} Σ_t H_t(w) − Σ_t H_t(w*), measured; may be negative.
        squared_differences: V_T, the sum over rounds of E_{w~ρ} (H_t(w) − H_t(w_t))².
        kl: of `regret_divergence.kl_xnor` for the expert.
        lam: λ.
        rounds: T.
        classes: how many there are.

    Example:
        >>> bound = xnor_regret(10.0, 1.0, squared_differences=4.0, kl=5.0, lam=1.0, rounds=50, classes=10)
        >>> round(bound.value, 9)
        18.0

    Reference: chee2021xnor.
    """
    check_count("rounds", rounds)
    if not 0 <= expert_loss + loss_rise < math.inf:
        raise InvalidInput(
            f"expert_loss + loss_rise is a cross-entropy, finite and at least 0: got {expert_loss!r} + {loss_rise!r}"
        )
    return _assembled(
        expert_loss,
        loss_rise,
        squared_differences,
        kl,
        lam,
        rounds,
        classes,
        "chee2021xnor, Theorem 3.2",
        assumptions=("loss_rise is the expectation over the shifted prior that kl speaks of",),
    )


def _assembled(
    expert_loss: float,
    rise: float,
    squared_differences: float,
    kl: float,
    lam: float,
    rounds: int,
    classes: int,
    source: str,
    assumptions: tuple[str, ...],
) -> Bound:
    check_number("expert_loss", expert_loss)
    check_number("squared_differences", squared_differences)
    check_number("kl", kl)
    check_positive("lam", lam)
    check_count("classes", classes, least=2)
    variance, complexity = price_of_lambda(squared_differences, kl, lam)
    value = sum_rounded_up(expert_loss, rise, variance, complexity)
    guess = rounds * math.log(classes)
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < guess,  # less than a uniform guess loses
        source=source,
        assumptions=(LEARNER, OBLIVIOUS, EXPECTED, *assumptions),
        terms={
            "loss of the expert": expert_loss,
            "rise of its loss under the shifted prior": rise,
            "(λ/2) V_T": variance,
            "KL/λ": complexity,
            "regret": value - expert_loss,
            "loss of a uniform guess": guess,
        },
    )


def price_of_lambda(squared_differences: float, kl: float, lam: float) -> tuple[float, float]:
    """Compute (λ/2) V_T and KL/λ of Theorem 4.1, rounded up, by logarithms: a product may leave float64 on either
    side.
    """
    log_lam = math.log(lam)
    variance = exp_rounded_up(log_of_product(-math.log(2), log_lam, log_rounded_up(squared_differences)))
    return variance, exp_rounded_up(log_of_product(log_rounded_up(kl), -log_lam))


def sum_rounded_up(*parts: float) -> float:
    """Return the sum of a few numbers, rounded up; some may be negative, and what rounding took from the others
    stays.
    """
    return sum(parts) + 8 * EPSILON * sum(map(abs, parts))
