"""OPTQ with drift correction lets the weights that are not chosen yet make up for each rounding error.

Two steps per neuron, both from G = ỸᵀỸ and E = Ỹᵀ(Y − Ỹ), with a ridge H = G + εI:

1. Before anything is rounded, the weights are moved to where they fit the drifted inputs best: the least-squares
   solution w' = H⁻¹(ỸᵀY + εI) w = w + H⁻¹ E w. What is left of the error, ‖Yw − Ỹw'‖, no choice of weights removes, and
   the rest is ‖Ỹ(w' − q)‖.
2. H = LᵀL with L lower triangular turns that rest into Σ_t L_tt² (z_t − q_t)² with

       z_t = w'_t + Σ_{j<t} (L_tj / L_tt) (w'_j − q_j),

   so that rounding z_t is the best choice of q_t if the weights after it could still be real numbers. It is the
   algorithm of Frantar et al. ("OPTQ", ICLR 2023), who write it as updates of the remaining weights by a Cholesky
   factor of H⁻¹, and Babai's nearest-plane algorithm for the lattice of L.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.layerwise import Gram, add_ridge
from tamis.quantization.feedback import Recursion


def optq(weights: Tensor, gram: Gram) -> Recursion:
    """Set up OPTQ as a recursion over the features of every neuron.

    Args:
        weights: (problems, neurons, features), float64.
        gram: of the layer's inputs.

    Reference: frantar2023optq.
    """
    damped = add_ridge(gram.inputs)
    factor = lower_factor(damped)
    # Solving for the correction alone, E w, leaves weights without drift exactly as they were.
    corrected = weights + _solve(factor, gram.drift @ weights.mT).mT
    # Rows over their diagonals: L_tj / L_tt is how much of the error of weight j weight t can still take up.
    coupling = factor / factor.diagonal(dim1=1, dim2=2)[:, :, None]
    # Target and start are one here: the drift is in w' already, and what is left to make up for is w' − q.
    return Recursion(corrected, corrected, coupling)


def lower_factor(matrix: Tensor) -> Tensor:
    """Compute the lower triangular L with LᵀL = the matrix: a Cholesky factor taken from the last row to the first."""
    # Not LLᵀ: in LᵀL the weight z_t is corrected by those before it. With J the reversal, JHJ = CCᵀ gives L = (JCJ)ᵀ.
    turned = torch.linalg.cholesky(matrix.flip(1, 2))
    return turned.flip(1, 2).mT


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Solve LᵀL x = b for the right-hand sides b."""
    # From the outside in: Lᵀ, upper triangular, first.
    return torch.linalg.solve_triangular(
        factor, torch.linalg.solve_triangular(factor.mT, right, upper=True), upper=False
    )
