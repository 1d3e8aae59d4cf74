"""Energies: Algorithm 1's h_t written out, their gradients, and rounds of different sizes."""

import torch
from bayes.toys import Lines, energies, seeded, some_rounds

from tamis.bayes.networks import Dense
from tamis.bayes.prior import REAL, Prior
from tamis.bayes.target import Rounds, Target, losses
from tamis.bayes.xnor import Xnor

PRIOR = Prior(0.5, 3.0)


def mixed_rounds() -> Rounds:
    """Mini-batches of three and of five inputs, in turns."""
    rounds = Rounds()
    for number in range(6):
        each = some_rounds(2, 1, seed=number, batch=3 + 2 * (number % 2))
        rounds = rounds.with_round(each.inputs[0], each.labels[0], each.drawn_losses[0])
    return rounds


def test_energies_are_algorithm_1_written_out() -> None:
    space, rounds, lam = Lines([2], REAL), mixed_rounds(), 0.7
    latent = torch.randn(4, 2, generator=seeded(), dtype=torch.float64)
    found = Target(space, PRIOR, rounds, lam, last=0.25).energy(0, latent)
    for u, energy in zip(latent, found, strict=True):
        w = PRIOR.real.from_latent(u)
        h = 0.0
        for number, (x, y, drawn) in enumerate(zip(rounds.inputs, rounds.labels, rounds.drawn_losses, strict=True)):
            margin = torch.where(y == 1, 1.0, -1.0) * (x @ w)
            loss = float(torch.log1p(torch.exp(-margin)).mean())
            h += (loss + lam / 2 * (loss - drawn) ** 2) * (0.25 if number == 5 else 1.0)
        assert abs(h - float(energy)) < 1e-12


def test_gradients_are_those_of_energies() -> None:
    space = Dense((2,), 2, [2], [3])
    target = Target(space, PRIOR, mixed_rounds(), 0.7)
    latent = torch.randn(2, space.count(space.structures[0]), generator=seeded(), dtype=torch.float64)
    energy, gradient = target.energy_and_gradient(0, latent)
    assert torch.allclose(energy, target.energy(0, latent))
    for place in range(latent.shape[1]):
        step = torch.zeros_like(latent)
        step[:, place] = 1e-6
        slope = (target.energy(0, latent + step) - target.energy(0, latent - step)) / 2e-6
        assert torch.allclose(slope, gradient[:, place], atol=1e-6)


def test_losses_of_each_round_stand_in_order() -> None:
    space, rounds = Xnor((2,), 2, [3], [2]), mixed_rounds()
    kinds = space.kinds(space.structures[0])
    weights = PRIOR.weights(PRIOR.sample_latent(kinds, 3, seeded()), kinds)
    found = losses(space, 0, weights, rounds)
    for number in range(6):
        alone = Rounds(rounds.inputs[number : number + 1], rounds.labels[number : number + 1], [0.0])
        assert torch.allclose(losses(space, 0, weights, alone)[:, 0], found[:, number])
    assert energies(space, 0, weights, rounds, 0.5).shape == (3,)


def test_without_rounds_there_is_no_energy() -> None:
    target = Target(Lines([2], REAL), PRIOR, Rounds(), 1.0)
    energy, gradient = target.energy_and_gradient(0, torch.randn(3, 2, dtype=torch.float64))
    assert not bool(energy.any()) and not bool(gradient.any())


def test_some_rounds_estimate_all() -> None:
    """The mean over draws of rounds is h, and variance_penalty is half the variance of λ times a difference."""
    space, rounds, lam = Lines([2], REAL), some_rounds(2, 13), 0.7
    target = Target(space, PRIOR, rounds, lam, last=0.25)
    latent = torch.randn(2, 2, generator=seeded(), dtype=torch.float64)
    exact = target.energy(0, latent)
    generator, estimates, changes, doubts = seeded(1), [], [], []
    for _ in range(300):
        some = target.subsample_rounds(6, generator)
        terms = some.terms(0, latent)
        assert some.partial and some.past == 2 and len(some.rounds) == 7
        assert some.rounds.drawn_losses[-1] == rounds.drawn_losses[-1]
        estimates.append(terms.sum(1))
        change = terms[1:] - terms[:1]
        changes.append(lam * change.sum(1))
        doubts.append(some.variance_penalty(change))
    found = torch.stack(estimates)
    assert torch.all((found.mean(0) - exact).abs() < 4 * found.std(0) / 300**0.5)
    assert torch.allclose(torch.stack(doubts).mean(), torch.stack(changes).var() / 2, rtol=0.2)
    some = target.subsample_rounds(6, generator)
    assert torch.allclose(some.energy(0, latent), some.terms(0, latent).sum(1))
    assert some.halve_rounds().past == 4 and len(some.halve_rounds().rounds) == 4


def test_few_rounds_are_all_seen() -> None:
    target = Target(Lines([2], REAL), PRIOR, some_rounds(2, 5), 0.7)
    assert target.subsample_rounds(4, seeded()) is target
    assert not target.partial and not bool(target.variance_penalty(torch.randn(3, 5)).any())
