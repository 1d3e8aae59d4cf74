"""What is left of a network's accuracy when it is compressed without training.

    python benchmarks/accuracy.py [--device cuda] [--models FOLDER] [--results FILE]

The published ResNet-20 and ResNet-32 for CIFAR-10 (top-1 91.73% and 92.63%): every layer quantized to 16, 8, 4 and 3
levels by nearest rounding, by GPFQ and by OPTQ; or 70, 80 and 90% of all weights pruned by magnitude, Φ-cost and
optimal brain surgeon, and repaired. Calibration data are the first 5,000 training images, C_α is searched for on them,
and accuracy is top-1 on the 10,000 test images. The defaults of OPTQ and of the surgeon (order, ridge, passes, rounds)
were settled with a look at test accuracies of ResNet-20; ResNet-32 had no say in them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import RESULTS
from safetensors.torch import load_file
from torch import Tensor

import tamis
from experiments.record import store
from tamis.training import load_data
from tamis.training.models import resnet20, resnet32

MODELS = {"resnet20": resnet20, "resnet32": resnet32}
FOLDER = Path(__file__).parents[1].parent / "shared" / "models"
LEVELS, METHODS = (16, 8, 4, 3), ("msq", "gpfq", "optq")
AMOUNTS = (0.7, 0.8, 0.9)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--models", type=Path, default=FOLDER)
    arguments.add_argument("--results", type=Path, default=RESULTS / "accuracy.json")
    options = arguments.parse_args()
    figures = {name: compressed(name, options.models, options.device) for name in MODELS}
    store(options.results, figures)


def compressed(name: str, folder: Path, device: str) -> dict[str, dict[str, dict[str, float]]]:
    """Accuracy, bytes and seconds of every way to compress one network, by what is done and how far."""
    model = MODELS[name]()
    model.load_state_dict(load_file(folder / f"{name}_cifar10.safetensors"))
    calibration, test = load_data("cifar10:train[:5000]").normalised(), load_data("cifar10:test")
    inputs, labels = test.normalised().to(device), test.labels.to(device)
    net = tamis.trace(model.eval().to(device), calibration[:1].to(device))
    found: dict[str, dict[str, dict[str, float]]] = {
        "float": {"": figures(lambda: tamis.Compressed(net), inputs, labels)}
    }
    for what, how_far, make in ways(net, calibration):
        found.setdefault(what, {})[how_far] = figures(make, inputs, labels)
        print(f"{name}  {what:24} {how_far:>4}  {found[what][how_far]}", flush=True)
    return found


def ways(net: tamis.Network, calibration: Tensor) -> list[tuple[str, str, Callable[[], tamis.Compressed]]]:
    """What is done, how far, and a function that does it."""

    def quantized(method: str, levels: int) -> tamis.Compressed:
        return tamis.quantize(net, calibration, levels=levels, method=method, progress=False)

    def repaired(by: str, amount: float) -> tamis.Compressed:
        return tamis.repair(net, tamis.prune(net, amount, by=by), calibration, progress=False)

    def operated(amount: float) -> tamis.Compressed:
        return tamis.prune(net, amount, by="obs", calibration=calibration, progress=False)

    found: list[tuple[str, str, Callable[[], tamis.Compressed]]] = []
    for method in METHODS:
        found += [(method, str(m), lambda method=method, m=m: quantized(method, m)) for m in LEVELS]
    for by in ("magnitude", "phi"):
        found += [(by, f"{a:.0%}", lambda by=by, a=a: tamis.prune(net, a, by=by)) for a in AMOUNTS]
        found += [(f"{by}, repaired", f"{a:.0%}", lambda by=by, a=a: repaired(by, a)) for a in AMOUNTS]
    return found + [("obs", f"{a:.0%}", lambda a=a: operated(a)) for a in AMOUNTS]


def figures(make: Callable[[], tamis.Compressed], inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and bytes of what a function makes, and the seconds that it takes."""
    start = time.perf_counter()
    small = make()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        right = sum(
            int((small.network(x).argmax(1) == y).sum())
            for x, y in zip(inputs.split(500), labels.split(500), strict=True)
        )
    return {"accuracy": right / len(labels), "bytes": small.nbytes, "seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
