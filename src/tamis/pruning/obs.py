"""The optimal brain surgeon removes the weights that the others can best make up for, and refits those at once.

Of a neuron with the fitted weights v on the support S, removing v_i raises ‖Yw − Ỹv‖² by v_i² / [(G_SS + εI)⁻¹]_ii once
the other weights have moved to their new optimum. A layer loses its weights in a few rounds: the least of these costs,
over all its neurons, go; what is left is fitted to the original outputs by least squares; then costs are taken anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.layerwise import (
    Gram,
    Layer,
    LayerGrams,
    LayerOutcome,
    LayerRows,
    NormalEquations,
    correct_bias,
    fit_with_saliencies,
)

ROUNDS = 8


@dataclass(frozen=True)
class BrainSurgeon:
    """A brain surgeon does to each layer what `tamis.prune(..., by="obs")` asks for.

    Attributes:
        original: the network's parameters.
        masks: which weights are left before.
        counts: how many weights of each parameter are to be pruned afterwards, those before included.

    Reference: hassibi1993obs.
    """

    original: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    counts: Mapping[str, int]

    def takes_rows(self, layer: Layer) -> bool:
        return False

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        """Prune the layer, and fit what is left to its original outputs."""
        sums = seen.grams()
        form, weight = layer.layout, self.original[layer.weight]
        mask = self.masks.get(layer.weight, torch.ones_like(weight, dtype=torch.bool))
        # With a bias to follow the means, the weights have to fit only what varies.
        gram = sums.all if layer.shift is None else sums.all.centre()
        found, keep = _remove_weights(
            form.to_matrix(weight).double(),
            form.to_matrix(params[layer.weight]).double(),
            form.to_matrix(mask),
            gram,
            self.counts[layer.weight],
        )
        left, small = form.to_weight(keep), form.to_weight(found).to(weight.dtype)
        moved = correct_bias(layer, sums.all.means(), self.original, small)
        zeros = float((small == 0).double().mean())
        return LayerOutcome({layer.weight: small, **moved}, masks={layer.weight: left}, figures={"zeros": zeros})


def _remove_weights(original: Tensor, present: Tensor, keep: Tensor, gram: Gram, count: int) -> tuple[Tensor, Tensor]:
    """Compute weights and mask with `count` weights gone, the same fraction of those left in each round."""
    total, before = keep.numel(), int(keep.sum())
    # ε and H depend on the data alone, not on the support: one system serves all rounds.
    system = NormalEquations.of(gram)
    # Fitted before the first round, too: costs are those at the optimum of the present support, as the formula asks.
    weights, costs = fit_with_saliencies(original, present, keep, gram, system)
    for round_ in range(1, ROUNDS + 1):
        # Costs hold for the removal of one weight and are stale after many, so that rounds are geometric: late ones,
        # where little is left to make up for a loss, remove few. The last leaves exactly total − count.
        left = round(before * ((total - count) / before) ** (round_ / ROUNDS)) if before else 0
        going = int(keep.sum()) - left
        if going > 0:
            keep = keep.flatten().index_fill(0, _find_least(costs.flatten(), going), False).reshape(keep.shape)
            weights, costs = fit_with_saliencies(original, weights * keep, keep, gram, system)
    return weights * keep, keep


def _find_least(costs: Tensor, count: int) -> Tensor:
    """Return the places of the least costs; of equal ones, the first."""
    # Weights that are gone cost ∞ and come last, so that they are never chosen twice.
    return costs.sort(stable=True).indices[:count]
