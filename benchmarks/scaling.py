"""How time and memory grow with width, depth, samples and processes, and what follows for 7 and 70 billion weights.

    python benchmarks/scaling.py [--store] [--rounds 2] [--check 11008x4096x44032 18432x1024x8192 28672x8192x2048]

Multilayer perceptrons of growing width and depth, growing calibration sets, and one or two processes
(`benchmarks/ranks.py`). Each row is one thread's CPU time, the best of rounds in which the sizes take turns, and the
largest memory held beyond what was there before. Exponents are slopes of a least-squares line through the logarithms of
the larger half of the sizes, where lower-order terms are small.

A layer of n inputs and k outputs is quantized by GPFQ on m samples in one of two ways, and tamis takes the cheaper one:
from the n × n Gram matrices of its inputs, which are summed over any number of samples (n²m multiplications, and n²k
for the choice of weights); or along the data, with rows in memory (nmk). The time of each is a sum of terms in n, m and
k with rates that are fitted, none below zero, to layers of up to 4,096 inputs; memory likewise. --check quantizes
layers of the sizes named, n × k × m, as they are, for the comparison of what was predicted and what it took.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from measure import best_cpu_seconds, peak_memory, store
from ranks import ranks
from scipy.optimize import nnls
from torch import nn

import tamis
from tamis.layerwise import ACTIVATION_BUDGET
from tamis.quantization.gpfq import is_cheaper_along_data

WIDTHS = (128, 256, 512, 1024)
DEPTHS = (2, 4, 8, 16)
SAMPLES = (512, 1024, 2048, 4096)
WIDTH, DEPTH, COUNT = 256, 2, 1024  # of what is not varied
LAYERS = {  # the largest of a network's linear layers, inputs × outputs, and how many blocks it has
    "7 B": ((11008, 4096), 32),
    "70 B": ((28672, 8192), 80),
}
CALIBRATION = 2048 * 128  # tokens, as is usual for such networks
ROOM = ACTIVATION_BUDGET // 4  # bytes of a layer's rows that are kept, to go along the data
CHECKS = ["11008x4096x44032", "18432x1024x8192", "28672x8192x2048"]


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


def gram(n: int, k: int, m: int) -> dict[str, float]:
    """What the time of a layer from Gram matrices consists of."""
    return {"1": 1.0, "n²m": n**2 * m, "n²k": n**2 * k, "nk": n * k, "nm": n * m}


def rows(n: int, k: int, m: int) -> dict[str, float]:
    """What the time of a layer along the data consists of."""
    return {"1": 1.0, "nmk": n * m * k, "nk": n * k, "nm": n * m}


def gram_bytes(n: int, k: int, m: int) -> dict[str, float]:
    """What its memory consists of: activations are in files."""
    return {"1": 1.0, "n²": n**2, "nk": n * k}


def rows_bytes(n: int, k: int, m: int) -> dict[str, float]:
    """The same along the data: the rows, and a state for every sample and output."""
    return {"1": 1.0, "nm": n * m, "mk": m * k, "nk": n * k}


# Each way with the layers that its rates are fitted to. With no room for activations, GPFQ takes Gram matrices.
WAYS: dict[str, Any] = {
    "gram": {
        "time": gram,
        "bytes": gram_bytes,
        "budget": 0,
        "layers": [(1024, 256, 4096), (1024, 1024, 16384), (1024, 4096, 4096), (2048, 512, 8192), (2048, 2048, 4096),
                   (4096, 1024, 8192)],
    },
    "rows": {
        "time": rows,
        "bytes": rows_bytes,
        "budget": 2**32,
        "layers": [(1024, 256, 1024), (2048, 256, 4096), (2048, 512, 1024), (4096, 512, 2048), (4096, 1024, 512),
                   (4096, 1024, 2048)],
    },
}  # fmt: skip


def one_layer(inputs: int, outputs: int, samples: int, budget: int) -> tuple[float, int]:
    """CPU seconds and peak bytes of quantizing one linear layer by GPFQ."""
    torch.manual_seed(0)
    net = tamis.trace(nn.Linear(inputs, outputs, bias=False), torch.zeros(1, inputs))
    x = torch.randn(samples, inputs)
    start = time.thread_time()
    memory = peak_memory(
        lambda: tamis.quantize(net, x, 4, method="gpfq", c_alpha=3, activation_budget=budget, progress=False)
    )
    return time.thread_time() - start, memory


def rates(way: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds and bytes for each term of one way, and how far the layers that they are fitted to lie off."""
    seconds, memory = [], []
    for layer in way["layers"]:
        each = [one_layer(*layer, way["budget"]) for _ in range(rounds)]
        seconds.append(min(took for took, _ in each))
        memory.append(min(held for _, held in each))
    found = {}
    for name, terms, measured in (("seconds", way["time"], seconds), ("bytes", way["bytes"], memory)):
        rate = fitted([terms(*layer) for layer in way["layers"]], measured)
        guesses = [total(rate, terms(*layer)) for layer in way["layers"]]
        off = max(max(a / b, b / a) for a, b in zip(guesses, measured, strict=True))
        found[name] = {"rates": rate, "off_at_most": off, "measured": measured}
    return {"layers": way["layers"], **found}


