"""A staircase gives the probability, rounded up, that the counts of two kinds of inputs lie below it."""

from __future__ import annotations

import math

import numpy as np

from tamis.bounds.binomial import EPSILON, SMALLEST_RATE, log_factorial

GRID = 2.0**50  # rates are multiples of 1/GRID, so that what is left of 1 is exact
AT_ONCE = 2**18  # terms


class Staircase:
    """A staircase is all (W, B) with W ≤ heights[B − first], where W and B count two kinds of n independent inputs.

    Given B = b, W is binomial of n − b inputs. Its distribution function at the height is not summed anew for each b:
    from b to b + 1 it grows by what one input less and a higher step add to it,

        P[Bin(N, r) ≤ h] = P[Bin(N + 1, r) ≤ h] + r·P[Bin(N, r) = h],

    so that the whole takes one term for each step of the stairs. All terms are positive, and nothing cancels.

    Args:
        n: how many inputs.
        first: the smallest number B with a height.
        heights: of first, first + 1, …; they never decrease, and −1 says that there is no such W.
        lowest: the smallest W that is counted for B = first.
        negligible: a probability that no count beside these has more of, for any rates that are asked for.

    Example:
        >>> stairs = Staircase(2, first=0, heights=np.array([0, 1, 1]))  # all but (1, 0) and (2, 0)
        >>> round(float(stairs.probability(np.array([0.25]), np.array([0.25]))[0]), 9)
        0.6875
    """

    def __init__(
        self, n: int, first: int, heights: np.ndarray, lowest: int = 0, negligible: float = SMALLEST_RATE
    ) -> None:
        self._n, self._negligible = n, negligible
        self._columns = np.arange(first, first + len(heights))
        # The walk goes along the border of the stairs, up within a column and right into the next one, and adds what
        # each step puts below the border: one term a step, where summing each column anew would take a whole row of
        # terms.
        before = np.concatenate([[min(lowest - 1, heights[0])], heights[:-1]])
        rises = heights - before
        # Steps up within a column, then steps to the right into one: how many of the inputs left for W are hit.
        up = np.repeat(before + 1 - np.cumsum(rises) + rises, rises) + np.arange(rises.sum())
        column = np.concatenate([np.repeat(self._columns, rises), self._columns[1:]])
        hits = np.concatenate([up, before[1:]])
        right = np.arange(len(hits)) >= len(up)
        there = (hits >= 0) & (hits <= n - column)  # the other binomial coefficients are 0
        column, hits, right = column[there], hits[there], right[there]
        self._step = column - first
        self._log_ways, self._log_columns = _log_ways(n - column, hits), _log_ways(n, self._columns)
        self._hits, self._misses = (hits + right).astype(float), (n - column - hits).astype(float)

    def probability(self, worse: np.ndarray, better: np.ndarray) -> np.ndarray:
        """Return at least P[W ≤ height of B], for each pair of rates P[worse] and P[better].

        It decreases with the one rate and increases with the other, so the one is rounded down and the other up.
        """
        size = max(1, AT_ONCE // (len(self._hits) + len(self._columns)))
        parts = [slice(start, start + size) for start in range(0, len(worse), size)]
        return np.concatenate([self._probability(worse[part, None], better[part, None]) for part in parts])

    def _probability(self, worse: np.ndarray, better: np.ndarray) -> np.ndarray:
        # Rounded to the grid on the side that makes the probability larger, one unit further than needed: 1 − better −
        # worse is then exact, and the result is an upper bound for the rates as given.
        better = np.clip(np.ceil(better * GRID + 1) / GRID, SMALLEST_RATE, 1.0)
        worse = np.clip(np.floor(worse * GRID - 1) / GRID, SMALLEST_RATE, np.maximum(1 - better, SMALLEST_RATE))
        neither = np.maximum(1 - better - worse, SMALLEST_RATE)
        log_rest = np.log(np.maximum(1 - better, SMALLEST_RATE))
        log_hit, log_miss = np.log(worse) - log_rest, np.log(neither) - log_rest
        with np.errstate(under="ignore"):
            of_column = np.exp(
                self._log_columns + self._columns * np.log(better) + (self._n - self._columns) * log_rest
            )
            # A step counts for all columns from its own on, hence the sums from the right.
            at_least = of_column[:, ::-1].cumsum(1)[:, ::-1]
            grown = np.exp(self._log_ways + self._hits * log_hit + self._misses * log_miss)
            inside = (grown * at_least[:, self._step]).sum(1)
        terms = len(self._hits) + len(self._columns)
        # The logarithms are of the size of n ln n, and each is a sum of a few.
        slack = 64 * EPSILON * (self._n * math.log(self._n + 3) + terms)
        certain = np.where(better[:, 0] < 1, inside, 1.0)
        return certain * (1 + slack) + 4 * self._negligible


def _log_ways(total: np.ndarray | int, hits: np.ndarray) -> np.ndarray:
    """Compute ln of the binomial coefficient."""
    return log_factorial(np.asarray(total)) - log_factorial(hits) - log_factorial(total - hits)
