"""Metropolis–Hastings moves that keep Gibbs_λ(h) within a structure: Langevin steps, and flips of signs.

Coordinates are latent (`tamis.bayes.prior`): under the prior, real ones are standard normal and signs are fair coins.
Each move proposes z' from q(·|z) and accepts it with probability min(1, r); a rejected particle stays as it is.

    langevin    u' = a u − (1 − a) λ∇h(u) + β ξ,  a = √(1 − β²):  exact, and always accepted, where h is constant
    flips       sign i flips with probability σ(λ s_i ∂_i h − κ), all at once: half the rise of log-density it promises

Printed: no sampler at all (ERRATA 8).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.space import Space
from tamis.bayes.target import Target

LANGEVIN_ACCEPTANCE = 0.574  # the best in many dimensions
FLIP_ACCEPTANCE = 0.574
LARGEST_STEP, SMALLEST_STEP = 0.999, 1e-6


@dataclass(frozen=True)
class Population:
    """Particles: networks in different structures.

    Attributes:
        structures: (N,) the number of each one's structure in the space.
        latent: (N, P) latent coordinates, with zeros after the last that a structure has.
        energy: (N,) h of each.
    """

    structures: Tensor
    latent: Tensor
    energy: Tensor

    def __len__(self) -> int:
        return len(self.structures)

    def taken(self, places: Tensor) -> Population:
        """The particles at these places."""
        return Population(self.structures[places], self.latent[places], self.energy[places])

    def to(self, device: str | torch.device) -> Population:
        """The same particles on a device."""
        return Population(self.structures.to(device), self.latent.to(device), self.energy.to(device))

    def groups(self) -> Iterator[tuple[int, Tensor]]:
        """Each structure that has particles, with their places."""
        for number in self.structures.unique().tolist():
            yield int(number), (self.structures == number).nonzero()[:, 0]


@dataclass(frozen=True)
class Pace:
    """How bold proposals are within each structure: β of Langevin steps, and κ of flips; (structures,)."""

    step: Tensor
    reserve: Tensor

    @classmethod
    def initial(cls, space: Space) -> Pace:
        count = len(space.structures)
        return cls(torch.full((count,), 0.5, dtype=torch.float64), torch.full((count,), 2.0, dtype=torch.float64))

    def adapted(self, number: int, steps: float | None, flips: float | None, gain: float = 0.5) -> Pace:
        """Bolder where more proposals were accepted than is best, more careful where fewer were.

        It is adapted between sweeps, by what all particles of a structure did, and the same for all of them: for many
        particles this is a fixed sequence, under which each sweep keeps the target.
        """
        step, reserve = self.step.clone(), self.reserve.clone()
        if steps is not None:
            bolder = step[number] * math.exp(gain * (steps - LANGEVIN_ACCEPTANCE))
            step[number] = bolder.clamp(SMALLEST_STEP, LARGEST_STEP)
        if flips is not None:
            reserve[number] = (reserve[number] - gain * (flips - FLIP_ACCEPTANCE)).clamp(min=0.0)
        return replace(self, step=step, reserve=reserve)


def drawn_from_prior(space: Space, prior: Prior, count: int, generator: torch.Generator) -> Population:
    """Independent particles from the prior, at energy 0."""
    shares = torch.tensor([space.probabilities[each] for each in space.structures], dtype=torch.float64)
    structures = torch.multinomial(shares, count, replacement=True, generator=generator)
    width = max(space.count(each) for each in space.structures)
    latent = torch.zeros(count, width, dtype=torch.float64)
    population = Population(structures, latent, torch.zeros(count, dtype=torch.float64))
    for number, places in population.groups():
        kinds = space.kinds(space.structures[number])
        latent[places, : len(kinds)] = prior.sample_latent(kinds, len(places), generator)
    return population


def within(target: Target, population: Population, pace: Pace, generator: torch.Generator) -> tuple[Population, Pace]:
    """A Langevin step of the real coordinates of each particle, then flips of its signs; and an adapted pace."""
    latent, energy = population.latent.clone(), population.energy.clone()
    for number, places in population.groups():
        kinds = target.space.kinds(target.space.structures[number])
        signs = (kinds == SIGN).to(latent.device)
        z = latent[places, : len(kinds)]
        state = (z, *target.energy_and_gradient(number, z))
        steps = flips = None
        if not bool(signs.all()):
            state, steps = langevin(target, number, state, ~signs, float(pace.step[number]), generator)
        if bool(signs.any()):
            state, flips = flip(target, number, state, signs, float(pace.reserve[number]), generator)
        latent[places, : len(kinds)], energy[places] = state[0], state[1]
        pace = pace.adapted(number, steps, flips)
    return Population(population.structures, latent, energy), pace


State = tuple[Tensor, Tensor, Tensor]  # latent (n, p), energy (n,), gradient (n, p)


def langevin(
    target: Target, number: int, state: State, real: Tensor, step: float, generator: torch.Generator
) -> tuple[State, float]:
    """One Langevin step of the real coordinates, with Metropolis' correction; and the mean acceptance."""
    z, energy, gradient = state
    keep = math.sqrt(1 - step**2)

    def centre(at: Tensor, slope: Tensor) -> Tensor:
        return keep * at - (1 - keep) * target.lam * slope

    def log_proposal(to: Tensor, at: Tensor, slope: Tensor) -> Tensor:
        return -((((to - centre(at, slope)) ** 2) * real).sum(1)) / (2 * step**2)

    noise = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
    proposal = torch.where(real, centre(z, gradient) + step * noise, z)
    new_energy, new_gradient = target.energy_and_gradient(number, proposal)
    log_ratio = (
        -target.lam * (new_energy - energy)
        - ((proposal**2 - z**2) * real).sum(1) / 2
        + log_proposal(z, proposal, new_gradient)
        - log_proposal(proposal, z, gradient)
    )
    return _accepted(state, (proposal, new_energy, new_gradient), log_ratio, generator)


