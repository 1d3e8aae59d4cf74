"""Quantization by one process and by several under torchrun, which share the batches and the neurons.

    python benchmarks/ranks.py [--ranks 1 2] [--rounds 2]

A perceptron, calibrated and quantized by GPFQ and OPTQ. For each number of processes: the wall-clock seconds until the
last of them is done, which other work on the same cores disturbs, and the CPU seconds of the busiest, which it hardly
does. `benchmarks/scaling.py` stores these figures with its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tamis

WIDTH, DEPTH, SAMPLES = 1024, 4, 8192
METHODS = ("gpfq", "optq")


def ranks(numbers: Sequence[int], rounds: int) -> dict[str, Any]:
    """Seconds of every method by the number of processes: on the clock, and of the busiest one's CPU."""
    found: dict[str, Any] = {"width": WIDTH, "depth": DEPTH, "samples": SAMPLES, "cores": os.cpu_count()}
    for count in numbers:
        found[str(count)] = told = _team(count, rounds)
        shown = "  ".join(f"{name}: {each['seconds']:.2f} s, CPU {each['cpu']:.2f} s" for name, each in told.items())
        print(f"{count} processes   {shown}", flush=True)
    return found


def _team(count: int, rounds: int) -> dict[str, Any]:
    """What the first of `count` processes says."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    package = str(Path(tamis.__file__).parents[1])
    told = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": package}
    command = [*launcher, __file__, "--member", "--rounds", str(rounds)]
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{count} processes failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def member(rounds: int) -> None:
    """One of the processes; the first one prints the seconds of the slowest."""
    import torch.distributed as dist

    from tamis.training import join_team

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    inputs = torch.randn(SAMPLES, WIDTH)
    net = tamis.trace(nn.Sequential(*layers, nn.Linear(WIDTH, 10)), inputs[:1])
    team = join_team(torch.device("cpu"))
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for method in METHODS:
            dist.barrier()
            start, cpu = time.perf_counter(), time.thread_time()
            tamis.quantize(net, inputs, 4, method=method, c_alpha=3, progress=False)
            taken = torch.tensor([time.perf_counter() - start, time.thread_time() - cpu], dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            before = best.get(method, {"seconds": float("inf"), "cpu": float("inf")})
            best[method] = {
                "seconds": min(before["seconds"], float(taken[0])),
                "cpu": min(before["cpu"], float(taken[1])),
            }
    if team.leads:
        print(json.dumps(best))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    parser.add_argument("--rounds", type=int, default=2, help="of which the best counts")
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        member(options.rounds)
    else:
        ranks(options.ranks, options.rounds)


if __name__ == "__main__":
    main()
