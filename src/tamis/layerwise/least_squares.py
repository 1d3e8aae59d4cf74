"""Least squares finds the weights that fit a layer's original outputs best on drifted inputs, on given supports.

For a neuron with original weights w, present weights v₀ and support S, the fit v minimises, over vectors that are zero
outside S,

    ‖Yw − Ỹv‖² + ε ‖v − v₀‖²,      that is   (G_SS + εI) v_S = ((G + E) w)_S + ε v₀_S,

with G = ỸᵀỸ, E = Ỹᵀ(Y − Ỹ). Since v₀ itself is a candidate without penalty, the error ‖Yw − Ỹv‖ never grows. The ridge
ε keeps weights that the data says nothing about where they were.

Every neuron has a system of its own, a part of H = G + εI, which is the same for all neurons. Where few weights R of a
neuron are gone, what is needed of its system follows from A = H⁻¹ and the small matrix A_RR instead:

    (H_SS)⁻¹ = A_SS − A_SR (A_RR)⁻¹ A_RS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.layerwise.gram import Gram

DAMPING = 0.01  # ε, as a fraction of the mean of G's diagonal
LARGEST_SYSTEMS = 2**28  # bytes of matrices that are factorised at a time
CACHED_SYSTEMS = 2**23  # likewise on a CPU, which is faster at what its caches hold
FEW = 0.4  # share of a neuron's weights: while no more of them are gone, solving for those is less work
MOST_CONDITION = 2.0**24  # condition of H up to which the subtraction from A_SS leaves eight digits of it at least


def add_ridge(inputs: Tensor, damping: float = DAMPING) -> Tensor:
    """Compute G + εI with ε a fraction of the mean of G's diagonal; for G = 0, the identity.

    Where rounding errors outweigh the ridge, as in the centred G of inputs that hardly vary, ε is raised until the sum
    is positive definite.
    """
    return _add_diagonal(inputs, _choose_ridge(inputs, damping))


def _choose_ridge(inputs: Tensor, damping: float) -> Tensor:
    """Choose ε for every problem."""
    if not bool(inputs.isfinite().all()):
        raise InvalidInput(
            "the inputs of a layer have products that are NaN or infinite: "
            "look for such values, or very large ones, in the calibration data and in the network's parameters"
        )
    mean = inputs.diagonal(dim1=1, dim2=2).mean(1)
    # Never zero: the loop below raises ε by a factor.
    ridge = torch.where(mean > 0, damping * mean, 1.0).clamp_min(torch.finfo(inputs.dtype).tiny)
    while (
        wrong := torch.linalg.cholesky_ex(_add_diagonal(inputs, ridge / 2)).info != 0
    ).any():  # ½: a margin, so that H itself factorises
        ridge = torch.where(wrong, 10 * ridge, ridge)
    return ridge


def _add_diagonal(square: Tensor, ridge: Tensor) -> Tensor:
    """Add its own multiple of the identity to each matrix."""
    return square + torch.diag_embed(ridge[:, None].expand(-1, square.shape[1]))


@dataclass(frozen=True)
class NormalEquations:
    """Normal equations hold the matrices H = G + εI of a layer's problems, made once for any number of supports.

    Attributes:
        square: H, (problems, features, features).
        well_conditioned: for every problem, whether H is so well conditioned that its inverse can be used for supports.
    """

    square: Tensor
    well_conditioned: list[bool]

    @classmethod
    def of(cls, gram: Gram, damping: float = DAMPING) -> NormalEquations:
        """Set up the equations for a layer's inputs, with ε as a fraction of the mean of G's diagonal."""
        ridge = _choose_ridge(gram.inputs, damping)
        square = _add_diagonal(gram.inputs, ridge)
        # An upper bound: G + ½εI is positive definite, so no eigenvalue of H is below ½ε.
        condition = torch.linalg.matrix_norm(square) / (ridge / 2)
        return cls(square, (condition <= MOST_CONDITION).tolist())

    @cached_property
    def factor(self) -> Tensor:
        """Return the Cholesky factor L, with H = LLᵀ."""
        return torch.linalg.cholesky(self.square)

    @cached_property
    def inverse(self) -> Tensor:
        """Return the inverse A = H⁻¹."""
        return torch.cholesky_inverse(self.factor)

    def factorize(self, keep: Tensor) -> Iterator[tuple[int, Tensor, _SupportSystem | _ComplementSystem]]:
        """Yield problems, some neurons of each, and the factorised systems on these neurons' supports."""
        features = keep.shape[2]
        for problem, left in enumerate(keep.sum(2)):
            # A neuron that keeps all its weights always goes through A: its R is empty, and nothing is subtracted.
            few = features - left <= (FEW * features if self.well_conditioned[problem] else 0)
            for neurons in _batch_neurons(few, features - left, features):
                yield problem, neurons, _ComplementSystem(self.inverse[problem], keep[problem, neurons])
            for neurons in _batch_neurons(~few, left, None):
                yield problem, neurons, _SupportSystem(self.square[problem], keep[problem, neurons])