def flip(
    target: Target, number: int, state: State, signs: Tensor, reserve: float, generator: torch.Generator
) -> tuple[State, float]:
    """Flips of signs, all at once, each the likelier the more its gradient promises; and the mean acceptance."""
    z, energy, gradient = state
    logits = target.lam * z * gradient - reserve
    chosen = (torch.rand(z.shape, generator=generator, dtype=z.dtype).to(z.device) < logits.sigmoid()) & signs
    proposal = torch.where(chosen, -z, z)
    new_energy, new_gradient = target.energy_and_gradient(number, proposal)
    back = target.lam * proposal * new_gradient - reserve

    def log_proposal(at: Tensor) -> Tensor:
        return (torch.where(chosen, F.logsigmoid(at), F.logsigmoid(-at)) * signs).sum(1)

    log_ratio = -target.lam * (new_energy - energy) + log_proposal(back) - log_proposal(logits)
    return _accepted(state, (proposal, new_energy, new_gradient), log_ratio, generator)


def _accepted(old: State, new: State, log_ratio: Tensor, generator: torch.Generator) -> tuple[State, float]:
    accepted, mean = decided(log_ratio, generator)
    z, energy, gradient = old
    return (
        torch.where(accepted[:, None], new[0], z),
        torch.where(accepted, new[1], energy),
        torch.where(accepted[:, None], new[2], gradient),
    ), mean


def decided(log_ratio: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """Which proposals are accepted; and the mean of min(1, r)."""
    log_ratio = torch.nan_to_num(log_ratio, nan=-math.inf)  # a proposal so far off that its energy is no number
    threshold = torch.rand(log_ratio.shape, generator=generator, dtype=torch.float64).log().to(log_ratio.device)
    return threshold < log_ratio, float(log_ratio.clamp(max=0).exp().mean())
