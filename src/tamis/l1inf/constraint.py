"""The L1,∞ ball constrains training to ‖T_l‖_{1,∞} ≤ c, for `tamis.training.train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tamis.l1inf.layers import Layer, find_hidden_layers, find_layers, find_named_layers
from tamis.l1inf.optimizer import L1Inf
from tamis.l1inf.projection import check_radius
from tamis.l1inf.statistics import Statistics, statistics


@dataclass(frozen=True)
class L1InfConstraint:
    """This constraint keeps ‖T_l‖_{1,∞} ≤ c in every hidden layer, or in the named ones, after each step.

    Args:
        c: a number, or a number for each of some layers by name. A function of the step, which `L1Inf` takes as well,
            could not be told from another one in a checkpoint.

    Example:
        >>> from tamis.training import Settings, load_data, train
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        >>> constraint = L1InfConstraint(0.1)
        >>> trained = train(model, load_data("digits[:60]"), Settings(epochs=1), constraint=constraint, progress=False)
        >>> figures = constraint.statistics(trained.model)
        >>> round(figures.c, 6), figures.sparsity > 0.5
        (0.1, True)

    Reference: yang2021l1inf.
    """

    c: float | Mapping[str, float]

    def __post_init__(self) -> None:
        if isinstance(self.c, Mapping):
            plain = {name: check_radius(radius, f"c of '{name}'") for name, radius in self.c.items()}
            # Plain floats, as recipes and checkpoints hold them; set in this way because the class is frozen.
            object.__setattr__(self, "c", plain)
        else:
            object.__setattr__(self, "c", check_radius(self.c))

    @property
    def in_effect(self) -> dict[str, Any]:
        """Return the constraint's settings, for recipes and checkpoints."""
        return {"l1inf": {"c": dict(self.c) if isinstance(self.c, Mapping) else self.c}}

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> L1Inf:
        """Return an optimizer whose steps are each followed by the projection."""
        return L1Inf(optimizer, model, self.c)

    def layers(self, model: nn.Module) -> list[Layer]:
        """List the constrained layers of a model; raise InvalidInput for an unknown name, or where none is left."""
        return find_named_layers(model, self.c) if isinstance(self.c, Mapping) else find_hidden_layers(model)

    def statistics(self, model: nn.Module) -> Statistics:
        """Measure norms and zeros of the constrained layers, and norms of the outputs of the last free one."""
        names = {layer.name for layer in self.layers(model)}
        return statistics(model, exclude=[layer.name for layer in find_layers(model) if layer.name not in names])
