"""Multilayer perceptrons are fully connected ReLU networks."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(widths: Sequence[int] = (64, 32, 32, 10), bias: bool = True, batch_norm: bool = False) -> nn.Sequential:
    """Build a fully connected ReLU network that flattens its input; `widths` goes from the input to the output.

    The defaults fit the shipped 8x8 digits. With `batch_norm`, each hidden layer is Linear, BatchNorm1d, ReLU.

    Example:
        >>> mlp((4, 8, 2))(torch.zeros(3, 2, 2)).shape
        torch.Size([3, 2])

    Reference: Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors", Nature 1986.
    """
    if len(widths) < 2:
        raise ValueError(f"mlp needs an input and an output width, got widths={tuple(widths)}")
    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    last = len(widths) - 1
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        network.add_module(f"linear{layer}", nn.Linear(inputs, outputs, bias=bias))
        # The last layer gives scores, which are neither normalised nor cut off at 0.
        if layer < last:
            if batch_norm:
                network.add_module(f"norm{layer}", nn.BatchNorm1d(outputs))
            network.add_module(f"relu{layer}", nn.ReLU())
    return network
