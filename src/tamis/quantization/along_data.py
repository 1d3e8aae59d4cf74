"""A layer can be quantized along its rows of data, without Gram matrices of all its features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.layerwise import LayerRows, PairedRows
from tamis.quantization.feedback import Grid
from tamis.quantization.problem import Order, sort_largest_first
from tamis.quantization.units import Units

SMALL_WORK = 2**28  # multiplications, up to which float64 costs nothing that one would notice

AlongData = Callable[[Tensor, Tensor, Tensor, Grid], Tensor]


@dataclass(frozen=True)
class RowsProblem:
    """A problem of rows is one layer to quantize along its rows of data.

    Attributes:
        weights: (problems, neurons, features), float64.
        rows: of the layer's inputs.
        units: which neurons share a scale.
        levels: of the alphabet, in the weight's dtype.
        order: of the features.
        centred: whether a bias will follow the means, so that only what varies is left to the weights.
    """

    weights: Tensor
    rows: LayerRows
    units: Units
    levels: Tensor
    order: Order
    centred: bool


def quantize_along_data(choose: AlongData, problem: RowsProblem, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the scale of each unit on held-out rows, and quantize a layer with it.

    Args:
        choose: the method.
        problem: the layer.
        candidates: scales, (candidates, units), float64; each unit takes the one with the least error.

    Returns:
        The indices, (problems, neurons, features), and the scale of each unit.
    """
    weights, rows, units, levels = problem.weights, problem.rows, problem.units, problem.levels
    order, centred, whole = problem.order, problem.centred, rows.all
    # One order for all subsets, from all rows: otherwise the candidates would be compared on other recursions than the
    # one that is run in the end.
    places = torch.arange(weights.shape[2], device=weights.device)
    if order == "norm":
        seen = whole.centre() if centred else whole
        places = sort_largest_first(seen.small[0].double().square().sum(0))
    small = whole.small.numel() * weights.shape[1] <= SMALL_WORK
    dtype = torch.float64 if small else torch.promote_types(levels.dtype, torch.float32)
    weights = weights[:, :, places]

    def make_grid(scales: Tensor) -> Grid:
        return Grid(units.spread(scales).to(levels.dtype), levels)

    def choose_from(samples: PairedRows, scales: Tensor) -> Tensor:
        return choose(weights, samples.original, samples.small, make_grid(scales))

    def prepare(samples: PairedRows) -> PairedRows:
        samples = _reorder(samples, places if order == "norm" else None, dtype)
        return samples.centre() if centred else samples

    best = candidates[0]
    if len(candidates) > 1:
        chosen_from = prepare(rows.chosen_from)
        # A single batch leaves nothing to hold out: then the candidates are compared on the rows they were fitted to.
        held_out = chosen_from if rows.held_out is None else prepare(rows.held_out)
        errors = [
            _compute_errors(weights, choose_from(chosen_from, each), make_grid(each), held_out) for each in candidates
        ]
        # (candidates, units): neurons that share a scale add up their errors, and each unit takes its own best.
        choice = torch.stack([units.total(each) for each in errors]).argmin(0)
        best = candidates.gather(0, choice[None])[0]
        del chosen_from, held_out  # before the copy of all rows is made, which is as large as both
    indices = torch.empty(weights.shape, dtype=torch.int32, device=weights.device)
    # The scale was chosen without the held-out rows; the weights are then chosen from all of them.
    indices[:, :, places] = choose_from(prepare(whole), best)
    return indices, best


def _reorder(samples: PairedRows, places: Tensor | None, dtype: torch.dtype) -> PairedRows:
    """Return samples in a dtype, with their features in another order where one is given."""

    def move(rows: Tensor) -> Tensor:
        return (rows if places is None else rows[:, :, places]).to(dtype)

    original = move(samples.original)
    # One tensor stays one: whoever reads the pair recognises inputs without drift by identity.
    return PairedRows(original, original if samples.original is samples.small else move(samples.small))


def _compute_errors(weights: Tensor, indices: Tensor, grid: Grid, held_out: PairedRows) -> Tensor:
    """Compute ‖Yw − Ỹq‖² of each neuron, (problems, neurons)."""
    chosen = Grid(grid.scales[:, :, None], grid.levels).values(indices).to(held_out.small.dtype)
    outputs = held_out.original @ weights.mT.to(held_out.original.dtype)
    return (outputs - held_out.small @ chosen.mT).square().sum(1, dtype=torch.float64)
