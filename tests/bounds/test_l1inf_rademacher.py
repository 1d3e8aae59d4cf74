"""Theorem 1 against the Rademacher complexity of tiny networks: exact without hidden layers, by ascent with them."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from l1inf_members import ascend, draw, outputs, within
from torch import Tensor

from tamis.bounds.l1inf_output import l1inf_output
from tamis.bounds.l1inf_rademacher import l1inf_rademacher, log_geometric_sum
from tamis.errors import AssumptionViolated, InvalidInput

some = settings(max_examples=50, deadline=None)

GAMMA = {"relu": 1.0, "tanh": 1.0, "shifted sigmoid": 0.25}


def as_printed(k: int, c: float, o: float, m: int, n: int, gamma: float) -> float:
    powers = sum((gamma * c) ** level for level in range(k + 1)) + (gamma * c) ** k
    depth = o * math.sqrt((k + 1) * math.log(16) / n) * powers
    return depth + o * (gamma * c) ** k * math.sqrt(2 * math.log(2 * m) / n)


@some
@given(
    st.integers(0, 8),
    st.floats(0, 5),
    st.floats(0, 5),
    st.integers(1, 1000),
    st.integers(1, 10**6),
    st.sampled_from([*GAMMA]),
)
def test_the_formula(k: int, c: float, o: float, m: int, n: int, activation: str) -> None:
    bound = l1inf_rademacher(k, c, o, m, n, activation)
    assert bound.value == pytest.approx(as_printed(k, c, o, m, n, GAMMA[activation]), rel=1e-9, abs=1e-300)
    assert sum(bound.terms.values()) == pytest.approx(bound.value)


@some
@given(st.floats(-30, 30), st.integers(0, 20))
def test_a_geometric_sum(log_ratio: float, k: int) -> None:
    terms = [level * log_ratio for level in range(k + 1)]
    largest = max(terms)
    expected = largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
    assert log_geometric_sum(log_ratio, k) == pytest.approx(expected, abs=1e-9)


def signs(n: int) -> Tensor:
    return torch.tensor([*itertools.product([-1.0, 1.0], repeat=n)], dtype=torch.float64)


@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize("n", [1, 4, 9])
def test_linear_maps_have_a_complexity_in_closed_form(n: int, m: int) -> None:
    """Over an ℓ1-ball the supremum is the largest |Σ_i ε_i x_ij|, the bias being a coordinate that is always 1."""
    generator = torch.Generator().manual_seed(m)
    for x in (torch.ones(n, m, dtype=torch.float64), torch.randn(n, m, generator=generator, dtype=torch.float64)):
        points = torch.cat([torch.ones(n, 1, dtype=torch.float64), x.clamp(-1, 1)], 1)
        exact = float((signs(n) @ points).abs().amax(1).mean()) / n
        assert exact <= l1inf_rademacher(0, 1.0, 1.0, m, n).value


@pytest.mark.parametrize(
    ("k", "c", "activation"),
    [
        *((k, c, "relu") for k, c in ((1, 0.3), (1, 4.0), (2, 1.0), (3, 2.0))),
        *((k, c, activation) for activation in ("tanh", "shifted sigmoid") for k, c in ((1, 4.0), (3, 2.0))),
    ],
)
def test_no_ascent_exceeds_it(k: int, c: float, activation: str) -> None:
    """For each of all sign vectors the best of several networks: a lower bound of the complexity."""
    n, m, restarts = 6, 2, 3
    generator = torch.Generator().manual_seed(10 * k)
    x = torch.rand(1, n, m, generator=generator, dtype=torch.float64) * 2 - 1
    epsilon = signs(n).repeat(restarts, 1)
    layers = draw([m, *[5] * k, 1], len(epsilon), generator)

    def correlation(networks: list[Tensor]) -> Tensor:
        return (outputs(within(networks, c, 1.0), x, activation)[:, :, 0] * epsilon).mean(1)

    ascend(layers, correlation)
    found = float(correlation(layers).reshape(restarts, -1).amax(0).mean())
    assert 0 < found <= l1inf_rademacher(k, c, 1.0, m, n, activation).value


@some
@given(st.integers(0, 5), st.floats(0, 4), st.floats(0, 4), st.integers(1, 99), st.integers(1, 999), st.floats(0, 2))
def test_it_grows_with_the_class_and_falls_with_the_samples(
    k: int, c: float, o: float, m: int, n: int, more: float
) -> None:
    here = l1inf_rademacher(k, c, o, m, n).value * (1 - 1e-12)
    assert here <= l1inf_rademacher(k, c + more, o, m, n).value
    assert here <= l1inf_rademacher(k, c, o + more, m, n).value
    assert here <= l1inf_rademacher(k, c, o, m + 1, n).value
    assert here >= l1inf_rademacher(k, c, o, m, n + 1).value * (1 - 1e-11)


def test_depth_costs_a_square_root_where_layers_shrink() -> None:
    shallow, deep = (l1inf_rademacher(k, 0.5, 1.0, 10, 100).value for k in (99, 399))
    assert deep / shallow == pytest.approx(2, rel=1e-3)


def test_it_is_informative_where_it_beats_the_largest_output() -> None:
    few, many = (l1inf_rademacher(2, 1.0, 1.0, 10, n) for n in (10, 10**6))
    assert not few.informative
    assert many.informative
    assert many.value < l1inf_output(2, 1.0, 1.0).value <= few.value


def test_beyond_float64_the_logarithm_stays() -> None:
    bound = l1inf_rademacher(300, 1e3, 1.0, 10, 100)
    assert bound.value == math.inf
    assert 300 * math.log(1e3) < bound.log_value < 301 * math.log(1e3)


def test_plain_sigmoid_and_nonsense_are_refused() -> None:
    with pytest.raises(AssumptionViolated, match="sigmoid"):
        l1inf_rademacher(1, 1.0, 1.0, 2, 10, "sigmoid")
    with pytest.raises(InvalidInput, match="n = 0"):
        l1inf_rademacher(1, 1.0, 1.0, 2, 0)
