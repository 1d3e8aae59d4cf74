"""What a round of the online learner costs: by the number of particles, and by how many rounds there have been.

    python benchmarks/online.py [--store] [--rounds 3]

A round without a resampling costs one pass of its mini-batch through every particle. Where particles are resampled,
five sweeps of moves follow, and each looks at past rounds: at all t of them, which is exact, or at `subsample` of them,
drawn anew. Goals: cost ∝ particles; ∝ t for exact moves; flat in t for subsampled ones.

    renewal      one update in which particles are resampled and moved, over how often they were, on the digits
    no renewal   one update in which they are only reweighted, which is what most rounds are
    whole runs   rounds a second from the first round to the last, where only some rounds have a renewal

Seconds are CPU seconds of one thread, the best of rounds in which peers take turns. Exponents are slopes of log(cost),
by least squares; growth is the cost after the most rounds over that after the fewest.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from measure import store

from tamis.bayes import OnlineLearner, RunSettings, build_space, load_stream, run_online
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import Prior
from tamis.bayes.streams import Stream

PARTICLES = (25, 50, 100, 200)
SEEN = (64, 128, 256, 512, 1024)  # t
SUBSAMPLE, BATCH, T_OF_PARTICLES, PARTICLES_OF_T = 32, 16, 128, 25
ALWAYS, NEVER = 0.999, 1e-3  # which part of the particles must count, for a renewal in every round or in none
PLAIN, AT_ONCE = "no renewal", 20  # rounds without one take milliseconds: so many are measured
METHODS = {
    "exact": Sampling(threshold=ALWAYS),
    f"subsample {SUBSAMPLE}": Sampling(threshold=ALWAYS, subsample=SUBSAMPLE),
    PLAIN: Sampling(threshold=NEVER),
}
RUNS = {
    "digits, dense": RunSettings("digits", "dense", 200, particles=50, tau=0.3, subsample=SUBSAMPLE),
    "digits, conv2d": RunSettings("digits", "conv2d", 100, particles=50, tau=0.3, subsample=SUBSAMPLE),
    "series, conv1d": RunSettings("series", "conv1d", 100, particles=50, tau=0.3, subsample=SUBSAMPLE),
    "graph, graph": RunSettings("graph", "graph", 200, batch=8, particles=50, subsample=SUBSAMPLE),
}


def prepared(particles: int, rounds: int) -> tuple[OnlineLearner, Stream, torch.Tensor]:
    """A learner of networks of one structure that has seen so many rounds without a renewal, and the stream."""
    space, stream = build_space(load_stream("digits"), "dense", layers=[2], filters=[8])
    # λ so small that particles stay alive without being moved: the cost of a move does not depend on it.
    learner = OnlineLearner(space, Prior(0.1), 1e-6, particles, 0, sampling=Sampling(threshold=NEVER))
    order = stream.order(rounds + 1, BATCH, 0)
    for places in order[:-1]:
        learner.update(*stream.select(places))
    assert learner.posterior.resampled == 0
    return learner, stream, order[-1]


def renewal_seconds(learner: OnlineLearner, stream: Stream, places: torch.Tensor, rounds: int) -> dict[str, float]:
    """CPU seconds of one renewal by each method, or of a round without any, the best of rounds."""
    best = dict.fromkeys(METHODS, math.inf)
    even = learner.posterior.log_weights
    tilted = even.clone()
    tilted[0] += 1.0  # one particle counts for more, so that all are resampled
    for _ in range(rounds):
        for name, sampling in METHODS.items():
            own = copy.deepcopy(learner)
            own.posterior = replace(own.posterior, sampling=sampling, log_weights=tilted - tilted.logsumexp(0))
            for _ in range(AT_ONCE if name == PLAIN else 1):
                began = time.thread_time()
                own.update(*stream.select(places))
                seconds = time.thread_time() - began
                assert (own.posterior.resampled > 0) == (name != PLAIN)
                best[name] = min(best[name], seconds / max(1, own.posterior.resampled))
    return best


def slope(cost: Mapping[int, float]) -> float:
    """The exponent e of cost ∝ x^e, by least squares of the logarithms."""
    x, y = (torch.tensor([*values], dtype=torch.float64).log() for values in (cost, cost.values()))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def measure(rounds: int) -> dict[str, Any]:
    by_particles = {count: renewal_seconds(*prepared(count, T_OF_PARTICLES), rounds) for count in PARTICLES}
    by_seen = {seen: renewal_seconds(*prepared(PARTICLES_OF_T, seen), rounds) for seen in SEEN}
    found: dict[str, Any] = {}
    for title, rows in (("renewal by particles", by_particles), ("renewal by rounds seen", by_seen)):
        columns = {name: {key: row[name] for key, row in rows.items()} for name in METHODS}
        found[title] = {name: {"seconds": cost, "exponent": slope(cost)} for name, cost in columns.items()}
    for row in found["renewal by rounds seen"].values():
        row["growth"] = row["seconds"][SEEN[-1]] / row["seconds"][SEEN[0]]
    found["renewal by particles"]["rounds seen"] = T_OF_PARTICLES
    found["renewal by rounds seen"]["particles"] = PARTICLES_OF_T
    found["whole runs"] = {name: whole_run(asked) for name, asked in RUNS.items()}
    return found


def whole_run(asked: RunSettings) -> dict[str, Any]:
    began = time.thread_time()
    run = run_online(asked)
    seconds = time.thread_time() - began
    renewals = run.learner.posterior.resampled
    return {"asked": asdict(asked), "rounds a second": asked.rounds / seconds, "renewals": renewals}


def report(found: Mapping[str, Any]) -> None:
    for title, across in (("renewal by particles", PARTICLES), ("renewal by rounds seen", SEEN)):
        print(f"\nseconds of a {title}\n{'':16}" + "".join(f"{value:>10}" for value in across) + f"{'exponent':>10}")
        for name in METHODS:
            row = found[title][name]
            print(
                f"{name:16}" + "".join(f"{row['seconds'][each]:10.4f}" for each in across) + f"{row['exponent']:10.2f}"
            )
    print("\nwhole runs: rounds a second, 50 particles, mini-batches of 8 or 16")
    for name, row in found["whole runs"].items():
        print(
            f"{name:16}{row['rounds a second']:10.1f}   {row['renewals']} renewals in {row['asked']['rounds']} rounds"
        )
    flat = found["renewal by rounds seen"][f"subsample {SUBSAMPLE}"]["exponent"]
    linear = found["renewal by particles"]["exact"]["exponent"]
    print(f"\nsubsampled, by rounds seen: exponent {flat:.2f}   goal ≤ 0.1: {'met' if flat <= 0.1 else 'MISSED'}")
    for name in METHODS:
        print(f"{name}: {SEEN[-1]} rounds cost {found['renewal by rounds seen'][name]['growth']:.2f} × {SEEN[0]}")
    print(f"exact, by particles: exponent {linear:.2f}   goal ≤ 1.1: {'met' if linear <= 1.1 else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", action="store_true", help="write docs/results/online_speed.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(arguments.rounds)
    report(figures)
    if arguments.store:
        print(f"\nstored in {store('online_speed', figures)}")


if __name__ == "__main__":
    main()
