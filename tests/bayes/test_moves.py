"""Moves within a structure: each keeps its target, and the flow between any two states is the same either way."""

import math

import numpy as np
import pytest
import torch
from bayes.toys import MANY, Lines, flows_are_even, integrated, numbered, seeded, sign_states, some_rounds
from scipy.stats import kstest

from tamis.bayes.moves import (
    State,
    StepSizes,
    SweepSettings,
    Tally,
    flip,
    langevin,
    move_within_structures,
    sample_from_prior,
)
from tamis.bayes.prior import REAL, SIGN, Prior
from tamis.bayes.target import Rounds, Target
from tamis.bayes.xnor import Xnor

PRIOR = Prior(0.5, 3.0)


@pytest.mark.parametrize("reserve", [0.0, 1.0])
def test_flips_are_in_detailed_balance(reserve: float) -> None:
    space = Lines([3], SIGN)
    target = Target(space, PRIOR, some_rounds(3, 4), 0.8)
    population = sign_states(target, 1)
    state = State.at(target, 0, population.latent)
    (_, after, energy, gradient), mean = flip(target, state, torch.ones(3, dtype=torch.bool), reserve, seeded(2))
    assert 0 < mean < 1
    assert flows_are_even(numbered(population.latent), numbered(after))
    again = target.energy_and_gradient(0, after)
    assert torch.allclose(energy, again[0]) and torch.allclose(gradient, again[1])


@pytest.mark.parametrize("leapfrog", [1, 3])
def test_langevin_steps_are_in_detailed_balance(leapfrog: int) -> None:
    space, rounds = Lines([1], REAL), some_rounds(1, 6)
    target = Target(space, PRIOR, rounds, 1.5)
    grid, mass, _ = integrated(space, PRIOR, rounds, 1.5)
    sums = mass.cumsum()
    shares = torch.rand(MANY, generator=seeded(3), dtype=torch.float64).numpy()
    w = np.interp(shares, sums, grid)
    latent = torch.special.ndtri(PRIOR.real.cdf(torch.from_numpy(w)))[:, None]
    state = State.at(target, 0, latent)
    real = torch.ones(1, dtype=torch.bool)
    (_, after, energy, _), mean = langevin(target, state, real, 0.9, seeded(4), leapfrog=leapfrog)
    assert 0.3 < mean < 1
    moved = PRIOR.real.from_latent(after)[:, 0].numpy()
    assert kstest(moved, lambda v: np.interp(v, grid, sums)).pvalue > 1e-3
    bins = np.interp([0.15, 0.3, 0.5, 0.7, 0.85], sums, grid)
    assert flows_are_even(np.digitize(w, bins), np.digitize(moved, bins))
    assert torch.allclose(energy, target.energy(0, after))


def test_langevin_steps_are_always_accepted_under_the_prior() -> None:
    target = Target(Lines([2], REAL), PRIOR, Rounds(), 1.0)
    latent = torch.randn(500, 2, generator=seeded(), dtype=torch.float64)
    state = State.at(target, 0, latent)
    _, mean = langevin(target, state, torch.ones(2, dtype=torch.bool), 0.7, seeded(1))
    assert math.isclose(mean, 1, rel_tol=1e-12)


def test_steps_of_different_lengths_are_in_detailed_balance() -> None:
    """Two weights of very different curvature, binned: from particles at the target, by importance resampling."""
    space, rounds, lam = Lines([2], REAL), some_rounds(2, 6), 1.5
    target = Target(space, PRIOR, rounds, lam)
    drawn = torch.randn(6 * MANY, 2, generator=seeded(5), dtype=torch.float64)
    shares = (-lam * target.energy(0, drawn)).exp()
    latent = drawn[torch.multinomial(shares, MANY, replacement=True, generator=seeded(6))]
    state = State.at(target, 0, latent)
    steps = torch.tensor([0.3, 0.95], dtype=torch.float64)
    (_, after, _, _), mean = langevin(target, state, torch.ones(2, dtype=torch.bool), steps, seeded(7), leapfrog=2)
    assert 0.3 < mean < 1

    def bins(of: torch.Tensor) -> np.ndarray:
        return np.digitize(of[:, 0].numpy(), [0.0, 0.8]) * 3 + np.digitize(of[:, 1].numpy(), [-0.4, 0.4])

    assert flows_are_even(bins(latent), bins(after))


