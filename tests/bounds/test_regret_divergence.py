"""Divergences from the sparsity prior against numerical integration, and the bounds that hold of them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from tamis.bounds.regret_divergence import kl_bound, kl_exact, kl_xnor, truncation
from tamis.errors import AssumptionViolated, InvalidInput

some = settings(max_examples=50, deadline=None)

WEIGHTS = st.floats(-1, 1)


def density(w: float, centre: float, tau: float, low: float, high: float) -> float:
    """(1 + |w − centre|/τ)^−4 on [low, high], normalized by its integral."""
    total = (2 - (1 + (high - centre) / tau) ** -3 - (1 + (centre - low) / tau) ** -3) * tau / 3
    return float((1 + abs(w - centre) / tau) ** -4 / total)


def integrated(centre: float, tau: float, low: float, high: float) -> float:
    """∫ ρ log(ρ/π), ρ the prior shifted to `centre` and truncated to [low, high], π the prior truncated there."""

    def integrand(w: float) -> float:
        shifted = density(w, centre, tau, low, high)
        return shifted * math.log(shifted / density(w, 0.0, tau, low, high))

    far = {sign * 10.0**power for sign in (1, -1) for power in range(7) if low < sign * 10.0**power < high}
    parts = sorted({low, high, 0.0, centre} | far)
    return sum(quad(integrand, a, b, epsabs=1e-12)[0] for a, b in pairwise(parts))


@pytest.mark.parametrize(("weight", "exact", "bound"), [(0.1, 0.33, 1.15), (0.5, 2.61, 3.94)])
def test_known_values(weight: float, exact: float, bound: float) -> None:
    assert round(kl_exact([weight], 0.3, 1.0), 2) == exact
    assert round(kl_bound([weight], 0.3, 1.0), 2) == bound


@some
@given(WEIGHTS, st.floats(0.01, 5), st.floats(1, 30))
def test_the_exact_divergence(weight: float, tau: float, R: float) -> None:
    assert kl_exact([weight], tau, R) == pytest.approx(integrated(weight, tau, -R, R), abs=1e-8, rel=1e-8)


@pytest.mark.parametrize("weight", [0.001, 0.3, 5.0, 300.0])
def test_without_truncation(weight: float) -> None:
    assert kl_exact([weight], 0.3) == pytest.approx(integrated(weight, 0.3, -1e6, 1e6), abs=1e-7)


@some
@given(st.lists(WEIGHTS, max_size=8), st.floats(0.01, 5), st.floats(1, 5))
def test_the_bound_is_one(weights: list[float], tau: float, R: float) -> None:
    exact, bound = kl_exact(weights, tau, R), kl_bound(weights, tau, R)
    assert -1e-9 <= exact <= bound + 1e-9
    assert kl_exact(weights, tau) <= kl_bound(weights, tau) + 1e-9


@some
@given(WEIGHTS, st.floats(0.01, 5), st.floats(1, 30))
def test_truncation_costs_at_most_log_2(weight: float, tau: float, R: float) -> None:
    extra = float(truncation(np.array([weight]), tau, R)[0])
    ratio = density(weight, weight, tau, -R, R) / density(0.0, 0.0, tau, -R, R)
    assert extra == pytest.approx(math.log(ratio), abs=1e-9)
    assert -1e-12 <= extra <= math.log(2)
    assert truncation(np.zeros(1), tau, R)[0] == pytest.approx(0, abs=1e-12)


def test_many_weights_are_summed() -> None:
    weights = np.random.default_rng(0).uniform(-1, 1, 50_000)
    assert kl_exact(weights, 0.3, 1.0) == pytest.approx(sum(kl_exact(part, 0.3, 1.0) for part in np.split(weights, 50)))


def test_zeros_are_free_and_rare_architectures_are_not() -> None:
    assert kl_bound([0.0, 0.0], 0.3, 1.0) == kl_exact([], 0.3) == 0
    for divergence in (kl_bound, kl_exact):
        dear, cheap = divergence([0.5, 0.0], 0.3, 1.0, architecture=0.01), divergence([0.5], 0.3, 1.0)
        assert dear == pytest.approx(cheap + math.log(100))


@some
@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.floats(0.05, 2), st.floats(1, 5))
def test_scales_are_truncated_for_free(scales: list[float], tau: float, R: float) -> None:
    """The divergence of scales on [0, R], by integration, stays below its share of the XNOR bound."""
    exact = sum(integrated(scale, tau, 0.0, R) for scale in scales if scale)
    assert exact <= kl_xnor([], scales, 0, tau, R) + 1e-9


def test_an_xnor_network_pays_for_its_signs() -> None:
    real, scales = [0.5, -0.2, 0.0], [0.3, 0.4]
    found = kl_xnor(real, scales, 1000, 0.3, 1.0)
    expected = 4 * 2 * math.log(1 + 0.7 / 0.6) + 4 * 2 * math.log(1 + 0.7 / 0.6) + 1000 * math.log(2)
    assert found == pytest.approx(expected + truncation(np.array(real), 0.3, 1.0).sum())


@some
@given(WEIGHTS, st.floats(0.05, 2))
def test_signs_do_not_matter(weight: float, tau: float) -> None:
    assume(weight)
    assert kl_exact([weight], tau, 1.0) == pytest.approx(kl_exact([-weight], tau, 1.0))


def test_experts_outside_the_prior_are_refused() -> None:
    with pytest.raises(AssumptionViolated, match=r"\|w\| = 1.5 > R = 1"):
        kl_bound([0.2, -1.5], 0.3, 1.0)
    with pytest.raises(InvalidInput, match="negative"):
        kl_xnor([], [-0.1], 0, 0.3, 1.0)
    with pytest.raises(InvalidInput, match="tau = 0"):
        kl_exact([0.1], 0.0, 1.0)
    with pytest.raises(InvalidInput, match="R = 0"):
        kl_exact([0.0], 1.0, 0.0)
    with pytest.raises(InvalidInput, match="architecture = 0"):
        kl_bound([0.1], 0.3, 1.0, architecture=0.0)
    with pytest.raises(InvalidInput, match="finite"):
        kl_bound([math.nan], 0.3, 1.0)
    with pytest.raises(InvalidInput, match=r"R = 1e-200, tau = 1e\+200"):
        kl_bound([1e-200], 1e200, 1e-200)
