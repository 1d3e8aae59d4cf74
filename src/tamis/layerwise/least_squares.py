"""The weights that fit a layer's original outputs best on its drifted inputs, every neuron on its own support.

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
FEW = 0.4  # of a neuron's weights: as long as no more are gone, those that are gone are less work than those kept
TAME = 2.0**24  # condition of H up to which what is subtracted from A_SS leaves eight digits of it at least


def with_ridge(inputs: Tensor, damping: float = DAMPING) -> Tensor:
    """G + εI with ε a fraction of the mean of G's diagonal; of G = 0, the identity.

    Where rounding errors outweigh the ridge, as in the centred G of inputs that hardly vary, it is raised until the
    sum is positive definite.
    """
    return _plus(inputs, _ridge(inputs, damping))


def _ridge(inputs: Tensor, damping: float) -> Tensor:
    """ε of every problem."""
    if not bool(inputs.isfinite().all()):
        raise InvalidInput(
            "the inputs of a layer have products that are NaN or infinite: "
            "look for such values, or very large ones, in the calibration data and in the network's parameters"
        )
    mean = inputs.diagonal(dim1=1, dim2=2).mean(1)
    # Never zero, which could not be raised.
    ridge = torch.where(mean > 0, damping * mean, 1.0).clamp_min(torch.finfo(inputs.dtype).tiny)
    while (wrong := torch.linalg.cholesky_ex(_plus(inputs, ridge / 2)).info != 0).any():  # ½: with some room to spare
        ridge = torch.where(wrong, 10 * ridge, ridge)
    return ridge


def _plus(square: Tensor, ridge: Tensor) -> Tensor:
    """Each matrix plus its own multiple of the identity."""
    return square + torch.diag_embed(ridge[:, None].expand(-1, square.shape[1]))


@dataclass(frozen=True)
class System:
    """H = G + εI of every problem of a layer: made once, for any number of supports.

    Attributes:
        square: H, (problems, features, features).
        tame: of every problem, whether H is so well conditioned that supports can be reached through its inverse.
    """

    square: Tensor
    tame: list[bool]

    @classmethod
    def of(cls, gram: Gram, damping: float = DAMPING) -> System:
        """The system of a layer's inputs, with ε as a fraction of the mean of G's diagonal."""
        ridge = _ridge(gram.inputs, damping)
        square = _plus(gram.inputs, ridge)
        condition = torch.linalg.matrix_norm(square) / (ridge / 2)  # at most: G + ½εI is positive definite
        return cls(square, (condition <= TAME).tolist())

    @cached_property
    def factor(self) -> Tensor:
        """L with H = LLᵀ."""
        return torch.linalg.cholesky(self.square)

    @cached_property
    def inverse(self) -> Tensor:
        """A = H⁻¹."""
        return torch.cholesky_inverse(self.factor)

    def parts(self, keep: Tensor) -> Iterator[tuple[int, Tensor, _Kept | _Gone]]:
        """Problems, some neurons of each, and their systems on their supports, factorised."""
        features = keep.shape[2]
        for problem, left in enumerate(keep.sum(2)):
            few = features - left <= (FEW * features if self.tame[problem] else 0)
            for neurons in _pieces(few, features - left, features):
                yield problem, neurons, _Gone(self.inverse[problem], keep[problem, neurons])
            for neurons in _pieces(~few, left, None):
                yield problem, neurons, _Kept(self.square[problem], keep[problem, neurons])


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
    system = System.of(gram, damping)
    right = _right(original, present, gram)
    if offset is not None:
        right = right + offset[:, :, None] * gram.input_sums[:, None, :]
    if keep is None or bool(keep.all()):
        return present + torch.cholesky_solve(right.mT, system.factor).mT
    step = torch.zeros_like(present)
    for problem, neurons, part in system.parts(keep):
        step[problem, neurons] = part.solved(right[problem, neurons])
    return present + step


def fitted_with_saliencies(
    original: Tensor, present: Tensor, keep: Tensor, gram: Gram, system: System
) -> tuple[Tensor, Tensor]:
    """`fitted` weights, and what the error of a neuron grows by, at least, when one of its weights goes.

    That is v_i² / [(G_SS + εI)⁻¹]_ii, the others being free to make up for it (optimal brain surgeon), and infinite
    where a weight is not kept. Both come from one factorisation of each neuron's system.
    """
    right = _right(original, present, gram)
    step, inverse = torch.zeros_like(present), torch.ones_like(present)
    for problem, neurons, part in system.parts(keep):
        step[problem, neurons] = part.solved(right[problem, neurons])
        inverse[problem, neurons] = part.inverse_diagonal()
    weights = present + step
    return weights, torch.where(keep, weights.square() / inverse, torch.inf)


def _right(original: Tensor, present: Tensor, gram: Gram) -> Tensor:
    """The right-hand side of the equations of v − v₀, which is exactly zero where nothing has changed."""
    return (original - present) @ gram.inputs + original @ gram.drift.mT


class _Kept:
    """H_SS of some neurons of a problem, factorised."""

    def __init__(self, square: Tensor, keep: Tensor) -> None:
        self.features = keep.shape[1]
        self.places, self.real = _places(keep)
        self.factor = torch.linalg.cholesky(_restricted(square, self.places, self.real))

    def solved(self, right: Tensor) -> Tensor:
        """x with H_SS x_S = b_S and zero elsewhere, (neurons, features)."""
        return self._spread(_solved_at(self.places, self.real, self.factor, right))

    def inverse_diagonal(self) -> Tensor:
        """Of (H_SS)⁻¹, (neurons, features); what stands outside S is not to be read."""
        return self._spread(torch.cholesky_inverse(self.factor).diagonal(dim1=1, dim2=2))

    def _spread(self, found: Tensor) -> Tensor:
        return found.new_zeros(len(found), self.features).scatter(1, self.places, found * self.real)


class _Gone:
    """The same by way of A = H⁻¹, of which A_RR is factorised."""

    def __init__(self, inverse: Tensor, keep: Tensor) -> None:
        self.inverse, self.keep = inverse, keep
        self.places, self.real = _places(~keep)
        self.factor = torch.linalg.cholesky(_restricted(inverse, self.places, self.real))

    def solved(self, right: Tensor) -> Tensor:
        """x with H_SS x_S = b_S and zero elsewhere: Ab, less what it takes to hold x_R at zero."""
        free = (right * self.keep) @ self.inverse
        held = _solved_at(self.places, self.real, self.factor, free)
        force = torch.zeros_like(free).scatter(1, self.places, held)
        return (free - force @ self.inverse) * self.keep

    def inverse_diagonal(self) -> Tensor:
        """Of (H_SS)⁻¹, (neurons, features); what stands outside S is not to be read."""
        rows = self.inverse[self.places] * self.real[:, :, None]
        across = torch.linalg.solve_triangular(self.factor, rows, upper=False)
        return self.inverse.diagonal() - across.square().sum(1)


def _pieces(chosen: Tensor, sizes: Tensor, width: int | None) -> Iterator[Tensor]:
    """The chosen neurons, those with matrices of like sizes together, as many at a time as memory allows.

    Args:
        chosen: which neurons, as booleans.
        sizes: how many rows the matrix of each has.
        width: how many columns; None where it is square.
    """
    neurons = chosen.nonzero()[:, 0]
    neurons = neurons[sizes[neurons].argsort(descending=True, stable=True)]
    memory = CACHED_SYSTEMS if sizes.device.type == "cpu" else LARGEST_SYSTEMS
    while len(neurons):
        largest = max(int(sizes[neurons[0]]), 1)
        count = max(1, memory // (8 * largest * (width or largest)))
        yield neurons[:count]
        neurons = neurons[count:]


def _places(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Where the chosen weights of each neuron stand, filled up to the most of them; and which places are real."""
    most = int(chosen.sum(1).max())
    real, places = chosen.to(torch.int8).sort(dim=1, descending=True, stable=True)
    return places[:, :most], real[:, :most].bool()


def _restricted(square: Tensor, places: Tensor, real: Tensor) -> Tensor:
    """The rows and columns of a matrix at these places; an identity where a place only fills up."""
    inner = square[places[:, :, None], places[:, None, :]]
    if bool(real.all()):
        return inner
    both = real[:, :, None] & real[:, None, :]
    return torch.where(both, inner, torch.diag_embed((~real).to(square.dtype)))


def _solved_at(places: Tensor, real: Tensor, factor: Tensor, right: Tensor) -> Tensor:
    """The solutions of factorised systems, whose right-hand sides are at these places; zero where one fills up."""
    return torch.cholesky_solve((right.gather(1, places) * real)[:, :, None], factor)[:, :, 0] * real
