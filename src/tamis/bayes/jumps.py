"""A jump moves a particle between structures and keeps Gibbs_λ(h): one layer, filter or size more or less.

A jump goes to one of the structures one step away, each as likely. Weights that have a counterpart there stay; those
that have none are dropped, and new ones are drawn from the prior. The laws of what is drawn and of what is dropped
cancel against the prior, so that the jump from s to s' is accepted with probability min(1, r),

    r = exp(−λ(h(w') − h(w))) · π(s')/π(s) · n(s)/n(s'),

where n counts neighbours. After many rounds, weights that fit are hardly ever drawn, and few jumps are accepted: it is
`tamis.bayes.resampling` that keeps structures alive then. Of a target that sees some rounds only, h(w') − h(w) is
estimated by the same rounds for both, and `Target.variance_penalty` taken from log r.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tamis.bayes.moves import Population, decide
from tamis.bayes.space import Space
from tamis.bayes.target import Target


def jump(target: Target, population: Population, generator: torch.Generator) -> tuple[Population, float]:
    """Propose a jump of each particle to a neighbouring structure, and also return the mean acceptance."""
    space, device = target.space, population.latent.device
    aims = _draw_neighbours(space, population.structures, generator)
    # Coordinates past a structure's last stay 0 after a jump too: `Population` promises it.
    latent = torch.zeros_like(population.latent)
    for number, places in population.groups():
        # Particles that go from one structure to the same other one share a layout, and so one match of places.
        for aim in aims[places].unique().tolist():
            there = places[aims[places] == aim]
            ours, theirs = space.match(number, aim)
            kinds = space.kinds(space.structures[aim])
            proposal = target.prior.sample_latent(kinds, len(there), generator).to(device)
            # New weights come from the prior, so that their density cancels against the prior's in the ratio.
            proposal[:, theirs] = population.latent[there][:, ours]
            latent[there, : len(kinds)] = proposal
    energy, rise = _compute_rise(target, population, aims, latent)
    worth = _log_prior_per_neighbour(space).to(device)
    log_ratio = worth[aims] - worth[population.structures] - rise
    # No Jacobian: weights that stay are copied in the same coordinates, and the others are drawn and dropped by the
    # prior.
    accepted, mean = decide(log_ratio, generator)
    return Population(
        torch.where(accepted, aims, population.structures),
        torch.where(accepted[:, None], latent, population.latent),
        torch.where(accepted, energy, population.energy),
    ), mean


def _compute_rise(target: Target, population: Population, aims: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h of the proposals, and λ(h(w') − h(w)) for the ratio, both (N,)."""
    proposed = Population(aims, latent, population.energy)
    if not target.partial:
        energy = torch.zeros_like(population.energy)
        for aim, places in proposed.groups():
            energy[places] = target.energy(aim, latent[places, : target.space.count(target.space.structures[aim])])
        # With all rounds, the population's energies are exact: reweighting and every accepted move keep them so.
        return energy, target.lam * (energy - population.energy)
    # The same rounds for both: their errors are nearly the same, and the difference has little of them left.
    terms = _compute_terms(target, proposed)
    change = terms - _compute_terms(target, population)
    return terms.sum(1), target.lam * change.sum(1) + target.variance_penalty(change)


def _compute_terms(target: Target, population: Population) -> Tensor:
    """Compute the contribution of each round to h of each particle, (N, rounds)."""
    # All structures have the same rounds, so that one matrix holds the terms of particles of any of them.
    found = population.latent.new_zeros(len(population), len(target.rounds))
    for number, places in population.groups():
        latent = population.latent[places, : target.space.count(target.space.structures[number])]
        found[places] = target.terms(number, latent)
    return found


def _log_prior_per_neighbour(space: Space) -> Tensor:
    """Compute log π(s) − log n(s) of each structure."""
    pairs = zip(space.structures, space.neighbours, strict=True)
    # Hastings' correction: a structure with more neighbours proposes each of them less often. Without it, structures at
    # the corners of the grid, which have few, would be visited too rarely.
    worth = [math.log(space.probabilities[each]) - math.log(max(1, len(beside))) for each, beside in pairs]
    return torch.tensor(worth, dtype=torch.float64)


def _draw_neighbours(space: Space, structures: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a neighbour of each particle's structure uniformly; a structure without neighbours stays."""
    # One uniform number for each particle, drawn on the CPU: the draws do not depend on the device, nor on the
    # structures that the other particles are in.
    table = [each or (number,) for number, each in enumerate(space.neighbours)]
    shares = torch.rand(len(structures), generator=generator, dtype=torch.float64).tolist()
    chosen = [table[s][int(u * len(table[s]))] for s, u in zip(structures.tolist(), shares, strict=True)]
    return torch.tensor(chosen, device=structures.device)