def fit_weights(
    original: Tensor,
    present: Tensor,
    keep: Tensor | None,
    gram: Gram,
    damping: float = DAMPING,
    offset: Tensor | None = None,
) -> Tensor:
    """Fit the weights v of every neuron on its support.

    Args:
        original, present: w and v₀, (problems, neurons, features), float64.
        keep: the supports, boolean in the same shape; None where every weight is kept.
        gram: the sums over the layer's inputs.
        damping: ε as a fraction of the mean of G's diagonal.
        offset: a constant to add to the target Yw of each neuron, (problems, neurons), such as a bias that was pruned.
    """
    equations = NormalEquations.of(gram, damping)
    right = _compute_right_hand_side(original, present, gram)
    if offset is not None:
        right = right + offset[:, :, None] * gram.input_sums[:, None, :]
    # One factor serves all neurons where none has lost a weight, which is the usual case before pruning.
    if keep is None or bool(keep.all()):
        return present + torch.cholesky_solve(right.mT, equations.factor).mT
    # Zero outside the supports: a pruned weight stays where `present` has it, at zero.
    step = torch.zeros_like(present)
    for problem, neurons, part in equations.factorize(keep):
        step[problem, neurons] = part.solve(right[problem, neurons])
    return present + step


def fit_with_saliencies(
    original: Tensor, present: Tensor, keep: Tensor, gram: Gram, equations: NormalEquations
) -> tuple[Tensor, Tensor]:
    """Fit weights as `fit_weights` does, and compute the saliency of each: how much the error grows without it.

    The saliency is v_i² / [(G_SS + εI)⁻¹]_ii, with the other weights free to make up for the loss (optimal brain
    surgeon), and infinite where a weight is not kept. Both come from one factorisation of each neuron's system.
    """
    right = _compute_right_hand_side(original, present, gram)
    # Ones, not zeros: entries outside the support are divided by, and only then replaced by infinity.
    step, inverse = torch.zeros_like(present), torch.ones_like(present)
    for problem, neurons, part in equations.factorize(keep):
        step[problem, neurons] = part.solve(right[problem, neurons])
        inverse[problem, neurons] = part.inverse_diagonal()
    weights = present + step
    return weights, torch.where(keep, weights.square() / inverse, torch.inf)


def _compute_right_hand_side(original: Tensor, present: Tensor, gram: Gram) -> Tensor:
    """Compute the right-hand side of the equations for v − v₀.

    Solving for the difference rather than for v makes it exactly zero where nothing has changed.
    """
    # (G + E) w + ε v₀ − (G + εI) v₀ = G (w − v₀) + E w: the ridge drops out. Neurons are rows, hence the transposes.
    return (original - present) @ gram.inputs + original @ gram.drift.mT


