"""Constraints are conditions that weights satisfy after every step of training; this is their protocol."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


class Constraint(Protocol):
    """A constraint is a condition that `tamis.training.train` enforces after every step, as `L1InfConstraint` does."""

    @property
    def in_effect(self) -> dict[str, Any]:
        """Return the constraint's name and settings in plain values, for recipes and for telling checkpoints apart."""

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return an optimizer that steps as the given one does and then makes the model satisfy the constraint.

        It replaces the given one everywhere: checkpoints hold its state_dict, and masks are applied after its steps.
        """
