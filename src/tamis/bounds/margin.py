"""A Rademacher complexity bounds the error rate, through margins (thesis, Theorem 4.1.2 and (4.14))."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tamis.bounds.arguments import check_count, check_delta, check_positive
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_rounded_up, round_up
from tamis.bounds.rademacher_arguments import BALL, UP_TO_CONSTANTS
from tamis.errors import InvalidInput

LOST = 2.0**-50  # more than a quotient, a difference and their mean lose of a loss between 0 and 1
LOG_FACTOR = math.log(4 * math.sqrt(2))  # 2√2 times the Lipschitz constant 2/γ of the γ-margin-loss, without γ
GAMMA_FIXED = "gamma was fixed before the samples were seen"
SIGMA_FIXED = "sigma was fixed before the samples were seen"


def margin_bound(
    rademacher: Bound, margins: Tensor | Sequence[float], n: int, delta: float, gamma: float | None = None
) -> Bound:
    """Bound the error rate by the mean γ-margin-loss + 4√2 R/(nγ) + 3 √(ln(2/δ)/(2n)), with probability 1 − δ (4.14).

    The γ-margin-loss of a margin M is 1 below 0, 0 above γ, and 1 − M/γ between.

    Printed: "for every γ > 0". A γ chosen on the samples has to be paid for: without `gamma`, J values are tried, those
    at which the middle term is 1/2, 1/4, … down to 1/√n, and each of them gets δ/J. Since these γ are proportional
    to the path-norm, the same price covers a path-norm that was read off the trained network (docs/bounds.md).

    Args:
        rademacher: a bound of the un-normalised complexity R of the class, proportional to its path-norm.
        margins: for each training sample, the logit of its class minus the largest other one.
        n: the number of training samples.
        delta: the probability with which the bound may fail, 0 < δ < 1.
        gamma: a margin that was fixed beforehand; None to choose one from the grid.

    Returns:
        The bound, informative below 1. `terms`: the margin-loss, the two other terms, log γ and the size of the grid.

    Example:
        >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 3.0]]).repeat(500, 1), torch.tensor([0, 1]).repeat(500)
        >>> own = logits.gather(1, labels[:, None])[:, 0]
        >>> rest = logits.scatter(1, labels[:, None], -math.inf).amax(1)
        >>> ball = Bound(10.0, math.log(10.0), True, "gonon2024thesis, Theorem 4.4.1")  # R ≤ 10, by peeling
        >>> round(margin_bound(ball, own - rest, n=len(labels), delta=0.05, gamma=1.0).value, 3)
        0.185

    Reference: gonon2024thesis.
    """
    values = _check_margins(margins, n, delta, gamma)
    log_scale = log_of_product(rademacher.log_value, LOG_FACTOR, -math.log(n))  # the middle term is exp(log_scale) / γ
    if gamma is not None:
        log_gammas = [math.log(gamma)]
    else:
        # exp(log_scale)/γ is 2^−j for these γ: the middle term runs through 1/2, 1/4, … whatever the complexity is.
        log_gammas = [log_scale + j * math.log(2) for j in range(1, grid_size(n) + 1)]
    confidence = round_up(3 * math.sqrt((math.log(2 * len(log_gammas)) - math.log(delta)) / (2 * n)), 16)
    losses = [margin_loss(values, log_gamma) for log_gamma in log_gammas]
    middles = [exp_rounded_up(log_of_product(log_scale, -log_gamma)) for log_gamma in log_gammas]
    # The confidence term is the same for all γ of the grid: δ/J each, whichever is chosen in the end.
    best = min(range(len(log_gammas)), key=lambda j: losses[j] + middles[j])
    value = round_up(losses[best] + middles[best] + confidence)
    # The grid is proportional to the path-norm, so that the norm need not be fixed beforehand: only σ must be.
    kept = [each for each in rademacher.assumptions if each != BALL or gamma is not None]
    assumptions = (*kept, SIGMA_FIXED if gamma is None else GAMMA_FIXED)
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < 1 and UP_TO_CONSTANTS not in rademacher.assumptions,
        source="gonon2024thesis, Theorem 4.1.2",
        assumptions=assumptions,
        checked=(*rademacher.checked, "there is a margin for each of the n samples"),
        terms={
            "margin_loss": losses[best],
            "complexity": middles[best],
            "confidence": confidence,
            "log_gamma": log_gammas[best],
            "grid": float(len(log_gammas)),
            "n": float(n),
            "delta": delta,
        },
    )


def grid_size(n: int) -> int:
    """Return how many values of γ are tried for n samples: until 2^−J ≤ 1/√n, below which the last term is larger
    anyway.
    """
    return max(1, math.ceil(math.log2(n) / 2))


def margin_loss(margins: Tensor, log_gamma: float) -> float:
    """Return the mean of the γ-margin-loss (4.13), rounded up: it grows with γ, and γ is rounded up."""
    gamma = exp_rounded_up(log_gamma)
    if gamma == 0:
        return float((margins <= 0).double().mean())
    # A larger γ never makes the loss of a margin smaller, so that a γ rounded up is on the safe side.
    losses = (1 - margins / gamma).nan_to_num(1.0).clamp(0, 1)  # no number where both are infinite
    return min(1.0, math.fsum(losses.tolist()) / len(losses) + LOST)


def _check_margins(margins: Tensor | Sequence[float], n: int, delta: float, gamma: float | None) -> Tensor:
    check_count("n", n)
    check_delta(delta)
    if gamma is not None:
        check_positive("gamma", gamma)
    values = torch.as_tensor(margins, dtype=torch.float64).detach().cpu()
    if values.shape != (n,):
        raise InvalidInput(f"margin_bound needs one margin for each of {n} samples, got shape {tuple(values.shape)}")
    if bool(values.isnan().any()):
        raise InvalidInput(f"margin_bound got {int(values.isnan().sum())} margins that are not numbers")
    return values
