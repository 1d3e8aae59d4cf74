"""Bias correction: the mean of every output channel stays what it was in the original network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tamis.layerwise.layers import Layer, Shift


@dataclass(frozen=True)
class InputMeans:
    """The mean row of a layer's inputs in both networks, mean(Y) and mean(Ỹ): (problems, features), float64."""

    original: Tensor
    small: Tensor


def correct_bias(layer: Layer, means: InputMeans, original: Mapping[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Compute the bias, or batch-norm mean, that makes up for a change of the layer's mean output.

    The mean output changes from mean(Y) w to mean(Ỹ) q; the bias, or the running mean of the batch-norm that follows,
    takes up the difference.

    Args:
        layer: the layer.
        means: the means of its inputs.
        original: the original parameters.
        weight: the new weight, q.

    Returns:
        The parameter's name and new value; empty where the layer has no such parameter.
    """
    if layer.shift is None:
        return {}
    w, q = (layer.layout.to_matrix(each).double() for each in (original[layer.weight], weight))
    difference = layer.layout.sum_by_channel((means.original[:, None, :] * w - means.small[:, None, :] * q).sum(2))
    name = layer.shift.name
    return {name: (original[name].double() + layer.shift.sign * difference).to(original[name].dtype)}


def compute_bias_offset(layer: Layer, original: Mapping[str, Tensor], small: Mapping[str, Tensor]) -> Tensor | None:
    """Compute what the weights have to add to each neuron's outputs, because its bias differs and stays as it is.

    Returns:
        The original bias (or batch-norm mean) minus the small network's, (problems, neurons), float64; None where the
        layer has neither.
    """
    shift = layer.shift if layer.bias is None else Shift(layer.bias, +1)
    if shift is None:
        return None
    return layer.layout.spread_channels(shift.sign * (original[shift.name].double() - small[shift.name].double()))
