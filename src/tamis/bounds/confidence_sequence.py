"""Confidence sequences by betting give limits that hold at every number of samples at once, however often one looks.

Whoever says that a rate is p, and is right, cannot lose much to a gambler at fair odds: the gambler's capital, 1 at
first and never negative, is a martingale, so that with probability at least 1 − δ it never reaches 1/δ (Ville). A limit
is therefore the largest rate at which the capital is still below 1/δ; it may be computed after each sample, and one may
stop whenever one likes.

The capital is a mixture of bets that were fixed in advance, and so depends on counts alone, not on their order: who
knows the counts can compute the limit again. docs/bounds.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tamis.bounds.binomial import EPSILON, check_counts, check_probability
from tamis.bounds.bound import Bound, log_rounded_up
from tamis.bounds.held_out import HELD_OUT

SOURCE = "waudbysmith2024betting, capital of a mixture of constant bets"
STREAM = "every look was at all samples that had come by then, and with the same settings"

# How many standard deviations below p a bet expects the rate to be, once there are as many samples as it is made for.
# √(2 ln 1/δ) is best: 2.4 for δ = 0.05, 3 for 0.01. It must not depend on δ, or a larger δ could give a larger limit.
DEVIATIONS = 3.0

# Bets on a rate are made for 10,000 samples and for 4^j times as many, from 2 to 10¹². The share of a bet says how much
# of the capital it has at first: 80% where most test sets are, and the less the further from there.
_STEPS = np.arange(-6, 14)
_FADE = np.where(_STEPS == 0, 0.0, (1.0 + abs(_STEPS)) ** -2)
_SHARES_OF_RATE = np.where(_STEPS == 0, 0.8, 0.2 * _FADE / _FADE.sum())
_ANGLES = DEVIATIONS / 2 / np.sqrt(10_000 * 4.0**_STEPS)
_SINES, _VERSINES = np.sin(_ANGLES), 2 * np.sin(_ANGLES / 2) ** 2

# Bets on a difference are made for 4, 16, 64, … samples on which the two networks differ; nobody knows how many of all
# these are, so the first five, up to 1,024, have equal shares.
_DOUBLINGS = np.arange(1, 21)
_STAKES = np.minimum(1.0, DEVIATIONS / 2.0**_DOUBLINGS)
_FADE_AFTER = np.maximum(_DOUBLINGS - 4.0, 1.0) ** -2
_SHARES_OF_DIFFERENCE = _FADE_AFTER / _FADE_AFTER.sum()

SLACK = 32 * EPSILON  # relative, of each term: several times what its rounding can add up to
NEARLY_ALL = 1 - 1e-9  # a bet that loses more of its capital than this at an event counts as lost there


def rate_at_any_time(name: str, count: int, n: int, delta: float) -> Bound:
    """With confidence 1 − δ, a rate is at most `value` at every n at which this is computed.

    value = max {p : Σ_j w_j (q_j/p)^count ((1 − q_j)/(1 − p))^(n − count) < 1/δ}, where the bet q_j(p) is three
    standard deviations below p for n_j samples: q_j = sin²(arcsin √p − 1.5/√n_j).

    Args:
        name: of the count, for `terms` and messages.
        count: how often it happened so far.
        n: of how many samples so far.
        delta: the probability with which the statement may fail, for one n or more.

    Example:
        >>> round(rate_at_any_time("different", 50, 10_000, delta=0.05).value, 4)  # 0.0063 at one n fixed in advance
        0.007

    Reference: waudbysmith2024betting.
    """
    n, count = check_counts(n, **{name: count})
    delta = check_probability("delta", delta)
    value = _find_least_proved(lambda p: _log_capital_at_rate(count, n, p), count / n, delta) if count < n else 1.0
    return _bound(value, {name: count, "n": n, "delta": delta, "observed": count / n})


def difference_at_any_time(worse: int, better: int, n: int, delta: float) -> Bound:
    """With confidence 1 − δ, P[worse] − P[better] ≤ value at every n at which this is computed.

    value = max {θ : Σ_i w_i (1 − κ_i)^worse (1 + κ_i)^better / (1 − κ_i θ)^n < 1/δ}. A sample multiplies the capital of
    the bet κ by (1 − κ·d)/(1 − κθ) with d = 1, −1 or 0. Its expectation is 1 whenever d has the mean θ: how often the
    two networks differ, the nuisance of every other test, does not matter.

    Args:
        worse: samples so far that the original network gets right and the small one wrong.
        better: samples so far that the original network gets wrong and the small one right.
        n: all samples so far.
        delta: the probability with which the statement may fail, for one n or more.

    Example:
        >>> round(difference_at_any_time(worse=30, better=20, n=10_000, delta=0.05).value, 4)
        0.0032

    Reference: waudbysmith2024betting.
    """
    n, worse, better = check_counts(n, worse=worse, better=better)
    delta = check_probability("delta", delta)
    observed = (worse - better) / n
    value = _find_least_proved(lambda theta: _log_capital_at_difference(worse, better, n, theta), observed, delta)
    return _bound(value, {"worse": worse, "better": better, "n": n, "delta": delta, "observed": observed})


def rank_at_any_time(n: int, coverage: float, delta: float) -> int:
    """Return which of the n distances so far, sorted, bounds `coverage` of all, at every n at once; n + 1 if none does.

    Samples at or above the quantile come at a rate of at least 1 − coverage. The rank is n − m for the largest m for
    which no more than m of them among n refute that rate: the capital has reached 1/δ.

    Reference: waudbysmith2024betting.
    """
    (n,) = check_counts(n)
    enough = _log_needed(check_probability("delta", delta))
    # Where the subtraction rounds, it must not round up: the rate is at least 1 − coverage.
    above = math.nextafter(1 - check_probability("coverage", coverage), 0)
    proved, unproved = -1, n  # the capital falls with the number of events
    while unproved - proved > 1:
        middle = (proved + unproved) // 2
        if _log_capital_at_rate(middle, n, above) >= enough:
            proved = middle
        else:
            unproved = middle
    return n - proved


def _bound(value: float, terms: dict[str, float]) -> Bound:
    return Bound(
        value=value,
        log_value=log_rounded_up(max(value, 0.0)),
        informative=value < 1,
        source=SOURCE,
        assumptions=(*HELD_OUT, STREAM),
        terms=terms,
    )


def _log_capital_at_rate(count: int, n: int, p: float) -> float:
    """Compute ln Σ_j w_j (q_j/p)^count ((1 − q_j)/(1 − p))^(n − count) for 0 < p < 1, rounded down.

    With p = sin²φ and q = sin²(φ − a), √(q/p) = cos a − sin a/tan φ and √((1 − q)/(1 − p)) = cos a + sin a·tan φ.
    Written as 1 − loss and 1 + gain, they keep their digits where a is small. For a ≥ φ the bet is on no event at all.
    """
    # Everything below is rounded against the gambler: a capital that looks smaller refutes fewer rates.
    tangent = math.sqrt(p / (1 - p))
    loss, gain = _SINES / tangent + _VERSINES, _SINES * tangent - _VERSINES
    some = loss < NEARLY_ALL
    loss = np.where(some, loss, 0.0)
    of_others = (n - count) * np.where(some, 2 * np.log1p(np.where(some, gain, 0.0)), -math.log1p(-p))
    logs = 2 * count * np.log1p(-loss) + of_others
    logs -= SLACK * (count * loss / (1 - loss) + of_others)
    return _log_mixture(_SHARES_OF_RATE, np.where(some | (count == 0), logs, -math.inf))


def _log_capital_at_difference(worse: int, better: int, n: int, theta: float) -> float:
    """Compute ln Σ_i w_i (1 − κ_i)^worse (1 + κ_i)^better / (1 − κ_i θ)^n for −1 ≤ θ < 1, rounded down."""
    # log1p(−1) is −∞, and −∞ · 0 is no number: a bet of everything is treated apart.
    lost = _STAKES == 1  # all of it, at the first worse sample
    of_worse = worse * np.log1p(-np.where(lost, 0.0, _STAKES))
    of_better = better * np.log1p(_STAKES)
    expected = _STAKES * theta
    logs = of_worse + of_better - n * np.log1p(-expected)
    logs -= SLACK * (of_better - of_worse + n * abs(expected) / (1 - expected))
    return _log_mixture(_SHARES_OF_DIFFERENCE, np.where(lost & (worse > 0), -math.inf, logs))


def _log_mixture(shares: np.ndarray, logs: np.ndarray) -> float:
    """Compute ln Σ share·exp(log), rounded down."""
    # The largest bet is taken out first: capitals run from e^-10^6 to e^10^6 on a long stream.
    largest = float(logs.max())
    if largest == -math.inf:
        return largest
    with np.errstate(under="ignore"):
        return largest + math.log(float(shares @ np.exp(logs - largest))) - SLACK * (1 + abs(largest))


def _log_needed(delta: float) -> float:
    """Compute ln 1/δ, rounded up."""
    return -math.log(delta) * (1 + SLACK)


def _find_least_proved(log_capital: Callable[[float], float], observed: float, delta: float) -> float:
    """Return the least float at which the capital is proved to have reached 1/δ, or 1.

    Above the observed value, where the capital is at most 1, it grows: all beyond the result is refuted as well.
    """
    enough = _log_needed(delta)
    unproved, proved = observed, 1.0
    while unproved < (middle := (unproved + proved) / 2) < proved:
        if log_capital(middle) >= enough:
            proved = middle
        else:
            unproved = middle
    return proved
