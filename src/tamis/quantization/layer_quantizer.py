"""A layer is quantized in three steps: choose scales, put the weights on levels, and keep the means of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.artifact import Codes, cast_scales
from tamis.layerwise import (
    MANY_FEATURES,
    DenseLayout,
    InputMeans,
    Layer,
    LayerGrams,
    LayerOutcome,
    LayerRows,
    compute_bias_offset,
    correct_bias,
)
from tamis.quantization.along_data import RowsProblem, quantize_along_data
from tamis.quantization.feedback import Grid, Recursion, choose_levels
from tamis.quantization.gpfq import is_cheaper_along_data
from tamis.quantization.objective import Objective
from tamis.quantization.plan import Plan
from tamis.quantization.problem import BiasRole, LayerValues, Problem
from tamis.quantization.units import Units
from tamis.training import Team

DESCENTS = 3  # passes of coordinate descent; more of them find little
MOST_TRIED = 2**24  # weights of candidates that exist at a time


@dataclass(frozen=True)
class LayerQuantizer:
    """A layer quantizer does to each layer what the user asked of `tamis.quantize`.

    Attributes:
        original: the original network's parameters.
        masks: which weights are kept, for those that are pruned.
        plan: what the user asked for.
        team: the processes that share the neurons.
    """

    original: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    plan: Plan
    team: Team

    def takes_rows(self, layer: Layer) -> bool:
        """Tell whether rows may serve better than Gram matrices: for GPFQ of a linear layer with many inputs."""
        # Masks and biases change the problem in ways that only the Gram form knows.
        plain = (
            self.plan.method.along_data is not None
            and not {layer.weight, layer.bias} & self.masks.keys()
            and not self.plan.settings.biases
        )
        return plain and isinstance(layer.layout, DenseLayout) and layer.layout.features >= MANY_FEATURES

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor]) -> LayerOutcome:
        """Compute the layer's codes, and the other parameters that change with them."""
        if isinstance(seen, LayerRows) and self._goes_along_data(seen):
            return self._quantize_along_data(layer, seen)
        sums = seen.grams()
        # A bias is quantized with the weights, or moved to keep the mean, or neither. Where it is moved, the weights
        # need to fit only what varies, and the data is centred.
        has_bias = self.plan.settings.biases and layer.shift is not None and layer.shift.name == layer.bias
        corrects = self.plan.bias_correction and layer.shift is not None and not has_bias
        # A pruned bias that may not move leaves what it no longer adds to the weights.
        left = layer.bias in self.masks and not (corrects or has_bias)
        offset = compute_bias_offset(layer, self.original, params) if left else None
        values = LayerValues(self.original, params, self.masks)
        problem = Problem.of(layer, sums, values, BiasRole(has_bias, corrects, offset), self.plan.order)
        levels, units = self._find_levels_and_units(layer)
        choice = _Choice(self, problem, units, levels)
        indices, scales = choice.choose_indices(choice.find_best_scales())
        codes = _make_codes(layer, problem.natural(indices), Scaling(scales, units, levels), has_bias)
        return self._make_outcome(layer, codes, sums.all.means() if corrects else None)

    def _find_levels_and_units(self, layer: Layer) -> tuple[Tensor, Units]:
        levels = self.plan.alphabet.tensor(self.original[layer.weight])
        return levels, Units(layer.layout, self.plan.settings.per)

    def _goes_along_data(self, rows: LayerRows) -> bool:
        form = rows.layer.layout
        return is_cheaper_along_data(rows.count, form.features, form.neurons, len(self.plan.multiples))

    def _quantize_along_data(self, layer: Layer, rows: LayerRows) -> LayerOutcome:
        plan = self.plan
        assert plan.method.along_data is not None
        corrects = plan.bias_correction and layer.shift is not None
        means = rows.all.means() if corrects else None
        weights = layer.layout.to_matrix(self.original[layer.weight]).double()
        levels, units = self._find_levels_and_units(layer)
        radii = plan.alphabet.radii(units.weights(weights))
        # Cast to the weight's dtype and back: candidates are compared as the scales that the file would hold.
        candidates = cast_scales(radii[None] * radii.new_tensor(plan.multiples)[:, None], levels.dtype).double()
        problem = RowsProblem(weights, rows, units, levels, plan.order, corrects)
        indices, scales = quantize_along_data(plan.method.along_data, problem, candidates)
        codes = _make_codes(layer, indices, Scaling(scales, units, levels), has_bias=False)
        return self._make_outcome(layer, codes, means)

    def _make_outcome(self, layer: Layer, codes: dict[str, Codes], means: InputMeans | None) -> LayerOutcome:
        """Make the outcome of codes; given the means of the inputs, with the bias that keeps those of the outputs."""
        values = {name: code.values(self.masks.get(name)) for name, code in codes.items()}
        if means is not None:
            moved = correct_bias(layer, means, self.original, values[layer.weight])
        else:  # what an earlier step moved goes back: it was fitted to other weights
            own = layer.shift.name if layer.shift is not None else None
            moved = {} if own is None or own in codes else {own: self.original[own]}
        zeros = float((values[layer.weight] == 0).double().mean())
        figures = {"levels": len(self.plan.alphabet.levels), "zeros": zeros}
        return LayerOutcome({**values, **moved}, codes, figures=figures)


