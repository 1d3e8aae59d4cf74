"""Which c: 20-fold cross-validation on both synthetic experiments.

Reference: yang2021l1inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from experiments.bounds_l1inf import Draw, draw_classified_samples
from experiments.l1inf_stack import Recipe, Regularizer, Stack, Task, measure, train
from experiments.l1inf_synthetic import INPUTS, RegressionPlan, Widths, draw_linear
from tamis.l1inf import select_c
from tamis.l1inf.select_c import deal_folds


@dataclass(frozen=True)
class FoldsPlan:
    """Candidates of c for both experiments, and how each is trained."""

    classification: tuple[float, ...] = (2.0, 0.5, 0.16, 0.10, 0.07, 0.04, 0.01)
    regression: tuple[float, ...] = (4.0, 1.0, 0.25, 0.05)
    folds: int = 20
    samples: int = 500
    hidden: Widths = (100, 50, 20)
    classification_recipe: Recipe = field(default_factory=lambda: Recipe(steps=600))
    regression_recipe: Recipe = field(default_factory=lambda: Recipe(steps=200, output=0.00125))  # a shorter one


FULL = FoldsPlan()
SHORT = FoldsPlan(
    classification=(0.5, 0.1, 0.01), regression=(1.0, 0.1), folds=5, classification_recipe=Recipe(steps=300)
)


class FoldScores:
    """Scores for `select_c`, which asks for them one by one: the networks of all folds of a c are trained at once.

    Args:
        task: the samples.
        widths: of the networks.
        folds, seed: as `select_c` has them.
        recipe: of the trainings.

    A score is the accuracy on the fold that is held out, or minus the loss.
    """

    def __init__(self, task: Task, widths: Sequence[int], folds: int, recipe: Recipe, seed: int = 0) -> None:
        self.task, self.widths, self.recipe = task, tuple(widths), recipe
        self.folds = deal_folds(len(task.inputs), folds, seed)
        self.known: dict[float, list[float]] = {}

    def __call__(self, c: float, rest: Tensor, held_out: Tensor) -> float:
        if c not in self.known:
            self.known[c] = self._of_all_folds(c)
        fold = next(number for number, part in enumerate(self.folds) if torch.equal(part, held_out))
        return self.known[c][fold]

    def _of_all_folds(self, c: float) -> list[float]:
        every = torch.arange(len(self.task.inputs))
        rests = [every[torch.isin(every, part, invert=True)] for part in self.folds]
        stack = Stack(self.widths, [0] * len(self.folds), str(self.task.inputs.device))
        train(stack, self.task, rests, Regularizer(c), self.recipe)
        found = [measure(stack, self.task, n, rests[n], part) for n, part in enumerate(self.folds)]
        return [each["test accuracy"] if self.task.classifies else -each["test loss"] for each in found]


def run_folds(plan: FoldsPlan, device: str) -> dict[str, Any]:
    """Return for both experiments the scores of every c on every fold, their means, and the c that is chosen."""
    return {
        "plan": asdict(plan),
        "classification": _select_c(
            draw_classified_samples,
            (INPUTS, *plan.hidden, 2),
            plan.classification,
            plan,
            plan.classification_recipe,
            device,
        ),
        "regression": _select_c(
            draw_linear, RegressionPlan().widths, plan.regression, plan, plan.regression_recipe, device
        ),
    }


def _select_c(
    draw: Draw, widths: Widths, candidates: Sequence[float], plan: FoldsPlan, recipe: Recipe, device: str
) -> dict[str, Any]:
    inputs, targets = draw(plan.samples, torch.Generator().manual_seed(0))
    score = FoldScores(Task(inputs.to(device), targets.to(device)), widths, plan.folds, recipe)
    chosen = select_c(score, plan.samples, candidates, plan.folds)
    rows = [{"c": c, "mean": chosen.means[c], "scores": list(scores)} for c, scores in chosen.table.items()]
    return {"c": chosen.c, "rows": rows}
