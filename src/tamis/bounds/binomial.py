"""Tails of the binomial distribution are computed in log space here, and the rates that they leave possible.

A confidence of 1 − δ·2^−ℓ, as a code of ℓ bits asks for, is far beyond what float64 holds; hence the logarithms. Each
tail comes with a slack that is larger than its rounding error, so that a limit is never on the wrong side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from tamis.errors import InvalidInput

EPSILON = 2.0**-52
MOST_SAMPLES = 10**12  # the sums below have about √n terms, and counts must be exact in float64
SMALLEST_RATE = 1e-290  # below, products of counts and rates leave float64
# log k! − log(√(2πk)·(k/e)^k) where its asymptotic series is not exact yet; k = 0 is never asked for.
STIRLING_TABLE = np.array(
    [0.0]
    + [math.log(math.factorial(k)) - (k + 0.5) * math.log(k) + k - math.log(2 * math.pi) / 2 for k in range(1, 16)]
)
STIRLING_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)


class LogTail(NamedTuple):
    """A log tail is the logarithm of a probability: the true one lies within `value` ± `slack`."""

    value: float
    slack: float


def largest_rate(errors: int, n: int, log_delta: float) -> float:
    """Return the largest p with P[Bin(n, p) ≤ errors] ≥ δ: the upper Clopper–Pearson limit, rounded up; 1 if errors =
    n.

    With probability at least 1 − δ over n independent draws, the true rate is at most this.

    Args:
        errors: how many of the draws.
        n: how many draws, at most 10¹².
        log_delta: ln δ < 0, as small as you like.

    Example:
        >>> largest_rate(0, 100, math.log(0.05))  # 1 − 0.05^(1/100)
        0.02951304960703999

    Reference: clopper1934confidence.
    """
    n, errors = check_counts(n, errors=errors)
    _check_log_delta(log_delta)
    # No rate below 1 is refuted where every draw is an error.
    if errors == n:
        return 1.0

    # Rejected only if the tail is below δ even at the upper end of its own error: rounding can only widen the limit.
    def is_too_large(p: float) -> bool:
        tail = log_lower_tail(errors, n, p)
        return tail.value + tail.slack < log_delta

    return _find_last_proved(is_too_large, proved=1.0, unproved=SMALLEST_RATE)


def smallest_rate(errors: int, n: int, log_delta: float) -> float:
    """Return the smallest p with P[Bin(n, p) ≥ errors] ≥ δ: the lower Clopper–Pearson limit, rounded down; 0 if errors
    = 0.

    Arguments as for `largest_rate`.

    Reference: clopper1934confidence.
    """
    n, errors = check_counts(n, errors=errors)
    _check_log_delta(log_delta)

    def is_too_small(p: float) -> bool:
        tail = log_upper_tail(errors, n, p)
        return tail.value + tail.slack < log_delta

    # Below SMALLEST_RATE nothing can be proved in float64, and 0 is always a valid lower limit.
    if errors == 0 or not is_too_small(SMALLEST_RATE):
        return 0.0
    return _find_last_proved(is_too_small, proved=SMALLEST_RATE, unproved=1.0)


def log_lower_tail(count: int, n: int, p: float) -> LogTail:
    """Compute ln P[Bin(n, p) ≤ count] for 0 < p < 1."""
    if count >= n:
        return LogTail(0.0, 0.0)
    # Only the tail away from the mean is summed: the other one is nearly 1, and its complement keeps the digits.
    if count < n * p:
        return _sum_below_the_mean(count, n, p)
    return _complement(_sum_above_the_mean(count + 1, n, p))


def log_upper_tail(count: int, n: int, p: float) -> LogTail:
    """Compute ln P[Bin(n, p) ≥ count] for 0 < p < 1."""
    if count <= 0:
        return LogTail(0.0, 0.0)
    if count > n * p:
        return _sum_above_the_mean(count, n, p)
    return _complement(_sum_below_the_mean(count - 1, n, p))


def log_pmf(counts: np.ndarray, n: int, p: float) -> np.ndarray:
    """Compute ln P[Bin(n, p) = k] for each count k and 0 < p < 1.

    Written as −n·KL(k/n ‖ p) with Stirling's formula and its remainder, so that nothing of the size of ln n! cancels:
    the error is a small multiple of EPSILON · (1 + |ln P| + |k − np|).
    """
    # ln n! − ln k! − ln (n−k)! would cancel almost all its digits for large n; the divergence does not: near the mean
    # both of its logarithms are of 1 + small, hence log1p.
    size = max(n, 2)  # the ends, where Stirling's formula fails, are powers and filled in below
    k = np.clip(counts, 1, size - 1).astype(float)
    misses, excess = size - k, k - size * p
    divergence = k * np.log1p(excess / (size * p)) + misses * np.log1p(-excess / (size * (1 - p)))
    stirling = _stirling_remainder(np.float64(size)) - _stirling_remainder(k) - _stirling_remainder(misses)
    inner = stirling - divergence - np.log(2 * np.pi * k * (misses / size)) / 2
    return np.where(counts == 0, n * math.log1p(-p), np.where(counts == n, n * math.log(p), inner))


def log_factorial(counts: np.ndarray) -> np.ndarray:
    """Compute ln k! for each count k, with a relative error of a few EPSILON."""
    k = np.maximum(counts, 1).astype(float)
    return (k + 0.5) * np.log(k) - k + math.log(2 * math.pi) / 2 + _stirling_remainder(k)


def likely_counts(n: int, p: float, negligible: float) -> np.ndarray:
    """Return the counts within which Bin(n, p) stays but for a negligible probability (Bernstein's inequality)."""
    # Bernstein: P[|X − np| ≥ t] ≤ 2 exp(−t² / (2np(1−p) + 2t/3)); solved for the t at which this is `negligible`.
    nats = math.log(2 / negligible)
    reach = nats / 3 + math.sqrt(nats * nats / 9 + 2 * nats * n * p * (1 - p))
    return np.arange(max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach)) + 1)


