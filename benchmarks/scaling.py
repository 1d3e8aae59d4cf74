"""How time and memory grow with width, depth and samples, and what follows for networks of 7 and 70 billion weights.

    python benchmarks/scaling.py [--store] [--rounds 2] [--largest 1024] [--check 11008x4096]

Multilayer perceptrons of growing width and depth, growing calibration sets. Each row is one thread's CPU time, the best
of rounds in which the sizes take turns, and the largest memory held beyond what was there before. Exponents are slopes
of a least-squares line through the logarithms of the larger half of the sizes, where lower-order terms are small.

A layer of n inputs and k outputs, quantized by GPFQ on m ≥ n samples, is predicted by the two things that it must do,
n²m multiplications for its Gram matrix and n²k for the choice of weights, with rates measured here on a small layer;
--check quantizes one layer of that size on 2n samples, for the comparison of what was predicted and what it took.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import best_cpu_seconds, peak_memory, store
from torch import nn

import tamis

WIDTHS = (128, 256, 512, 1024)
DEPTHS = (2, 4, 8, 16)
SAMPLES = (512, 1024, 2048, 4096)
WIDTH, DEPTH, COUNT = 256, 2, 1024  # of what is not varied
LAYERS = {  # the largest of a network's linear layers, inputs × outputs, and how many blocks it has
    "7 B": ((11008, 4096), 32),
    "70 B": ((28672, 8192), 80),
}
CALIBRATION = 2048 * 128  # tokens, as is usual for such networks


def perceptron(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def tasks_of(width: int, depth: int, samples: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """What is measured, for one network and one set of inputs."""
    model = perceptron(width, depth)
    inputs = torch.randn(samples, width, generator=torch.Generator().manual_seed(1))
    net = tamis.trace(model, inputs[:1])
    file = folder / f"{width}-{depth}.tamis"
    tamis.prune(net, 0.5, by="magnitude").save(file)
    return {
        "trace": lambda: tamis.trace(model, inputs[:1]),
        "costs": lambda: tamis.path_costs(net),
        "gpfq": lambda: tamis.quantize(net, inputs, 4, method="gpfq", c_alpha=3, progress=False),
        "optq": lambda: tamis.quantize(net, inputs, 4, method="optq", c_alpha=3, progress=False),
        "certify": lambda: tamis.certify(net, file, inputs),
    }


def measured(varied: str, sizes: Sequence[int], rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds and bytes of every task at every size, and the exponents."""
    fixed = {"width": WIDTH, "depth": DEPTH, "samples": COUNT}
    found: dict[str, Any] = {}
    all_tasks = {size: tasks_of(**{**fixed, varied: size}, folder=folder) for size in sizes}
    for name in next(iter(all_tasks.values())):
        seconds = best_cpu_seconds({str(size): tasks[name] for size, tasks in all_tasks.items()}, rounds)
        memory = {str(size): peak_memory(tasks[name]) for size, tasks in all_tasks.items()}
        found[name] = {
            "seconds": seconds,
            "bytes": memory,
            "exponent": exponent(seconds),
            "exponent_of_bytes": exponent(memory),
        }
        shown = "  ".join(f"{size}: {value:.3g} s, {memory[size] / 2**20:.0f} MiB" for size, value in seconds.items())
        print(f"{varied:8}{name:9}{shown}   time ~ {varied}^{found[name]['exponent']:.2f}", flush=True)
    return found


def exponent(values: dict[str, float] | dict[str, int]) -> float:
    """The slope of log value over log size, for the larger half of the sizes."""
    half = list(values.items())[len(values) // 2 - 1 :]
    x = [math.log(float(size)) for size, _ in half]
    y = [math.log(max(value, 1e-9)) for _, value in half]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return top / sum((a - mean_x) ** 2 for a in x)


def one_layer(inputs: int, outputs: int, samples: int) -> tuple[float, int]:
    """CPU seconds and peak bytes of quantizing one linear layer by GPFQ."""
    torch.manual_seed(0)
    net = tamis.trace(nn.Linear(inputs, outputs, bias=False), torch.zeros(1, inputs))
    x = torch.randn(samples, inputs)
    start = time.thread_time()
    memory = peak_memory(lambda: tamis.quantize(net, x, 4, method="gpfq", c_alpha=3, progress=False))
    return time.thread_time() - start, memory


def rates(width: int) -> dict[str, float]:
    """Seconds for each of n²m and of n²k, and bytes for each of n², from one layer and two numbers of samples."""
    few, many = 4 * width, 16 * width
    less, _ = one_layer(width, width, few)
    more, memory = one_layer(width, width, many)
    gram = (more - less) / (width**2 * (many - few))
    return {"gram": gram, "choice": (less - gram * width**2 * few) / width**3, "bytes": memory / width**2}


def predicted(rate: dict[str, float], inputs: int, outputs: int, samples: int) -> tuple[float, float]:
    """Seconds of one thread and bytes for one layer."""
    seconds = inputs**2 * (rate["gram"] * samples + rate["choice"] * outputs)
    return seconds, rate["bytes"] * inputs**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/scaling.json")
    parser.add_argument("--rounds", type=int, default=2, help="of which the best counts")
    parser.add_argument("--largest", type=int, default=1024, help="width of the layer that rates are measured on")
    parser.add_argument("--check", default="11008x4096", help="inputs × outputs of the layer to compare with, or none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {
            "width": measured("width", WIDTHS, options.rounds, Path(folder)),
            "depth": measured("depth", DEPTHS, options.rounds, Path(folder)),
            "samples": measured("samples", SAMPLES, options.rounds, Path(folder)),
        }
    figures["rates"] = rates(options.largest)
    figures["networks"] = {}
    for name, ((inputs, outputs), blocks) in LAYERS.items():
        seconds, memory = predicted(figures["rates"], inputs, outputs, CALIBRATION)
        figures["networks"][name] = {"layer": [inputs, outputs], "blocks": blocks, "seconds": seconds, "bytes": memory}
        held = memory / 2**30
        print(f"{name}: its largest layer, {inputs} × {outputs}: {seconds:,.0f} s of one thread, {held:.1f} GiB")
    if options.check != "none":
        inputs, outputs = map(int, options.check.split("x"))
        seconds, memory = predicted(figures["rates"], inputs, outputs, 2 * inputs)
        took, held = one_layer(inputs, outputs, 2 * inputs)
        figures["check"] = {
            "layer": [inputs, outputs],
            "samples": 2 * inputs,
            "predicted": {"seconds": seconds, "bytes": memory},
            "measured": {"seconds": took, "bytes": held},
        }
        print(
            f"{inputs} × {outputs}, {2 * inputs} samples: predicted {seconds:.0f} s and {memory / 2**30:.1f} GiB, took "
            f"{took:.0f} s and {held / 2**30:.1f} GiB"
        )
    if options.store:
        print(store("scaling", figures))


if __name__ == "__main__":
    main()
