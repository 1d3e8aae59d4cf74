"""Weight intervals hold the weights that data meets, and how far float64 may be from those that are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import least
from tamis.paths import Weights, is_weight


@dataclass(frozen=True)
class WeightIntervals:
    """Fixed values are kept by name in float64, sizes and indices among them; `errors` has those that are not exact."""

    values: Mapping[str, Any]
    errors: Mapping[str, Tensor] = field(default_factory=dict)
    # A cache: the minimum over a large weight would otherwise be taken again for each node, box and row.
    _least: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, weights: Weights, names: Iterable[str]) -> WeightIntervals:
        """Return some of a network's weights, as they are read or computed."""
        values = {name: weights[name] for name in names}
        allowances = {name: weights.allowance(name) for name in values}
        inexact = {name: allowance for name, allowance in allowances.items() if allowance is not None}
        # An unknown weight is 0 with an infinite error: the error alone says that nothing is known.
        errors = {n: torch.where(values[n].isfinite() & ~e.isnan(), e, torch.inf) for n, e in inexact.items()}
        centres = {n: torch.where(e.isfinite(), values[n], 0.0) for n, e in errors.items()}
        return cls({**values, **centres}, errors)

    def least(self, name: str) -> float:
        """Return the smallest positive magnitude among a tensor's entries and their errors."""
        if name not in self._least:
            parts: list[Any] = [value for value in (self.values[name], self.errors.get(name)) if is_weight(value)]
            self._least[name] = min(map(least, parts), default=1.0)
        return self._least[name]

    def error(self, name: str) -> Any:
        """Return how far each entry of a weight may be from the true one; what is no weight is returned as it is."""
        value = self.values[name]
        return self.errors.get(name, torch.zeros_like(value)) if is_weight(value) else value

    def end(self, name: str, sign: int) -> Any:
        """Return the lowest (−1) or the highest (1) value that a weight can have."""
        value = self.values[name]
        # Twice the error, since this sum rounds, too.
        return value + 2 * sign * self.errors[name] if name in self.errors else value
