"""The relative error of a layer is measured while its outputs pass by on a walk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.layerwise.journal import LayerOutcome
from tamis.layerwise.layers import Layer
from tamis.training import Team


class LayerError:
    """A layer error measures ‖Yw − Ỹq‖ / ‖Yw‖ of a layer that was just transformed.

    Args:
        layer: the layer.
        outcome: its new parameters.
        original, small: the parameters of both networks.
        team: the processes that share the batches.
    """

    def __init__(
        self,
        layer: Layer,
        outcome: LayerOutcome,
        original: Mapping[str, Tensor],
        small: Mapping[str, Tensor],
        team: Team,
    ) -> None:
        self.layer, self._outcome, self._original, self._small, self._team = layer, outcome, original, small, team
        self._sums = torch.zeros(2, dtype=torch.float64, device=team.device)

    def add(self, original: Tensor, small: Tensor) -> None:
        """Add the outputs of a batch in both networks."""
        # A batch-norm mean that changed is counted as if it were the layer's bias; Yw is without the bias.
        self._sums[0] += _squared_norm(original - small - self._shift())
        self._sums[1] += _squared_norm(original - self._align(self._find_bias()))

    def outcome(self) -> LayerOutcome:
        """Return the layer's outcome with the error among its figures."""
        error, whole = self._team.summed(self._sums).tolist()
        # Of outputs that are all zero no ratio can be taken: 0 if they stay so, and 1 if not.
        relative = math.sqrt(error / whole) if whole else float(error > 0)
        if not math.isfinite(relative):
            raise InvalidInput(
                f"the outputs of '{self.layer.weight}' are not finite numbers on the calibration data; "
                "look at the scale of the inputs and at the weights before it"
            )
        return replace(self._outcome, figures={"error": relative, **self._outcome.figures})

    def _find_bias(self) -> Tensor | None:
        return None if self.layer.bias is None else self._original[self.layer.bias]

    def _shift(self) -> Tensor | float:
        """Compute what a parameter after the layer adds to its outputs, more in the small network than before."""
        shift = self.layer.shift
        if shift is None or shift.name == self.layer.bias:
            return 0.0  # the outputs already contain the bias
        change = self._small[shift.name] - self._original[shift.name]
        return self._align(shift.sign * change)

    def _align(self, values: Tensor | None) -> Tensor | float:
        """Reshape one number for each output channel so that it broadcasts over the outputs."""
        if values is None:
            return 0.0
        return values.reshape(-1, *[1] * self.layer.spatial_axes)


def _squared_norm(values: Tensor) -> Tensor:
    """Compute ‖values‖² in float64, because squares of float32 may overflow."""
    return torch.linalg.vector_norm(values, dtype=torch.float64).square()
