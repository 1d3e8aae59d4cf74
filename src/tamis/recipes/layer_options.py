"""One walk over the data measures what each layer could become, and what that costs in bytes and in outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import Compressed, Masks, fingerprint_of_values, format
from tamis.graph import Network
from tamis.layerwise import CalibrationRun, Layer, LayerGrams, LayerOutcome, LayerRows, find_layers, transform_layers
from tamis.progress import Listener
from tamis.quantization import LayerQuantizer, Plan
from tamis.recipes.allocation import CHOICES, Choice, Option
from tamis.settings import Quantization
from tamis.training import Data, join_team

PROBED = 200  # samples on which a layer's effect on the outputs is measured


def measure_options(
    reference: Network, smalls: Sequence[Compressed], calibration: Data, directory: Path, progress: Listener
) -> list[dict[str, list[Option]]]:
    """Measure the options of every layer, by the name of its weight, for each of some small networks.

    One walk, with the first of them, sums the Gram matrices of each layer's inputs; all choices are made from the same
    ones. A layer's own error is turned into one of the outputs by a factor, measured by putting one of the choices into
    the network.

    Args:
        reference: what weights are fitted to.
        smalls: the same network as it is now, once or with more and more pruned: what is pruned stays pruned.
        calibration: inputs.
        directory: where finished layers are kept.
        progress: as every long call takes it.
    """
    layers = find_layers(reference, None, None, "joint", done="quantized")
    prober = _Prober(reference, smalls, calibration[:PROBED].normalised())
    # By this the walk knows itself again when it goes on: with other choices or networks, it is another one.
    step = {"step": "probe", "choices": [[each.levels, each.amount] for each in CHOICES]}
    step |= {"networks": [[fingerprint_of_values(each.params), fingerprint_of_values(each.masks)] for each in smalls]}
    run = CalibrationRun(calibration, directory=directory, progress=progress, hold_out=True)
    probed = transform_layers(reference, smalls[0], layers, prober, step, run)
    figures: Mapping[str, Mapping[str, Any]] = probed.recipe[-1]["layers"]
    return [
        {
            name: [Option(Choice(*choice), size, cost) for choice, size, cost in record["options"][place]]
            for name, record in figures.items()
        }
        for place in range(len(smalls))
    ]


class MixedQuantizer:
    """This treatment quantizes every layer by its own choice.

    Args:
        reference: what weights are fitted to.
        masks: which weights are kept.
        choices: by the name of a layer's weight; UNCHANGED is not among them.
    """

    def __init__(self, reference: Network, masks: Mapping[str, Tensor], choices: Mapping[str, Choice]) -> None:
        self._quantizers = {
            name: make_quantizer(reference, masks, choice.levels) for name, choice in choices.items() if choice.levels
        }

    def takes_rows(self, layer: Layer) -> bool:
        """Return False: Gram matrices suffice."""
        return False

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        return self._quantizers[layer.weight](layer, seen, params)


def make_quantizer(reference: Network, masks: Mapping[str, Tensor], levels: int) -> LayerQuantizer:
    """Make the quantizer that `tamis.quantize` uses for so many levels."""
    return LayerQuantizer(reference.params, masks, Plan.of(Quantization(levels)), join_team(reference.device))


def keep_largest(weight: Tensor, mask: Tensor | None, amount: float) -> Tensor:
    """Return a mask of all but the smallest `amount` of the weights that a mask leaves.

    Example:
        >>> import torch
        >>> keep_largest(torch.tensor([3.0, -1.0, 2.0, 0.5]), None, 0.5)
        tensor([ True, False,  True, False])
    """
    # −1 puts what is pruned already behind every weight that is left, zeros among them.
    sizes = weight.abs() if mask is None else weight.abs().masked_fill(~mask, -1.0)
    left = weight.numel() if mask is None else int(mask.count_nonzero())
    keep = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    # Stable, so that equal weights are pruned in the same order on every device.
    keep[sizes.flatten().argsort(descending=True, stable=True)[: left - round(amount * left)]] = True
    return keep.view(weight.shape)


@dataclass(frozen=True)
class _Prober:
    """This treatment changes nothing, and notes what each choice would do to each of the networks."""

    reference: Network
    smalls: Sequence[Compressed]
    inputs: Tensor

    def takes_rows(self, layer: Layer) -> bool:
        return False

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        # Summed up once for the layer; every choice below is made from them.
        grams = seen.grams()
        options = [self._list_options(small, layer, grams, params) for small in self.smalls]
        return LayerOutcome({}, figures={"options": options})

    def _list_options(
        self, small: Compressed, layer: Layer, grams: LayerGrams, params: Mapping[str, Tensor]
    ) -> list[Any]:
        name = layer.weight
        # Where a bias can take up the mean of the error, only what varies around the mean counts.
        gram = (grams.all.centre() if layer.shift is not None else grams.all).inputs
        original = layer.layout.to_matrix(self.reference.params[name]).double()
        options: list[Any] = []
        factor: float | None = None
        for choice in CHOICES:
            mask = self._make_mask(small, name, choice)
            # As it is: no error, and the bytes of floats.
            if not choice.levels:
                options.append(
                    [[choice.levels, choice.amount], _measure_stored_size(name, small.params[name], mask, None), 0.0]
                )
                continue
            masks = {**small.masks, **({} if mask is None else {name: mask})}
            outcome = make_quantizer(self.reference, masks, choice.levels)(layer, grams, params)
            code = outcome.codes[name]
            value = code.values(mask)
            off = layer.layout.to_matrix(value).double() - original
            # tr((Q − W) XXᵀ (Q − W)ᵀ) = ‖(Q − W) X‖², without the inputs X themselves, of which there are many.
            error = float(((off @ gram) * off).sum())
            # ‖(Q − W) X‖² is the error of the layer's own outputs; one run of the network, with the first choice, tells
            # how much of that arrives at the end, and the other choices are taken to pass through alike.
            if factor is None:
                factor = (
                    self._measure_output_change(small, {**outcome.params, name: value}) / error if error > 0 else 0.0
                )
            options.append(
                [[choice.levels, choice.amount], _measure_stored_size(name, value, mask, code), factor * error]
            )
        return options

    def _make_mask(self, small: Compressed, name: str, choice: Choice) -> Tensor | None:
        mask = small.masks.get(name)
        return keep_largest(self.reference.params[name], mask, choice.amount) if choice.amount else mask

    def _measure_output_change(self, small: Compressed, changes: Mapping[str, Tensor]) -> float:
        """Return the mean squared change of the outputs when these parameters are put into a network as it is now."""
        # Only the weight of this layer changes; all others are those of the network as it is now.
        with torch.no_grad():
            before, after = (
                each.flat_outputs(self.inputs) for each in (small.network, small.network.with_params(dict(changes)))
            )
        return float((before - after).square().sum(1).mean())


def _measure_stored_size(name: str, value: Tensor, mask: Tensor | None, code: Any) -> int:
    """Return how many bytes one tensor adds to a file."""
    masks = Masks({} if mask is None else {name: mask})
    if code is not None and mask is not None:
        code = code.apply_mask(mask)
    # The difference to an empty file: the header and the index are paid for once, whatever the layers become.
    return format.size({name: value}, masks, {}, {} if code is None else {name: code}) - format.size({}, {}, {}, {})
