"""The score statistic of a difference of paired rates orders the outcomes of a comparison (Tango 1998).

Of n inputs, w are worse and b are better, and θ = P[worse] − P[better]. The statistic says by how many standard
deviations w − b is above n·θ, the deviation taken at the rates that are likeliest among those with this difference:

    T_θ(w, b) = (w − b − nθ) / √(n(2q + θ(1 − θ))),      q the likeliest P[better], the larger root of
    2n·q² + (−w − b + (2n − w + b)·θ)·q − b·θ(1 − θ) = 0.

Wherever T_θ(w, b) is negative, it increases with w and decreases with b and with θ (docs/bounds.md proves it).

Reference: tango1998paired.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TIE = 1e-9  # relative: more than rounding changes the statistic by
STEPS = 64  # of bisection


def score(worse: Any, better: Any, n: int, theta: float) -> Any:
    """Compute T_θ(worse, better), elementwise, for −1 < θ < 1.

    Example:
        >>> round(float(score(10, 5, 360, theta=0.044)), 3)
        -2.326

    Reference: tango1998paired.
    """
    linear = (2 * n - worse + better) * theta - (worse + better)
    constant = better * (theta * (1 - theta))  # the root is real: below 0 it would exceed what `linear` leaves
    root = np.sqrt(np.maximum(linear * linear + 8 * n * constant, 0.0))
    # Of the two ways to write the root of a quadratic, the one in which nothing cancels.
    likeliest = np.where(linear > 0, 2 * constant / np.maximum(linear + root, 1e-300), (root - linear) / (4 * n))
    variance = np.maximum(n * (2 * likeliest + theta * (1 - theta)), 1e-300)
    return (worse - better - n * theta) / np.sqrt(variance)


def score_limit(worse: int, better: int, n: int, deviations: float) -> float:
    """Return the θ at which the statistic falls to −deviations: an upper limit of θ for a normal distribution; 1 if
    none.
    """
    # At the observed difference the statistic is 0, and it falls from there on: the root is bracketed by 1.
    above, limit = (worse - better) / n, 1.0
    for _ in range(STEPS):
        middle = (above + limit) / 2
        if not above < middle < limit:
            break
        if score(float(worse), float(better), n, middle) <= -deviations:
            limit = middle
        else:
            above = middle
    return limit


def most_worse_of(better: np.ndarray, n: int, theta: float, deviations: float) -> np.ndarray:
    """Find, for each number of better inputs, the most worse ones with T_θ ≤ −deviations; −1 where there are none.

    What is a tie but for rounding is within.
    """
    # Bisection for all columns at once. T_θ increases with w wherever it is negative, and only such values are sought.
    counts = better.astype(float)
    within, beyond = np.full(len(counts), -1.0), n - counts + 1
    while (beyond - within > 1).any():
        middle = np.floor((within + beyond) / 2)
        low = score(middle, counts, n, theta) <= -deviations * (1 - TIE)
        open_ = beyond - within > 1
        within = np.where(open_ & low, middle, within)
        beyond = np.where(open_ & ~low, middle, beyond)
    # More better ones never leave fewer worse ones; a rounding that says otherwise is put right upwards.
    return np.maximum.accumulate(within).astype(int)
