"""The sparsity prior against numerical integration, Kolmogorov–Smirnov, and the divergences of the theorems."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest

from tamis.bayes.prior import REAL, SCALE, SIGN, ExpertDistribution, HeavyTailed, Prior, Shifted, draw_signs
from tamis.bounds import kl_xnor
from tamis.errors import AssumptionViolated, InvalidInput

some = settings(deadline=None, max_examples=20)
TAUS = st.floats(0.02, 3.0)
SHARES = st.integers(-(10**6), 10**6).map(lambda number: number / 10**6)  # quad warns of intervals as short as 1e-308
LAWS = [HeavyTailed(0.3, 1.0), HeavyTailed(0.1, 5.0, positive=True), HeavyTailed(0.5), HeavyTailed(0.5, positive=True)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def at(function: object, w: float) -> float:
    return float(function(torch.tensor(w, dtype=torch.float64)))  # type: ignore[operator]


def parts(law: HeavyTailed, *points: float) -> list[float]:
    low, high = (0.0 if law.positive else -law.R), law.R
    ends = {sign * 10.0**power for sign in (1, -1) for power in range(-2, 7)}
    inside = {point for point in ends | set(points) | {0.0} if low < point < high}
    return sorted(inside | {low, high})


@pytest.mark.parametrize("law", LAWS)
def test_densities_integrate_to_the_distribution_function(law: HeavyTailed) -> None:
    total = 0.0
    for low, high in pairwise(parts(law)):
        total += quad(lambda w: math.exp(at(law.log_density, w)), low, high)[0]
        assert math.isclose(total, at(law.cdf, high), abs_tol=1e-9)
    assert math.isclose(total, 1, abs_tol=1e-9)


@pytest.mark.parametrize("law", LAWS)
def test_samples_follow_the_law(law: HeavyTailed) -> None:
    def cdf(w: np.ndarray) -> np.ndarray:
        return law.cdf(torch.from_numpy(w)).numpy()

    assert kstest(law.sample((20_000,), seeded()).numpy(), cdf).pvalue > 1e-3
    normal = torch.randn(20_000, generator=seeded(1), dtype=torch.float64)
    assert kstest(law.from_latent(normal).numpy(), cdf).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
def test_latent_coordinates_carry_the_normal_law_to_the_prior(law: HeavyTailed) -> None:
    u = torch.linspace(-6, 6, 241, dtype=torch.float64)
    w = law.from_latent(u)
    assert torch.allclose(law.cdf(w), torch.special.ndtr(u), atol=1e-12)
    assert bool((w.diff() > 0).all())
    slope = torch.func.vmap(torch.func.grad(law.from_latent))(u[u != 0])
    normal = torch.exp(-(u[u != 0] ** 2) / 2) / math.sqrt(2 * math.pi)
    assert torch.allclose(law.log_density(w[u != 0]).exp() * slope, normal, rtol=1e-6)


def test_the_standard_deviation_is_tau() -> None:
    law = HeavyTailed(0.3)
    second = sum(quad(lambda w: w**2 * math.exp(at(law.log_density, w)), a, b)[0] for a, b in pairwise(parts(law)))
    assert math.isclose(math.sqrt(second), 0.3, rel_tol=1e-4)


def test_the_law_ends_at_its_support() -> None:
    assert at(HeavyTailed(0.3, 1.0).log_density, 1.1) == -math.inf
    assert at(HeavyTailed(0.3, 1.0, positive=True).log_density, -0.1) == -math.inf
    assert float(HeavyTailed(0.3, 1.0).sample((10_000,), seeded()).abs().max()) <= 1


@settings(deadline=None, max_examples=6)  # each is two integrals, point by point
@given(tau=TAUS, share=SHARES, positive=st.booleans())
def test_shifted_laws_and_their_divergence(tau: float, share: float, positive: bool) -> None:
    law = HeavyTailed(tau, 2.0, positive)
    centre = 2 * (abs(share) if positive else share)
    shifted = Shifted(torch.tensor([centre], dtype=torch.float64), law)
    total = divergence = 0.0
    for low, high in pairwise(parts(law, centre)):

        def density(w: float) -> float:
            return math.exp(at(shifted.log_density, w))

        total += quad(density, low, high)[0]
        divergence += quad(lambda w: density(w) * (at(shifted.log_density, w) - at(law.log_density, w)), low, high)[0]
    assert math.isclose(total, 1, abs_tol=1e-7)
    assert math.isclose(shifted.kl(), divergence, abs_tol=1e-6)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("centre", [0.0, 0.2, 0.9])
def test_samples_of_shifted_laws(positive: bool, centre: float) -> None:
    law = HeavyTailed(0.3, 1.0, positive)
    shifted = Shifted(torch.tensor([centre], dtype=torch.float64), law)
    grid = torch.linspace(0.0 if positive else -1.0, 1.0, 100_001, dtype=torch.float64)
    heights = shifted.log_density(grid[:, None])[:, 0].exp()
    sums = torch.cat([torch.zeros(1), ((heights[1:] + heights[:-1]) / 2 * grid.diff()).cumsum(0)])
    draws = shifted.sample(20_000, seeded())[:, 0].numpy()
    assert kstest(draws, lambda w: np.interp(w, grid.numpy(), sums.numpy())).pvalue > 1e-3


def test_an_expert_at_zero_is_the_prior() -> None:
    kinds = torch.tensor([REAL, REAL, SCALE])
    assert abs(ExpertDistribution(Prior(0.3, 1.0), kinds, torch.zeros(3)).kl()) < 1e-12


@some
@given(real=st.lists(st.floats(-1, 1), min_size=1, max_size=4), scales=st.lists(st.floats(0, 1), max_size=4))
def test_the_divergence_of_an_expert_is_within_its_bound(real: list[float], scales: list[float]) -> None:
    kinds = torch.tensor([REAL] * len(real) + [SCALE] * len(scales) + [SIGN] * 3)
    expert = torch.tensor([*real, *scales, 1.0, -1.0, 1.0], dtype=torch.float64)
    exact = ExpertDistribution(Prior(0.3, 1.0), kinds, expert, architecture=0.25).kl()
    assert 3 * math.log(2) + math.log(4) - 1e-9 <= exact <= kl_xnor(real, scales, 3, 0.3, 1.0, 0.25) + 1e-9


def test_an_experts_draws() -> None:
    kinds = torch.tensor([SIGN, REAL, SCALE, SIGN])
    draws = ExpertDistribution(Prior(0.3, 1.0), kinds, torch.tensor([1.0, 0.5, 0.5, -1.0])).sample(1000, seeded())
    assert bool((draws[:, [0, 3]] == torch.tensor([1.0, -1.0])).all())
    assert bool((draws[:, 2] >= 0).all()) and float(draws.abs().max()) <= 1


def test_the_prior_of_all_kinds() -> None:
    prior, kinds = Prior(0.3, 1.0), torch.tensor([REAL, SCALE, SIGN])
    weights = prior.weights(prior.sample_latent(kinds, 20_000, seeded()), kinds)
    for place, law in ((0, prior.real), (1, prior.scale)):
        assert kstest(weights[:, place].numpy(), lambda w, law=law: law.cdf(torch.from_numpy(w)).numpy()).pvalue > 1e-3
    assert set(weights[:, 2].tolist()) == {-1.0, 1.0} and abs(float(weights[:, 2].mean())) < 4 / math.sqrt(20_000)
    by_hand = prior.real.log_density(weights[:, 0]) + prior.scale.log_density(weights[:, 1]) - math.log(2)
    assert torch.allclose(prior.log_density(weights, kinds), by_hand)


def test_signs_are_fair() -> None:
    assert abs(float(draw_signs((40_000,), seeded()).mean())) < 4 / 200


def test_what_is_refused() -> None:
    for tau, R in ((0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (0.1, 0.0), (0.1, -1.0)):
        with pytest.raises(InvalidInput):
            Prior(tau, R)
    law = HeavyTailed(0.3, 1.0)
    with pytest.raises(AssumptionViolated, match="support"):
        Shifted(torch.tensor([1.5], dtype=torch.float64), law)
    with pytest.raises(InvalidInput, match="negative"):
        Shifted(torch.tensor([-0.5], dtype=torch.float64), HeavyTailed(0.3, 1.0, positive=True))
    with pytest.raises(InvalidInput, match="−1 or"):
        ExpertDistribution(Prior(0.3), torch.tensor([SIGN]), torch.tensor([0.5]))
