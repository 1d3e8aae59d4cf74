"""A unit is the weights of a layer that share one scale: all of them, or those of one output channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tamis.layerwise import MatrixLayout

Per = Literal["layer", "channel"]


@dataclass(frozen=True)
class Units:
    """Units turn numbers for neurons, (problems, neurons), into numbers for units, and back."""

    layout: MatrixLayout
    per: Per

    def weights(self, matrix: Tensor) -> Tensor:
        """Return the weights of each unit, (units, weights), from a matrix (problems, neurons, features)."""
        layout = self.layout
        if self.per == "layer":
            return matrix.reshape(1, -1)
        # One 2-D kernel at a time, a channel's weights lie in several problems of its group: bring them together.
        each = matrix.reshape(layout.groups, -1, layout.neurons, matrix.shape[2])
        return each.transpose(1, 2).reshape(layout.channels, -1)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the neurons of each unit."""
        return self.layout.sum_by_channel(values) if self.per == "channel" else values.sum()[None]

    def spread(self, values: Tensor) -> Tensor:
        """Give each unit's number to each of its neurons."""
        if self.per == "channel":
            return self.layout.spread_channels(values)
        return values.expand(self.layout.problems, self.layout.neurons)

    def scales(self, values: Tensor) -> Tensor:
        """Return one number for each unit in the shape that `Codes` of the weight wants."""
        whole = torch.Size([1] * len(self.layout.shape))
        return values.reshape(self.layout.channel_shape if self.per == "channel" else whole)
