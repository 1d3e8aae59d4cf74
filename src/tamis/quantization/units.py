"""Units: the weights of a layer that share one scale, all of them or those of each output channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tamis.layerwise import MatrixLayout

Per = Literal["layer", "channel"]


@dataclass(frozen=True)
class Units:
    """How numbers for units and numbers for neurons, (problems, neurons), go together."""

    layout: MatrixLayout
    per: Per

    def weights(self, matrix: Tensor) -> Tensor:
        """The weights of each unit, (units, weights), of a matrix (problems, neurons, features)."""
        layout = self.layout
        if self.per == "layer":
            return matrix.reshape(1, -1)
        each = matrix.reshape(layout.groups, -1, layout.neurons, matrix.shape[2])
        return each.transpose(1, 2).reshape(layout.channels, -1)

    def total(self, values: Tensor) -> Tensor:
        """The sum over the neurons of each unit."""
        return self.layout.sum_by_channel(values) if self.per == "channel" else values.sum()[None]

    def spread(self, values: Tensor) -> Tensor:
        """What each neuron has of its unit."""
        if self.per == "channel":
            return self.layout.spread_channels(values)
        return values.expand(self.layout.problems, self.layout.neurons)

    def scales(self, values: Tensor) -> Tensor:
        """In the shape that `Codes` of the weight wants."""
        whole = torch.Size([1] * len(self.layout.shape))
        return values.reshape(self.layout.channel_shape if self.per == "channel" else whole)
