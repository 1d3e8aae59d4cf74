"""Sequential Monte Carlo against enumeration and quadrature: means, structures, normalising constants."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from bayes.toys import Lines, energies, enumerated, every_sign, integrated, seeded, some_rounds
from scipy.stats import chisquare
from torch import Tensor

from tamis.bayes.moves import sample_from_prior
from tamis.bayes.networks import Dense
from tamis.bayes.posterior import Posterior, Sampling
from tamis.bayes.prior import REAL, SIGN, Prior
from tamis.bayes.space import Space, Structure
from tamis.bayes.target import Rounds, Target
from tamis.bayes.xnor import Xnor
from tamis.errors import InvalidInput

PRIOR = Prior(0.5, 3.0)
SEEDS = range(10)
FEW_SEEDS = range(5)
FEW_SWEEPS = Sampling(sweeps=2)  # which keep the law as more do


def run(
    space: Space, rounds: Rounds, lam: float, particles: int, seed: int, sampling: Sampling | None = None
) -> Posterior:
    """All rounds, one after the other."""
    generator = seeded(seed)
    posterior = Posterior.initial(space, PRIOR, lam, particles, generator, sampling)
    for count in range(1, len(rounds) + 1):
        so_far = Rounds(rounds.inputs[:count], rounds.labels[:count], rounds.drawn_losses[:count])
        posterior = posterior.advance(so_far, generator)
    return posterior


def near(estimates: list[float], truth: float, bias: float = 0.0) -> bool:
    """Whether the mean over seeds is within four standard errors of the truth."""
    values = np.array(estimates)
    return bool(abs(values.mean() - truth) <= 4 * values.std(ddof=1) / math.sqrt(len(values)) + bias)


def test_one_real_weight_against_quadrature() -> None:
    space, rounds, lam = Lines([1], REAL), some_rounds(1, 8), 1.5
    grid, mass, log_normaliser = integrated(space, PRIOR, rounds, lam)
    means, squares, normalisers, resampled = [], [], [], 0
    for seed in FEW_SEEDS:
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
    for seed in FEW_SEEDS:
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
    found = [run(space, rounds, lam, 2000, seed, Sampling(sweeps=0)) for seed in FEW_SEEDS]
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
    found = [run(space, rounds, lam, 400, seed) for seed in FEW_SEEDS]
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
    draws = sample_from_prior(space, PRIOR, 200_000, seeded(100))
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


class Likelihood(Lines):
    """Losses with ℓ + (λ/2)ℓ² = −log p(y|x, w)/λ where the drawn loss is 0: exp(−λδ) is a likelihood."""

    lam = 1.0

    def round_losses(self, structure: Structure, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        surprise = super().round_losses(structure, flat, x, y) / self.lam
        return ((1 + 2 * self.lam * surprise).sqrt() - 1) / self.lam


@pytest.mark.slow
@pytest.mark.parametrize("kind", [REAL, SIGN], ids=["real", "sign"])
def test_calibration_by_simulation(kind: int) -> None:
    """Networks drawn from the prior, labels drawn by them: among draws from the posterior, theirs has any rank.

    The statistic is w_1 + w_2 / 2 + the structure's number / 4, with ties broken at random.
    """
    space, runs, draws = Likelihood([1, 2], kind, [0.4, 0.6]), 200, 19
    ranks = []
    for seed in range(runs):
        generator = seeded(seed)
        truth = sample_from_prior(space, PRIOR, 1, generator)
        number = int(truth.structures[0])
        structure = space.structures[number]
        kinds = space.kinds(structure)
        w = PRIOR.weights(truth.latent[0, : len(kinds)], kinds)
        inputs = [torch.randn(1, 2, generator=generator, dtype=torch.float64) * 2 for _ in range(12)]
        chances = [space.forward(structure, {"weight": w}, x).softmax(-1)[0] for x in inputs]
        labels = [torch.multinomial(chance, 1, generator=generator) for chance in chances]
        posterior = run(space, Rounds(inputs, labels, [0.0] * 12), 1.0, 80, seed)
        places = torch.multinomial(posterior.log_weights.exp(), draws, replacement=True, generator=generator)
        flat = PRIOR.weights(posterior.population.latent, torch.tensor([kind, kind]))
        flat[posterior.population.structures == 0, 1] = 0.0

        def statistic(weights: Tensor, of: Tensor) -> Tensor:
            return weights[:, 0] + weights[:, 1] / 2 + of / 4

        own = float(statistic(torch.nn.functional.pad(w, (0, 2 - len(w)))[None], truth.structures)[0])
        others = statistic(flat, posterior.population.structures)[places]
        ties = int(((others - own).abs() < 1e-12).sum())
        ranks.append(int((others < own - 1e-12).sum()) + int(torch.randint(ties + 1, (), generator=generator)))
    counts = np.bincount(np.array(ranks) // 4, minlength=5)
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_moves_by_some_rounds_are_near_the_exact_law() -> None:
    """60 rounds of which a move sees 20: the mean within 0.4 standard deviations, the spread within a factor 1.4."""
    space, lam = Lines([1], REAL), 0.5
    plain = some_rounds(1, 60)
    turned = [torch.where(torch.rand(3, generator=seeded(k)) < 0.3, 1 - y, y) for k, y in enumerate(plain.labels)]
    rounds = Rounds(plain.inputs, turned, plain.drawn_losses)
    grid, mass, log_normaliser = integrated(space, PRIOR, rounds, lam)
    mean = float(mass @ grid)
    deviation = math.sqrt(float(mass @ (grid - mean) ** 2))
    means, spreads, normalisers = [], [], []
    for seed in SEEDS:
        posterior = run(space, rounds, lam, 300, seed, Sampling(threshold=0.97, sweeps=5, subsample=20))
        w, shares = posterior.weights(0, torch.arange(300))[:, 0], posterior.log_weights.exp()
        assert posterior.resampled > 3
        means.append(float(shares @ w))
        spreads.append(math.sqrt(float(shares @ (w - mean) ** 2)))
        normalisers.append(posterior.log_normaliser)
    assert abs(np.mean(means) - mean) < 0.4 * deviation
    assert deviation / 1.4 < np.mean(spreads) < 1.4 * deviation
    assert abs(np.mean(normalisers) - log_normaliser) < 0.3


@pytest.mark.parametrize("space", [Dense((2,), 2, [1, 2], [2]), Xnor((2,), 2, [3], [1, 2])], ids=["dense", "xnor"])
def test_moves_by_some_rounds_do_not_cost_more_as_rounds_go_by(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rounds a network is computed for when particles are moved, after 20 rounds and after 200."""
    seen: list[int] = []
    computed = type(space).round_losses

    def counted(self: Space, structure: Structure, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return computed(self, structure, flat, x, y)

    monkeypatch.setattr(type(space), "round_losses", counted)

    def most(count: int, subsample: int | None) -> int:
        posterior = Posterior.initial(space, PRIOR, 0.01, 6, seeded(), Sampling(sweeps=1, subsample=subsample))
        seen.clear()
        posterior._renew(Target(space, PRIOR, some_rounds(2, count), 0.01), seeded(1))
        return max(seen)

    assert most(20, 8) == most(200, 8) == 9
    assert most(20, None) == 20 and most(200, None) == 200


def test_sparsity_counts_weights_above_a_threshold() -> None:
    space = Xnor((2,), 2, [3, 4], [1, 2])
    posterior = Posterior.initial(space, PRIOR, 1.0, 50, seeded())
    posterior = replace(posterior, log_weights=torch.randn(50, generator=seeded(1)).double().log_softmax(0))
    found = posterior.sparsity(0.2)
    nonzero = weights = signs = 0.0
    for place, share in enumerate(posterior.log_weights.exp().tolist()):
        number = int(posterior.population.structures[place])
        kinds = space.kinds(space.structures[number])
        w = posterior.weights(number, torch.tensor([place]))[0]
        nonzero += share * float((w[kinds != SIGN].abs() > 0.2).sum())
        weights += share * float((kinds != SIGN).sum())
        signs += share * float((kinds == SIGN).sum())
    assert math.isclose(found.nonzero, nonzero) and math.isclose(found.weights, weights)
    assert math.isclose(found.signs, signs) and math.isclose(found.sign_cost, signs * math.log(2))
    assert math.isclose(found.share, nonzero / weights)
    probabilities = posterior.probabilities()
    assert math.isclose(sum(probabilities[each] * count for each, count in found.by_structure.items()), nonzero)
    assert math.isclose(posterior.sparsity(0.0).share, 1) and posterior.sparsity(3.0).nonzero == 0
    with pytest.raises(InvalidInput, match="threshold"):
        posterior.sparsity(-0.1)


def test_a_strong_increment_is_tempered() -> None:
    space, rounds, lam = Lines([5], SIGN), some_rounds(5, 1), 20.0
    rounds.drawn_losses[0] = 0.0
    masses, log_normaliser = enumerated(space, rounds, lam)
    found = [run(space, rounds, lam, 300, seed) for seed in FEW_SEEDS]
    assert all(posterior.resampled > 1 for posterior in found)
    assert near([posterior.log_normaliser for posterior in found], log_normaliser, 0.2)
    best = every_sign(5)[int(masses[0].argmax())]
    exact = float(masses[0].max())
    shares = [float(((each.population.latent == best).all(1) * each.log_weights.exp()).sum()) for each in found]
    assert near(shares, exact, 0.02)


def test_particles_keep_their_energies() -> None:
    space, rounds = Dense((2,), 2, [1, 2, 3], [1, 2]), some_rounds(2, 6)
    posterior = run(space, rounds, 1.5, 60, 0, FEW_SWEEPS)
    assert posterior.resampled > 0
    for number, places in posterior.population.groups():
        expected = energies(space, number, posterior.weights(number, places), rounds, 1.5)
        assert np.allclose(posterior.population.energy[places].numpy(), expected)
    assert math.isclose(float(posterior.log_weights.exp().sum()), 1)
    assert posterior.effective_size >= 30


def test_a_structure_with_little_weight_stays_alive() -> None:
    """One weight explains less than two: after 12 rounds it has next to no share, and particles all the same."""
    space, rounds = Lines([1, 2], REAL), some_rounds(2, 12)
    other = Rounds(rounds.inputs, [(x[:, 1] > 0).long() for x in rounds.inputs], rounds.drawn_losses)
    posterior = run(space, other, 3.0, 60, 0, Sampling(spread=0.4))
    assert posterior.probabilities()[space.structures[0]] < 0.05
    first, _ = posterior.strata().resample(seeded())
    assert 12 <= int((posterior.population.structures[first] == 0).sum()) < 30


def test_acceptance_is_told_by_kind() -> None:
    rounds = some_rounds(2, 4)
    for space, kinds in (
        (Dense((2,), 2, [1, 2], [2]), ["jumps", "steps"]),
        (Lines([2], SIGN), ["flips"]),
        (Xnor((2,), 2, [3], [2]), ["steps", "flips"]),
    ):
        posterior = run(space, rounds, 5.0, 20, 0, FEW_SWEEPS)
        assert posterior.resampled > 0 and list(posterior.accepted) == kinds
        assert all(0 < share <= 1 for share in posterior.accepted.values())


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
    after = before.advance(rounds, seeded(1))
    assert after.log_normaliser != 0 and before.log_normaliser == 0
    assert torch.equal(before.population.latent, latent) and torch.equal(before.log_weights, log_weights)
    assert replace(before).population is before.population  # from Python 3.13 on, == would compare tensors


def test_what_is_refused() -> None:
    for lam in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="lam"):
            Posterior.initial(Lines([1], REAL), PRIOR, lam, 10, seeded())
    with pytest.raises(InvalidInput, match="particles"):
        Posterior.initial(Lines([1], REAL), PRIOR, 1.0, 1, seeded())
    with pytest.raises(InvalidInput, match="threshold"):
        Sampling(threshold=1.0)
    for spread in (-0.1, 1.0):
        with pytest.raises(InvalidInput, match="spread"):
            Sampling(spread=spread)
    with pytest.raises(InvalidInput, match="sweeps"):
        Sampling(sweeps=-1)
    with pytest.raises(InvalidInput, match="leapfrog"):
        Sampling(leapfrog=0)
    with pytest.raises(InvalidInput, match="subsample"):
        Sampling(subsample=3)