def test_one_leapfrog_step_is_a_langevin_step() -> None:
    """With the ratio of proposals written out."""
    target = Target(Lines([2], REAL), PRIOR, some_rounds(2, 4), 1.2)
    z = torch.randn(400, 2, generator=seeded(), dtype=torch.float64)
    state = State.at(target, 0, z)
    step, real = 0.7, torch.ones(2, dtype=torch.bool)
    keep = math.sqrt(1 - step**2)

    def centre(at: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        return keep * at - (1 - keep) * target.lam * slope

    generator = seeded(3)
    (_, after, _, _), mean = langevin(target, state, real, step, seeded(3))
    proposal = centre(z, state.gradient) + step * torch.randn(z.shape, generator=generator, dtype=torch.float64)
    energy, slope = target.energy_and_gradient(0, proposal)
    there = -((proposal - centre(z, state.gradient)) ** 2).sum(1) / (2 * step**2)
    back = -((z - centre(proposal, slope)) ** 2).sum(1) / (2 * step**2)
    rise = target.lam * (energy - state.energy) + (proposal**2 - z**2).sum(1) / 2
    assert math.isclose(mean, float((back - there - rise).clamp(max=0).exp().mean()), rel_tol=1e-9)
    moved = (after != z).all(1)
    assert torch.allclose(after[moved], proposal[moved])


@pytest.mark.slow
def test_flips_judged_by_some_rounds_keep_the_law() -> None:
    """Over many sweeps the probability of each vector of signs stays what enumeration says, within 0.03."""
    space, rounds, lam = Lines([3], SIGN), some_rounds(3, 41), 0.15
    target = Target(space, PRIOR, rounds, lam)
    population = sign_states(target, 1)
    exact = np.bincount(numbered(population.latent), minlength=8) / MANY
    kept, step_sizes = population.select(torch.arange(0, MANY, 20)), StepSizes.initial(space)
    found = np.zeros(8)
    for sweep in range(150):
        kept, step_sizes = move_within_structures(target, kept, step_sizes, seeded(sweep), SweepSettings(subsample=20))
        found += np.bincount(numbered(kept.latent), minlength=8) / (150 * len(kept))
    assert np.abs(found - exact).max() < 0.03
    assert exact.max() < 0.5 and (exact > 0.1).sum() == 4  # or there would be little to get wrong


def test_pace_follows_acceptance() -> None:
    step_sizes = StepSizes.initial(Lines([1, 2], REAL))
    bolder, careful = step_sizes.adapt(0, 1.0, 1.0), step_sizes.adapt(0, 0.0, 0.0)
    assert careful.step[0] < step_sizes.step[0] < bolder.step[0] and bolder.step[1] == step_sizes.step[1]
    assert bolder.reserve[0] < step_sizes.reserve[0] < careful.reserve[0]
    seen = step_sizes.adapt(1, None, None, torch.tensor([9.0, 0.1], dtype=torch.float64))
    assert (
        seen.curvature[1, 0] > 2
        and seen.curvature[1, 1] == 1
        and torch.equal(seen.curvature[0], step_sizes.curvature[0])
    )
    assert seen.coordinate_steps(1, 2)[0] < seen.coordinate_steps(1, 2)[1]
    assert step_sizes.adapt(0, 1.0, None, shorter=0.1).step[0] < step_sizes.step[0]
    for _ in range(100):
        bolder = bolder.adapt(0, 1.0, 1.0)
    assert bolder.step[0] < 1 and bolder.reserve[0] == 0


def test_a_tally_is_a_mean_over_all_proposals() -> None:
    tally = Tally()
    tally.add("steps", 0.5, 30)
    tally.add("steps", 1.0, 10)
    tally.add("flips", None, 10)
    assert tally.means == {"steps": 0.625}


def test_moves_change_nothing_that_they_are_given() -> None:
    space = Xnor((2,), 2, [3], [1, 2])
    target = Target(space, PRIOR, some_rounds(2, 2), 0.5)
    before = sample_from_prior(space, PRIOR, 20, seeded())
    latent, energy = before.latent.clone(), before.energy.clone()
    move_within_structures(target, before, StepSizes.initial(space), seeded(1))
    assert torch.equal(before.latent, latent) and torch.equal(before.energy, energy)
