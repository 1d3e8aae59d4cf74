"""How long products by Kronecker-sparse matrices take in float32 on a CPU, beside what else computes them.

    python benchmarks/kronecker.py [--store] [--minutes 11] [--seconds 2]

benchmarks/kronecker_calls.py measures what a call costs besides.

Patterns are those of the vision transformer of Table 5.5 of the thesis (gonon2024thesis), one by one and as the
products that stand for its linear layers of 384 → 384 and 384 → 1536; and matrices of 4096 × 4096: a butterfly of 12
factors and a Monarch matrix of 64 blocks. The batch is first, as torch has it.

Floors. Arithmetic: a vector takes abcd multiplications; AVX-512 does 16 in an instruction, and a processor that begins
one of these in a cycle (Zen 4; others begin two) does 59 · 10⁹ in a second at 3.7 GHz: 80 µs for (1, 192, 48, 2) and a
batch of 256 with one thread, 1280 µs for (1, 768, 192, 2). Bytes: inputs are read and outputs written once, abd + acd
numbers of a vector. At 20 GB/s a factor of a butterfly of 4096 takes 7 ms for a batch of 4096, where no cache holds
64 MB twice, and its arithmetic 0.6 ms. So butterflies wait for memory, and the patterns of the transformer for
arithmetic: where torch's batched product copies nothing (d = 1) and reaches 70 % of the peak, no more than 1.4 × is to
be had.

Peers: the dense product, by the matrix multiplied out before; batched products of the blocks with the permutations that
they need ("bmm"); one contraction ("einsum"); and what a layer chooses by itself, with nothing tuned ("tamis"). In
"forward" all of them are layers in `eval()` without gradients, whose weights lie as each of them likes best; "training"
is the product and its gradients in the input and the weights. Seconds are wall-clock, the best of rounds in which peers
take turns; a peer that takes seconds runs once. Threads of torch look for work for some milliseconds before they sleep,
and would keep a processor from the threads of the next peer: each runs for a while before it is timed.

With --store every row is written to out/kronecker_cpu.part.json when it is finished. A run that was killed, or that
ran out of minutes, is gone on with by the same command, on the same machine; after a change of a kernel, delete that
file first. When all rows are there, they go to docs/results/kronecker_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS, best_seconds, store
from torch import Tensor
from torch.nn import functional as F

from experiments.record import describe_environment
from experiments.record import store as store_record
from tamis.kernels import dispatch
from tamis.kronecker import KroneckerLinear, Pattern, butterfly, monarch

TRANSFORMER = [(1, 192, 48, 2), (2, 48, 192, 1), (1, 768, 192, 2), (6, 64, 64, 1), (6, 64, 256, 1)]
PRODUCTS: dict[str, Sequence[Pattern]] = {
    **{str(shape): [Pattern(*shape)] for shape in TRANSFORMER},
    "384 → 384": [Pattern(1, 192, 48, 2), Pattern(2, 48, 192, 1)],
    "384 → 1536": [Pattern(1, 768, 192, 2), Pattern(6, 64, 64, 1)],
    "butterfly of 4096": butterfly(4096),
    "Monarch matrix of 4096": monarch(4096, 4096, 64),
}
BATCHES = (256, 4096)
THREADS = (1, 2)
GOAL = 1.5  # times faster than the best of dense and bmm, with two threads
WARM = 0.02  # seconds that a short task runs before it is timed: until threads of the peer before it sleep
SLOW = 2.0  # seconds, from which on a task is not repeated
PEERS: dict[str, str | None] = {"bmm": "bmm", "einsum": "reference", "tamis": None}
PART = RESULTS.parents[1] / "out" / "kronecker_cpu.part.json"
SAME_MACHINE = ("processor", "torch")
Row = dict[str, float]


def tasks_for(patterns: Sequence[Pattern], batch: int, training: bool) -> dict[str, Callable[[], Any]]:
    """Every peer: the product of factors, leftmost first, with a batch."""
    x = torch.randn(batch, patterns[-1].columns, requires_grad=training)
    weights = [(2 * torch.rand(each.shape) - 1) / each.c**0.5 for each in patterns]  # as in appendix D.2.1
    gradient = torch.randn(batch, patterns[0].rows)
    layers = {name: KroneckerLinear(patterns, bias=False, backend=way).train(training) for name, way in PEERS.items()}
    for layer in layers.values():
        layer.set_factors(weights)
    whole = layers["tamis"].dense_weight().detach().requires_grad_(training)

    def task(compute: Callable[[Tensor], Tensor], parameters: Sequence[Tensor]) -> Any:
        if training:
            return torch.autograd.grad(compute(x), (x, *parameters), gradient)
        with torch.no_grad():
            return compute(x)

    with torch.no_grad():
        error = (layers["tamis"](x) - F.linear(x, whole)).norm() / gradient.norm()
    assert error < 1e-5, f"the products differ by {error}"
    tasks: dict[str, Callable[[], Any]] = {"dense": lambda: task(lambda x: F.linear(x, whole), [whole])}
    for name, layer in layers.items():
        tasks[name] = lambda layer=layer: task(layer, list(layer.parameters()))
    return tasks


def measure(patterns: Sequence[Pattern], batch: int, training: bool, seconds: float) -> Row:
    """Seconds of every peer, in rounds that take so long together; two rounds at least, but of what is slow."""
    tasks = tasks_for(patterns, batch, training)
    best = best_seconds(tasks, 1)
    tasks = {name: task for name, task in tasks.items() if best[name] < SLOW}
    began, rounds = time.perf_counter(), 0
    while rounds < 1 or time.perf_counter() - began < seconds:
        for name, task in tasks.items():
            best_seconds({name: task}, int(WARM / best[name]))
            best[name] = min(best[name], best_seconds({name: task}, 5 if best[name] < WARM else 1)[name])
        rounds += 1
    return best


def ratio(row: Row) -> float:
    """How many times faster than the best of dense and bmm."""
    return min(row["dense"], row["bmm"]) / row["tamis"]


def report(figures: dict[str, Row]) -> None:
    """A table in microseconds, with the goal for two threads."""
    names = list(next(iter(figures.values())))
    print(f"{'':56s}" + "".join(f"{name:>12s}" for name in names) + "    × best")
    for title, row in figures.items():
        times = "".join(f"{1e6 * row[name]:9.0f} µs" for name in names)
        verdict = "" if "2 threads" not in title else "met" if ratio(row) >= GOAL else "MISSED"
        print(f"{title:56s}{times}    {ratio(row):6.2f}   {verdict}")


def title_of(name: str, batch: int, training: bool, threads: int) -> str:
    does = "training" if training else "forward"
    return f"{name}, batch {batch}, {does}, {threads} thread{'s' * (threads > 1)}"


def finished(path: Path) -> dict[str, Row]:
    """Rows of a run on this machine that was not finished."""
    if not path.exists():
        return {}
    content, here = json.loads(path.read_text()), describe_environment()
    if any(content["environment"][name] != here[name] for name in SAME_MACHINE):
        return {}
    rows: dict[str, Row] = content["figures"]
    print(f"going on with {len(rows)} rows of {content['environment']['date']}, from {path}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=11.0, help="after which no further row is begun")
    parser.add_argument("--seconds", type=float, default=2.0, help="of rounds for each row at most, about")
    parser.add_argument("--store", action="store_true", help="write docs/results/kronecker_cpu.json")
    arguments = parser.parse_args()
    ends = time.monotonic() + 60 * arguments.minutes
    torch.manual_seed(0)
    print(dispatch.kronecker_kernel()[1])
    cells = {title_of(*cell): cell for cell in product(PRODUCTS, BATCHES, (False, True), THREADS)}
    known = finished(PART) if arguments.store else {}
    figures = {title: known[title] for title in cells if title in known}
    wanted = [title for title in cells if title not in figures]
    with tempfile.TemporaryDirectory() as nothing_tuned:
        os.environ["TAMIS_CACHE"] = nothing_tuned
        for done, title in enumerate(wanted):
            left = ends - time.monotonic()
            if left < 0:
                break
            name, batch, training, threads = cells[title]
            torch.set_num_threads(threads)
            seconds = min(arguments.seconds, left / (len(wanted) - done))
            figures[title] = measure(PRODUCTS[name], batch, training, seconds)
            print(f"{title:56s}{ratio(figures[title]):6.2f}", flush=True)
            if arguments.store:
                store_record(PART, figures)
    print()
    report(figures)
    missing = len(cells) - len(figures)
    if missing:
        print(f"\n{missing} rows are missing: the time is over" + "; run this again" * arguments.store)
    elif arguments.store:
        print(f"\nstored in {store('kronecker_cpu', {title: figures[title] for title in cells})}")
        PART.unlink()


if __name__ == "__main__":
    main()
