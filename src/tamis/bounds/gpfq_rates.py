"""Theorems 2 and 3 and Lemma 15 of Lybrand and Saab say how the error of GPFQ falls, up to constants nobody knows.

What is proved: a first layer, data that are independent Gaussians, and the three levels {−1, 0, 1}; nothing of later
layers, other data or other levels (ERRATA 12). All three rest on Theorem 13, which speaks of iteration (2), in which
the quantized layer sees the same data as the original (printed: iteration (3); see ERRATA 12). The constants depend on
ε, the least distance of a weight from the levels, and are not given: these are rates, and no error is certified by one.

Reference: lybrand2021gpfq.
"""

from __future__ import annotations

import math

from tamis.bounds.arguments import check_count, check_number, check_positive
from tamis.bounds.rate import Rate
from tamis.errors import AssumptionViolated

GAUSSIAN = "the columns of the data X are independent N(0, σ² I)"
FIRST_LAYER = "the layer is the first, its levels are {−1, 0, 1}, and GPFQ saw the same data as the original"
INDEPENDENT_WEIGHTS = "the weights lie in [−1, 1], keep a distance ε from −1, 0 and 1, and are independent of the data"


def gpfq_relative_error(m: int, width: int, weight_norm: float) -> Rate:
    """Return the rate of the relative error on the data that GPFQ saw (Theorem 2):

        ‖Xw − Xq‖₂ / ‖Xw‖₂ ≲ √m log(N₀) / ‖w‖₂      with probability 1 − C exp(−c m log N₀).

    For generic weights ‖w‖₂ is of the order of √N₀.

    Args:
        m: how many samples, the rows of X.
        width: N₀, how many weights the neuron has.
        weight_norm: ‖w‖₂.

    Example:
        >>> few, many = (gpfq_relative_error(m=32, width=n, weight_norm=(n / 3) ** 0.5).value for n in (256, 4096))
        >>> round(many / few, 3)
        0.375

    Reference: lybrand2021gpfq.
    """
    _check_sizes(m, width)
    check_positive("weight_norm", weight_norm)
    # The theorem's condition is on each weight; of the norm alone, this much can be checked. The norm may be rounded.
    if weight_norm > math.sqrt(width) * (1 + 1e-9):
        raise AssumptionViolated(
            f"the weights must lie in [−1, 1], and so ‖w‖₂ ≤ √N₀ = {math.sqrt(width):g}: got weight_norm = "
            f"{weight_norm:g} for {width} weights"
        )
    return Rate(
        value=math.sqrt(m) * math.log(width) / weight_norm,
        expression="√m log(N₀) / ‖w‖₂",
        source="lybrand2021gpfq, Theorem 2",
        assumptions=(GAUSSIAN, FIRST_LAYER, INDEPENDENT_WEIGHTS),
        checked=("‖w‖₂ ≤ √N₀",),
        terms={"√m": math.sqrt(m), "log(N₀)": math.log(width), "‖w‖₂": weight_norm},
    )


def gpfq_new_data(m: int, width: int, spread: float) -> Rate:
    """Return the rate of the error on a new point from the span of the data that GPFQ saw (Theorem 3):

        |zᵀ(w − q)| ≲ σ_z m² log(N₀) / (√N₀ − √m),      z = Vg, g ~ N(0, σ_z² I), X = UΣVᵀ.

    The spread σ of the data that GPFQ saw cancels in the expression that is printed.

    Args:
        m: how many samples, the rows of X; by Remark 5, the dimension d of their subspace where it is lower.
        width: N₀, how many weights the neuron has; more than m.
        spread: σ_z.

    Example:
        >>> gpfq_new_data(m=32, width=4096, spread=1.0).value > gpfq_new_data(m=32, width=65536, spread=1.0).value
        True

    Reference: lybrand2021gpfq.
    """
    _check_sizes(m, width)
    check_number("spread", spread)
    if width <= m:
        raise AssumptionViolated(f"Theorem 3 needs many more weights than samples, N₀ ≫ m: got N₀ = {width}, m = {m}")
    # By (9) ‖Xᵀη‖ is at least about σ(√N₀ − √m) for unit η, and the error is divided by it.
    gap = math.sqrt(width) - math.sqrt(m)
    return Rate(
        value=spread * m**2 * math.log(width) / gap,
        expression="σ_z m² log(N₀) / (√N₀ − √m)",
        source="lybrand2021gpfq, Theorem 3",
        assumptions=(GAUSSIAN, FIRST_LAYER, INDEPENDENT_WEIGHTS, "N₀ ≫ m", "z = Vg, g ~ N(0, σ_z² I), independent"),
        checked=("N₀ > m",),
        terms={"σ_z": spread, "m²": float(m**2), "log(N₀)": math.log(width), "√N₀ − √m": gap},
    )


def gpfq_in_subspace(d: int, width: int, sigma: float) -> Rate:
    """Return the rate of the error where the data lie in a subspace of d dimensions (Lemma 15):

        ‖Xw − Xq‖₂ ≲ σ d log(N₀)      with probability 1 − C exp(−c d log N₀) − 3 exp(−c' d).

    Args:
        d: the dimension of the subspace that the columns of X = ZA lie in.
        width: N₀, how many weights the neuron has.
        sigma: σ, the standard deviation of the entries of A.

    Example:
        >>> gpfq_in_subspace(d=8, width=1000, sigma=1.0).value / gpfq_in_subspace(d=4, width=1000, sigma=1.0).value
        2.0

    Reference: lybrand2021gpfq.
    """
    _check_sizes(d, width)
    check_number("sigma", sigma)
    return Rate(
        value=sigma * d * math.log(width),
        expression="σ d log(N₀)",
        source="lybrand2021gpfq, Lemma 15",
        assumptions=("X = ZA, ZᵀZ = I, A has independent N(0, σ²) entries", FIRST_LAYER, INDEPENDENT_WEIGHTS),
        terms={"σ": sigma, "d": float(d), "log(N₀)": math.log(width)},
    )


def _check_sizes(m: int, width: int) -> None:
    check_count("the number of samples or dimensions", m)
    check_count("width", width, least=2)
