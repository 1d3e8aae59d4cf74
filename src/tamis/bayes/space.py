"""A union of spaces of networks ranges over numbers of layers, of filters, and their sizes (Chee and Loustau, (2)).

    W = ∪_k ∪_i ∪_j W^{p(k,i,j)},      π(w) = Σ_k α_k Σ_i β_i Σ_j γ_j π_ijk(w)              (6)

A member of the union, a `Structure`, has weights of three kinds (real, scale, sign; `tamis.bayes.prior`), laid out as
one flat vector: block after block, each row by row. All networks of one structure are computed together.

Printed: p = k(i + 1)j, which leaves out that filters have as many channels as the layer before; p here is what the
layers have. With one layer there are no filters, so that it is one member of the union, of probability α_1.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tamis.bayes.prior import REAL
from tamis.bounds import check_count
from tamis.errors import InvalidInput


@dataclass(frozen=True, order=True)
class Structure:
    """A structure is one member of the union: k layers, with i filters of size j in each but the last.

    With one layer there are no filters: `filters` and `size` are 0.
    """

    layers: int
    filters: int
    size: int


@dataclass(frozen=True)
class Block:
    """A block is a tensor of weights of one kind."""

    name: str
    shape: tuple[int, ...]
    kind: int = REAL

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class Space(ABC):
    """A space is a union of spaces of networks that classify.

    Args:
        classes: K, how many there are.
        probabilities: of each structure; they are divided by their sum.
    """

    def __init__(self, classes: int, probabilities: Mapping[Structure, float]) -> None:
        check_count("classes", classes, least=2)
        self.classes = classes
        values = list(probabilities.values())
        if not values or not all(0 <= value < math.inf for value in values) or not sum(values) > 0:
            raise InvalidInput(f"the prior probabilities of structures must be ≥ 0 and not all 0, got {values}")
        total = sum(values)
        # Structures of probability 0 are left out: −log of it is infinite in every bound, and no jump to one is
        # accepted.
        self.probabilities = {structure: value / total for structure, value in probabilities.items() if value > 0}
        self.structures = tuple(self.probabilities)
        self._matches: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._layouts: dict[Structure, tuple[tuple[Block, ...], Tensor]] = {}

    @abstractmethod
    def blocks(self, structure: Structure) -> tuple[Block, ...]:
        """Return the tensors that make up the weights of a structure, in the order of the flat vector."""

    @abstractmethod
    def forward(self, structure: Structure, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Compute logits (batch, classes) of one network on a mini-batch, in operations for `torch.func.vmap`."""

    @abstractmethod
    def check_inputs(self, x: Tensor) -> Tensor:
        """Return a mini-batch of inputs in the dtype of the computation; raise InvalidInput for anything else."""

    @property
    def identity(self) -> dict[str, object]:
        """Return the values that identify this space, for a learner that continues from a saved state."""
        return {
            "space": type(self).__name__,
            "classes": self.classes,
            "structures": [
                [s.layers, s.filters, s.size, self.probabilities[s], self.count(s)] for s in self.structures
            ],
        }

    def count(self, structure: Structure) -> int:
        """Count the weights p of a structure."""
        return len(self.kinds(structure))

    def kinds(self, structure: Structure) -> Tensor:
        """Return the kind of each weight, (p,)."""
        return self._make_layout(structure)[1]

    def _make_layout(self, structure: Structure) -> tuple[tuple[Block, ...], Tensor]:
        """Return the blocks and kinds of a structure, made once because every evaluation needs them."""
        if structure not in self._layouts:
            blocks = self.blocks(structure)
            kinds = torch.cat([torch.full((block.count,), block.kind) for block in blocks])
            self._layouts[structure] = blocks, kinds
        return self._layouts[structure]

    def split(self, structure: Structure, flat: Tensor) -> dict[str, Tensor]:
        """Split a flat vector of weights into tensors by name.

        Example:
            >>> from tamis.bayes import Dense
            >>> space = Dense((4,), 3, layers=[2], filters=[5])
            >>> sorted(space.split(space.structures[0], torch.zeros(43)))
            ['hidden.0.bias', 'hidden.0.weight', 'last.bias', 'last.weight']
        """
        blocks, _ = self._make_layout(structure)
        # Views, no copies: `vmap` goes through this for every network and round.
        parts = flat.split([block.count for block in blocks])
        return {block.name: part.reshape(block.shape) for block, part in zip(blocks, parts, strict=True)}

    def logits(self, structure: Structure, weights: Tensor, x: Tensor) -> Tensor:
        """Compute logits (n, batch, classes) of n networks of one structure, with weights (n, p), on a mini-batch."""

        def one(flat: Tensor) -> Tensor:
            return self.forward(structure, self.split(structure, flat), x)

        return torch.func.vmap(one)(weights)

    def round_losses(self, structure: Structure, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Compute the mean cross-entropy (rounds,) of one network on each of several mini-batches of one size.

        Args:
            structure: of the network.
            flat: its weights (p,).
            x: (rounds, batch, …).
            y: labels (rounds, batch).
        """
        weights = self.split(structure, flat)

        def one(inputs: Tensor, labels: Tensor) -> Tensor:
            return _cross_entropy(self.forward(structure, weights, inputs), labels)

        return torch.func.vmap(one)(x, y)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return the structures one step away from each: one layer, filter or size more or less.

        A step goes to the next number of layers, filters or size that the space has. Between one layer and two, a step
        goes to any filters.
        """
        return tuple(
            tuple(other for other in range(len(self.structures)) if self._is_one_step(number, other))
            for number in range(len(self.structures))
        )

    def _is_one_step(self, number: int, other: int) -> bool:
        one, two = self.structures[number], self.structures[other]
        steps = [
            abs(self._find_rank(axis, getattr(one, axis)) - self._find_rank(axis, getattr(two, axis)))
            for axis in ("layers", "filters", "size")
        ]
        # One layer has neither filters nor sizes, so that all three axes differ from those of any other structure:
        # counted like the rest, it would have no neighbour at all.
        if 0 in (one.filters, two.filters):
            return steps[0] == 1
        return sum(steps) == 1

    def _find_rank(self, axis: str, value: int) -> int:
        return sorted({getattr(structure, axis) for structure in self.structures}).index(value)

    def match(self, number: int, other: int) -> tuple[Tensor, Tensor]:
        """Match the weights of one structure with those of another: two lists of places, of equal length.

        Blocks of one name and kind are laid over each other at their first entries; the rest has no counterpart. The
        match from the other structure is the same pairs.
        """
        if (number, other) not in self._matches:
            ours, theirs = (self._find_places(self.structures[each]) for each in (number, other))
            pairs = [_find_overlap(ours[key], theirs[key]) for key in ours if key in theirs]
            none = torch.zeros(0, dtype=torch.int64)
            first = torch.cat([none, *(pair[0] for pair in pairs)])
            second = torch.cat([none, *(pair[1] for pair in pairs)])
            # Both directions at once, from the same pairs: the way back of a jump must be its exact inverse.
            self._matches[number, other], self._matches[other, number] = (first, second), (second, first)
        return self._matches[number, other]

    def _find_places(self, structure: Structure) -> dict[tuple[str, int, int], Tensor]:
        names = self.split(structure, torch.arange(self.count(structure)))
        kinds = {block.name: block.kind for block in self.blocks(structure)}
        # The number of axes is part of the key: only tensors with the same axes can be laid over each other.
        return {(name, kinds[name], places.dim()): places for name, places in names.items()}


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy by fewer operations than `torch.nn.functional` takes under `torch.func.vmap`."""
    # log_softmax and not log of softmax, which would be log 0 for a class whose logit is far below the largest.
    return -logits.log_softmax(-1).gather(-1, labels[:, None]).mean()


def _find_overlap(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    # Any fixed pairing keeps the law; by name and place, a weight that stays goes on meaning what it meant.
    common = tuple(slice(min(a, b)) for a, b in zip(ours.shape, theirs.shape, strict=True))
    return ours[common].reshape(-1), theirs[common].reshape(-1)


@dataclass(frozen=True)
class StructurePrior:
    """The prior of a structure of k layers with i filters of size j is the product α_k β_i γ_j of three probabilities.

    Attributes:
        alpha: of the numbers of layers, in their order; uniform where None is given, as the others.
        beta: of the numbers of filters.
        gamma: of the sizes of filters.

    Example:
        >>> prior = StructurePrior(alpha=[0.25, 0.75])
        >>> grid([1, 2], [4], [1], prior)[Structure(layers=1, filters=0, size=0)]
        0.25
    """

    alpha: Sequence[float] | None = None
    beta: Sequence[float] | None = None
    gamma: Sequence[float] | None = None


UNIFORM = StructurePrior()


def grid(
    layers: Sequence[int], filters: Sequence[int], sizes: Sequence[int], prior: StructurePrior = UNIFORM
) -> dict[Structure, float]:
    """Return the structures of all these numbers of layers, filters and sizes, with their prior probabilities.

    Example:
        >>> grid([1, 2], [4, 8], [1])
        {Structure(layers=1, filters=0, size=0): 0.5, Structure(layers=2, filters=4, size=1): 0.25, ...}
    """
    axes = {"layers": layers, "filters": filters, "sizes": sizes}
    for name, values in axes.items():
        if not len(values) or len(set(values)) != len(values):
            raise InvalidInput(f"{name} must be different numbers, one or more, got {name} = {list(values)}")
        for value in values:
            check_count(f"each of {name}", value)
    a, b, c = (
        _check_shares(*each)
        for each in (("alpha", prior.alpha, layers), ("beta", prior.beta, filters), ("gamma", prior.gamma, sizes))
    )
    found: dict[Structure, float] = {}
    for k in layers:
        # α_1 as a whole: β and γ are over filters and sizes, which one layer does not have.
        if k == 1:
            found[Structure(1, 0, 0)] = a[1]
        else:
            found |= {Structure(k, i, j): a[k] * b[i] * c[j] for i in filters for j in sizes}
    return found


def _check_shares(name: str, given: Sequence[float] | None, values: Sequence[int]) -> dict[int, float]:
    """Return the probability of each value, uniform where none are given."""
    shares = [1 / len(values)] * len(values) if given is None else [float(share) for share in given]
    if len(shares) != len(values) or not all(0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > 1e-9:
        raise InvalidInput(f"{name} must be {len(values)} probabilities that sum to 1, got {name} = {shares}")
    return dict(zip(values, shares, strict=True))
