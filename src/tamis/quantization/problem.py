"""A problem holds the numbers of one layer to quantize, in float64 and in the order in which its weights are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tamis.layerwise import Gram, Layer, LayerGrams, fit_weights
from tamis.quantization.objective import Objective

Order = Literal["natural", "norm"]


@dataclass(frozen=True)
class LayerValues:
    """Layer values are the parameters in both networks, and which of them are kept.

    Attributes:
        original: in the network whose outputs are kept.
        present: in the one that becomes small, as far as it has.
        masks: which weights are kept, for those that are pruned.
    """

    original: Mapping[str, Tensor]
    present: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]


@dataclass(frozen=True)
class BiasRole:
    """A bias has a role while a layer's weights are chosen: it is one of them, follows the means, or is fixed.

    Attributes:
        is_feature: whether it is quantized with the weights, as the weight of an input that is always 1.
        follows_means: whether it will be moved to keep the means, so that only what varies is left to the weights.
        offset: what each neuron's output is to have beyond Yw, (problems, neurons); None for nothing.
    """

    is_feature: bool
    follows_means: bool
    offset: Tensor | None


@dataclass(frozen=True)
class Problem:
    """A problem is one layer to quantize, as matrices (problems, neurons, features) and Gram matrices of its inputs.

    A bias that is quantized, too, is one more feature.

    Attributes:
        weights: the original ones.
        start: what the recursion begins with: the original ones or, after pruning, what fits the kept ones best.
        keep: which weights are kept; None if all are.
        chosen_from, held_out, all: Gram matrices of the data to choose from, of that to compare with, and of both.
        places: where each feature comes from, (problems, features).
        offset: what each neuron's output is to have beyond Yw, (problems, neurons); None for nothing.
    """

    weights: Tensor
    start: Tensor
    keep: Tensor | None
    chosen_from: Gram
    held_out: Gram
    all: Gram
    places: Tensor
    offset: Tensor | None

    @classmethod
    def of(cls, layer: Layer, sums: LayerGrams, values: LayerValues, bias: BiasRole, order: Order) -> Problem:
        """Set up the problem of a layer.

        Args:
            layer, sums: the layer, with the Gram matrices of its inputs.
            values: its parameters.
            bias: what becomes of its bias.
            order: "natural", or "norm": features with the largest norms first.
        """
        original, masks, has_bias, offset = values.original, values.masks, bias.is_feature, bias.offset

        def matrix(params: Mapping[str, Tensor]) -> Tensor:
            weights = layer.layout.to_matrix(params[layer.weight])
            if not has_bias:
                return weights
            # As the last feature, which `with_constant` puts last in the Gram matrices, too.
            return torch.cat([weights, layer.layout.spread_channels(params[layer.bias or ""])[:, :, None]], 2)

        def select_gram(gram: Gram) -> Gram:
            return gram.with_constant() if has_bias else gram.centre() if bias.follows_means else gram

        everything = select_gram(sums.all)
        weights = matrix(original).double()
        start, keep = weights, None
        # After pruning, the kept weights are first fitted to the original outputs: the recursion then rounds weights
        # that have taken up the loss already.
        if layer.weight in masks or offset is not None:
            names = (layer.weight, *([layer.bias] if layer.bias else []))
            keep = matrix({name: torch.ones_like(original[name], dtype=torch.bool) for name in names} | dict(masks))
            start = fit_weights(weights, matrix(values.present).double(), keep, everything, offset=offset)
        # A single batch leaves nothing to hold out: the candidates are then compared on what they were chosen from.
        held_out = select_gram(sums.chosen_from if sums.held_out is None else sums.held_out)
        natural = torch.arange(weights.shape[2], device=weights.device).expand(len(weights), -1)
        whole = cls(weights, start, keep, select_gram(sums.chosen_from), held_out, everything, natural, offset)
        return whole if order == "natural" else whole._sort_by_norm()

    def objective(self, gram: Gram) -> Objective:
        """Return the error of a choice of weights, as a function of it, on the data of one of the Gram matrices."""
        return Objective.of(self.weights, gram, self.offset)

    def recursion_start(self, gram: Gram) -> tuple[Tensor, Gram]:
        """Return the weights to quantize, and the Gram matrices to do it with.

        Weights fitted after pruning have taken up the drift already: for them it is zero, or it would count twice.
        """
        return self.start, gram if self.keep is None else replace(gram, drift=torch.zeros_like(gram.drift))

    def natural(self, matrix: Tensor) -> Tensor:
        """Return a matrix with its features in the natural order."""
        places = self.places[:, None, :].expand(-1, matrix.shape[1], -1)
        return torch.empty_like(matrix).scatter_(2, places, matrix)

    def _sort_by_norm(self) -> Problem:
        # From all data, so that candidates of scales and the final choice run through one and the same order.
        places = sort_largest_first(self.all.inputs.diagonal(dim1=1, dim2=2))

        def move(matrix: Tensor) -> Tensor:
            return matrix.gather(2, places[:, None, :].expand(-1, matrix.shape[1], -1))

        return replace(
            self,
            weights=move(self.weights),
            start=move(self.start),
            keep=None if self.keep is None else move(self.keep),
            chosen_from=self.chosen_from.reorder(places),
            held_out=self.held_out.reorder(places),
            all=self.all.reorder(places),
            places=places,
        )


def sort_largest_first(norms: Tensor) -> Tensor:
    """Return the places of the features with the largest squared norms first, along the last axis.

    Norms that agree to five digits count as equal, and keep their order: those of a transposed convolution's window do,
    but for rounding, and the order should not depend on how the data was cut into batches.
    """
    # Rounded logarithms: steps of 2^(1/2¹⁶) are a relative difference of 10⁻⁵. A norm of zero is −∞, and comes last;
    # below zero a norm is only by rounding.
    return norms.clamp_min(0).log2().mul(2**16).round().argsort(dim=-1, descending=True, stable=True)
