"""Spaces small enough to be enumerated or integrated, and the rounds they see."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from tamis.bayes.moves import Population
from tamis.bayes.prior import REAL, SIGN, Prior
from tamis.bayes.space import Block, Space, Structure
from tamis.bayes.target import Rounds, Target, losses

MANY = 40_000  # particles


class Lines(Space):
    """Two classes, logits (0, Σ_i w_i x_i): `filters` weights of one kind, in one structure for each count given."""

    def __init__(self, counts: Sequence[int], kind: int, probabilities: Sequence[float] | None = None) -> None:
        self.kind, self.features = kind, max(counts)
        shares = probabilities or [1 / len(counts)] * len(counts)
        super().__init__(2, {Structure(2, count, 1): share for count, share in zip(counts, shares, strict=True)})

    def blocks(self, structure: Structure) -> tuple[Block, ...]:
        return (Block("weight", (structure.filters,), self.kind),)

    def forward(self, structure: Structure, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        score = x[:, : structure.filters] @ weights["weight"]
        return torch.stack([torch.zeros_like(score), score], -1)

    def check_inputs(self, x: Tensor) -> Tensor:
        return x.double()


def some_rounds(features: int, count: int, seed: int = 0, batch: int = 3) -> Rounds:
    """Random inputs, labels that follow their first feature, and losses of what was drawn."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(batch, features, generator=generator, dtype=torch.float64) for _ in range(count)]
    labels = [(x[:, 0] > 0).long() for x in inputs]
    return Rounds(inputs, labels, torch.rand(count, generator=generator).tolist())


def energies(space: Space, number: int, weights: Tensor, rounds: Rounds, lam: float) -> np.ndarray:
    """h of n networks, as Algorithm 1 writes it."""
    found = losses(space, number, weights, rounds)
    drawn = torch.tensor(rounds.drawn_losses, dtype=torch.float64)
    return (found + lam / 2 * (found - drawn) ** 2).sum(1).numpy()


def every_sign(count: int) -> Tensor:
    """All 2^count vectors of signs."""
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=count)), dtype=torch.float64)


def enumerated(space: Lines, rounds: Rounds, lam: float) -> tuple[list[np.ndarray], float]:
    """For a space of signs: the probability of each vector in each structure, and log E_π exp(−λh)."""
    assert space.kind == SIGN
    masses = []
    for number, structure in enumerate(space.structures):
        signs = every_sign(structure.filters)
        share = space.probabilities[structure] / len(signs)
        masses.append(share * np.exp(-lam * energies(space, number, signs, rounds, lam)))
    total = sum(float(mass.sum()) for mass in masses)
    return [mass / total for mass in masses], math.log(total)


def integrated(space: Lines, prior: Prior, rounds: Rounds, lam: float) -> tuple[np.ndarray, np.ndarray, float]:
    """For one real weight: a grid of weights, their probabilities, and log E_π exp(−λh)."""
    assert space.kind == REAL
    grid = torch.linspace(-prior.R, prior.R, 200_001, dtype=torch.float64)
    step = float(grid[1] - grid[0])
    density = prior.real.log_density(grid).exp().numpy() * np.exp(-lam * energies(space, 0, grid[:, None], rounds, lam))
    density[[0, -1]] /= 2  # the trapezoidal rule
    total = float(density.sum() * step)
    return grid.numpy(), density * step / total, math.log(total)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flows_are_even(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether as many particles go from each state to each other as come back, by a χ² test of all pairs at once."""
    states = int(max(before.max(), after.max())) + 1
    flow = np.zeros((states, states))
    np.add.at(flow, (before, after), 1)
    there, back = flow[np.triu_indices(states, 1)], flow.T[np.triu_indices(states, 1)]
    used = there + back >= 10
    assert used.any() and flow.sum() > np.trace(flow)
    statistic = ((there - back)[used] ** 2 / (there + back)[used]).sum()
    return bool(chi2.sf(statistic, used.sum()) > 1e-3)


def numbered(signs: Tensor) -> np.ndarray:
    """The number of each vector of signs in `every_sign`."""
    powers = 2 ** torch.arange(signs.shape[1] - 1, -1, -1, dtype=torch.float64)
    return ((signs + 1) / 2 @ powers).long().numpy()


def sign_states(target: Target, seed: int) -> Population:
    """Particles drawn from the enumerated posterior of a space of signs."""
    space = target.space
    assert isinstance(space, Lines)
    masses, _ = enumerated(space, target.rounds, target.lam)
    which = torch.multinomial(torch.from_numpy(np.concatenate(masses)), MANY, replacement=True, generator=seeded(seed))
    width = max(structure.filters for structure in space.structures)
    table, owners = [], []
    for number, structure in enumerate(space.structures):
        signs = every_sign(structure.filters)
        table.append(torch.nn.functional.pad(signs, (0, width - signs.shape[1])))
        owners += [number] * len(signs)
    latent, structures = torch.cat(table)[which], torch.tensor(owners)[which]
    energy = torch.zeros(MANY, dtype=torch.float64)
    population = Population(structures, latent, energy)
    for number, places in population.groups():
        energy[places] = target.energy(number, latent[places, : space.structures[number].filters])
    return population
