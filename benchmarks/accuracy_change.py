"""How tight the bound of the change of accuracy is, and how often it fails, by the whole distribution.

    PYTHONPATH=tests python benchmarks/accuracy_change.py [--store]

First, bounds of several outcomes beside those that tamis had before, two limits of Clopper and Pearson at δ/2, and the
normal approximation, which is not valid. Then, for every n from 1 to 45, the largest probability with which the bound
of δ = 0.05 lies below the true difference: all outcomes, and true differences just above each bound that can occur,
with 61 rates of discordant inputs each. No probability may exceed δ.
"""

from __future__ import annotations

import argparse
import math
from statistics import NormalDist
from typing import Any

from measure import store
from paired_counts import worst_failure

from tamis.bounds import accuracy_change, accuracy_change_by_difference, smallest_rate
from tamis.bounds.binomial import largest_rate

OUTCOMES = (
    (0, 0, 10_000, 0.05),
    (5, 5, 10_000, 0.05),
    (30, 20, 10_000, 0.05),
    (100, 100, 10_000, 0.05),
    (20, 100, 10_000, 0.05),
    (500, 400, 50_000, 0.05),
    (203, 88, 10_000, 0.01),
    (10, 5, 360, 0.01),
)
MOST, DELTA = 45, 0.05


def limits(worse: int, better: int, n: int, delta: float) -> dict[str, float]:
    """The bounds of one outcome, in percent."""
    half, difference = math.log(delta / 2), (worse - better) / n
    normal = NormalDist().inv_cdf(1 - delta) * math.sqrt(worse + better - n * difference**2) / n
    found = {
        "observed": difference,
        "accuracy_change": accuracy_change(worse, better, n, delta).value,
        "by difference": accuracy_change_by_difference(worse, better, n, delta).value,
        "two limits": largest_rate(worse, n, half) - smallest_rate(better, n, half),
        "normal": difference + normal,
    }
    return {name: 100 * value for name, value in found.items()}


def failures(n: int) -> float:
    """The largest probability of failing for n samples, which must not exceed δ."""
    found = worst_failure(accuracy_change, n, DELTA)
    assert found <= DELTA * (1 + 1e-9), f"for n = {n} it fails with probability {found}"
    print(f"n = {n}: fails with probability {found:.5f} at most", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/accuracy_change.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for worse, better, n, delta in OUTCOMES:
        found = limits(worse, better, n, delta)
        rows.append({"worse": worse, "better": better, "n": n, "delta": delta, **found})
        print(worse, better, n, delta, {name: round(value, 3) for name, value in found.items()}, flush=True)
    figures = {"bounds": rows, "delta": DELTA, "failures": {n: failures(n) for n in range(1, MOST + 1)}}
    if arguments.store:
        print(f"stored in {store('accuracy_change', figures)}")


if __name__ == "__main__":
    main()
