"""Metropolis–Hastings moves that keep Gibbs_λ(h) within a structure: Hamiltonian or Langevin steps, and flips of signs.

Coordinates are latent (`tamis.bayes.prior`): under the prior, real ones are standard normal and signs are fair coins.
Each move proposes z' from q(·|z) and accepts it with probability min(1, r); a rejected particle stays as it is.

    langevin    leapfrog steps of half a push, a turn, half a push, from a normal momentum v:
                v ← v − tan(θ/2) λ∇h(u),  (u, v) ← (u cos θ + v sin θ, v cos θ − u sin θ),  v ← v − tan(θ/2) λ∇h(u);
                one of them is u' = a u − (1 − a) λ∇h(u) + β ξ for β = sin θ, a = cos θ: a Langevin step.
                r = exp(−λΔh − Δ(|u|² + |v|²)/2); exact, and always accepted, where h is constant
    flips       sign i flips with probability σ(λ s_i ∂_i h − κ), all at once: half the rise of log-density it promises

Where a `Target` sees some rounds only, drawn anew for each move, its energy is an estimate ĥ. Steps of real coordinates
then follow an unbiased gradient (stochastic-gradient Langevin, with Metropolis' ratio for ĥ). The gradient's own noise
widens the law: to first order by the factor 1 + tan²(θ/2) λ² var(∂ĥ), and θ is held so small that this is at most 1 +
`NOISE`, on average over coordinates. Measured for one weight at λ = 1, after many sweeps: with 30 of 100 rounds the
mean is off by 0.11 standard deviations and the variance 1.26 times too large, with 20 of 400 by 0.24 and 1.36. Flips
are proposed by one draw of rounds and judged by another, less its `Target.doubt`, so that they keep Gibbs_λ(h) itself
as far as errors of ĥ are normal.

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
NOISE = 0.1  # how much wider the law may become by the noise of gradients of some rounds
LARGEST_CURVATURE = 1e12
MEMORY = 0.8  # how much of what is known of the curvature remains after a sweep


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
    """How bold proposals are within each structure: of Langevin steps, by coordinate, and of flips.

    Attributes:
        step: (structures,), β of a coordinate of curvature 1; of another one, this over the root of its curvature.
        reserve: (structures,), κ of flips.
        curvature: (structures, P), of −log-density by coordinate: a running mean of its squared slope, which under the
            target has the mean curvature for expectation.
    """

    step: Tensor
    reserve: Tensor
    curvature: Tensor

    @classmethod
    def initial(cls, space: Space) -> Pace:
        count, width = len(space.structures), max(space.count(each) for each in space.structures)
        step, reserve = (torch.full((count,), value, dtype=torch.float64) for value in (0.5, 2.0))
        return cls(step, reserve, torch.ones(count, width, dtype=torch.float64))

    def steps(self, number: int, count: int) -> Tensor:
        """β of each of the first coordinates of a structure, (count,)."""
        return (self.step[number] / self.curvature[number, :count].sqrt()).clamp(SMALLEST_STEP, LARGEST_STEP)

    def adapted(
        self,
        number: int,
        steps: float | None,
        flips: float | None,
        curvature: Tensor | None = None,
        shorter: float = 1.0,
        gain: float = 0.5,
    ) -> Pace:
        """Bolder where more proposals were accepted than is best, more careful where fewer were.

        It is adapted between sweeps, by what all particles of a structure did, and the same for all of them: for many
        particles this is a fixed sequence, under which each sweep keeps the target.

        Args:
            number: of the structure.
            steps, flips: the mean acceptance; None where there was none.
            curvature: what this sweep saw of it, (p,); no less than 1 is believed, which is the prior's.
            shorter: how much shorter steps were than they would have been but for noise.
            gain: how fast.
        """
        step, reserve, known = self.step.clone(), self.reserve.clone(), self.curvature.clone()
        if steps is not None:
            bolder = shorter * step[number] * math.exp(gain * (steps - LANGEVIN_ACCEPTANCE))
            step[number] = bolder.clamp(SMALLEST_STEP, LARGEST_STEP * math.sqrt(float(known[number].max())))
        if flips is not None:
            reserve[number] = (reserve[number] - gain * (flips - FLIP_ACCEPTANCE)).clamp(min=0.0)
        if curvature is not None:
            seen = torch.nan_to_num(curvature.cpu(), nan=1.0).clamp(1.0, LARGEST_CURVATURE)
            known[number, : len(seen)].mul_(MEMORY).add_((1 - MEMORY) * seen)
        return replace(self, step=step, reserve=reserve, curvature=known)


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


@dataclass(frozen=True)
class Manner:
    """How a sweep goes: leapfrog steps of a proposal, and how many past rounds a move sees; None for all."""

    leapfrog: int = 1
    subsample: int | None = None

    def seen(self, target: Target, generator: torch.Generator) -> Target:
        """What a move sees of the target."""
        return target if self.subsample is None else target.of_some(self.subsample, generator)


class Tally:
    """How many proposals of each kind were accepted: a mean over all of them."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, kind: str, accepted: float | None, count: int) -> None:
        """Count so many proposals with this mean acceptance; None for a kind that there was not."""
        if accepted is not None:
            total, number = self._sums.get(kind, (0.0, 0))
            self._sums[kind] = (total + accepted * count, number + count)

    @property
    def means(self) -> dict[str, float]:
        """The mean acceptance of each kind."""
        return {kind: total / number for kind, (total, number) in self._sums.items()}