def fitted(terms: Sequence[Mapping[str, float]], measured: Sequence[float]) -> dict[str, float]:
    """Rates of the terms, none below zero, with the least sum of squared relative errors."""
    names = list(terms[0])
    scaled = numpy.array([[each[name] / value for name in names] for each, value in zip(terms, measured, strict=True)])
    largest = scaled.max(0)
    solution, _ = nnls(scaled / largest, numpy.ones(len(terms)))
    return dict(zip(names, (solution / largest).tolist(), strict=True))


def total(rate: Mapping[str, float], terms: Mapping[str, float]) -> float:
    """The sum of all terms."""
    return sum(rate[name] * value for name, value in terms.items())


def predicted(figures: Mapping[str, Any], inputs: int, outputs: int, samples: int) -> dict[str, Any]:
    """The way that a layer takes, seconds of one thread and bytes."""
    along = samples * inputs * 4 <= ROOM and is_cheaper_along_data(samples, inputs, outputs, 1)
    way = "rows" if along else "gram"
    seconds = total(figures[way]["seconds"]["rates"], WAYS[way]["time"](inputs, outputs, samples))
    memory = total(figures[way]["bytes"]["rates"], WAYS[way]["bytes"](inputs, outputs, samples))
    return {"way": way, "seconds": seconds, "bytes": memory}


def checked(figures: Mapping[str, Any], size: str) -> dict[str, Any]:
    """A layer that is quantized, beside what was predicted of it."""
    inputs, outputs, samples = map(int, size.split("x"))
    guess = predicted(figures, inputs, outputs, samples)
    took, held = one_layer(inputs, outputs, samples, WAYS[guess["way"]]["budget"])
    print(
        f"{inputs} × {outputs}, {samples} samples, by {guess['way']}: predicted {guess['seconds']:.0f} s and "
        f"{guess['bytes'] / 2**30:.1f} GiB, took {took:.0f} s and {held / 2**30:.1f} GiB",
        flush=True,
    )
    layer = {"layer": [inputs, outputs], "samples": samples}
    return {**layer, "predicted": guess, "measured": {"seconds": took, "bytes": held}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/scaling.json")
    parser.add_argument("--rounds", type=int, default=2, help="of which the best counts")
    parser.add_argument("--check", nargs="*", default=CHECKS, help="layers to compare with: inputs x outputs x samples")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {
            "width": measured("width", WIDTHS, options.rounds, Path(folder)),
            "depth": measured("depth", DEPTHS, options.rounds, Path(folder)),
            "samples": measured("samples", SAMPLES, options.rounds, Path(folder)),
        }
    figures["ranks"] = ranks((1, 2), options.rounds)
    figures["rates"] = {name: rates(way, options.rounds) for name, way in WAYS.items()}
    for name, way in figures["rates"].items():
        off = {what: way[what]["off_at_most"] for what in ("seconds", "bytes")}
        print(f"{name}: its own layers are at most {off['seconds']:.2f} (time), {off['bytes']:.2f} (memory) times off")
    figures["networks"] = {}
    for name, ((inputs, outputs), blocks) in LAYERS.items():
        guess = predicted(figures["rates"], inputs, outputs, CALIBRATION)
        figures["networks"][name] = {"layer": [inputs, outputs], "blocks": blocks, **guess}
        print(
            f"{name}: its largest layer, {inputs} × {outputs}, by {guess['way']}: {guess['seconds']:,.0f} s of one "
            f"thread, {guess['bytes'] / 2**30:.1f} GiB",
            flush=True,
        )
    figures["checks"] = [checked(figures["rates"], size) for size in options.check]
    if options.store:
        print(store("scaling", figures))


if __name__ == "__main__":
    main()
