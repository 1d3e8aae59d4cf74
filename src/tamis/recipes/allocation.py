"""What each layer could become, what that would cost in bytes, and what in outputs: measured once, on one walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import Compressed, Masks, fingerprint_of_values, format
from tamis.graph import Network
from tamis.layerwise import CalibrationRun, Layer, LayerGrams, LayerOutcome, LayerRows, find_layers, transform_layers
from tamis.progress import Listener
from tamis.quantization import METHODS, MULTIPLES, LayerQuantizer, alphabet_of
from tamis.training import Data, join_team

PROBED = 200  # samples on which a layer's effect on the outputs is measured


@dataclass(frozen=True, order=True)
class Choice:
    """What a layer's weight becomes.

    Attributes:
        levels: how many; 0: real numbers, as it is.
        amount: which part of the weights that are left is pruned first, the smallest ones.
    """

    levels: int
    amount: float = 0.0


WHOLE = Choice(0)
# Odd numbers of levels have a zero, which entropy coding makes cheap; pruning before 7 makes more of them.
CHOICES = (
    Choice(2),
    Choice(3, 0.6),
    Choice(3),
    Choice(4),
    Choice(5),
    Choice(7, 0.5),
    Choice(7),
    Choice(15),
    Choice(31),
    WHOLE,
)


@dataclass(frozen=True)
class Option:
    """A choice for a layer, with its bytes in a file and the squared change of the outputs that it alone brings."""

    choice: Choice
    bytes: int
    cost: float


def options_by_layer(
    reference: Network, smalls: Sequence[Compressed], calibration: Data, directory: Path, progress: Listener
) -> list[dict[str, list[Option]]]:
    """The options of every layer, by the name of its weight, for each of some small networks.

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
    step = {"step": "probe", "choices": [[each.levels, each.amount] for each in CHOICES]}
    step |= {"networks": [[fingerprint_of_values(each.params), fingerprint_of_values(each.masks)] for each in smalls]}
    run = CalibrationRun(calibration, directory=directory, progress=progress, hold_out=True)
    probed = transform_layers(reference, smalls[0], layers, prober, step, run)
    figures: Mapping[str, Mapping[str, Any]] = probed.recipe[-1]["layers"]
    return [
        {
            name: [Option(Choice(*choice), size, cost) for choice, size, cost in found["options"][place]]
            for name, found in figures.items()
        }
        for place in range(len(smalls))
    ]


class Mixed:
    """A treatment that gives every layer its own choice.

    Args:
        reference: what weights are fitted to.
        masks: which weights are kept.
        choices: by the name of a layer's weight; WHOLE is not among them.
    """

    def __init__(self, reference: Network, masks: Mapping[str, Tensor], choices: Mapping[str, Choice]) -> None:
        self._quantizers = {
            name: quantizer(reference, masks, choice.levels) for name, choice in choices.items() if choice.levels
        }

    def takes_rows(self, layer: Layer) -> bool:
        """Gram matrices will do."""
        return False

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        return self._quantizers[layer.weight](layer, seen, params)


def quantizer(reference: Network, masks: Mapping[str, Tensor], levels: int) -> LayerQuantizer:
    """As `tamis.quantize` with so many levels has it."""
    method = METHODS["optq"]
    return LayerQuantizer(
        original=reference.params,
        masks=masks,
        method=method,
        alphabet=alphabet_of(levels, None, "median"),
        per="channel",
        order=method.order,
        multiples=MULTIPLES,
        fits_scales=True,
        biases=False,
        bias_correction=method.bias_correction,
        team=join_team(reference.device),
    )


def kept(weight: Tensor, mask: Tensor | None, amount: float) -> Tensor:
    """All but the smallest `amount` of the weights that a mask leaves.

    Example:
        >>> kept(torch.tensor([3.0, -1.0, 2.0, 0.5]), None, 0.5)
        tensor([ True, False,  True, False])
    """
    sizes = weight.abs() if mask is None else weight.abs().masked_fill(~mask, -1.0)
    left = weight.numel() if mask is None else int(mask.count_nonzero())
    keep = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    keep[sizes.flatten().argsort(descending=True, stable=True)[: left - round(amount * left)]] = True
    return keep.view(weight.shape)


