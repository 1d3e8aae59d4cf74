"""Bias correction: the mean of every output channel as it was in the original network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tamis.layerwise.layers import Layer


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