def check_counts(n: int, **counts: int) -> list[int]:
    """Return n and the counts among n samples as plain integers, and refuse by name what is no count."""
    given = ", ".join(f"{name}={value!r}" for name, value in {**counts, "n": n}.items())
    if any(isinstance(value, bool) or not isinstance(value, Integral) for value in (n, *counts.values())):
        raise InvalidInput(f"counts must be whole numbers, got {given}")
    if not 1 <= n <= MOST_SAMPLES:
        raise InvalidInput(f"n, the number of samples, must be from 1 to {MOST_SAMPLES}, got {given}")
    if any(value < 0 for value in counts.values()) or sum(counts.values()) > n:
        raise InvalidInput(f"counts must not be negative, nor more than the n samples together, got {given}")
    return [int(n), *map(int, counts.values())]


def check_probability(name: str, value: float) -> float:
    """Return a number strictly between 0 and 1 as a plain float, and refuse by name what is none."""
    if not is_number(value) or not 0 < value < 1:
        raise InvalidInput(f"{name} must be a number strictly between 0 and 1, got {name}={value!r}")
    return float(value)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite real number that float64 holds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def _check_log_delta(log_delta: float) -> None:
    if not is_number(log_delta) or not log_delta < 0:
        raise InvalidInput(f"log_delta, the logarithm of a δ below 1, must be negative and finite, got {log_delta!r}")


def _sum_below_the_mean(count: int, n: int, p: float) -> LogTail:
    """Compute ln P[Bin(n, p) ≤ count] for count < np."""
    return _sum_outer_tail(count, n, p, *_sum_of_ratios(count, n - count, (1 - p) / p))


def _sum_above_the_mean(count: int, n: int, p: float) -> LogTail:
    """Compute ln P[Bin(n, p) ≥ count] for count > np."""
    return _sum_outer_tail(count, n, p, *_sum_of_ratios(n - count, count, p / (1 - p)))


def _sum_outer_tail(count: int, n: int, p: float, ratios: float, terms: int) -> LogTail:
    # The largest term of the tail times a sum of ratios ≥ 1: no difference is taken, so that a tail of 10^-1000 has as
    # many digits as one of 0.1.
    value = float(log_pmf(np.array(count), n, p)) + math.log(ratios)
    if count in (0, n):  # one power: its error is relative, which matters where the tail is nearly 1
        return LogTail(value, 8 * EPSILON * abs(value))
    return LogTail(value, 8 * EPSILON * (16 + terms + abs(value) + abs(count - n * p)))


def _complement(tail: LogTail) -> LogTail:
    """Compute ln(1 − P), for a P that cannot be near 1, as the mean lies on the other side."""
    # d ln(1 − P) = −P/(1 − P) d ln P: by how much an error of the one tail counts in the other.
    probability = math.exp(tail.value)
    conditioning = probability / (1 - probability)
    return LogTail(math.log1p(-probability), (2 * tail.slack + 4 * EPSILON) * conditioning)


def _sum_of_ratios(hits: int, misses: int, odds: float) -> tuple[float, int]:
    """Compute P[tail] / P[its first count] = Σ_j Π_{i<j} odds·(hits − i)/(misses + 1 + i), and count its terms.

    The ratios are below 1 and decrease, so what is left out after a term is at most term · ratio/(1 − ratio).
    """
    # In blocks that double: a few terms are enough far from the mean, about √n near it, and neither is known
    # beforehand.
    total, term, start, size = 1.0, 1.0, 0, 64
    while start < hits:
        i = np.arange(start, min(hits, start + size), dtype=float)
        ratios = odds * ((hits - i) / (misses + 1 + i))
        with np.errstate(under="ignore"):
            terms = term * np.cumprod(ratios)
        total += float(terms.sum())
        term, ratio, start, size = float(terms[-1]), float(ratios[-1]), start + len(i), min(2 * size, 2**20)
        if term * ratio <= EPSILON / 16 * total * (1 - ratio):
            break
    return total, start


def _stirling_remainder(k: Any) -> Any:
    """Compute ln k! − ln(√(2πk)·(k/e)^k)."""
    inverse_square = 1 / (k * k)
    series = 0.0
    for coefficient in reversed(STIRLING_SERIES):
        series = series * inverse_square + coefficient
    return np.where(k < 16, STIRLING_TABLE[np.minimum(k, 15).astype(int)], series / k)


def _find_last_proved(holds: Callable[[float], bool], proved: float, unproved: float) -> float:
    """Return the float next to where a statement stops being proved, by bisection over the floats' bit patterns.

    The result is proved even if rounding makes `holds` flicker; and whoever asks for less gets no less.
    """
    # Positive floats are ordered as their bit patterns are, so that 62 halvings find the limit to the last digit at any
    # scale; halving the interval itself would need a thousand for rates near 10^-290.
    good, bad = (int(np.float64(x).view(np.int64)) for x in (proved, unproved))
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if holds(float(np.int64(middle).view(np.float64))):
            good = middle
        else:
            bad = middle
    return float(np.int64(good).view(np.float64))