@dataclass(frozen=True)
class _Prober:
    """A treatment that changes nothing, and notes what each choice would do to each of the networks."""

    reference: Network
    smalls: Sequence[Compressed]
    inputs: Tensor

    def takes_rows(self, layer: Layer) -> bool:
        return False

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        sums = seen.grams()
        return LayerOutcome(
            {}, figures={"options": [self._options(small, layer, sums, params) for small in self.smalls]}
        )

    def _options(self, small: Compressed, layer: Layer, sums: LayerGrams, params: Mapping[str, Tensor]) -> list[Any]:
        name = layer.weight
        gram = (sums.all.centre() if layer.shift is not None else sums.all).inputs
        original = layer.layout.to_matrix(self.reference.params[name]).double()
        found: list[Any] = []
        factor: float | None = None
        for choice in CHOICES:
            mask = self._mask(small, name, choice)
            if not choice.levels:
                found.append([[choice.levels, choice.amount], _size(name, small.params[name], mask, None), 0.0])
                continue
            masks = {**small.masks, **({} if mask is None else {name: mask})}
            outcome = quantizer(self.reference, masks, choice.levels)(layer, sums, params)
            code = outcome.codes[name]
            value = code.values(mask)
            off = layer.layout.to_matrix(value).double() - original
            error = float(((off @ gram) * off).sum())
            if factor is None:
                factor = self._moved(small, {**outcome.params, name: value}) / error if error > 0 else 0.0
            found.append([[choice.levels, choice.amount], _size(name, value, mask, code), factor * error])
        return found

    def _mask(self, small: Compressed, name: str, choice: Choice) -> Tensor | None:
        mask = small.masks.get(name)
        return kept(self.reference.params[name], mask, choice.amount) if choice.amount else mask

    def _moved(self, small: Compressed, changes: Mapping[str, Tensor]) -> float:
        """The mean squared change of the outputs when these parameters are put into a network as it is now."""
        with torch.no_grad():
            before, after = (
                each.flat_outputs(self.inputs) for each in (small.network, small.network.with_params(dict(changes)))
            )
        return float((before - after).square().sum(1).mean())


def _size(name: str, value: Tensor, mask: Tensor | None, code: Any) -> int:
    """What one tensor adds to a file."""
    masks = Masks({} if mask is None else {name: mask})
    if code is not None and mask is not None:
        code = code.masked(mask)
    return format.size({name: value}, masks, {}, {} if code is None else {name: code}) - format.size({}, {}, {}, {})


def allocations(options: Mapping[str, Sequence[Option]]) -> list[dict[str, Option]]:
    """Which options to take, from the fewest bytes to the most: each step buys the most outputs for its bytes.

    Layer by layer the lower convex hull of (bytes, cost) is kept; its edges, all layers together, are taken in the
    order of cost saved for a byte. So each allocation is the best of its size among all mixtures, up to the gaps
    between two of them.

    Example:
        >>> found = allocations({"a": [Option(Choice(3), 10, 4.0), Option(WHOLE, 40, 0.0)]})
        >>> [sum(option.bytes for option in each.values()) for each in found]
        [10, 40]
    """
    hulls = {name: _hull(each) for name, each in options.items()}
    taken = {name: hull[0] for name, hull in hulls.items()}
    edges = [
        ((after.cost - before.cost) / (after.bytes - before.bytes), name, after)
        for name, hull in hulls.items()
        for before, after in pairwise(hull)
    ]
    found = [dict(taken)]
    for _, name, option in sorted(edges, key=lambda edge: (edge[0], edge[1], edge[2].bytes)):
        taken[name] = option
        found.append(dict(taken))
    return found


def _hull(options: Sequence[Option]) -> list[Option]:
    """The lower convex hull, from the fewest bytes on, as long as costs go down."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda each: (each.bytes, each.cost)):
        if hull and option.cost >= hull[-1].cost:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
            hull.pop()
        if hull and hull[-1].bytes == option.bytes:
            hull.pop()
        hull.append(option)
    return hull


def _slope(before: Option, after: Option) -> float:
    return (after.cost - before.cost) / (after.bytes - before.bytes)
