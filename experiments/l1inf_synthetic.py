"""The synthetic experiments on L1,∞ normalization: losses, generalization error, accuracy and zeros against c.

Each number is the mean over several draws of the samples, the first weights and the batches; all c share the draws.

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from experiments.bounds_l1inf import Draw, draw_classified_samples, draw_linear_samples
from experiments.l1inf_stack import Recipe, Regularizer, Stack, Task, measure, train
from tamis.progress import reporting

INPUTS = 500  # of classification
INFORMATIVE = 4  # of these
Widths = tuple[int, ...]
Setting = tuple[Widths, float | None, tuple[int, ...]]  # hidden widths, c, sizes of the samples


@dataclass(frozen=True)
class RegressionPlan:
    """A linear function of 100 of 1,000 inputs, learnt by 300 units."""

    cs: tuple[float | None, ...] = (None, 4.0, 1.0, 0.5, 0.25, 0.1, 0.05)
    draws: int = 3
    train: int = 500
    test: int = 1500
    widths: Widths = (1000, 300, 1)
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=500, output=0.0005))


@dataclass(frozen=True)
class ClassificationPlan:
    """Both tables: depth × c with the first of the sizes, and size × c with the second of the depths.

    Attributes:
        controls: c for which the output's step is not lessened, so that all train alike but for the biases.
    """

    cs: tuple[float | None, ...] = (None, 0.5, 0.16, 0.13, 0.10, 0.07, 0.04, 0.01)
    depths: tuple[Widths, ...] = ((100, 20), (100, 50, 20), (100, 100, 50, 20))
    sizes: tuple[int, ...] = (500, 1000, 1500, 2000, 2500)
    controls: tuple[float, ...] = (0.5, 0.04)
    draws: int = 3
    test: int = 1000
    recipe: Recipe = field(default_factory=Recipe)


FULL_REGRESSION = RegressionPlan()
SHORT_REGRESSION = RegressionPlan(cs=(None, 1.0, 0.25, 0.1), draws=1)
FULL_CLASSIFICATION = ClassificationPlan()
SHORT_CLASSIFICATION = ClassificationPlan(
    cs=(None, 0.5, 0.16, 0.04), sizes=(500, 1500), draws=1, recipe=Recipe(steps=500)
)


@dataclass(frozen=True)
class Draws:
    """Several draws of one distribution, in one task: of each, the places of its training and of its test samples.

    Attributes:
        first: the seed of the first draw, and of the first network's weights.
    """

    task: Task
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    first: int = 0

    @classmethod
    def of(cls, draw: Draw, draws: int, train: int, test: int, device: str, first: int = 0) -> Draws:
        """Draw `draws` times, from the seeds `first`, `first` + 1, …; what a seed gives depends on nothing else."""
        parts = []
        for seed in range(first, first + draws):
            generator = torch.Generator().manual_seed(seed)
            parts += [draw(train, generator), draw(test, generator)]
        inputs, targets = (torch.cat([part[kind] for part in parts]).to(device) for kind in (0, 1))
        starts = [number * (train + test) for number in range(draws)]
        return cls(
            Task(inputs, targets),
            tuple(torch.arange(start, start + train) for start in starts),
            tuple(torch.arange(start + train, start + train + test) for start in starts),
            first,
        )


def draw_linear(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw samples of the regression, whose coefficients are those of the experiment on bounds."""
    beta = torch.empty(100).uniform_(0.15, 150, generator=torch.Generator().manual_seed(0))
    return draw_linear_samples(n, beta, generator)


def run_regression(plan: RegressionPlan, device: str) -> dict[str, Any]:
    """Return a row for each c: losses in training and test, their gap, and the share of zeros."""
    draws = Draws.of(draw_linear, plan.draws, plan.train, plan.test, device)
    rows = []
    with reporting(True, "regression", len(plan.cs)) as report:
        for c in plan.cs:
            rows.append({"c": c, **_average(train_networks(plan.widths, draws, Regularizer(c), plan.recipe))})
            report(len(rows), c=c or math.inf, gap=rows[-1]["gap"])
    guess = sum(float(draws.task.targets[places].var(correction=0)) / 2 for places in draws.test) / plan.draws
    return {"plan": asdict(plan), "guess": guess, "rows": rows}


