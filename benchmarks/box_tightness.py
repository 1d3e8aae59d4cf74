"""How far the bounds over boxes lie above the largest difference of two networks that an ascent finds there.

    python benchmarks/box_tightness.py [--store] [--models FOLDER]

Small networks with the weights that PyTorch draws, and the same pruned or rounded. For each of three standard normal
inputs an ascent in signs of the gradient looks for the largest |R_θ'(x')_k − R_θ(x')_k| in the box, from 50 starts for
each output and each sign; it is an attack, so the truth may be larger, and a ratio is at most what is printed. 1 is the
floor: a bound below what the attack finds would be wrong, and stops the run. Printed are medians of three ratios.

Then the published ResNet-20 and itself with 10% pruned by magnitude, at the first three test images of CIFAR-10: how
much wider the interval of an output is than that of the inputs, and the bound at radius 0, where the truth is known,
and 10⁻⁶, where 20 steps of the same ascent look for it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import store
from safetensors.torch import load_file
from torch import Tensor, nn

import tamis
from tamis.bounds import box_deviation
from tamis.bounds.interval import Interval, interval
from tamis.training import load_data
from tamis.training.models import resnet20

FOLDER = Path(__file__).parents[1].parent / "shared" / "models"
INPUTS, STARTS, STEPS = 3, 50, 100
METHODS = ("joint interval", "linear relaxation", "path metric", "separate intervals")
SMALL_RADIUS = 1e-6


class Convolutions(nn.Module):
    """Two 3×3 convolutions with a batch-norm and a skip, pooling, a linear layer, for images of 8×8."""

    def __init__(self, pool: Callable[..., Tensor]) -> None:
        super().__init__()
        self.pool = pool
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3, momentum=None)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        return self.head(self.pool(F.relu(h + self.second(h)), 2).flatten(1))


def mlp(*widths: int) -> nn.Module:
    layers = [module for i, o in pairwise(widths) for module in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def pruned(net: tamis.Network) -> tamis.Network:
    return tamis.prune(net, 0.5, by="phi").network


def rounded(levels: int) -> Callable[[tamis.Network], tamis.Network]:
    """Every weight to the nearest of so many levels, evenly spaced over its layer's range; biases stay."""

    def change(net: tamis.Network) -> tamis.Network:
        found = {}
        for name, value in net.params.items():
            if name.endswith("weight"):
                step = 2 * value.abs().max() / (levels - 1)
                found[name] = (value / step).round() * step
        return net.with_params(found)

    return change


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    network: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    radius: float
    change: str
    changed: Callable[[tamis.Network], tamis.Network]


def small_mlp() -> nn.Module:
    return mlp(8, 16, 16, 4)


def deep_mlp() -> nn.Module:
    return mlp(20, 50, 50, 50, 50, 10)


HALF = ("Φ-pruned by half", pruned)
CASES = [
    *(Case("MLP 8-16-16-4", small_mlp, (8,), radius, *HALF) for radius in (0.01, 0.1, 1.0)),
    Case("MLP 8-16-16-4", small_mlp, (8,), 0.1, "rounded, 257 levels", rounded(257)),
    *(
        Case("MLP 20-50-50-50-50-10", deep_mlp, (20,), radius, "rounded, 17 levels", rounded(17))
        for radius in (0.01, 0.1)
    ),
    Case("CNN, average pooling", lambda: Convolutions(F.avg_pool2d), (1, 8, 8), 0.1, *HALF),
    *(Case("CNN, max-pooling", lambda: Convolutions(F.max_pool2d), (1, 8, 8), radius, *HALF) for radius in (0.01, 0.1)),
]


def drawn(case: Case) -> tamis.Network:
    """Weights as PyTorch draws them; a batch-norm takes its statistics from 256 normal inputs."""
    torch.manual_seed(0)
    model = case.build().double()
    with torch.no_grad():
        model.train()(torch.randn(256, *case.shape, dtype=torch.float64))
    return tamis.trace(model.eval(), torch.zeros(2, *case.shape, dtype=torch.float64))


