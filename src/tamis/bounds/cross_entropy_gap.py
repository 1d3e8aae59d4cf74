"""A Rademacher complexity bounds the generalization gap of the cross-entropy (thesis, Theorem 4.1.1)."""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_count
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product
from tamis.bounds.rademacher_arguments import UP_TO_CONSTANTS
from tamis.errors import AssumptionViolated, InvalidInput

LIPSCHITZ = math.sqrt(2)  # of the cross-entropy, in the ℓ²-norm of the logits (Example 4.1.1)


def cross_entropy_gap(rademacher: Bound, n: int) -> Bound:
    """Bound E_S [expected risk − training error] by (2√2 L / n) R, (4.10), for the cross-entropy, where L = √2.

    Args:
        rademacher: a bound of the un-normalised complexity R of the class that training chooses from.
        n: the number of training samples.

    Returns:
        The bound, informative where it is below ln(d_out), the cross-entropy of a uniform guess: above it, the training
        error does not even tell the network from one. It holds in expectation over training sets.

    Example:
        >>> from tamis.bounds import rademacher_peeling
        >>> from tamis.bounds.rademacher_arguments import sigma_of_box
        >>> from tamis.bounds.shape import read_shape
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 2))
        >>> shape, n = read_shape(net), 50_000
        >>> ball = rademacher_peeling(shape, log_path_norm=tamis.path_norm(net, log=True), sigma=sigma_of_box(n, 2.6))
        >>> round(cross_entropy_gap(ball, n).value, 3)
        0.216

    Reference: gonon2024thesis.
    """
    check_count("n", n)
    classes = rademacher.terms.get("d_out")
    if classes is None:
        raise InvalidInput(f"cross_entropy_gap needs the number of outputs 'd_out' in the terms of {rademacher.source}")
    if classes < 2:
        raise AssumptionViolated(f"cross_entropy_gap needs two classes at least, the network has {classes:g} output")
    # 2√2 is of vector contraction and symmetrization. R is a sum over samples here, hence the division by n (ERRATA
    # 13).
    log_value = log_of_product(rademacher.log_value, math.log(2 * math.sqrt(2) * LIPSCHITZ), -math.log(n))
    trivial = math.log(classes)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=exp_rounded_up(log_value) < trivial and UP_TO_CONSTANTS not in rademacher.assumptions,
        source="gonon2024thesis, Theorem 4.1.1",
        assumptions=(*rademacher.assumptions, "a sample has one class, and the outputs are its logits"),
        checked=rademacher.checked,
        terms={
            "log_rademacher": rademacher.log_value,
            "lipschitz": LIPSCHITZ,
            "n": float(n),
            "trivial": trivial,
        },
    )
