"""What one call of a Kronecker-sparse layer costs besides its kernels: microseconds with one vector and tiny blocks.

    python benchmarks/kronecker_calls.py [--device cuda] [--store]

Beside `nn.Linear` of the same size, each backend is called in three ways: in `eval()` without gradients, where layers
keep their weights prepared (`kronecker.inference_cache`); in `train()` without gradients, where they are prepared in
each call as they were before layers kept them; and with gradients, forward alone. The bias is added in all of them.

On a CPU it is the CPU time of one thread, the best of rounds in which all take turns, kernels included: with so few
numbers these take a microsecond or two. On a GPU it is the time until the calls are handed to the device, which
works meanwhile; the queue is emptied in between.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import store
from torch import nn

from tamis.kronecker import BACKENDS, BATCH_FIRST, KroneckerLinear, Pattern

CHAINS = {
    "(1, 2, 2, 1)": [Pattern(1, 2, 2, 1)],
    "(2, 2, 2, 1)": [Pattern(2, 2, 2, 1)],
    "(1, 2, 2, 2)": [Pattern(1, 2, 2, 2)],
    "(1, 4, 2, 2)(2, 2, 4, 1)": [Pattern(1, 4, 2, 2), Pattern(2, 2, 4, 1)],
}
WAYS = ("cpu", "bmm", "dense", "triton", None)
CALLS, ROUNDS = 200, 15


def tasks_for(name: str, device: str, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Every way to call layers of these patterns that there is on this device."""
    patterns = CHAINS[name]
    inputs, outputs = patterns[-1].columns, patterns[0].rows
    x = torch.randn(1, inputs, device=device, dtype=dtype)
    linear = nn.Linear(inputs, outputs, device=device, dtype=dtype)
    tasks = {"nn.Linear": without_gradients(linear, x), "nn.Linear, with gradients": lambda: linear(x)}
    for way in WAYS:
        if way is not None:
            weight = torch.ones(patterns[-1].shape, device=device, dtype=dtype)
            if BACKENDS[way].accepts(x, weight, patterns[-1], BATCH_FIRST):
                continue
        kept = KroneckerLinear(patterns, backend=way, device=device, dtype=dtype).eval()
        anew = KroneckerLinear(patterns, backend=way, device=device, dtype=dtype)
        called = way or "chosen"
        tasks[called] = without_gradients(kept, x)
        tasks[f"{called}, prepared in each call"] = without_gradients(anew, x)
        tasks[f"{called}, with gradients"] = lambda anew=anew: anew(x)
    return tasks


def without_gradients(layer: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return layer(x)

    return run


def microseconds(tasks: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """The least of each, of one call among `CALLS`."""
    clock = time.perf_counter if device == "cuda" else time.thread_time
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            task()
            wait()
            began = clock()
            for _ in range(CALLS):
                task()
            best[name] = min(best[name], 1e6 * (clock() - began) / CALLS)
            wait()
    return {name: round(value, 2) for name, value in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--store", action="store_true", help="write docs/results/kronecker_calls[_cuda].json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures: dict[str, dict[str, float]] = {}
    dtypes = (torch.float32,) if arguments.device == "cpu" else (torch.float32, torch.float16)
    with tempfile.TemporaryDirectory() as nothing_tuned:
        os.environ["TAMIS_CACHE"] = nothing_tuned
        for dtype in dtypes:
            for name, patterns in CHAINS.items():
                found = microseconds(tasks_for(name, arguments.device, dtype), arguments.device)
                figures[f"{name}, {str(dtype).removeprefix('torch.')}"] = found
                print(f"{name}, {dtype}")
                for called, value in found.items():
                    above = (value - found["nn.Linear"]) / len(patterns)
                    said = f"  {above:6.1f} µs a product above nn.Linear" if "," not in called else ""
                    print(f"    {called:32s}{value:8.1f} µs{said}", flush=True)
    if arguments.store:
        suffix = "_cuda" if arguments.device == "cuda" else ""
        print(f"stored in {store(f'kronecker_calls{suffix}', figures)}")


if __name__ == "__main__":
    main()
