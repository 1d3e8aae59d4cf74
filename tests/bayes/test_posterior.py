"""Sequential Monte Carlo against enumeration and quadrature: means, structures, normalising constants."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bayes.toys import Lines, energies, enumerated, every_sign, integrated, seeded, some_rounds

from tamis.bayes.moves import drawn_from_prior
from tamis.bayes.networks import Dense
from tamis.bayes.posterior import Posterior, Sampling
from tamis.bayes.prior import REAL, SIGN, Prior
from tamis.bayes.space import Space
from tamis.bayes.target import Rounds
from tamis.bayes.xnor import Xnor
from tamis.errors import InvalidInput

PRIOR = Prior(0.5, 3.0)
SEEDS = range(10)


def run(
    space: Space, rounds: Rounds, lam: float, particles: int, seed: int, sampling: Sampling | None = None
) -> Posterior:
    """All rounds, one after the other."""
    generator = seeded(seed)
    posterior = Posterior.initial(space, PRIOR, lam, particles, generator, sampling)
    for count in range(1, len(rounds) + 1):
        so_far = Rounds(rounds.inputs[:count], rounds.labels[:count], rounds.drawn[:count])
        posterior = posterior.after(so_far, generator)
    return posterior


def near(estimates: list[float], truth: float, bias: float = 0.0) -> bool:
    """Whether the mean over seeds is within four standard errors of the truth."""
    values = np.array(estimates)
    return bool(abs(values.mean() - truth) <= 4 * values.std(ddof=1) / math.sqrt(len(values)) + bias)


def test_one_real_weight_against_quadrature() -> None:
    space, rounds, lam = Lines([1], REAL), some_rounds(1, 8), 1.5
    grid, mass, log_normaliser = integrated(space, PRIOR, rounds, lam)
    means, squares, normalisers, resampled = [], [], [], 0
    for seed in SEEDS:
        posterior = run(space, rounds, lam, 400, seed)
        w = posterior.weights(0, torch.arange(400))[:, 0]
        shares = posterior.log_weights.exp()
        means.append(float(shares @ w))
        squares.append(float(shares @ w**2))
        normalisers.append(posterior.log_normaliser)
        resampled += posterior.resampled
    assert resampled > 0
    assert near(means, float(mass @ grid), 0.01) and near(squares, float(mass @ grid**2), 0.02)
    assert near(normalisers, log_normaliser, 0.01)


def test_signs_in_several_structures_against_enumeration() -> None:
    space, rounds, lam = Lines([1, 2, 3], SIGN, [0.5, 0.2, 0.3]), some_rounds(3, 8), 0.9
    masses, log_normaliser = enumerated(space, rounds, lam)
    shares: list[list[float]] = []
    first, normalisers = [], []
    for seed in SEEDS:
        posterior = run(space, rounds, lam, 400, seed)
        shares.append(list(posterior.probabilities().values()))
        first.append(float(posterior.log_weights.exp() @ posterior.population.latent[:, 0]))
        normalisers.append(posterior.log_normaliser)
    for number, mass in enumerate(masses):
        assert near([each[number] for each in shares], float(mass.sum()), 0.01)
    truth = sum(
        float(mass @ every_sign(each.filters)[:, 0].numpy())
        for mass, each in zip(masses, space.structures, strict=True)
    )
    assert near(first, truth, 0.01) and near(normalisers, log_normaliser, 0.01)


def test_resampling_alone_keeps_the_law() -> None:
    """Without moves, which would put right what resampling got wrong."""
    space, rounds, lam = Lines([1, 2, 3], SIGN, [0.5, 0.2, 0.3]), some_rounds(3, 6), 1.5
    masses, log_normaliser = enumerated(space, rounds, lam)
    found = [run(space, rounds, lam, 2000, seed, Sampling(sweeps=0)) for seed in SEEDS]
    assert all(posterior.resampled > 0 for posterior in found)
    assert near([posterior.log_normaliser for posterior in found], log_normaliser, 0.01)
    for structure, mass in zip(space.structures, masses, strict=True):
        assert near([posterior.probabilities()[structure] for posterior in found], float(mass.sum()), 0.005)


def test_one_or_two_real_weights_against_quadrature() -> None:
    space, rounds, lam = Lines([1, 2], REAL, [0.6, 0.4]), some_rounds(2, 8), 1.5
    axis = torch.linspace(-6, 6, 241, dtype=torch.float64)
    masses = []
    for number, structure in enumerate(space.structures):
        latent = torch.cartesian_prod(*[axis] * structure.filters).reshape(-1, structure.filters)
        h = energies(space, number, PRIOR.real.from_latent(latent), rounds, lam)
        density = np.exp(-lam * h - (latent**2).sum(1).numpy() / 2)
        volume = (float(axis[1] - axis[0]) / math.sqrt(2 * math.pi)) ** structure.filters
        masses.append(space.probabilities[structure] * density.sum() * volume)
    found = [run(space, rounds, lam, 400, seed) for seed in SEEDS]
    assert all(posterior.resampled > 0 for posterior in found)
    assert near([posterior.log_normaliser for posterior in found], math.log(sum(masses)), 0.01)
    first = [posterior.probabilities()[space.structures[0]] for posterior in found]
    assert near(first, masses[0] / sum(masses), 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "space", [Dense((2,), 2, [1, 2, 3], [1, 2]), Xnor((2,), 2, [3, 4], [1, 2])], ids=["dense", "xnor"]
)
def test_networks_against_many_draws_from_the_prior(space: Space) -> None:
    """Importance sampling: each structure's share of E_π exp(−λh), by 200,000 draws."""
    rounds, lam = some_rounds(2, 8, batch=4), 1.5
    draws = drawn_from_prior(space, PRIOR, 200_000, seeded(100))
    shares = np.zeros(len(space.structures))
    for number, places in draws.groups():
        kinds = space.kinds(space.structures[number])
        weights = PRIOR.weights(draws.latent[places, : len(kinds)], kinds)
        shares[number] = np.exp(-lam * energies(space, number, weights, rounds, lam)).sum() / len(draws)
    found = [run(space, rounds, lam, 400, seed) for seed in SEEDS]
    assert near([posterior.log_normaliser for posterior in found], math.log(shares.sum()), 0.02)
    for number, structure in enumerate(space.structures):
        estimates = [posterior.probabilities()[structure] for posterior in found]
        assert near(estimates, float(shares[number] / shares.sum()), 0.02)


