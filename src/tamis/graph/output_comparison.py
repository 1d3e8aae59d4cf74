"""Two networks are compared by their outputs on the same inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.graph.network import Network


@dataclass(frozen=True)
class OutputComparison:
    """An output comparison says how far the outputs of two networks are apart, summed over samples.

    Attributes:
        squared_change: Σ ‖R_θ(x) − R_θ'(x)‖₂².
        squared_size: Σ ‖R_θ(x)‖₂², of the first network.
        different: how many samples have another largest output.
        samples: how many there were.
    """

    squared_change: float
    squared_size: float
    different: int
    samples: int


@torch.no_grad()
def compare_outputs(net: Network, other: Network, batches: Iterable[tuple[Tensor, ...]]) -> OutputComparison:
    """Compare two networks on batches of inputs, which are moved to the first network's device.

    Example:
        >>> net = tamis.trace(torch.nn.Linear(2, 2, bias=False), torch.zeros(1, 2))
        >>> net = net.with_params({"weight": torch.eye(2)})
        >>> swapped = net.with_params({"weight": torch.eye(2).flip(0)})
        >>> compare_outputs(net, swapped, [(torch.tensor([[1.0, 0.0], [2.0, 2.0]]),)])
        OutputComparison(squared_change=2.0, squared_size=9.0, different=1, samples=2)
    """
    change, size, different, samples = 0.0, 0.0, 0, 0
    for batch in batches:
        inputs = [value.to(net.device) for value in batch]
        before, after = net.flat_outputs(*inputs), other.flat_outputs(*inputs)
        # `flat_outputs` is in float64, so that squares of small differences are not lost in the sums.
        change += float((before - after).square().sum())
        size += float(before.square().sum())
        different += int((before.argmax(1) != after.argmax(1)).sum())
        samples += len(before)
    return OutputComparison(change, size, different, samples)
