"""What is sampled: Gibbs_λ(h_t), the prior reweighted by exp(−λ h_t), over the rounds seen so far (Algorithm 1).

    h_t(w) = Σ_{s≤t} ℓ_s(w) + (λ/2) (ℓ_s(w) − ℓ_s(ŵ_s))²

ℓ_s is the mean cross-entropy over the mini-batch of round s, and ŵ_s what the learner drew.

Reference: chee2021xnor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tamis.bayes.prior import Prior
from tamis.bayes.space import Space

AT_ONCE = 1 << 22  # numbers of the inputs of all networks that are computed together


@dataclass
class Rounds:
    """The mini-batches seen so far, their labels, and the loss of what was drawn for each."""

    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    _stacks: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.drawn)

    def with_round(self, x: Tensor, y: Tensor, drawn: float) -> Rounds:
        """These rounds and one more."""
        return Rounds([*self.inputs, x], [*self.labels, y], [*self.drawn, drawn])

    @property
    def stacks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Which rounds have one size of mini-batch, with their inputs and labels stacked."""
        if self._stacks is None:
            sizes: dict[int, list[int]] = {}
            for number, labels in enumerate(self.labels):
                sizes.setdefault(len(labels), []).append(number)
            self._stacks = [
                (
                    torch.tensor(numbers),
                    torch.stack([self.inputs[number] for number in numbers]),
                    torch.stack([self.labels[number] for number in numbers]),
                )
                for numbers in sizes.values()
            ]
        return self._stacks


def losses(space: Space, number: int, weights: Tensor, rounds: Rounds) -> Tensor:
    """ℓ_s(w) for n networks of one structure and every round, (n, rounds).

    Args:
        space: of the networks.
        number: of the structure in the space.
        weights: (n, p).
        rounds: what was seen.
    """
    structure = space.structures[number]
    found = weights.new_empty(len(weights), len(rounds))
    for numbers, x, y in rounds.stacks:

        def of_one(flat: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return space.round_losses(structure, flat, x, y)

        found[:, numbers] = torch.func.vmap(of_one, chunk_size=_chunk(rounds))(weights)
    return found


@dataclass(frozen=True)
class Target:
    """Gibbs_λ(h) on latent coordinates, where `last` is how much of the last round counts, from 0 to 1.

    Attributes:
        space: the union of structures, with their prior probabilities.
        prior: of the weights.
        rounds: what was seen.
        lam: λ.
        last: the part of the last round that counts, while its increment is tempered.
    """

    space: Space
    prior: Prior
    rounds: Rounds
    lam: float
    last: float = 1.0

    def energy(self, number: int, latent: Tensor) -> Tensor:
        """h(w), (n,), of n networks of one structure with latent coordinates (n, p)."""
        return torch.func.vmap(self._of_one(number), chunk_size=_chunk(self.rounds))(latent)

    def energy_and_gradient(self, number: int, latent: Tensor) -> tuple[Tensor, Tensor]:
        """h(w) and its gradient by latent coordinates, (n,) and (n, p)."""
        both = torch.func.grad_and_value(self._of_one(number))
        gradient, energy = torch.func.vmap(both, chunk_size=_chunk(self.rounds))(latent)
        return energy, gradient

    def _of_one(self, number: int) -> Callable[[Tensor], Tensor]:
        structure = self.space.structures[number]
        kinds = self.space.kinds(structure)
        drawn = torch.tensor(self.rounds.drawn, dtype=torch.float64)
        shares = torch.ones_like(drawn)
        if len(shares):
            shares[-1] = self.last

        def energy(latent: Tensor) -> Tensor:
            weights = self.prior.weights(latent, kinds.to(latent.device))
            total = latent.sum() * 0
            for numbers, x, y in self.rounds.stacks:
                loss = self.space.round_losses(structure, weights, x, y)
                share, other = (each[numbers].to(latent.device) for each in (shares, drawn))
                total = total + (share * (loss + self.lam / 2 * (loss - other) ** 2)).sum()
            return total

        return energy


def _chunk(rounds: Rounds) -> int:
    """How many networks to compute together."""
    return max(1, AT_ONCE // max(1, sum(x.numel() for x in rounds.inputs)))
