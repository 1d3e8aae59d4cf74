"""Greedy path-following quantization (GPFQ) is computed here from Gram matrices instead of the data.

The definition runs along the data: with u_0 = 0,

    q_t = the level nearest to ⟨Ỹ_t, u_{t−1} + w_t Y_t⟩ / ‖Ỹ_t‖²,      u_t = u_{t−1} + w_t Y_t − q_t Ỹ_t

(paper (3) with Lemma 1 for Y ≠ Ỹ, ERRATA 9). Since u_{t−1} = Σ_{j<t} (w_j Y_j − q_j Ỹ_j), the same quotient is

    w_t + ( Σ_{j<t} G_tj (w_j − q_j) + Σ_{j≤t} E_tj w_j ) / G_tt      with G = ỸᵀỸ, E = Ỹᵀ(Y − Ỹ),

which no longer needs the m samples. Three forms of one algorithm stand here: `gpfq`, from the Gram matrices of all
features; `gpfq_along_data`, which carries u along and needs Gram matrices of one block of features at a time, and so
is the better one for layers with many more inputs than neurons or samples; and `gpfq_by_definition`, one feature at a
time, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tamis.kernels import BLOCK
from tamis.layerwise import Gram, lower_product, split_panels, symmetric_product
from tamis.quantization.feedback import Grid, Recursion, choose_levels


def gpfq(weights: Tensor, gram: Gram) -> Recursion:
    """Set up GPFQ as a recursion over the features of every neuron.

    Args:
        weights: (problems, neurons, features), float64.
        gram: of the layer's inputs.

    Reference: lybrand2021gpfq, (3).
    """
    return _set_up_recursion(weights, gram.inputs, gram.drift)


def _set_up_recursion(weights: Tensor, inputs: Tensor, drift: Tensor | None) -> Recursion:
    """Set up the recursion from G and E; only E on and below its diagonal is read, and None stands for zero."""
    norms = inputs.diagonal(dim1=1, dim2=2)
    # A feature that is always zero costs the same whatever its weight: it is rounded by itself (ERRATA 9).
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    # The target stays w, not the start: u_t takes in w_t Y_t − q_t Ỹ_t, and what drift adds to it is in E already.
    start = weights if drift is None else weights + _multiply_lower(drift, weights) * inverse[:, None, :]
    # C_tj = G_tj / G_tt: row t is divided by its own norm.
    return Recursion(start, weights, inputs * inverse[:, :, None])


def _multiply_lower(matrix: Tensor, weights: Tensor) -> Tensor:
    """Compute Σ_{j≤t} E_tj w_j for every t and neuron, in the dtype of E: half of a product."""
    result, factors = torch.empty_like(weights), weights.to(matrix.dtype)
    for here in split_panels(weights.shape[2]):
        # Counted from the panel's first row, the diagonal of E is the diagonal number `here.start` of the panel.
        rows = matrix[:, here, : here.stop].tril(here.start)
        result[:, :, here] = factors[:, :, : here.stop] @ rows.mT
    return result


def _set_up_recursion_of_rows(weights: Tensor, original: Tensor, small: Tensor) -> Recursion:
    """Set up the recursion from rows of data, with half of the products that Gram matrices take."""
    inputs = symmetric_product(small)
    # ỸᵀY − ỸᵀỸ = E; above the diagonal it is undefined, and never read.
    drift = None if original is small else lower_product(small, original).sub_(inputs)
    return _set_up_recursion(weights, inputs.double(), drift)


def gpfq_of_rows(weights: Tensor, original: Tensor, small: Tensor, grid: Grid) -> Tensor:
    """Quantize a layer from its rows of data by the form of GPFQ that takes less arithmetic: indices of the levels.

    Args:
        weights: (problems, neurons, features), float64.
        original, small: Y and Ỹ, (problems, samples, features); products are taken in their dtype.
        grid: the levels of each neuron.

    Example:
        >>> weights, inputs = torch.randn(1, 3, 5).double(), torch.randn(1, 20, 5).double()
        >>> grid = Grid(2 * weights.abs().median(2).values, torch.tensor([-1.0, 0.0, 1.0]).double())
        >>> gpfq_of_rows(weights, inputs, inputs, grid).shape
        torch.Size([1, 3, 5])
    """
    if is_cheaper_along_data(small.shape[1], small.shape[2], weights.shape[1], candidates=1):
        return gpfq_along_data(weights, original, small, grid)
    return choose_levels(_set_up_recursion_of_rows(weights, original, small), grid)


def gpfq_along_data(weights: Tensor, original: Tensor, small: Tensor, grid: Grid) -> Tensor:
    """Run GPFQ with the state u carried along the data, block by block of features: indices of the levels.

    Args:
        weights: (problems, neurons, features), float64.
        original, small: Y and Ỹ, (problems, samples, features); products are taken in their dtype.
        grid: the levels of each neuron.

    Reference: lybrand2021gpfq, (3).
    """
    state = original.new_zeros(len(weights), original.shape[1], weights.shape[1])  # u, one column for each neuron
    indices = []
    for first in range(0, weights.shape[2], BLOCK):
        here = slice(first, first + BLOCK)
        y, moved, w = original[:, :, here], small[:, :, here], weights[:, :, here]
        # Two slices of one tensor are two objects: without drift, pass the same one twice, or E would be computed.
        recursion = _set_up_recursion_of_rows(w, moved if original is small else y, moved)
        norms = moved.square().sum(1, dtype=torch.float64)[:, None, :]
        # Within the block the recursion knows u from G; from before it, only through its products with the block's Ỹ_t.
        carried = (moved.mT @ state).double().mT  # ⟨Ỹ_t, u⟩ of the blocks before
        start = recursion.start + torch.where(norms > 0, carried / norms.where(norms > 0, 1.0), 0.0)
        indices.append(choose_levels(replace(recursion, start=start), grid))
        q = Grid(grid.scales[:, :, None], grid.levels).values(indices[-1])
        # u follows w_t Y_t − q_t Ỹ_t; without drift the two products are one.
        if original is small:
            state.baddbmm_(moved, (w - q).mT.to(state.dtype))
        else:
            state.baddbmm_(y, w.mT.to(state.dtype)).baddbmm_(moved, q.mT.to(state.dtype), alpha=-1)
    return torch.cat(indices, 2)


def is_cheaper_along_data(samples: int, features: int, neurons: int, candidates: int) -> bool:
    """Tell whether `gpfq_along_data`, for so many candidates of scales, takes less arithmetic than `gpfq`.

    Both halves of the Gram matrices take 2mN² operations, and 2N²n go into each recursion; along the data, a candidate
    takes 6mNn.
    """
    from_gram = 2 * samples * features**2 + candidates * 2 * features**2 * neurons
    return candidates * 6 * samples * features * neurons < from_gram


def gpfq_by_definition(weights: Tensor, original: Tensor, small: Tensor, grid: Grid) -> Tensor:
    """Run GPFQ as the paper has it, one rank-1 update of the state u for each feature: indices of the levels.

    Args:
        weights: (problems, neurons, features).
        original, small: Y and Ỹ, (problems, samples, features), of the same dtype.
        grid: the levels of each neuron.

    Reference: lybrand2021gpfq, (3) and Lemma 1.
    """
    state = weights.new_zeros(len(weights), small.shape[1], weights.shape[1])
    each = Grid(grid.scales[:, None, :], grid.levels)
    indices = []
    for t in range(weights.shape[2]):
        weight = weights[:, None, :, t]
        column, moved = original[:, :, t : t + 1], small[:, :, t : t + 1]
        state.baddbmm_(column, weight)  # u_{t−1} + w_t Y_t, which the quotient projects on Ỹ_t
        norm = moved.mT @ moved
        # Where Ỹ_t = 0 every level costs the same: Q(w_t) (ERRATA 9).
        quotient = torch.where(norm > 0, moved.mT @ state / norm.where(norm > 0, 1.0), weight)
        indices.append(each.indices(quotient))
        state.baddbmm_(moved, each.values(indices[-1]).to(state.dtype), alpha=-1)
    return torch.cat(indices, 1).mT
