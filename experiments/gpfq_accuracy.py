"""Accuracies of quantized networks: Figure 1, a perceptron on MNIST, and Table 1, a convolutional one on CIFAR-10.

Reference: lybrand2021gpfq, section 6.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.record import time_stage
from tamis.artifact import Compressed
from tamis.graph import Network, trace
from tamis.progress import reporting
from tamis.quantization import quantize
from tamis.training import Data, Settings, evaluate, load_data, train

PAPERS_METHODS: dict[str, dict[str, Any]] = {
    "GPFQ": {"method": "gpfq", "per": "layer", "conv": "per_channel"},
    "MSQ": {"method": "msq", "per": "layer"},
}
RECOMMENDED: dict[str, dict[str, Any]] = {
    "optq per layer": {"method": "optq", "per": "layer"},
    "optq": {"method": "optq"},
}
CLASSES = 10
UNUSED_DATA = 1  # samples for MSQ, whose choice does not depend on them


@dataclass(frozen=True)
class Plan:
    """What to train and to quantize, on what.

    Attributes:
        settings: of the training.
        widths: of the hidden layers, or of the three stages of convolutions.
        train, calibration, test: datasets; `validation` too, for a C_α chosen on data that is not the test's.
        levels: M, each with all of `c_alphas`.
    """

    settings: Settings
    widths: tuple[int, ...]
    train: str
    calibration: str
    test: str
    levels: tuple[int, ...]
    c_alphas: tuple[int, ...]
    validation: str = ""


FULL_PERCEPTRON = Plan(
    Settings(epochs=100, batch=128, optimizer="adamw", learning_rate=1e-3, weight_decay=0.0),
    widths=(500, 300),
    train="mnist:train[:48000]",
    validation="mnist:train[48000:]",
    calibration="mnist:train[:25000]",
    test="mnist:test",
    levels=(3,),
    c_alphas=tuple(range(1, 11)),
)
SHORT_PERCEPTRON = replace(
    FULL_PERCEPTRON,
    settings=replace(FULL_PERCEPTRON.settings, epochs=4),
    train="mnist:train[:12000]",
    validation="mnist:train[58000:]",
    calibration="mnist:train[:2500]",
    test="mnist:test[:2000]",
)
FULL_CONVOLUTIONS = Plan(
    # Adam without weight decay, as in the paper: decay leaves a median too small to scale an alphabet by.
    Settings(
        epochs=120,
        batch=128,
        optimizer="adamw",
        learning_rate=0.001,
        weight_decay=0.0,
        warmup_epochs=2,
        augment=True,
        amp=True,
    ),
    widths=(32, 64, 128),
    train="cifar10:train",
    calibration="cifar10:train[:5000]",
    test="cifar10:test",
    levels=(3, 4, 8, 16),
    c_alphas=(2, 3, 4, 5, 6),
)
SHORT_CONVOLUTIONS = replace(
    FULL_CONVOLUTIONS,
    settings=replace(FULL_CONVOLUTIONS.settings, epochs=10, batch=64, warmup_epochs=1),
    widths=(8, 16, 32),
    train="cifar10:train[:2500]",
    calibration="cifar10:train[:500]",
    test="cifar10:test[:1000]",
    levels=(3, 16),
    c_alphas=(2, 4),
)


# -- networks ----------------------------------------------------------------------------------------------------------


def make_perceptron(widths: Sequence[int], inputs: int = 784) -> nn.Sequential:
    """Make hidden layers of these widths, each a linear layer, ReLU and batch-norm; then the scores."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in pairwise((inputs, *widths)):
        layers += [nn.Linear(before, width), nn.ReLU(), nn.BatchNorm1d(width)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


def make_convolutions(widths: Sequence[int], size: int = 32) -> nn.Sequential:
    """Make 2×32C3 → MP2 → 2×64C3 → MP2 → 2×128C3 → 128FC → 10FC, for other widths likewise, on size×size colour images.

    Batch-norm comes after every ReLU, and so before every layer but the first; dropout after each max-pooling and
    before the last layer. The paper leaves the rates of dropout and the padding open; they are those of its authors'
    published training script.
    """
    first, second, third = widths
    layers = [*_make_stage(3, first), nn.MaxPool2d(2), nn.Dropout(0.2)]
    layers += [*_make_stage(first, second), nn.MaxPool2d(2), nn.Dropout(0.3)]
    layers += [*_make_stage(second, third), nn.Flatten()]
    layers += [nn.Linear(third * (size // 4) ** 2, third), nn.ReLU(), nn.BatchNorm1d(third), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(third, CLASSES))


def _make_stage(inputs: int, width: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for channels in (inputs, width):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(width)]
    return layers


@dataclass(frozen=True)
class Subject:
    """A trained network to quantize: the model, and its graph, on one device with the calibration data."""

    model: nn.Module
    net: Network
    calibration: Data

    @classmethod
    def train(cls, untrained: nn.Module, plan: Plan, directory: Path, device: str) -> Subject:
        """Train, or go on, or read what is finished."""
        validation = load_pixels(plan.validation) if plan.validation else None
        trained = train(
            untrained, load_pixels(plan.train), plan.settings, test=validation, directory=directory, device=device
        )
        model, calibration = trained.model.to(device), load_pixels(plan.calibration).to(device)
        return cls(model, trace(model, calibration.example), calibration)

    @property
    def layers(self) -> list[str]:
        """Return the weights that are quantized, from the first layer to the last."""
        return [name for name, value in self.net.params.items() if value.dim() > 1]

    def quantize(self, levels: int, **options: Any) -> Compressed:
        data = self.calibration[:UNUSED_DATA] if options["method"] == "msq" else self.calibration
        return quantize(self.net, data, levels, progress=False, **options)

    def measure_accuracy(self, data: Data, small: Compressed | None = None) -> float:
        """Measure the accuracy of the network, or of what was made of it."""
        if small is None:
            return evaluate(self.model, data)
        model = copy.deepcopy(self.model)
        model.load_state_dict(small.state_dict())
        return evaluate(model, data)


def load_pixels(spec: str) -> Data:
    """Load images on the scale 0..1, not normalised further (sections 6.1 and 6.2)."""
    return replace(load_data(spec), mean=(), std=())


# -- Figure 1 ----------------------------------------------------------------------------------------------------------


def run_figure_1(plan: Plan, directory: Path, device: str) -> dict[str, Any]:
    """Return accuracies for each C_α (1a), and layer by layer with the C_α that is best on the validation data (1b)."""
    seconds: dict[str, float] = {}
    methods = PAPERS_METHODS
    (levels,) = plan.levels
    torch.manual_seed(plan.settings.seed)
    with time_stage(seconds, "training"):
        subject = Subject.train(make_perceptron(plan.widths), plan, directory, device)
    validation, test = (load_pixels(spec).to(device) for spec in (plan.validation, plan.test))
    depths = range(1, len(subject.layers) + 1)
    total = len(methods) * len(plan.c_alphas) + (len(methods) + len(RECOMMENDED)) * len(depths)
    by_c_alpha: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    with time_stage(seconds, "quantization"), reporting(True, "figure 1", total) as report:
        done = 0
        for name, options in methods.items():
            for c_alpha in plan.c_alphas:
                small = subject.quantize(levels, c_alpha=c_alpha, **options)
                found = {
                    "validation": subject.measure_accuracy(validation, small),
                    "test": subject.measure_accuracy(test, small),
                }
                by_c_alpha[name].append({"C_α": c_alpha, **found})
                done += 1
                report(done, accuracy=found["test"])
        best = {name: _choose_on_validation(points) for name, points in by_c_alpha.items()}
        chosen = {name: {**methods[name], "c_alpha": best[name]} for name in methods} | RECOMMENDED
        dense = subject.measure_accuracy(test)
        by_layer = {name: [dense] for name in chosen}
        for name, options in chosen.items():
            for depth in depths:
                small = subject.quantize(levels, include=subject.layers[:depth], **options)
                by_layer[name].append(subject.measure_accuracy(test, small))
                done += 1
                report(done, accuracy=by_layer[name][-1])
    return {
        "plan": asdict(plan),
        "analog": dense,
        "by C_α": by_c_alpha,
        "C_α best on validation": best,
        "by layers quantized": by_layer,
        "seconds": seconds,
    }


def _choose_on_validation(points: Sequence[dict[str, float]]) -> float:
    return max(points, key=lambda point: point["validation"])["C_α"]


# -- Table 1 -----------------------------------------------------------------------------------------------------------


def run_table_1(plan: Plan, directory: Path, device: str) -> dict[str, Any]:
    """Return a row for each number of levels and C_α, with the accuracy of each method; and the recommended one's for
    each M.

    The recommended method chooses its own C_α, on part of the calibration data, and a scale for each channel.
    """
    seconds: dict[str, float] = {}
    torch.manual_seed(plan.settings.seed)
    with time_stage(seconds, "training"):
        subject = Subject.train(make_convolutions(plan.widths), plan, directory, device)
    test = load_pixels(plan.test).to(device)
    rows: list[dict[str, Any]] = []
    searched: list[dict[str, Any]] = []
    total = len(plan.levels) * (len(plan.c_alphas) * len(PAPERS_METHODS) + 1)
    with time_stage(seconds, "quantization"), reporting(True, "table 1", total) as report:
        done = 0

        def measure(levels: int, **options: Any) -> float:
            nonlocal done
            accuracy = subject.measure_accuracy(test, subject.quantize(levels, **options))
            done += 1
            report(done, levels=levels, accuracy=accuracy)
            return accuracy

        for levels in plan.levels:
            for c_alpha in plan.c_alphas:
                found = {name: measure(levels, c_alpha=c_alpha, **how) for name, how in PAPERS_METHODS.items()}
                rows.append({"levels": levels, "C_α": c_alpha, **found})
            searched.append({"levels": levels, "optq": measure(levels, **RECOMMENDED["optq"])})
    return {
        "plan": asdict(plan),
        "analog": subject.measure_accuracy(test),
        "rows": rows,
        "searched": searched,
        "seconds": seconds,
    }