def within(
    target: Target,
    population: Population,
    pace: Pace,
    generator: torch.Generator,
    manner: Manner = Manner(),  # noqa: B008 - a value
    tally: Tally | None = None,
) -> tuple[Population, Pace]:
    """A Langevin step of the real coordinates of each particle, then flips of its signs; and an adapted pace.

    Args:
        target: what is kept.
        population: the particles.
        pace: how bold proposals are.
        generator: of all that is drawn.
        manner: how the sweep goes.
        tally: told how many "steps" and "flips" are accepted.
    """
    latent, energy = population.latent.clone(), population.energy.clone()
    for number, places in population.groups():
        kinds = target.space.kinds(target.space.structures[number])
        signs = (kinds == SIGN).to(latent.device)
        seen = manner.seen(target, generator)
        z = latent[places, : len(kinds)]
        state = (z, *seen.energy_and_gradient(number, z))
        steps = flips = curvature = None
        shorter = 1.0
        if not bool(signs.all()):
            bold, noise = pace.steps(number, len(kinds)).to(z.device), _noise(seen, number, state)
            curvature = torch.where(signs, 1.0, ((z + target.lam * state[2]) ** 2).mean(0) - noise)
            shorter = _shorter(bold[~signs], noise[~signs], manner.leapfrog)
            state, steps = langevin(seen, number, state, ~signs, shorter * bold, generator, leapfrog=manner.leapfrog)
        if bool(signs.any()):
            judge = manner.seen(target, generator)
            state, flips = flip(seen, number, state, signs, float(pace.reserve[number]), generator, judge=judge)
        latent[places, : len(kinds)], energy[places] = state[0], state[1]
        pace = pace.adapted(number, steps, flips, curvature, shorter)
        if tally is not None:
            tally.add("steps", steps, len(places))
            tally.add("flips", flips, len(places))
    return Population(population.structures, latent, energy), pace


State = tuple[Tensor, Tensor, Tensor]  # latent (n, p), energy (n,), gradient (n, p)


def _noise(seen: Target, number: int, state: State) -> Tensor:
    """The variance of λ∂ĥ over which rounds are drawn, (p,): by how the gradient of half of them differs from it."""
    z, _, gradient = state
    if not seen.partial:
        return torch.zeros_like(z[0])
    return ((seen.lam * (seen.halved().energy_and_gradient(number, z)[1] - gradient)) ** 2).mean(0)


def _shorter(step: Tensor, noise: Tensor, leapfrog: int) -> float:
    """By how much to shorten steps so that the law becomes no wider than `NOISE` allows, at most 1."""
    wider = leapfrog * float((torch.tan(torch.asin(step) / 2) ** 2 * noise).mean())
    return math.sqrt(NOISE / wider) if wider > NOISE else 1.0


def langevin(
    target: Target,
    number: int,
    state: State,
    real: Tensor,
    step: float | Tensor,
    generator: torch.Generator,
    *,
    leapfrog: int = 1,
) -> tuple[State, float]:
    """Leapfrog steps of the real coordinates, with Metropolis' correction; and the mean acceptance.

    Args:
        target: what is kept.
        number: of the structure.
        state: where particles are.
        real: which coordinates move, (p,).
        step: β = sin θ, of all coordinates or of each.
        generator: of momenta and decisions.
        leapfrog: how many steps; one is a Langevin step.
    """
    z, energy, gradient = state
    angle = torch.asin(torch.as_tensor(step, dtype=z.dtype, device=z.device))
    push = torch.tan(angle / 2) * target.lam
    u, slope, height = z, gradient, energy
    v = start = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
    for _ in range(leapfrog):
        v = v - push * slope
        u, v = torch.where(real, u * angle.cos() + v * angle.sin(), z), v * angle.cos() - u * angle.sin()
        height, slope = target.energy_and_gradient(number, u)
        v = v - push * slope
    fall = ((u**2 - z**2 + v**2 - start**2) * real).sum(1) / 2
    return _accepted(state, (u, height, slope), -target.lam * (height - energy) - fall, generator)


def flip(
    target: Target,
    number: int,
    state: State,
    signs: Tensor,
    reserve: float,
    generator: torch.Generator,
    *,
    judge: Target | None = None,
) -> tuple[State, float]:
    """Flips of signs, all at once, each the likelier the more its gradient promises; and the mean acceptance.

    Args:
        target: by which flips are proposed.
        number: of the structure.
        state: where particles are.
        signs: which coordinates are signs, (p,).
        reserve: κ, the larger the fewer flips.
        generator: of flips and decisions.
        judge: by which they are accepted, where `target` sees some rounds only: one of others.
    """
    z, energy, gradient = state
    logits = target.lam * z * gradient - reserve
    chosen = (torch.rand(z.shape, generator=generator, dtype=z.dtype).to(z.device) < logits.sigmoid()) & signs
    proposal = torch.where(chosen, -z, z)
    new_energy, new_gradient = target.energy_and_gradient(number, proposal)
    back = target.lam * proposal * new_gradient - reserve

    def log_proposal(at: Tensor) -> Tensor:
        return (torch.where(chosen, F.logsigmoid(at), F.logsigmoid(-at)) * signs).sum(1)

    rise = target.lam * (new_energy - energy)
    if judge is not None and judge.partial:
        change = judge.terms(number, proposal) - judge.terms(number, z)
        rise = target.lam * change.sum(1) + judge.doubt(change)
    log_ratio = log_proposal(back) - log_proposal(logits) - rise
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
