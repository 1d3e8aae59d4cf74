"""How often a limit is wrong for somebody who looks again as samples come in, and what a limit costs that never is.

    python benchmarks/looking_again.py [--store] [--draws N]

Two networks answer differently at a true rate of 0.5, 2 or 5%. Of N streams of 10,000 samples (numpy's default
generator, seed 0), counted are those in which the upper limit of that rate, at δ = 0.05, is ever below the truth: where
one looks once, at the end; where one looks after every 100 samples; and the same for the limit that holds at any time.

Then the two limits for what is observed at 1,000, 10,000 and 100,000 samples, in per cent, at δ = 0.05 and at a quarter
of that, the share of each of a certificate's four claims.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measure import store

from tamis.bounds import accuracy_change, clopper_pearson, difference_at_any_time, rate_at_any_time

RATES, DELTA, MOST, EVERY = (0.005, 0.02, 0.05), 0.05, 10_000, 100
PAIRS = ((30, 20), (203, 88), (500, 450))  # of 10,000: only the original is right, only the small network is
ROOM = 1000  # streams at a time


def largest_failure(limit: Callable[..., Any], rate: float, n: int) -> int:
    """The largest count whose limit is below the true rate; −1 if there is none."""
    fails, holds = -1, n
    while holds - fails > 1:
        middle = (fails + holds) // 2
        if limit("different", middle, n, DELTA).value < rate:
            fails = middle
        else:
            holds = middle
    return fails


def failures(rate: float, draws: int) -> dict[str, float]:
    """In which part of the streams a limit is ever below the rate."""
    looks = np.arange(EVERY, MOST + 1, EVERY)
    fixed = np.array([largest_failure(clopper_pearson, rate, int(n)) for n in looks])
    any_time = np.array([largest_failure(rate_at_any_time, rate, int(n)) for n in looks])
    rng, once, again, sequential = np.random.default_rng(0), 0, 0, 0
    for start in range(0, draws, ROOM):
        counts = rng.binomial(EVERY, rate, (min(ROOM, draws - start), len(looks))).cumsum(1)
        once += int((counts[:, -1] <= fixed[-1]).sum())
        again += int((counts <= fixed).any(1).sum())
        sequential += int((counts <= any_time).any(1).sum())
    return {"one look": once / draws, "every 100": again / draws, "every 100, at any time": sequential / draws}


def price(once: Callable[[float], Any], any_time: Callable[[float], Any]) -> dict[str, Any]:
    """Both limits and their difference, in percentage points, at δ and at a quarter of it."""
    found = {}
    for delta in (DELTA, DELTA / 4):
        limits = 100 * once(delta).value, 100 * any_time(delta).value
        found[f"δ = {delta:g}"] = {"once": limits[0], "any time": limits[1], "price": limits[1] - limits[0]}
    return found


def prices() -> dict[str, Any]:
    """Of rates, and of changes of accuracy."""
    rates = {
        f"{rate:.1%} of {n:,}": price(
            partial(clopper_pearson, "different", round(rate * n), n),
            partial(rate_at_any_time, "different", round(rate * n), n),
        )
        for n in (1000, 10_000, 100_000)
        for rate in RATES
    }
    changes = {
        f"{w} worse, {b} better of {MOST:,}": price(
            partial(accuracy_change, w, b, MOST), partial(difference_at_any_time, w, b, MOST)
        )
        for w, b in PAIRS
    }
    return {**rates, **changes}


def report(figures: dict[str, Any]) -> None:
    """Both tables."""
    for rate, parts in figures["wrong"].items():
        print(f"a true rate of {rate}: wrong with " + ", ".join(f"{name} {part:.3f}" for name, part in parts.items()))
    for case, found in figures["price"].items():
        rows = (f"{d}: {row['once']:.3f} once, {row['any time']:.3f} at any time" for d, row in found.items())
        print(f"{case}: " + "; ".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000, metavar="N", help="streams for each rate")
    parser.add_argument("--store", action="store_true", help="write docs/results/looking_again.json")
    arguments = parser.parse_args()
    wrong = {f"{rate:.1%}": failures(rate, arguments.draws) for rate in RATES}
    figures = {"draws": arguments.draws, "seed": 0, "delta": DELTA, "wrong": wrong, "price": prices()}
    report(figures)
    if arguments.store:
        print(f"stored in {store('looking_again', figures)}")


if __name__ == "__main__":
    main()