class _SupportSystem:
    """A support system holds the matrices H_SS of some neurons of a problem, factorised."""

    def __init__(self, square: Tensor, keep: Tensor) -> None:
        self.features = keep.shape[1]
        self.places, self.real = _pad_places(keep)
        self.factor = torch.linalg.cholesky(_restrict(square, self.places, self.real))

    def solve(self, right: Tensor) -> Tensor:
        """Solve H_SS x_S = b_S for x, zero outside S: (neurons, features)."""
        return self._spread(_solve_at(self.places, self.real, self.factor, right))

    def inverse_diagonal(self) -> Tensor:
        """Return the diagonal of (H_SS)⁻¹, (neurons, features); entries outside S are undefined."""
        return self._spread(torch.cholesky_inverse(self.factor).diagonal(dim1=1, dim2=2))

    def _spread(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(values), self.features).scatter(1, self.places, values * self.real)


class _ComplementSystem:
    """A complement system reaches the same through A = H⁻¹, and factorises A_RR alone (R: the weights gone)."""

    def __init__(self, inverse: Tensor, keep: Tensor) -> None:
        self.inverse, self.keep = inverse, keep
        self.places, self.real = _pad_places(~keep)
        # A_RR is a principal part of a positive definite matrix, and so has a Cholesky factor itself.
        self.factor = torch.linalg.cholesky(_restrict(inverse, self.places, self.real))

    def solve(self, right: Tensor) -> Tensor:
        """Solve H_SS x_S = b_S for x, zero outside S: Ab minus the A λ whose multipliers λ hold x_R at zero."""
        free = (right * self.keep) @ self.inverse
        multipliers = _solve_at(self.places, self.real, self.factor, free)
        force = torch.zeros_like(free).scatter(1, self.places, multipliers)
        return (free - force @ self.inverse) * self.keep  # exact zeros outside S, not rounding errors

    def inverse_diagonal(self) -> Tensor:
        """Return the diagonal of (H_SS)⁻¹, (neurons, features); entries outside S are undefined."""
        rows = self.inverse[self.places] * self.real[:, :, None]
        # A_SR (A_RR)⁻¹ A_RS has the diagonal ‖L⁻¹ A_RS‖² by columns, with A_RR = LLᵀ.
        across = torch.linalg.solve_triangular(self.factor, rows, upper=False)
        return self.inverse.diagonal() - across.square().sum(1)


def _batch_neurons(chosen: Tensor, sizes: Tensor, width: int | None) -> Iterator[Tensor]:
    """Yield the chosen neurons, those with matrices of similar sizes together, as many at a time as memory allows.

    Args:
        chosen: booleans that choose neurons.
        sizes: the number of rows of each neuron's matrix.
        width: the number of columns; None where the matrix is square.
    """
    neurons = chosen.nonzero()[:, 0]
    # Matrices of a batch are padded to its largest: sorted by size, little of what is factorised is padding.
    neurons = neurons[sizes[neurons].argsort(descending=True, stable=True)]
    memory = CACHED_SYSTEMS if sizes.device.type == "cpu" else LARGEST_SYSTEMS
    while len(neurons):
        largest = max(int(sizes[neurons[0]]), 1)
        count = max(1, memory // (8 * largest * (width or largest)))
        yield neurons[:count]
        neurons = neurons[count:]


def _pad_places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of each neuron's chosen weights, padded to the longest list, and which places are real."""
    most = int(chosen.sum(1).max())
    # A stable sort of booleans lists the chosen places first, in their order, and what follows serves as padding.
    real, places = chosen.to(torch.int8).sort(dim=1, descending=True, stable=True)
    return places[:, :most], real[:, :most].bool()


def _restrict(square: Tensor, places: Tensor, real: Tensor) -> Tensor:
    """Take the rows and columns of a matrix at these places, with an identity where a place is padding."""
    inner = square[places[:, :, None], places[:, None, :]]
    if bool(real.all()):
        return inner
    # Padding must be decoupled from the real rows and positive definite, or the factorisation would fail or mix them.
    both = real[:, :, None] & real[:, None, :]
    return torch.where(both, inner, torch.diag_embed((~real).to(square.dtype)))


def _solve_at(places: Tensor, real: Tensor, factor: Tensor, right: Tensor) -> Tensor:
    """Solve factorised systems whose right-hand sides are at these places; padding gives zero."""
    return torch.cholesky_solve((right.gather(1, places) * real)[:, :, None], factor)[:, :, 0] * real