@dataclass(frozen=True)
class _Choice:
    """A choice finds a scale for each unit and the indices of levels for one layer."""

    quantizer: LayerQuantizer
    problem: Problem
    units: Units
    levels: Tensor  # in the weight's dtype

    def find_best_scales(self) -> Tensor:
        """Compute the radius of each unit times the multiple that does best on held-out data."""
        problem, plan = self.problem, self.quantizer.plan
        # NaN says that a weight is pruned: it has no part in the median or the largest magnitude.
        weights = problem.start if problem.keep is None else problem.start.where(problem.keep, torch.nan)
        weights = problem.natural(weights)[:, :, : self.units.layout.features]  # the bias has no say
        radii = plan.alphabet.radii(self.units.weights(weights))
        multiples = radii.new_tensor(plan.multiples)
        if len(multiples) == 1:
            return self._round_scales(radii * multiples)
        # All candidates at once are fastest, but every one of them takes a copy of the layer's weights.
        at_once = max(1, MOST_TRIED // max(weights.numel(), 1))
        # The recursion does not depend on the scales: it is set up once, and candidates stand side by side as neurons.
        recursion = plan.method.recursion(*problem.recursion_start(problem.chosen_from))
        errors = [self._compute_errors(recursion, radii[None] * some[:, None]) for some in multiples.split(at_once)]
        return self._round_scales(radii * multiples[torch.cat(errors).argmin(0)])

    def choose_indices(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the indices, (problems, neurons, features), and move the scales to where they fit best."""
        problem, method = self.problem, self.quantizer.plan.method
        recursion = method.recursion(*problem.recursion_start(problem.all))
        indices = self._choose(recursion, scales[None])
        if not method.improves:
            return indices, scales
        objective = problem.objective(problem.all)
        # Both half steps minimise the same error: scales for given indices, then indices for given scales. But for the
        # rounding of scales it never grows. The last fit makes the scales belong to the indices that are returned.
        for _ in range(DESCENTS):
            scales = self._fit_scales(indices, scales[None], objective)[0]
            descent = objective.descent(self._compute_values(indices, scales[None]))
            indices = self._choose(descent, scales[None])
        return indices, self._fit_scales(indices, scales[None], objective)[0]

    # In what follows scales are (candidates, units), and every neuron stands there once for each candidate.

    def _compute_errors(self, recursion: Recursion, scales: Tensor) -> Tensor:
        """Compute the errors on held-out data: (candidates, units)."""
        problem, scales, times = self.problem, self._round_scales(scales), len(scales)
        indices = self._choose(recursion.repeat_neurons(times), scales)
        # Fitted on the data that the indices were chosen from: held-out data judges, and must have no say before.
        scales = self._fit_scales(indices, scales, problem.objective(problem.chosen_from).repeat_neurons(times))
        objective = problem.objective(problem.held_out).repeat_neurons(times)
        return self._sum_by_unit(objective.error(self._compute_values(indices, scales)), times)

    def _fit_scales(self, indices: Tensor, scales: Tensor, objective: Objective) -> Tensor:
        """Fit the scales to these choices of levels by least squares; return them as they are where not allowed."""
        if not self.quantizer.plan.fits_scales:
            return scales
        above, below = objective.scale_terms(self._compute_values(indices, scales))
        numerator, denominator = self._sum_by_unit(above, len(scales)), self._sum_by_unit(below, len(scales))
        # A scale stays positive; a unit whose values are all 0, or point away from the target, keeps the one it has.
        sound = (numerator > 0) & (denominator > 0)
        return self._round_scales(torch.where(sound, scales * numerator / denominator.where(sound, 1.0), scales))

    def _choose(self, recursion: Recursion, scales: Tensor) -> Tensor:
        keep = None if self.problem.keep is None else self.problem.keep.repeat(1, len(scales), 1)
        return choose_levels(recursion, Grid(self._spread(scales), self.levels), keep, self.quantizer.team)

    def _compute_values(self, indices: Tensor, scales: Tensor) -> Tensor:
        values = Grid(self._spread(scales)[:, :, None], self.levels).values(indices)
        return values if self.problem.keep is None else values.where(self.problem.keep.repeat(1, len(scales), 1), 0.0)

    def _spread(self, scales: Tensor) -> Tensor:
        return torch.cat([self.units.spread(each) for each in scales], 1).to(self.levels.dtype)

    def _sum_by_unit(self, values: Tensor, times: int) -> Tensor:
        return torch.stack([self.units.total(each) for each in values.chunk(times, 1)])

    def _round_scales(self, scales: Tensor) -> Tensor:
        """Round scales to the weight's dtype: levels are chosen for the scales that the file will hold."""
        return cast_scales(scales, self.levels.dtype).double()


@dataclass(frozen=True)
class Scaling:
    """A scaling says what the indices of a layer stand for: levels, times the scale of the unit a neuron is in."""

    scales: Tensor
    units: Units
    levels: Tensor


def _make_codes(layer: Layer, indices: Tensor, scaling: Scaling, has_bias: bool) -> dict[str, Codes]:
    """Make the codes of the weight and, where it is quantized as the last feature, of the bias."""
    form, levels = layer.layout, scaling.levels
    indices = indices.to(torch.uint8 if len(levels) <= 256 else torch.int32)
    scales = scaling.scales.to(levels.dtype)
    codes = {layer.weight: Codes(form.to_weight(indices[:, :, : form.features]), levels, scaling.units.scales(scales))}
    if has_bias:
        assert layer.bias is not None
        codes[layer.bias] = Codes(indices[:, :, -1].reshape(-1), levels, scales)
    return codes
