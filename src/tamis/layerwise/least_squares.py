"""The weights that fit a layer's original outputs best on its drifted inputs, every neuron on its own support.

For a neuron with original weights w, present weights v₀ and support S, the fit v minimises, over vectors that are zero
outside S,

    ‖Yw − Ỹv‖² + ε ‖v − v₀‖²,      that is   (G_SS + εI) v_S = ((G + E) w)_S + ε v₀_S,

with G = ỸᵀỸ, E = Ỹᵀ(Y − Ỹ). Since v₀ itself is a candidate without penalty, the error ‖Yw − Ỹv‖ never grows. The ridge
ε keeps weights that the data says nothing about where they were.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.layerwise.gram import Gram

DAMPING = 0.01  # ε, as a fraction of the mean of G's diagonal
LARGEST_SYSTEMS = 2**28  # bytes of matrices that are factorised at a time


def with_ridge(inputs: Tensor, damping: float = DAMPING) -> Tensor:
    """G + εI with ε a fraction of the mean of G's diagonal; of G = 0, the identity.

    Where rounding errors outweigh the ridge, as in the centred G of inputs that hardly vary, it is raised until the
    sum is positive definite.
    """
    mean = inputs.diagonal(dim1=1, dim2=2).mean(1)
    ridge = torch.where(mean > 0, damping * mean, 1.0)
    while (wrong := torch.linalg.cholesky_ex(_plus(inputs, ridge / 2)).info != 0).any():  # ½: with some room to spare
        ridge = torch.where(wrong, 10 * ridge, ridge)
    return _plus(inputs, ridge)


def _plus(square: Tensor, ridge: Tensor) -> Tensor:
    """Each matrix plus its own multiple of the identity."""
    return square + torch.diag_embed(ridge[:, None].expand(-1, square.shape[1]))


def fitted(
    original: Tensor,
    present: Tensor,
    keep: Tensor | None,
    gram: Gram,
    damping: float = DAMPING,
    offset: Tensor | None = None,
) -> Tensor:
    """The weights v of every neuron.

    Args:
        original, present: w and v₀, (problems, neurons, features), float64.
        keep: the supports, likewise; None where every weight is kept.
        gram: of the layer's inputs.
        damping: ε as a fraction of the mean of G's diagonal.
        offset: what each neuron's output is to have beyond Yw, (problems, neurons), such as a bias that was pruned.
    """
    system = with_ridge(gram.inputs, damping)
    # The equations of v − v₀, whose right-hand side is exactly zero where nothing has changed.
    right = (original - present) @ gram.inputs + original @ gram.drift.mT
    if offset is not None:
        right = right + offset[:, :, None] * gram.input_sums[:, None, :]
    if keep is None or bool(keep.all()):
        return present + torch.cholesky_solve(right.mT, torch.linalg.cholesky(system)).mT
    step = torch.zeros_like(present)
    for problem, neurons in _pieces(keep):
        places, real = _places(keep[problem, neurons])
        inner = _restricted(system[problem], places, real)
        found = torch.cholesky_solve(
            (right[problem, neurons].gather(1, places) * real)[:, :, None], torch.linalg.cholesky(inner)
        )[:, :, 0]
        step[problem, neurons] = step[problem, neurons].scatter_add(1, places, found * real)
    return present + step


def saliencies(weights: Tensor, keep: Tensor, gram: Gram, damping: float = DAMPING) -> Tensor:
    """What the error of a neuron grows by, at least, when one of its weights goes: v_i² / [(G_SS + εI)⁻¹]_ii.

    The others are then free to make up for it (optimal brain surgeon). Infinite where a weight is not kept.
    """
    system = with_ridge(gram.inputs, damping)
    scores = torch.full_like(weights, torch.inf)
    for problem, neurons in _pieces(keep):
        places, real = _places(keep[problem, neurons])
        inner = _restricted(system[problem], places, real)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(inner)).diagonal(dim1=1, dim2=2)
        found = torch.where(real, weights[problem, neurons].gather(1, places).square() / inverse, torch.inf)
        scores[problem, neurons] = scores[problem, neurons].scatter_reduce(1, places, found, "amin")
    return scores


def _pieces(keep: Tensor) -> list[tuple[int, slice]]:
    """Problems, and neurons of each, whose systems are not too much memory at a time."""
    pieces = []
    for problem, each in enumerate(keep.sum(2).tolist()):
        size = max(1, LARGEST_SYSTEMS // (8 * max(max(each), 1) ** 2))
        pieces += [(problem, slice(start, start + size)) for start in range(0, len(each), size)]
    return pieces


def _places(keep: Tensor) -> tuple[Tensor, Tensor]:
    """Where the kept weights of each neuron stand, filled up to the longest support; and which places are real."""
    longest = max(int(keep.sum(1).max()), 1)
    real, places = keep.to(torch.int8).sort(dim=1, descending=True, stable=True)
    return places[:, :longest], real[:, :longest].bool()


def _restricted(system: Tensor, places: Tensor, real: Tensor) -> Tensor:
    """The rows and columns of a system at these places; an identity where a place only fills up."""
    inner = system[places[:, :, None], places[:, None, :]]
    both = real[:, :, None] & real[:, None, :]
    return torch.where(both, inner, torch.diag_embed((~real).to(system.dtype)))
