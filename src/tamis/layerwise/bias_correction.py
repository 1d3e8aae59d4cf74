"""Bias correction: the mean of every output channel as it was in the original network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tamis.layerwise.layers import Layer, Shift


@dataclass(frozen=True)
class Means:
    """The mean row of a layer's inputs in both networks, mean(Y) and mean(Ỹ): (problems, features), float64."""

    original: Tensor
    small: Tensor


def shifted(layer: Layer, means: Means, original: Mapping[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """The parameter that takes up the change of the means, with its new value; nothing where there is none.

    The mean output changes from mean(Y) w to mean(Ỹ) q; the bias, or the running mean of the batch-norm that follows,
    makes up for the difference.

    Args:
        layer: the layer.
        means: of its inputs.
        original: the original parameters.
        weight: the new weight, q.
    """
    if layer.shift is None:
        return {}
    w, q = (layer.form.matrix(each).double() for each in (original[layer.weight], weight))
    lost = layer.form.by_channel((means.original[:, None, :] * w - means.small[:, None, :] * q).sum(2))
    name = layer.shift.name
    return {name: (original[name].double() + layer.shift.sign * lost).to(original[name].dtype)}


def lost(layer: Layer, original: Mapping[str, Tensor], small: Mapping[str, Tensor]) -> Tensor | None:
    """What each neuron's outputs lack by a bias, or a mean, that stays as it is in the small network.

    It is left to the weights to make up for. (problems, neurons), float64; None where there is neither.
    """
    shift = layer.shift if layer.bias is None else Shift(layer.bias, +1)
    if shift is None:
        return None
    return layer.form.of_channel(shift.sign * (original[shift.name].double() - small[shift.name].double()))
