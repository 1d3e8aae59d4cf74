"""How often an upper limit of P[worse] − P[better] fails: by the whole distribution, and by simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, xlogy

from tamis.bounds import Bound

Limit = Callable[[int, int, int, float], Bound]
RATES = [
    (0.0, 0.0),
    (1e-4, 0.0),
    (0.0, 0.01),
    (0.01, 0.01),
    (0.03, 0.01),
    (0.3, 0.4),
    (0.5, 0.5),
    (1.0, 0.0),
    (0.0, 1.0),
]


def outcomes(n: int) -> np.ndarray:
    """All (worse, better) with worse + better ≤ n."""
    return np.array([(w, b) for w in range(n + 1) for b in range(n + 1 - w)])


def probabilities(n: int, worse: np.ndarray, better: np.ndarray) -> np.ndarray:
    """The trinomial distribution: one row for each pair of rates, one column for each outcome."""
    w, b = outcomes(n).T
    neither = np.maximum(1 - worse - better, 0)
    counts = gammaln(n + 1) - gammaln(w + 1) - gammaln(b + 1) - gammaln(n - w - b + 1)
    parts = ((w, worse), (b, better), (n - w - b, neither))
    return np.exp(counts + sum(xlogy(count, rate[:, None]) for count, rate in parts))


def worst_failure(limit: Limit, n: int, delta: float, discordant: int = 61) -> float:
    """The largest probability of failing, over a grid of true rates.

    It jumps up where the true difference passes a limit; so just above each limit there is one, and between them the
    rate of discordant inputs is on a grid.
    """
    limits = np.array([limit(int(w), int(b), n, delta).value for w, b in outcomes(n)])
    worst = 0.0
    for theta in np.unique(np.concatenate([np.nextafter(limits, 2), np.linspace(-1, 1, 41)])):
        if abs(theta) <= 1:
            rates = np.linspace(abs(theta), 1, discordant)
            chances = probabilities(n, (rates + theta) / 2, (rates - theta) / 2)
            assert np.allclose(chances.sum(1), 1)
            worst = max(worst, float((chances * (limits < theta)).sum(1).max()))
    return worst


def failures(limit: Limit, worse: float, better: float, n: int, delta: float, draws: int) -> float:
    """How often the bound is below the true difference."""
    counts = np.random.default_rng(0).multinomial(n, [worse, better, 1 - worse - better], draws)[:, :2]
    low = counts[counts @ [1, -1] < n * (worse - better)]  # the others cannot fail: the bound is above the observed
    distinct, times = np.unique(low, axis=0, return_counts=True)
    failed = [limit(int(w), int(b), n, delta).value < worse - better for w, b in distinct]
    return float(times @ np.array(failed, dtype=int)) / draws
