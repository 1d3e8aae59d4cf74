"""L1,∞ normalization beside other regularizers, on the synthetic classification and on MNIST.

λ multiplies ‖w‖₁, or ‖w‖₂² / 2, of all weights; biases are free. Dropout follows every hidden layer.

Reference: yang2021l1inf.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from experiments.bounds_l1inf import draw_classified_samples
from experiments.bounds_training import Batches, compute_outputs, fit, make_perceptron
from experiments.l1inf_stack import Recipe, Regularizer
from experiments.l1inf_synthetic import INPUTS, Draws, Widths, train_networks
from tamis.l1inf import L1Inf, statistics
from tamis.progress import reporting
from tamis.training import load_data

PENALTIES = (0.1, 0.01, 0.001, 0.0001)
OURS = "our approach"


def make_regularizers(c: float) -> dict[str, Regularizer]:
    """Return those of the paper's table, by name; ours is the last."""
    return {
        "none": Regularizer(),
        **{f"L1 {weight:g}": Regularizer(l1=weight) for weight in PENALTIES},
        **{f"L2 {weight:g}": Regularizer(l2=weight) for weight in PENALTIES},
        "dropout 0.5": Regularizer(dropout=0.5),
        OURS: Regularizer(c),
    }


@dataclass(frozen=True)
class ComparisonPlan:
    """Samples, networks and c of both columns of the table."""

    synthetic_c: float = 0.07
    draws: int = 3
    train: int = 500
    test: int = 1000
    hidden: Widths = (100, 50, 20)
    recipe: Recipe = field(default_factory=Recipe)
    images: str = "mnist:train"
    test_images: str = "mnist:test"
    images_c: float = 4.0
    images_hidden: Widths = (300, 100)
    epochs: int = 6
    batch: int = 200
    learning_rate: float = 0.001


FULL = ComparisonPlan()
SHORT = ComparisonPlan(
    draws=1, recipe=Recipe(steps=500), images="mnist:train[:6000]", test_images="mnist:test[:2000]", epochs=4
)


def run_comparison(plan: ComparisonPlan, device: str) -> dict[str, Any]:
    """Return test accuracies by regularizer, on both data sets, and how many weights are zero."""
    draws = Draws.of(draw_classified_samples, plan.draws, plan.train, plan.test, device)
    images = tuple(load_data(spec).to(device) for spec in (plan.images, plan.test_images))
    (inputs, labels), (test_inputs, test_labels) = ((data.normalised().flatten(1), data.labels) for data in images)
    synthetic, on_images = make_regularizers(plan.synthetic_c), make_regularizers(plan.images_c)
    rows: list[dict[str, Any]] = []
    with reporting(True, "regularizers", len(synthetic)) as report:
        for name in synthetic:
            networks = train_networks((INPUTS, *plan.hidden, 2), draws, synthetic[name], plan.recipe)
            model = train_on_images(plan, on_images[name], inputs, labels)
            right = compute_outputs(model, test_inputs, 1000).argmax(1) == test_labels
            rows.append(
                {
                    "regularizer": name,
                    "synthetic": sum(each["test accuracy"] for each in networks) / len(networks),
                    "images": float(right.double().mean()),
                    "zeros": {
                        "synthetic": sum(each["zeros"] for each in networks) / len(networks),
                        "images": statistics(model).sparsity,
                    },
                }
            )
            report(len(rows), synthetic=rows[-1]["synthetic"], images=rows[-1]["images"])
    return {"plan": asdict(plan), "rows": rows}


def train_on_images(plan: ComparisonPlan, regularizer: Regularizer, inputs: Tensor, labels: Tensor) -> nn.Module:
    """Return a perceptron trained by Adam, with a step of one size for all layers: here c is large, and signals do not
    shrink.

    Returns:
        It, without dropout.
    """
    torch.manual_seed(0)
    classes = int(labels.max()) + 1
    bare = make_perceptron((inputs.shape[1], *plan.images_hidden, classes)).to(inputs.device)
    model = add_dropout(bare, regularizer.dropout)
    weights = [layer.weight for layer in bare if isinstance(layer, nn.Linear)]

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        total = cross_entropy(outputs, wanted)
        if regularizer.l1:
            total = total + regularizer.l1 * sum(weight.abs().sum() for weight in weights)
        if regularizer.l2:
            total = total + regularizer.l2 / 2 * sum(weight.square().sum() for weight in weights)
        return total

    optimizer: Optimizer = Adam(bare.parameters(), lr=plan.learning_rate)
    if regularizer.c is not None:
        optimizer = L1Inf(optimizer, bare, regularizer.c)
    fit(model, optimizer, loss, Batches(inputs, labels, plan.epochs, plan.batch, seed=0))
    return bare


def add_dropout(model: nn.Sequential, rate: float) -> nn.Module:
    """Return the same layers, sharing their weights, with dropout after every ReLU."""
    if not rate:
        return model
    layers: list[nn.Module] = []
    for layer in model:
        layers += [layer, nn.Dropout(rate)] if isinstance(layer, nn.ReLU) else [layer]
    return nn.Sequential(*layers)
