"""Statistical and closed-form bounds are never below their exact values, at any scale: 60 digits are the judge."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tamis
from tamis.bounds.binomial import largest_rate, smallest_rate
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_of_sum, log_rounded_up, round_up
from tamis.bounds.clopper_pearson import clopper_pearson
from tamis.bounds.cross_entropy_gap import cross_entropy_gap
from tamis.bounds.deviation_quantile import deviation_at_rank, deviation_quantile, deviation_rank
from tamis.bounds.l1inf_class import LIPSCHITZ, L1InfConstants, l1inf_constants
from tamis.bounds.l1inf_classification import l1inf_classification, l1inf_lipschitz_vector_loss
from tamis.bounds.l1inf_output import l1inf_output
from tamis.bounds.l1inf_rademacher import l1inf_rademacher
from tamis.bounds.l1inf_regression import l1inf_lipschitz_loss, l1inf_regression
from tamis.bounds.occam import occam
from tamis.bounds.rademacher_arguments import sigma_of_box
from tamis.bounds.rademacher_covering import rademacher_covering
from tamis.bounds.rademacher_peeling import rademacher_peeling
from tamis.bounds.regret import Expert, sparse_regret, xnor_regret
from tamis.bounds.regret_divergence import kl_bound, kl_xnor
from tamis.bounds.regret_penalties import Penalties, dense_layer, perturbation_penalties
from tamis.bounds.shape import GraphShape
from tamis.bounds.two_temperature import gradient_error, two_temperature
from tamis.errors import InvalidInput

mp.mp.dps = 60
some = settings(max_examples=40, deadline=None)
# Numbers of any size that float64 holds, its ends among them.
sizes = st.sampled_from([0.0, 5e-324, 1e-300, 1e-160, 1.0, 4.0, 1e160, 1e300, 1.7e308]) | st.floats(0, 1e3)
positive = sizes.filter(lambda size: size > 0)
counts = st.sampled_from([1, 2, 10**4, 10**15]) | st.integers(1, 1000)
deltas = st.sampled_from([5e-324, 1e-300, 1e-9, 0.05, 0.5, 1 - 2.0**-53]) | st.floats(1e-6, 0.9)
activations = st.sampled_from(list(LIPSCHITZ))
SHAPE = GraphShape(3072, 10, 20, 9, 1, 1, 270_000, 700, True, True)


def assert_above(bound: Bound, exact: Any, loose: float = 1e-9) -> None:
    """Value and logarithm are no less than what is exact, and little more."""
    if exact == 0:
        assert bound.value == 0 and bound.log_value == -math.inf
        return
    log = mp.log(exact)
    assert log <= mp.mpf(bound.log_value) <= log + loose * (1 + abs(log))
    assert mp.mpf(bound.value) >= exact
    assert mp.mpf(bound.log10) >= mp.mpf(bound.log_value) / mp.log(10)
    if exact > mp.mpf("1e-300"):
        assert bound.value == math.inf or mp.mpf(bound.value) <= exact * (1 + loose * (1 + abs(log)))


# -- the arithmetic ----------------------------------------------------------------------------------------------------


@some
@given(st.lists(positive, min_size=1, max_size=6))
def test_logarithms_of_products_and_sums_round_up(factors: list[float]) -> None:
    logs = [log_rounded_up(factor) for factor in factors]
    exact = [mp.mpf(factor) for factor in factors]
    assert all(mp.mpf(log) >= mp.log(value) for log, value in zip(logs, exact, strict=True))
    assert mp.log(mp.fprod(exact)) <= log_of_product(*logs) <= mp.log(mp.fprod(exact)) + 1e-10
    assert mp.log(mp.fsum(exact)) <= log_of_sum(*logs) <= mp.log(mp.fsum(exact)) + 1e-10


@some
@given(st.floats(-2000, 2000))
def test_exponentials_round_up_and_never_underflow(log: float) -> None:
    assert mp.mpf(exp_rounded_up(log)) >= mp.exp(mp.mpf(log)) and exp_rounded_up(log) > 0
    assert exp_rounded_up(-1e5) == 5e-324 and exp_rounded_up(-math.inf) == 0.0 and exp_rounded_up(0.0) == 1.0
    assert round_up(0.0) == 0.0 and round_up(5e-324) > 5e-324 and round_up(-1.0) > -1.0


# -- counts ------------------------------------------------------------------------------------------------------------


def tail(count: int, n: int, p: float) -> Any:
    """P[Bin(n, p) ≤ count], exactly."""
    rate = Fraction(p)
    return sum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(count + 1))


@some
@given(st.integers(1, 25), st.data(), st.sampled_from([1e-300, 1e-9, 0.05, 0.5, 1 - 2.0**-53]))
def test_limits_of_rates_are_on_the_safe_side(n: int, data: Any, delta: float) -> None:
    count = data.draw(st.sampled_from([0, n]) | st.integers(0, n))
    most, least = largest_rate(count, n, math.log(delta)), smallest_rate(count, n, math.log(delta))
    # At the limit the tail is no more than δ, whatever rounding did; and a little inside it is more.
    assert most == 1.0 if count == n else tail(count, n, most) <= Fraction(delta)
    assert most == 1.0 or tail(count, n, most * (1 - 1e-9)) > Fraction(delta) * (1 - Fraction(1, 10**6))
    assert least == 0.0 if count == 0 else 1 - tail(count - 1, n, least) <= Fraction(delta)
    bound = clopper_pearson("errors", count, n, delta)
    assert bound.value == most and mp.mpf(bound.log_value) >= mp.log(mp.mpf(most))


@some
@given(st.integers(1, 20), st.data(), st.floats(0, 60), st.integers(1, 10**6), st.sampled_from([1e-9, 0.05, 0.9]))
def test_occam_pays_for_every_bit(n: int, data: Any, bits: float, candidates: int, delta: float) -> None:
    errors = data.draw(st.integers(0, n))
    value = occam(errors, n, bits, delta, candidates).value
    level = mp.mpf(delta) * mp.mpf(2) ** (-mp.mpf(bits)) / candidates
    exact = tail(errors, n, value)
    assert value == 1.0 or mp.mpf(exact.numerator) / exact.denominator <= level


@pytest.mark.parametrize("bits", [1e5, 1e9, 1e300])
def test_codes_of_any_length_say_nothing_rather_than_too_much(bits: float) -> None:
    assert 0.9 < occam(0, 1000, bits, 1e-9).value <= 1.0


@some
@given(st.integers(1, 40), st.floats(1e-9, 1 - 1e-9), st.sampled_from([1e-300, 1e-9, 0.05, 0.5]))
def test_the_rank_of_a_quantile_is_high_enough(n: int, coverage: float, delta: float) -> None:
    rank = deviation_rank(n, coverage, delta)
    assert rank == n + 1 or 1 - tail(rank - 1, n, coverage) <= Fraction(delta)


@pytest.mark.parametrize("number", [2**53 + 1, 2**60 + 1, 2**62 - 1])
def test_distances_that_float64_does_not_hold_round_up(number: int) -> None:
    for distances in (np.full(100, number), np.full(100, number, np.uint64), torch.full((100,), number)):
        assert int(deviation_quantile(distances, 0.9, 0.05).value) >= number
    wide = np.full(100, np.longdouble(1) + np.longdouble(2) ** -60)
    assert np.longdouble(deviation_quantile(wide, 0.9, 0.05).value) >= wide[0]


# -- L1,∞ --------------------------------------------------------------------------------------------------------------


def growth(k: int, c: float, activation: str) -> Any:
    return (mp.mpf(LIPSCHITZ[activation]) * mp.mpf(c)) ** k if k else mp.mpf(1)


def complexity(k: int, c: float, inputs: int, n: int, activation: str) -> Any:
    """Theorem 1 for o = 1."""
    ratio = mp.mpf(LIPSCHITZ[activation]) * mp.mpf(c)
    powers = mp.fsum(ratio**power if power else mp.mpf(1) for power in range(k + 1)) + growth(k, c, activation)
    deep = mp.sqrt((k + 1) * mp.log(16)) * powers
    return (deep + growth(k, c, activation) * mp.sqrt(2 * mp.log(2 * mp.mpf(inputs)))) / mp.sqrt(n)


@some
@given(st.integers(0, 6), sizes, sizes, counts, counts, activations)
def test_l1inf_output_and_complexity(k: int, c: float, o: float, inputs: int, n: int, activation: str) -> None:
    assert_above(l1inf_output(k, c, o, activation), mp.mpf(o) * max(1, growth(k, c, activation)))
    assert_above(l1inf_rademacher(k, c, o, inputs, n, activation), mp.mpf(o) * complexity(k, c, inputs, n, activation))


@some
@given(st.integers(0, 5), sizes, sizes, counts, counts, deltas, sizes, sizes, activations)
def test_l1inf_regression(
    k: int, c: float, o: float, inputs: int, n: int, delta: float, slope: float, largest: float, activation: str
) -> None:
    of_loss = mp.sqrt(mp.log(2 / mp.mpf(delta)) / (2 * n)) * mp.mpf(largest)
    known = of_loss + 2 * mp.mpf(slope) * mp.mpf(o) * complexity(k, c, inputs, n, activation)
    assert_above(l1inf_lipschitz_loss(L1InfConstants(k, c, (o,), inputs, activation), n, delta, slope, largest), known)
    wider, layers = mp.mpf(o) + 1, max(mp.mpf(1), growth(k, c, activation))
    deviation = mp.sqrt((mp.log(2 / mp.mpf(delta)) + 2 * mp.log(wider + 1)) / (2 * n))
    exact = deviation * (mp.mpf(largest) ** 2 + (wider * layers) ** 2)
    exact += 2 * (mp.mpf(largest) + wider * layers) * wider * complexity(k, c, inputs, n, activation)
    assert_above(l1inf_regression(L1InfConstants(k, c, (o,), inputs, activation), n, delta, largest), exact)


@some
@given(st.integers(0, 4), sizes, st.lists(sizes, min_size=2, max_size=5), counts, counts, deltas, sizes, activations)
def test_l1inf_classification(
    k: int, c: float, norms: list[float], inputs: int, n: int, delta: float, slope: float, activation: str
) -> None:
    complex_ = complexity(k, c, inputs, n, activation)
    total = mp.fsum(map(mp.mpf, norms))
    known = mp.sqrt(mp.log(2 / mp.mpf(delta)) / (2 * n)) + 2 * mp.sqrt(2) * mp.mpf(slope) * total * complex_
    assert_above(
        l1inf_lipschitz_vector_loss(L1InfConstants(k, c, tuple(norms), inputs, activation), n, delta, slope, 1.0), known
    )
    classes = len(norms)
    largest = (mp.mpf(max(norms)) + mp.mpf(1) / classes) * max(mp.mpf(1), growth(k, c, activation))
    steep = 1 + mp.sqrt(classes - 1) / (1 + (classes - 1) * (mp.exp(-2 * largest) if largest < 1e6 else 0))
    union = mp.fsum(mp.log(classes * mp.mpf(norm) + 2) for norm in norms)
    exact = (2 * largest + mp.log(classes)) * mp.sqrt((mp.log(2 / mp.mpf(delta)) + 2 * union) / (2 * n))
    exact += 2 * mp.sqrt(2) * (total + 1) * steep * complex_
    assert_above(l1inf_classification(L1InfConstants(k, c, tuple(norms), inputs, activation), n, delta), exact)


def test_norms_of_a_network_round_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(99, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[0].weight.mul_(torch.logspace(-300, 0, 99, dtype=torch.float64))
    found = l1inf_constants(tamis.trace(model, torch.zeros(1, 99, dtype=torch.float64)))
    rows = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach()
    exact = max(sum(abs(Fraction(float(entry))) for entry in row) for row in rows)
    assert exact <= Fraction(found.c) <= exact * (1 + Fraction(1, 10**10))


# -- Rademacher complexities -------------------------------------------------------------------------------------------


@some
@given(st.floats(-3000, 3000), positive, counts)
def test_rademacher_complexities_and_the_gap(log_norm: float, sigma: float, n: int) -> None:
    norm = mp.exp(mp.mpf(log_norm))
    covering = rademacher_covering(SHAPE, sigma=sigma, log_path_norm=log_norm)
    assert_above(covering, 144 * 20 * mp.sqrt(270_000) * mp.mpf(sigma) * norm)
    constant = min(
        20 * mp.log(5 * 9) + mp.log(mp.mpf(5) / 2 * 3073 * 10), 20 * mp.log(3) + mp.log(9) + mp.log(3073 * 10)
    )
    peeling = rademacher_peeling(SHAPE, sigma=sigma, log_path_norm=log_norm)
    assert_above(peeling, mp.sqrt(2) * mp.mpf(sigma) * mp.sqrt(constant) * norm)
    assert_above(cross_entropy_gap(peeling, n), 4 * mp.exp(mp.mpf(peeling.log_value)) / n)
    assert mp.mpf(sigma_of_box(n, sigma)) >= mp.sqrt(n) * max(1, mp.mpf(sigma))


@pytest.mark.parametrize("digits", [200, 400])
def test_counts_beyond_float64_are_refused_by_name(digits: int) -> None:
    with pytest.raises(InvalidInput, match=r"n must be an integer below 2\^500, got one of \d+ bits"):
        cross_entropy_gap(rademacher_peeling(SHAPE, 1.0, 1.0), 10**digits)
    with pytest.raises(InvalidInput, match=r"d_in of a GraphShape must be below 2\^500"):
        GraphShape(10**digits, 10, 20, 9, 1, 1, 270_000, 700, True, True)


# -- regret and two temperatures ---------------------------------------------------------------------------------------


@some
@given(sizes, sizes, sizes, sizes, positive, st.lists(sizes, min_size=1, max_size=5), sizes)
def test_regret(
    loss: float, pen1: float, pen2: float, kl: float, lam: float, norms: list[float], squares: float
) -> None:
    price = mp.mpf(lam) / 2 * mp.mpf(squares) + mp.mpf(kl) / mp.mpf(lam)
    rise = 2 * mp.mpf(pen1) * mp.fsum(map(mp.mpf, norms)) + 2 * len(norms) * mp.mpf(pen2)
    value = sparse_regret(Expert(loss, kl), Penalties(pen1, pen2), norms, squares, lam, classes=3).value
    exact = mp.mpf(loss) + rise + price
    assert exact <= mp.mpf(value) and (value > 1e307 or value <= exact * (1 + mp.mpf(1e-9)) + 1e-300)
    value = xnor_regret(Expert(loss, kl), -loss / 2, squares, lam, rounds=5, classes=3).value
    assert mp.mpf(loss) - mp.mpf(loss / 2) + price <= mp.mpf(value)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=3), st.sampled_from([1e-200, 1e-3, 0.3, 1e200]))
@pytest.mark.parametrize("R", [1.0, 1e9, math.inf])
def test_divergences(R: float, weights: list[float], tau: float) -> None:
    def mass(x: Any) -> Any:
        return 1 - (1 + x) ** -3 if mp.isfinite(x) else mp.mpf(1)

    exact, count = mp.mpf(0), sum(weight != 0 for weight in weights)
    if count:
        exact += 4 * count * mp.log1p(mp.fsum(abs(mp.mpf(w)) for w in weights) / (mp.mpf(tau) * count))
    mp.mp.dps = 700
    for weight in map(mp.mpf, weights):
        ends = mass((R + weight) / mp.mpf(tau)) + mass((R - weight) / mp.mpf(tau))
        exact += mp.log(mass(R / mp.mpf(tau))) - mp.log(ends / 2)
    mp.mp.dps = 60
    assert exact <= mp.mpf(kl_bound(weights, tau, R)) <= exact + mp.mpf(1e-9) * (abs(exact) + 1)
    scales = [abs(weight) for weight in weights]
    both = exact + 7 * mp.log(2)
    if count:
        both += 4 * count * mp.log1p(mp.fsum(map(mp.mpf, scales)) / (mp.mpf(tau) * count))
    assert both <= mp.mpf(kl_xnor(weights, scales, 7, tau, R)) <= both + mp.mpf(1e-9) * (abs(both) + 1)


def test_divergence_of_tiny_weights() -> None:
    """A truncation takes next to nothing of the prior: logarithms of masses near 1 must keep their digits."""
    weights, R = [2.352774659200358e-13, 1.2857437976403834e-13, 1.7995387045539729e-13], 11.720944198010145

    def mass(x: Any) -> Any:
        return 1 - (1 + x) ** -3

    exact = 4 * 3 * mp.log1p(mp.fsum(map(mp.mpf, weights)) / 3)
    for weight in map(mp.mpf, weights):
        exact += mp.log(mass(mp.mpf(R))) - mp.log((mass(R + weight) + mass(R - weight)) / 2)
    assert exact <= mp.mpf(kl_bound(weights, 1.0, R)) <= exact * (1 + mp.mpf(1e-4))


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a number"):
        sparse_regret(Expert(10.0, 5.0), Penalties(math.nan, math.nan), [1.0] * 5, 4.0, 1.0, 10)
    with pytest.raises(InvalidInput, match="negative or NaN, got -1"):
        deviation_at_rank(-1.0, 100, 0.5, 0.05)
    with pytest.raises(InvalidInput, match=r"empty, got shape \(3, 0\)"):
        dense_layer(np.zeros((3, 0)), None, 1.0)
    with pytest.raises(InvalidInput, match="empty sequence"):
        l1inf_output(1, 0.5, [])
    assert Penalties(1.0, 1.0).rise(np.ones(3)) >= 12.0  # type: ignore[arg-type]


@pytest.mark.parametrize("tau", [1e-300, 1e-200, 1.0, 1e200])
@pytest.mark.parametrize("scale", [1e-250, 1.0, 1e250])
def test_penalties_do_not_vanish_or_overflow(tau: float, scale: float) -> None:
    layer = dense_layer(scale * np.array([[3.0, 0.0], [0.0, 4.0]]), scale * np.array([3.0, 4.0]), tau)
    assert layer.norm >= 4 * scale and layer.bias_norm >= 5 * scale
    assert layer.norm == pytest.approx(4 * scale) and layer.bias_norm == pytest.approx(5 * scale)
    assert layer.d1 == pytest.approx(tau * math.sqrt(2)) and layer.d1 > layer.c1 > 0


def test_large_layers_bring_back_what_small_ones_had() -> None:
    small, large = (dense_layer([[scale]], None, tau=1e-9) for scale in (1e-200, 1e200))
    found = perturbation_penalties([small, small, large, large, dense_layer([[1.0]], None, tau=1e-9)])
    assert found.pen1 >= 1e-9 and perturbation_penalties([large, large, small, small]).pen1 >= 1e-9


@some
@given(counts, sizes, sizes, positive, counts)
def test_two_temperatures(d: int, G: float, C: float, c: float, T: int) -> None:
    exact = d / (2 * mp.mpf(c) * mp.sqrt(T)) + mp.mpf(c) * mp.mpf(G) ** 2 * (1 + mp.mpf(C)) / mp.sqrt(T)
    assert_above(two_temperature(d, G, C, c, T), exact)


@some
@given(sizes, sizes, sizes)
def test_errors_of_gradients(t_l: float, t_s: float, largest: float) -> None:
    def slope(t: float) -> Any:
        steep = mp.mpf(t) * mp.mpf(largest)
        return mp.exp(-steep) / (1 + mp.exp(-steep)) ** 2 if steep < 1e6 else mp.mpf(0)

    product = mp.mpf(t_l) * mp.mpf(t_s)
    exact = 1 - 2 * product * slope(t_l) * slope(t_s) + (product / 16) ** 2
    found = gradient_error(t_l, t_s, largest)
    assert exact <= mp.mpf(found) and (found > 1e300 or found <= exact + mp.mpf(1e-9) * (1 + product**2))