def attacked(net: tamis.Network, other: tamis.Network, x: Tensor, radius: float, starts: int, steps: int) -> float:
    """The largest difference of an output that an ascent finds around one input, of all its starts and steps."""
    outputs = net(x[None]).shape[1]
    count = 2 * outputs * starts  # the output and the sign that each ascent is after
    after = torch.arange(count) % outputs
    sign = 1.0 - 2.0 * ((torch.arange(count) // outputs) % 2).double()
    offset = 2 * torch.rand(count, *x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    offset[: 2 * outputs] = 0  # one start of each in the middle
    best = 0.0
    for step in range(steps + 1):
        offset.requires_grad_()
        difference = other(x + radius * offset) - net(x + radius * offset)
        best = max(best, float(difference.detach().abs().max()))
        (gradient,) = torch.autograd.grad((sign * difference[torch.arange(count), after]).sum(), offset)
        offset = (offset.detach() + 2 / (step + 1) * gradient.sign()).clamp(-1, 1)
    return best


def measure_case(case: Case) -> dict[str, Any]:
    """The ratio of each method to what the attack finds, the median of the inputs."""
    net = drawn(case)
    other = case.changed(net)
    x = torch.randn(INPUTS, *case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truths = [attacked(net, other, each, case.radius, STARTS, STEPS) for each in x]
    found = box_deviation(net, other, x, case.radius)
    for bound, truth in zip(found, truths, strict=True):
        assert bound.value >= truth * (1 - 1e-9), "a bound is violated"
    ratios = {
        method: statistics.median(bound.terms[method] / truth for bound, truth in zip(found, truths, strict=True))
        for method in METHODS
    }
    return {"network": case.network, "radius": case.radius, "change": case.change, "attack": truths, "ratio": ratios}


def measure_resnet(folder: Path) -> list[dict[str, Any]]:
    """What becomes of the intervals of a deep network, image by image."""
    model = resnet20()
    model.load_state_dict(load_file(folder / "resnet20_cifar10.safetensors"))
    images = load_data(f"cifar10:test[:{INPUTS}]").normalised().double()
    net = tamis.trace(model.eval().double(), images[:1])
    other = tamis.prune(net, 0.1, by="magnitude").network
    return [measure_image(net, other, x) for x in images.split(1)]


def measure_image(net: tamis.Network, other: tamis.Network, x: Tensor) -> dict[str, Any]:
    """Around one image."""
    with torch.no_grad():
        truth = float((net(x) - other(x)).abs().max())
    attack = attacked(net, other, x[0], SMALL_RADIUS, 1, 20)
    (output,) = interval(net, Interval(x - SMALL_RADIUS, x + SMALL_RADIUS))
    (at_x,), (around_x,) = (box_deviation(net, other, x, radius) for radius in (0.0, SMALL_RADIUS))
    assert at_x.value >= truth * (1 - 1e-9) and around_x.value >= attack * (1 - 1e-9), "a bound is violated"
    return {
        "interval of an output, times that of the inputs": float(output.radius.max()) / SMALL_RADIUS,
        "radius 0": {"difference": truth, "bound": at_x.value, "terms": dict(at_x.terms)},
        f"radius {SMALL_RADIUS:g}": {"attack": attack, "bound": around_x.value, "terms": dict(around_x.terms)},
    }


def report(figures: dict[str, Any]) -> None:
    """The table, and the deep network."""
    print(f"{'network, radius':30}{'change':22}" + "".join(f"{method:>20}" for method in METHODS))
    for row in figures["ratios"]:
        ratios = "".join(f"{row['ratio'][method]:20.4g}" for method in METHODS)
        print(f"{row['network'] + ', ' + format(row['radius'], 'g'):30}{row['change']:22}{ratios}")
    for number, image in enumerate(figures["ResNet-20"]):
        for name, value in image.items():
            print(f"ResNet-20, image {number}, {name}: {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=FOLDER, help="of resnet20_cifar10.safetensors")
    parser.add_argument("--store", action="store_true", help="write docs/results/box_tightness.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {"ratios": [measure_case(case) for case in CASES], "ResNet-20": measure_resnet(arguments.models)}
    report(figures)
    if arguments.store:
        print(f"\nstored in {store('box_tightness', figures)}")


if __name__ == "__main__":
    main()
