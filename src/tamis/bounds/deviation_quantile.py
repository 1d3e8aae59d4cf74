"""Two networks' outputs are no farther apart than a quantile on most inputs, whatever the distances' distribution."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tamis.bounds.binomial import check_counts, check_probability, log_upper_tail
from tamis.bounds.bound import Bound, log_rounded_up
from tamis.bounds.confidence_sequence import SOURCE as BY_BETTING
from tamis.bounds.confidence_sequence import STREAM, rank_at_any_time
from tamis.bounds.held_out import HELD_OUT
from tamis.errors import InvalidInput


def deviation_quantile(
    distances: Tensor | np.ndarray, coverage: float, delta: float, sequential: bool = False
) -> Bound:
    """With confidence 1 − δ, at least the fraction `coverage` of all inputs have a distance of at most `value`.

    value is the k-th smallest distance for the smallest k with P[Bin(n, coverage) ≥ k] ≤ δ (Wilks). Ties and discrete
    distributions only make it safer. If coverage^n > δ there is no such k: the samples are too few, `value` is
    infinite, and ln δ / ln coverage of them would do.

    Args:
        distances: one for each input, in any order; infinite ones are allowed.
        coverage: the fraction of inputs, strictly between 0 and 1.
        delta: the probability with which the statement may fail.
        sequential: whether it shall hold at every n at which it is computed, by `rank_at_any_time`.

    Example:
        >>> deviation_quantile(np.arange(1.0, 101.0), coverage=0.9, delta=0.05).value
        96.0

    Reference: wilks1941tolerance.
    """
    values = _check_distances(distances)
    n = len(values)
    rank = deviation_rank(n, coverage, delta, sequential)
    # One order statistic is all that is needed, which is cheaper than sorting millions of distances.
    distance = float(np.partition(values, rank - 1)[rank - 1]) if rank <= n else math.inf
    return deviation_at_rank(distance, n, coverage, delta, sequential)


def deviation_at_rank(distance: float, n: int, coverage: float, delta: float, sequential: bool = False) -> Bound:
    """State what `deviation_quantile` gives where the distance of rank `deviation_rank` is known.

    Args:
        distance: the distance of that rank among n; of no account where they are too few.
        n, coverage, delta, sequential: as there.

    Reference: wilks1941tolerance.
    """
    rank = deviation_rank(n, coverage, delta, sequential)
    value = float(distance) if rank <= n else math.inf
    if not value >= 0:
        raise InvalidInput(f"distance must not be negative or NaN, got {distance}")
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=math.isfinite(value),
        source=BY_BETTING if sequential else "wilks1941tolerance, one-sided tolerance limit",
        assumptions=(*HELD_OUT, STREAM) if sequential else HELD_OUT,
        checked=("no distance is negative or not a number",),
        terms={"coverage": coverage, "delta": delta, "n": n, "rank": rank},
    )


def deviation_rank(n: int, coverage: float, delta: float, sequential: bool = False) -> int:
    """Return which of n sorted distances bounds `coverage` of all, with confidence 1 − δ; n + 1 if none does."""
    if sequential:
        return rank_at_any_time(n, coverage, delta)
    (n,) = check_counts(n)
    return _find_rank(n, check_probability("coverage", coverage), math.log(check_probability("delta", delta)))


def _find_rank(n: int, coverage: float, log_delta: float) -> int:
    """Return the smallest k with P[Bin(n, coverage) ≥ k] proved to be at most δ; n + 1 if there is none up to n."""

    def enough(k: int) -> bool:
        tail = log_upper_tail(k, n, coverage)
        # Counted only if the tail is at most δ even at the upper end of its own error: rounding can only raise the
        # rank.
        return tail.value + tail.slack <= log_delta

    # The tail falls with k, so bisection finds where it first is proved. Invariant: `high` is proved, or is n + 1,
    # which says that no rank is; `too_low` is not.
    too_low, high = 0, n + 1
    while high - too_low > 1:
        middle = (too_low + high) // 2
        if enough(middle):
            high = middle
        else:
            too_low = middle
    return high


def _check_distances(distances: Tensor | np.ndarray) -> np.ndarray:
    """Return the distances in float64, rounded up, after refusing what are not distances."""
    if isinstance(distances, Tensor) and not distances.is_complex() and distances.dtype != torch.bool:
        kept = distances.detach().cpu()
        values = _round_up_to_float64(kept.double().numpy() if kept.is_floating_point() else kept.numpy())
    elif isinstance(distances, np.ndarray) and distances.dtype.kind in "fiu":
        values = _round_up_to_float64(distances)
    else:
        kind = getattr(distances, "dtype", type(distances).__name__)
        raise InvalidInput(f"distances must be a tensor or a numpy array of real numbers, got {kind}")
    if values.ndim != 1:
        raise InvalidInput(f"distances must be one number for each input, got the shape {tuple(values.shape)}")
    check_counts(len(values))
    # Written with a negation, so that NaN, for which every comparison is false, is refused as well.
    refused = np.flatnonzero(~(values >= 0))
    if len(refused):
        first = int(refused[0])
        raise InvalidInput(
            f"distances must not be negative or NaN, but {len(refused)} of {len(values)} are: "
            f"the first is {values[first]} at position {first}"
        )
    return values


def _round_up_to_float64(values: np.ndarray) -> np.ndarray:
    """Convert to float64; what it does not hold, such as integers beyond 2⁵³, becomes the next number above."""
    nearest = values.astype(np.float64)
    if values.dtype.kind == "f" and values.dtype.itemsize <= 8:
        return nearest
    # An integer cannot be compared with a float without rounding it again, so all beyond 2⁵³ are raised; longer floats
    # can, and only those that were rounded down are.
    lost = np.abs(nearest) >= 2.0**53 if values.dtype.kind in "iu" else nearest < values
    return np.where(lost, np.nextafter(nearest, np.inf), nearest)
