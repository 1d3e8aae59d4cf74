"""Moves within a structure: each keeps its target, and the flow between any two states is the same either way."""

import math

import numpy as np
import pytest
import torch
from bayes.toys import MANY, Lines, flows_are_even, integrated, numbered, seeded, sign_states, some_rounds
from scipy.stats import kstest

from tamis.bayes.moves import Pace, drawn_from_prior, flip, langevin, within
from tamis.bayes.prior import REAL, SIGN, Prior
from tamis.bayes.target import Rounds, Target
from tamis.bayes.xnor import Xnor

PRIOR = Prior(0.5, 3.0)


@pytest.mark.parametrize("reserve", [0.0, 1.0])
def test_flips_are_in_detailed_balance(reserve: float) -> None:
    space = Lines([3], SIGN)
    target = Target(space, PRIOR, some_rounds(3, 4), 0.8)
    population = sign_states(target, 1)
    state = (population.latent, *target.energy_and_gradient(0, population.latent))
    (after, energy, gradient), mean = flip(target, 0, state, torch.ones(3, dtype=torch.bool), reserve, seeded(2))
    assert 0 < mean < 1
    assert flows_are_even(numbered(population.latent), numbered(after))
    again = target.energy_and_gradient(0, after)
    assert torch.allclose(energy, again[0]) and torch.allclose(gradient, again[1])


def test_langevin_steps_are_in_detailed_balance() -> None:
    space, rounds = Lines([1], REAL), some_rounds(1, 6)
    target = Target(space, PRIOR, rounds, 1.5)
    grid, mass, _ = integrated(space, PRIOR, rounds, 1.5)
    sums = mass.cumsum()
    shares = torch.rand(MANY, generator=seeded(3), dtype=torch.float64).numpy()
    w = np.interp(shares, sums, grid)
    latent = torch.special.ndtri(PRIOR.real.cdf(torch.from_numpy(w)))[:, None]
    state = (latent, *target.energy_and_gradient(0, latent))
    (after, energy, _), mean = langevin(target, 0, state, torch.ones(1, dtype=torch.bool), 0.9, seeded(4))
    assert 0.3 < mean < 1
    moved = PRIOR.real.from_latent(after)[:, 0].numpy()
    assert kstest(moved, lambda v: np.interp(v, grid, sums)).pvalue > 1e-3
    bins = np.interp([0.15, 0.3, 0.5, 0.7, 0.85], sums, grid)
    assert flows_are_even(np.digitize(w, bins), np.digitize(moved, bins))
    assert torch.allclose(energy, target.energy(0, after))


def test_langevin_steps_are_always_accepted_under_the_prior() -> None:
    target = Target(Lines([2], REAL), PRIOR, Rounds(), 1.0)
    latent = torch.randn(500, 2, generator=seeded(), dtype=torch.float64)
    state = (latent, *target.energy_and_gradient(0, latent))
    _, mean = langevin(target, 0, state, torch.ones(2, dtype=torch.bool), 0.7, seeded(1))
    assert math.isclose(mean, 1, rel_tol=1e-12)


def test_pace_follows_acceptance() -> None:
    pace = Pace.initial(Lines([1, 2], REAL))
    bolder, careful = pace.adapted(0, 1.0, 1.0), pace.adapted(0, 0.0, 0.0)
    assert careful.step[0] < pace.step[0] < bolder.step[0] and bolder.step[1] == pace.step[1]
    assert bolder.reserve[0] < pace.reserve[0] < careful.reserve[0]
    for _ in range(100):
        bolder = bolder.adapted(0, 1.0, 1.0)
    assert bolder.step[0] < 1 and bolder.reserve[0] == 0


def test_moves_change_nothing_that_they_are_given() -> None:
    space = Xnor((2,), 2, [3], [1, 2])
    target = Target(space, PRIOR, some_rounds(2, 2), 0.5)
    before = drawn_from_prior(space, PRIOR, 20, seeded())
    latent, energy = before.latent.clone(), before.energy.clone()
    within(target, before, Pace.initial(space), seeded(1))
    assert torch.equal(before.latent, latent) and torch.equal(before.energy, energy)
