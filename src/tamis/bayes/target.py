"""The target of sampling is Gibbs_λ(h_t), the prior reweighted by exp(−λ h_t) over the rounds so far (Algorithm 1).

    h_t(w) = Σ_{s≤t} ℓ_s(w) + (λ/2) (ℓ_s(w) − ℓ_s(ŵ_s))²

ℓ_s is the mean cross-entropy over the mini-batch of round s, and ŵ_s what the learner drew. Of a long run a `Target`
may see a few rounds only, drawn at random, each of which stands for several.

Reference: chee2021xnor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tamis.bayes.prior import Prior
from tamis.bayes.space import Space

AT_ONCE = 1 << 22  # numbers of the inputs of all networks that are computed together


@dataclass
class Rounds:
    """The rounds so far are mini-batches, their labels, and the loss of the network drawn for each."""

    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    drawn_losses: list[float] = field(default_factory=list)
    _stacks: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.drawn_losses)

    def select(self, places: Sequence[int]) -> Rounds:
        """Return the rounds at these places."""
        inputs, labels = ([tensors[place] for place in places] for tensors in (self.inputs, self.labels))
        return Rounds(inputs, labels, [self.drawn_losses[place] for place in places])

    def with_round(self, x: Tensor, y: Tensor, drawn: float) -> Rounds:
        """Return these rounds and one more."""
        return Rounds([*self.inputs, x], [*self.labels, y], [*self.drawn_losses, drawn])

    @property
    def stacks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the rounds by size of mini-batch: their numbers, and inputs and labels stacked for `vmap`."""
        if self._stacks is None:
            sizes: dict[int, list[int]] = {}
            for number, labels in enumerate(self.labels):
                # vmap needs tensors of one shape, so that mini-batches of each size make a stack of their own.
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
    """Compute ℓ_s(w) for n networks of one structure and every round, (n, rounds).

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

        # Two vmaps, over networks here and over rounds in `round_losses`: one call instead of n · rounds small ones.
        found[:, numbers] = torch.func.vmap(of_one, chunk_size=_chunk(rounds, len(weights)))(weights)
    return found


@dataclass(frozen=True)
class Target:
    """A target is Gibbs_λ(h) on latent coordinates, where `last` is how much of the last round counts, from 0 to 1.

    Attributes:
        space: the union of structures, with their prior probabilities.
        prior: of the weights.
        rounds: what was seen.
        lam: λ.
        last: the part of the last round that counts, while its increment is tempered.
        past: how many rounds each round but the last stands for; 1 where these are all rounds.
    """

    space: Space
    prior: Prior
    rounds: Rounds
    lam: float
    last: float = 1.0
    past: float = 1.0

    @property
    def partial(self) -> bool:
        """Return whether rounds are left out, so that energies are estimates."""
        return self.past != 1

    def subsample_rounds(self, count: int, generator: torch.Generator) -> Target:
        """Return the target of `count` rounds before the last, drawn without replacement, and of the last.

        Its energy ĥ is h in expectation over the draw. Where there are no more than `count`, it is the target itself.
        """
        before = len(self.rounds) - 1
        if before <= count:
            return self
        seed = int(torch.randint(1 << 62, (), generator=generator))
        places = sorted(random.Random(seed).sample(range(before), count))  # without touching all, as randperm would
        return replace(self, rounds=self.rounds.select([*places, before]), past=before / count)

    def halve_rounds(self) -> Target:
        """Return a partial target of every other round of this one, each of which stands for twice as many."""
        before = len(self.rounds) - 1
        # Evenly spaced in time, so that a slow drift of the stream is in the half as it is in all.
        places = range(0, before, 2)
        return replace(self, rounds=self.rounds.select([*places, before]), past=self.past * before / len(places))

    def energy(self, number: int, latent: Tensor) -> Tensor:
        """Compute h(w), (n,), of n networks of one structure with latent coordinates (n, p)."""
        return torch.func.vmap(self._make_energy_function(number), chunk_size=_chunk(self.rounds, len(latent)))(latent)

    def energy_and_gradient(self, number: int, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Compute h(w) and its gradient by latent coordinates, (n,) and (n, p)."""
        both = torch.func.grad_and_value(self._make_energy_function(number))
        gradient, energy = torch.func.vmap(both, chunk_size=_chunk(self.rounds, len(latent)))(latent)
        return energy, gradient

    def terms(self, number: int, latent: Tensor) -> Tensor:
        """Compute the contribution of each round to h(w), (n, rounds)."""
        kinds = self.space.kinds(self.space.structures[number]).to(latent.device)
        found = losses(self.space, number, self.prior.weights(latent, kinds), self.rounds)
        drawn, shares = (each.to(latent.device) for each in (self._collect_drawn_losses(), self._compute_shares()))
        return shares * (found + self.lam / 2 * (found - drawn) ** 2)

    def variance_penalty(self, change: Tensor) -> Tensor:
        """Estimate half the variance of λ(ĥ(w') − ĥ(w)) over the draw of rounds, (n,), from each round's contribution.

        With this taken from the logarithm of Metropolis' ratio, a move by an estimate with normal errors keeps the law
        that it estimates: E min(1, exp(−X − σ²/2)) for X ~ N(δ, σ²) is exp(−δ) times that for N(−δ, σ²).
        """
        if not self.partial:
            return torch.zeros_like(change[:, 0])
        before = change.shape[1] - 1
        # The last round is in every draw and adds no variance. The others already carry the factor `past`, so that the
        # variance of their sum is their number times the variance among them.
        left_out = 1 - 1 / self.past  # the correction for draws without replacement
        return self.lam**2 / 2 * before * change[:, :-1].var(1) * left_out

    def _collect_drawn_losses(self) -> Tensor:
        return torch.tensor(self.rounds.drawn_losses, dtype=torch.float64)

    def _compute_shares(self) -> Tensor:
        shares = torch.full((len(self.rounds),), self.past, dtype=torch.float64)
        # The last round is in every draw with certainty: it stands for itself, in the part that tempering has let in.
        if len(shares):
            shares[-1] = self.last
        return shares

    def _make_energy_function(self, number: int) -> Callable[[Tensor], Tensor]:
        structure = self.space.structures[number]
        kinds = self.space.kinds(structure)
        drawn, shares = self._collect_drawn_losses(), self._compute_shares()

        def energy(latent: Tensor) -> Tensor:
            weights = self.prior.weights(latent, kinds.to(latent.device))
            total = latent.sum() * 0  # not 0.0: without a round, the gradient must still be a tensor
            for numbers, x, y in self.rounds.stacks:
                loss = self.space.round_losses(structure, weights, x, y)
                # `numbers` brings both into the order of this stack, which has the rounds of one size of mini-batch
                # only.
                share, other = (each[numbers].to(latent.device) for each in (shares, drawn))
                total = total + (share * (loss + self.lam / 2 * (loss - other) ** 2)).sum()
            return total

        return energy


def _chunk(rounds: Rounds, networks: int) -> int | None:
    """Return how many networks to compute together, so that memory stays bounded; None for all of them."""
    # Each network computes all rounds, so that memory goes by networks times the inputs of all rounds.
    most = max(1, AT_ONCE // max(1, sum(x.numel() for _, x, _ in rounds.stacks)))
    return most if most < networks else None
