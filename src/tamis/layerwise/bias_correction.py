"""Bias correction keeps the mean of every output channel what it was in the original network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tamis.layerwise.layers import Layer, Shift


@dataclass(frozen=True)
class InputMeans:
    """Input means are mean(Y) and mean(Ỹ), a layer's mean row in both networks: (problems, features), float64."""

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
    # (problems, neurons, features). In float64: two large means may differ by little, and that little is what is
    # sought.
    w, q = (layer.layout.to_matrix(each).double() for each in (original[layer.weight], weight))
    # Taken one 2-D kernel at a time, a channel's output is the sum over all problems of its group, and so is its mean.
    difference = layer.layout.sum_by_channel((means.original[:, None, :] * w - means.small[:, None, :] * q).sum(2))
    name = layer.shift.name
    # From the original value, not the present one: the difference of means already holds all that has happened since.
    return {name: (original[name].double() + layer.shift.sign * difference).to(original[name].dtype)}


def compute_bias_offset(layer: Layer, original: Mapping[str, Tensor], small: Mapping[str, Tensor]) -> Tensor | None:
    """Compute what the weights have to add to each neuron's outputs, because its bias differs and stays as it is.

    Returns:
        The original bias (or batch-norm mean) minus the small network's, (problems, neurons), float64, in equal parts
        where several problems add up to one neuron; None where the layer has neither.
    """
    # A bias that others read, too, is no `shift`, since it must not be moved; but it may have been pruned all the same.
    shift = layer.shift if layer.bias is None else Shift(layer.bias, +1)
    if shift is None:
        return None
    difference = shift.sign * (original[shift.name].double() - small[shift.name].double())
    # A convolution that is solved by input channels has several problems for one output: together they add it once.
    parts = layer.layout.problems // layer.layout.groups
    return layer.layout.spread_channels(difference) / parts
