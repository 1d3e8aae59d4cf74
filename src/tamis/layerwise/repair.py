"""Repair: what pruning and quantization left of a network, fitted to the original layer by layer, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Codes, Compressed, compressed_of, storable
from tamis.errors import InvalidInput
from tamis.graph import Network, Patterns, as_patterns, check_same_graph, lasting, without_autocast
from tamis.layerwise.bias_correction import lost, shifted
from tamis.layerwise.calibration import Calibration
from tamis.layerwise.collector import Rows, Sums
from tamis.layerwise.gram import Gram
from tamis.layerwise.journal import Outcome
from tamis.layerwise.layers import Layer, find_layers
from tamis.layerwise.least_squares import DAMPING, fitted
from tamis.layerwise.transform import described, transformed
from tamis.layerwise.walk import ACTIVATION_BUDGET, Walk, check_budget
from tamis.progress import Listener
from tamis.settings import Repair, documents
from tamis.training import join_team


@documents(Repair)
@without_autocast()
def repair(
    net: Network | nn.Module,
    small: Compressed,
    calibration: Calibration,
    *,
    damping: float = DAMPING,
    bias_correction: bool = True,
    include: Patterns = None,
    exclude: Patterns = None,
    directory: str | Path | None = None,
    activation_budget: int = ACTIVATION_BUDGET,
    example: Tensor | tuple[Tensor, ...] | None = None,
    progress: Listener = True,
) -> Compressed:
    """Refit a compressed network to the original one, layer by layer, without training.

    Of a layer with real weights, every neuron becomes the least-squares fit to its original outputs among the weights
    on its own support, given the inputs that the compressed layers before it now send. Of a quantized layer the codes
    stay, and the scales of its units are fitted. Masks and codes are those of `small`.

    Args:
        net: the original network, or a module, with an example of its input.
        small: the same network, compressed.
        calibration: inputs, as `tamis.quantize` takes them.
        <settings>
        directory: where each layer is left when it is finished, so that the same call goes on after a kill.
        activation_budget: bytes of activations to keep in memory; what is more goes to files.
        example: an input, if `net` is a module.
        progress: True, False, or a function of a `Progress`, called after each layer.

    Returns:
        The network with the same masks and codes; no layer's error on the calibration data, given its inputs, is larger
        than it was. The last step of its `recipe` has the error of each layer.

    Example:
        >>> small = tamis.prune(net, 0.7, by="magnitude")
        >>> small = tamis.repair(net, small, "cifar10:train[:5000]")
    """
    Repair(damping, bias_correction, include, exclude)
    if not isinstance(small, Compressed):
        raise InvalidInput(f"repair needs a Compressed, as tamis.prune gives it, got {type(small).__name__}")
    check_budget(activation_budget)
    include, exclude = lasting(include), lasting(exclude)
    original = compressed_of(net, example, "repair").network
    check_same_graph(original, small.network, "repair", interchangeable=True)
    original.check_finite()
    layers = find_layers(original, include, exclude, "joint", done="repaired")
    fitter = _Fitter(original.params, small, float(damping), bias_correction)
    step: dict[str, Any] = {
        "step": "repair",
        "damping": float(damping),
        "bias_correction": bias_correction,
        "calibration": described(calibration),
        "include": list(as_patterns(include)) or None,
        "exclude": list(as_patterns(exclude)) or None,
    }
    team = join_team(original.device)
    walk = Walk(original, small.params, calibration, False, activation_budget, team)
    return transformed(walk, layers, fitter, small, step, directory, progress)


@dataclass(frozen=True)
class _Fitter:
    """What `repair` does to a layer."""

    original: Mapping[str, Tensor]
    small: Compressed
    damping: float
    bias_correction: bool

    def takes_rows(self, layer: Layer) -> bool:
        return False

    def __call__(self, layer: Layer, seen: Sums | Rows, params: Mapping[str, Tensor]) -> Outcome:
        sums = seen.sums()
        corrects = self.bias_correction and layer.shift is not None and layer.shift.name not in self.small.codes
        gram = sums.all.centred() if corrects else sums.all
        offset = None if corrects else lost(layer, self.original, self.small.params)
        codes: dict[str, Codes] = {}
        if layer.weight in self.small.codes:
            codes[layer.weight] = self._rescaled(layer, gram, offset)
            weight = codes[layer.weight].values(self.small.masks.get(layer.weight))
        else:
            weight = self._refitted(layer, gram, params[layer.weight], offset)
        moved = shifted(layer, sums.all.means(), self.original, weight) if corrects else {}
        zeros = float((weight == 0).double().mean())
        return Outcome({layer.weight: weight, **moved}, codes, figures={"zeros": zeros})

    def _refitted(self, layer: Layer, gram: Gram, present: Tensor, offset: Tensor | None) -> Tensor:
        form, mask = layer.form, self.small.masks.get(layer.weight)
        keep = None if mask is None else form.matrix(mask)
        original, before = (form.matrix(each).double() for each in (self.original[layer.weight], present))
        weights = fitted(original, before, keep, gram, self.damping, offset)
        return form.tensor(weights).to(present.dtype)

    def _rescaled(self, layer: Layer, gram: Gram, offset: Tensor | None) -> Codes:
        """The same codes with the scale of each unit times the factor that least squares gives it."""
        form, codes = layer.form, self.small.codes[layer.weight]
        original, q = (
            form.matrix(each).double()
            for each in (self.original[layer.weight], codes.values(self.small.masks.get(layer.weight)))
        )
        missing = (original - q) @ gram.inputs + original @ gram.drift.mT
        if offset is not None:
            missing = missing + offset[:, :, None] * gram.input_sums[:, None, :]
        # Within an output channel, units would have to be fitted together: they share one factor.
        shared = tuple(map(math.gcd, codes.scales.shape, form.channel_shape))
        change, denominator = (_by_unit(form.tensor(q * each), shared) for each in (missing, q @ gram.inputs))
        sound = (denominator > 0) & (denominator + change > 0)
        factors = torch.where(sound, 1 + change / denominator.where(sound, 1.0), 1.0)
        for axis, (few, many) in enumerate(zip(shared, codes.scales.shape, strict=True)):
            factors = factors.repeat_interleave(many // few, dim=axis)
        return Codes(codes.indices, codes.levels, storable(codes.scales.double() * factors, codes.scales.dtype))


def _by_unit(weight: Tensor, units: tuple[int, ...]) -> Tensor:
    """The sum over each unit of a weight, units as in the shape of `Codes.scales`."""
    blocks = [part for count, length in zip(units, weight.shape, strict=True) for part in (count, length // count)]
    return weight.reshape(blocks).sum(tuple(range(1, len(blocks), 2)))
