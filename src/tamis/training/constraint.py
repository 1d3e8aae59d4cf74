"""What weights must satisfy after every step of training, beside fitting the data."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


class Constraint(Protocol):
    """A constraint that `tamis.training.train` keeps to; `tamis.l1inf.Within` is one."""

    @property
    def in_effect(self) -> dict[str, Any]:
        """Its name and its settings in plain values, for a recipe; a checkpoint of others is not gone on from."""

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """An optimizer that steps as the given one does, and ends each step where the model satisfies the constraint.

        It stands for the given one everywhere: checkpoints hold its state_dict, and masks are held after its steps.
        """