def run_classification(plan: ClassificationPlan, device: str) -> dict[str, Any]:
    """Return rows of both tables, each with its hidden widths, size and c, and the controls."""
    draws = Draws.of(draw_classified_samples, plan.draws, max(plan.sizes), plan.test, device)
    middle, smallest = plan.depths[1], plan.sizes[:1]
    settings: list[Setting] = [
        (depth, c, plan.sizes if depth == middle else smallest) for depth in plan.depths for c in plan.cs
    ]
    controls: list[Setting] = [(middle, c, smallest) for c in plan.controls]
    unlessened = Recipe(**{**asdict(plan.recipe), "exponent": 0.0, "output": plan.recipe.output / 2})
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "controls": []}
    done = 0
    with reporting(True, "classification", len(settings) + len(controls)) as report:
        for kind, some, recipe in (("rows", settings, plan.recipe), ("controls", controls, unlessened)):
            for depth, c, sizes in some:
                networks = train_networks((INPUTS, *depth, 2), draws, Regularizer(c), recipe, sizes)
                for number, size in enumerate(sizes):
                    same = networks[number * plan.draws : (number + 1) * plan.draws]
                    found[kind].append({"hidden": list(depth), "size": size, "c": c, **_average(same)})
                done += 1
                report(done, c=c or math.inf, gap=found[kind][-1]["gap"])
    labels = torch.cat([draws.task.targets[places] for places in draws.test])
    return {"plan": asdict(plan), "majority": 0.5 + abs(float(labels.double().mean()) - 0.5), **found}


def run_fresh(plan: ClassificationPlan, device: str) -> dict[str, Any]:
    """Return a column of the tables again, with draws that had no part in the choice of the recipe."""
    draws = Draws.of(draw_classified_samples, plan.draws, plan.sizes[0], plan.test, device, first=plan.draws)
    hidden = plan.depths[1]
    rows: list[dict[str, Any]] = []
    with reporting(True, "fresh draws", len(plan.cs)) as report:
        for c in plan.cs:
            networks = train_networks((INPUTS, *hidden, 2), draws, Regularizer(c), plan.recipe)
            rows.append({"hidden": list(hidden), "size": plan.sizes[0], "c": c, **_average(networks)})
            report(len(rows), c=c or math.inf, gap=rows[-1]["gap"])
    return {"plan": asdict(plan), "rows": rows}


def train_networks(
    widths: Sequence[int], draws: Draws, regularizer: Regularizer, recipe: Recipe, sizes: Sequence[int] = ()
) -> list[dict[str, float]]:
    """Return, for every size and every draw within it, the figures of a network trained on so many of its samples."""
    stack, samples = train_stack_on_draws(widths, draws, regularizer, recipe, sizes)
    sparsity = stack.sparsity()
    return [
        {**measure(stack, draws.task, number, places, draws.test[number % len(draws.test)]), "zeros": sparsity[number]}
        for number, places in enumerate(samples)
    ]


def train_stack_on_draws(
    widths: Sequence[int], draws: Draws, regularizer: Regularizer, recipe: Recipe, sizes: Sequence[int] = ()
) -> tuple[Stack, list[Tensor]]:
    """Return the networks, and the places of the samples that each was trained on."""
    samples = [places[:size] for size in sizes or [len(draws.train[0])] for places in draws.train]
    seeds = [draws.first + number % len(draws.train) for number in range(len(samples))]
    stack = Stack(widths, seeds, str(draws.task.inputs.device))
    train(stack, draws.task, samples, regularizer, recipe)
    return stack, samples


def _average(networks: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the mean of every figure, and of the accuracy and the gap each network's."""
    means: dict[str, Any] = {name: sum(each[name] for each in networks) / len(networks) for name in networks[0]}
    return {**means, "gaps": [each["gap"] for each in networks]} | (
        {"test accuracies": [each["test accuracy"] for each in networks]} if "test accuracy" in means else {}
    )


# -- the first layer's columns -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnsPlan:
    """Two networks whose first layers are drawn side by side, and how many inputs of them."""

    c: float = 0.04
    shown: int = 20
    hidden: Widths = (100, 50, 20)
    train: int = 500
    recipe: Recipe = field(default_factory=Recipe)


FULL_COLUMNS = ColumnsPlan()
SHORT_COLUMNS = ColumnsPlan(recipe=Recipe(steps=500))


def run_columns(plan: ColumnsPlan, device: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what of the first layer belongs to the inputs that matter, without and with c; and the weights to be
    drawn.

    Units without a way to the output, because of zeros in later layers, have not been trained and say nothing; each
    unit counts by its influence, Π_l |W_l| summed over the outputs.
    """
    draws = Draws.of(draw_classified_samples, 1, plan.train, 1, device)
    figures: dict[str, Any] = {"plan": asdict(plan), "networks": []}
    pictures = {}
    for c in (None, plan.c):
        stack, _ = train_stack_on_draws((INPUTS, *plan.hidden, 2), draws, Regularizer(c), plan.recipe)
        first, *later = (weight[0].detach().cpu().abs() for weight in stack.weights)
        influence = torch.linalg.multi_dot(later[::-1]).sum(0)
        shares = first / first.sum(1, keepdim=True).clamp(min=1e-30)
        by_input = (influence / influence.sum()) @ shares
        figures["networks"].append(
            {
                "c": c,
                "share of the inputs that matter": float(by_input[:INFORMATIVE].sum()),
                "share by input": [round(float(share), 5) for share in by_input[: plan.shown]],
                "units without influence": int((influence == 0).sum()),
            }
        )
        order = influence.argsort(descending=True)
        pictures["no constraint" if c is None else f"c = {c:g}"] = shares[order][:, : plan.shown]
    return figures, pictures