def test_a_strong_increment_is_tempered() -> None:
    space, rounds, lam = Lines([5], SIGN), some_rounds(5, 1), 20.0
    rounds.drawn[0] = 0.0
    masses, log_normaliser = enumerated(space, rounds, lam)
    found = [run(space, rounds, lam, 300, seed) for seed in SEEDS]
    assert all(posterior.resampled > 1 for posterior in found)
    assert near([posterior.log_normaliser for posterior in found], log_normaliser, 0.2)
    best = every_sign(5)[int(masses[0].argmax())]
    exact = float(masses[0].max())
    shares = [float(((each.population.latent == best).all(1) * each.log_weights.exp()).sum()) for each in found]
    assert near(shares, exact, 0.02)


def test_particles_keep_their_energies() -> None:
    space, rounds = Dense((2,), 2, [1, 2, 3], [1, 2]), some_rounds(2, 6)
    posterior = run(space, rounds, 1.5, 60, 0)
    assert posterior.resampled > 0
    for number, places in posterior.population.groups():
        expected = energies(space, number, posterior.weights(number, places), rounds, 1.5)
        assert np.allclose(posterior.population.energy[places].numpy(), expected)
    assert math.isclose(float(posterior.log_weights.exp().sum()), 1)
    assert posterior.effective_size >= 30


def test_with_lambda_near_zero_it_is_the_prior() -> None:
    space, rounds = Lines([1, 2, 3], SIGN, [0.5, 0.2, 0.3]), some_rounds(3, 5)
    posterior = run(space, rounds, 1e-12, 4000, 0)
    begun = Posterior.initial(space, PRIOR, 1e-12, 4000, seeded())
    assert posterior.resampled == 0
    assert torch.equal(posterior.population.latent, begun.population.latent)
    assert torch.allclose(posterior.log_weights, begun.log_weights, atol=1e-9)
    for structure, share in posterior.probabilities().items():
        assert abs(share - space.probabilities[structure]) < 4 * math.sqrt(0.25 / 4000)


def test_the_same_seed_gives_the_same_run() -> None:
    space, rounds = Dense((2,), 2, [1, 2], [1, 2]), some_rounds(2, 6)
    one, two, other = (run(space, rounds, 1.5, 50, seed) for seed in (3, 3, 4))
    assert torch.equal(one.population.latent, two.population.latent)
    assert torch.equal(one.log_weights, two.log_weights) and one.log_normaliser == two.log_normaliser
    assert not torch.equal(one.population.latent, other.population.latent)


def test_a_posterior_is_a_value() -> None:
    space, rounds = Lines([2], REAL), some_rounds(2, 1)
    before = Posterior.initial(space, PRIOR, 5.0, 50, seeded())
    latent, log_weights = before.population.latent.clone(), before.log_weights.clone()
    after = before.after(rounds, seeded(1))
    assert after.log_normaliser != 0 and before.log_normaliser == 0
    assert torch.equal(before.population.latent, latent) and torch.equal(before.log_weights, log_weights)
    assert replace(before) == before


def test_what_is_refused() -> None:
    for lam in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="lam"):
            Posterior.initial(Lines([1], REAL), PRIOR, lam, 10, seeded())
    with pytest.raises(InvalidInput, match="particles"):
        Posterior.initial(Lines([1], REAL), PRIOR, 1.0, 1, seeded())
    with pytest.raises(InvalidInput, match="threshold"):
        Sampling(threshold=1.0)
    with pytest.raises(InvalidInput, match="sweeps"):
        Sampling(sweeps=-1)
