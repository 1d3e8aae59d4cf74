"""Repair fits what pruning and quantization left of a network to the original, layer by layer, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Codes, Compressed, cast_scales, compressed_of
from tamis.errors import InvalidInput
from tamis.graph import Network, Patterns, as_patterns, check_same_graph, lasting, without_autocast
from tamis.layerwise.bias_correction import compute_bias_offset, correct_bias
from tamis.layerwise.calibration import Calibration, describe_calibration
from tamis.layerwise.collector import LayerGrams, LayerRows
from tamis.layerwise.gram import Gram
from tamis.layerwise.journal import LayerOutcome
from tamis.layerwise.layers import Layer, find_layers
from tamis.layerwise.least_squares import DAMPING, fit_weights
from tamis.layerwise.walk import ACTIVATION_BUDGET, CalibrationRun, check_budget, transform_layers
from tamis.progress import Listener
from tamis.settings import Repair, documents


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

    In a layer with real weights, every neuron becomes the least-squares fit to its original outputs among the weights
    on its own support, given the inputs that the compressed layers before it now send. In a quantized layer the codes
    stay, and the scales of its units are fitted. Masks and codes are those of `small`.

    Args:
        net: the original network, or a module, with an example of its input.
        small: the same network, compressed.
        calibration: inputs, as `tamis.quantize` takes them.
        <settings>
        directory: where each finished layer is recorded, so that the same call continues after it was killed.
        activation_budget: bytes of activations to keep in memory; the rest goes to files.
        example: an input, if `net` is a module.
        progress: True, False, or a function of a `Progress`, called after each layer.

    Returns:
        The network with the same masks and codes; no layer's error on the calibration data, given its inputs, is larger
        than it was. The last step of its `recipe` has the error of each layer.

    Example:
        >>> net, inputs = tamis.trace(torch.nn.Linear(6, 4), torch.zeros(1, 6)), torch.randn(50, 6)
        >>> small = tamis.prune(net, 0.5, by="magnitude")
        >>> fitted = tamis.repair(net, small, inputs, progress=False)  # or "cifar10:train[:5000]", a DataLoader, …
        >>> bool((fitted.network(inputs) - net(inputs)).norm() < (small.network(inputs) - net(inputs)).norm())
        True
    """
    settings = Repair(damping, bias_correction, lasting(include), lasting(exclude))
    settings = replace(settings, damping=float(damping))  # numpy's numbers are accepted, but a recipe cannot hold them
    if not isinstance(small, Compressed):
        raise InvalidInput(f"repair needs a Compressed, as tamis.prune gives it, got {type(small).__name__}")
    check_budget(activation_budget)
    original = compressed_of(net, example, "repair").network
    check_same_graph(original, small.network, "repair", interchangeable=True)
    original.check_finite()
    layers = find_layers(original, settings.include, settings.exclude, "joint", done="repaired")
    fitter = _Fitter(original.params, small, settings)
    step: dict[str, Any] = {
        "step": "repair",
        "damping": settings.damping,
        "bias_correction": settings.bias_correction,
        "calibration": describe_calibration(calibration),
        "include": list(as_patterns(settings.include)) or None,
        "exclude": list(as_patterns(settings.exclude)) or None,
    }
    run = CalibrationRun(calibration, activation_budget, directory, progress)
    return transform_layers(original, small, layers, fitter, step, run)


@dataclass(frozen=True)
class _Fitter:
    """A fitter fits one layer, as `repair` does it."""

    original: Mapping[str, Tensor]
    small: Compressed
    settings: Repair

    def takes_rows(self, layer: Layer) -> bool:
        return False

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        sums = seen.grams()
        # Where the bias may follow the means, the weights fit only what varies; otherwise they also make up for it.
        corrects = (
            self.settings.bias_correction and layer.shift is not None and layer.shift.name not in self.small.codes
        )
        gram = sums.all.centre() if corrects else sums.all
        offset = None if corrects else compute_bias_offset(layer, self.original, self.small.params)
        codes: dict[str, Codes] = {}
        if layer.weight in self.small.codes:
            codes[layer.weight] = self._rescale(layer, gram, offset)
            weight = codes[layer.weight].values(self.small.masks.get(layer.weight))
        else:
            weight = self._refit(layer, gram, params[layer.weight], offset)
        moved = correct_bias(layer, sums.all.means(), self.original, weight) if corrects else {}
        zeros = float((weight == 0).double().mean())
        return LayerOutcome({layer.weight: weight, **moved}, codes, figures={"zeros": zeros})

    def _refit(self, layer: Layer, gram: Gram, present: Tensor, offset: Tensor | None) -> Tensor:
        layout, mask = layer.layout, self.small.masks.get(layer.weight)
        keep = None if mask is None else layout.to_matrix(mask)
        original, before = (layout.to_matrix(each).double() for each in (self.original[layer.weight], present))
        weights = fit_weights(original, before, keep, gram, self.settings.damping, offset)
        return layout.to_weight(weights).to(present.dtype)

    def _rescale(self, layer: Layer, gram: Gram, offset: Tensor | None) -> Codes:
        """Multiply the scale of each unit by the factor that least squares gives it; the codes stay."""
        layout, codes = layer.layout, self.small.codes[layer.weight]
        original, q = (
            layout.to_matrix(each).double()
            for each in (self.original[layer.weight], codes.values(self.small.masks.get(layer.weight)))
        )
        # The factor of a unit with values q is 1 + ⟨q, missing⟩ / ⟨q, qG⟩: it minimises the error along q.
        missing = (original - q) @ gram.inputs + original @ gram.drift.mT
        if offset is not None:
            missing = missing + offset[:, :, None] * gram.input_sums[:, None, :]
        # Units within one output channel would have to be fitted together, so they share one factor.
        shared = tuple(map(math.gcd, codes.scales.shape, layout.channel_shape))
        change, denominator = (_sum_by_unit(layout.to_weight(q * each), shared) for each in (missing, q @ gram.inputs))
        # A factor must stay positive, as scales are; a unit of zeros has none.
        sound = (denominator > 0) & (denominator + change > 0)
        factors = torch.where(sound, 1 + change / denominator.where(sound, 1.0), 1.0)
        for axis, (few, many) in enumerate(zip(shared, codes.scales.shape, strict=True)):
            factors = factors.repeat_interleave(many // few, dim=axis)
        return Codes(codes.indices, codes.levels, cast_scales(codes.scales.double() * factors, codes.scales.dtype))


def _sum_by_unit(weight: Tensor, units: tuple[int, ...]) -> Tensor:
    """Sum a weight over each unit; `units` is a shape like that of `Codes.scales`."""
    # Each axis becomes two: which unit, and where in it; the second ones are summed over.
    blocks = [part for count, length in zip(units, weight.shape, strict=True) for part in (count, length // count)]
    return weight.reshape(blocks).sum(tuple(range(1, len(blocks), 2)))
