"""Lemma 4 and Theorem 5: the formulas in plain Python, monotony, and networks that try to fool a sample."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from l1inf_members import ascend, draw, outputs, within
from torch import Tensor

from tamis.bounds.l1inf_class import L1InfConstants
from tamis.bounds.l1inf_regression import l1inf_lipschitz_loss, l1inf_regression
from tamis.errors import AssumptionViolated, InvalidInput

some = settings(max_examples=50, deadline=None)

CASES = (st.integers(0, 5), st.floats(0, 4), st.floats(0, 4), st.integers(1, 500), st.integers(1, 10**6))
DELTAS = st.floats(1e-6, 0.9)


def bracket(k: int, c: float, m: int) -> float:
    powers = sum(c**level for level in range(k + 1)) + c**k
    return math.sqrt((k + 1) * math.log(16)) * powers + c**k * math.sqrt(2 * math.log(2 * m))


@some
@given(*CASES, DELTAS, st.floats(0, 3), st.floats(0, 3))
def test_lemma_4(k: int, c: float, o: float, m: int, n: int, delta: float, rho: float, largest: float) -> None:
    expected = largest * math.sqrt(math.log(2 / delta) / (2 * n)) + 2 * o * rho / math.sqrt(n) * bracket(k, c, m)
    found = l1inf_lipschitz_loss(L1InfConstants(k, c, (o,), m), n, delta, rho, largest)
    assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert found.informative == (found.value < largest)


@some
@given(*CASES, DELTAS, st.floats(0, 3))
def test_theorem_5(k: int, c: float, t: float, m: int, n: int, delta: float, largest: float) -> None:
    layers = max(1.0, c**k)
    confidence = math.sqrt((math.log(2 / delta) + 2 * math.log(t + 2)) / (2 * n))
    expected = confidence * (largest**2 + (t + 1) ** 2 * layers**2)
    expected += 2 / math.sqrt(n) * (largest + (t + 1) * layers) * (t + 1) * bracket(k, c, m)
    found = l1inf_regression(L1InfConstants(k, c, (t,), m), n, delta, largest)
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.terms["confidence"] + found.terms["complexity"] == pytest.approx(found.value)


@some
@given(*CASES, DELTAS, st.floats(0, 3))
def test_theorem_5_is_lemma_4_on_the_next_wider_class(
    k: int, c: float, t: float, m: int, n: int, delta: float, largest: float
) -> None:
    """For a whole number o ≥ t the union bound spends δ/(o(o+1)) on SN_{c,o}: Lemma 4 there is never above."""
    o = math.floor(t) + 1
    layers = max(1.0, c**k)
    share = delta / (o * (o + 1))
    lemma = l1inf_lipschitz_loss(
        L1InfConstants(k, c, (o,), m), n, share, largest + o * layers, (largest + o * layers) ** 2 / 2
    )
    assert lemma.value <= l1inf_regression(L1InfConstants(k, c, (t,), m), n, delta, largest).value * (1 + 1e-9)


@some
@given(*CASES, DELTAS, st.floats(0, 3), st.floats(0, 2))
def test_monotony(k: int, c: float, t: float, m: int, n: int, delta: float, largest: float, more: float) -> None:
    here = l1inf_regression(L1InfConstants(k, c, (t,), m), n, delta, largest).value * (1 - 1e-12)
    assert here <= l1inf_regression(L1InfConstants(k, c + more, (t,), m), n, delta, largest).value
    assert here <= l1inf_regression(L1InfConstants(k, c, (t + more,), m), n, delta, largest).value
    assert here <= l1inf_regression(L1InfConstants(k, c, (t,), m + 1), n, delta, largest).value
    assert here <= l1inf_regression(L1InfConstants(k, c, (t,), m), n, delta / 2, largest).value
    assert here <= l1inf_regression(L1InfConstants(k, c, (t,), m), n, delta, largest + more).value
    assert here >= l1inf_regression(L1InfConstants(k, c, (t,), m), n + 1, delta, largest).value * (1 - 1e-11)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("k", "c"), [(1, 2.0), (2, 1.0)])
def test_no_network_fools_a_sample_by_more(k: int, c: float, activation: str) -> None:
    """All points of the distribution are known: networks climb the gap between its mean loss and a sample's."""
    population, n, repeats, m, o = 60, 30, 40, 2, 3.0
    generator = torch.Generator().manual_seed(k)
    x = torch.rand(1, population, m, generator=generator, dtype=torch.float64) * 2 - 1
    y = torch.rand(population, generator=generator, dtype=torch.float64) * 2 - 1
    drawn = torch.randint(population, (repeats, n), generator=generator)
    shares = torch.zeros(repeats, population, dtype=torch.float64)
    shares.scatter_add_(1, drawn, torch.full((repeats, n), 1 / n, dtype=torch.float64))
    layers = draw([m, *[6] * k, 1], repeats, generator)

    def gap(networks: list[Tensor]) -> Tensor:
        losses = (outputs(within(networks, c, o), x, activation)[:, :, 0] - y) ** 2 / 2
        return (losses.mean(1) - (losses * shares).sum(1)).abs()

    ascend(layers, gap)
    bound = l1inf_regression(L1InfConstants(k, c, (o,), m, activation), n, 0.05, 1.0)
    slope, largest = 1 + o * max(1.0, c**k), (1 + o * max(1.0, c**k)) ** 2 / 2
    lemma = l1inf_lipschitz_loss(L1InfConstants(k, c, (o,), m, activation), n, 0.05, slope, largest)
    assert float(gap(layers).max()) <= min(bound.value, lemma.value)


def test_what_is_assumed_is_said() -> None:
    bound = l1inf_regression(L1InfConstants(1, 0.5, (1.0,), 10), 10**6, 0.05, 1.0)
    assert bound.informative
    assert any("[−1, 1]^m" in assumption for assumption in bound.assumptions)
    assert any("fixed before" in assumption for assumption in bound.assumptions)
    assert bound.source == "yang2021l1inf, Theorem 5"


def test_beyond_float64_the_logarithm_stays() -> None:
    bound = l1inf_regression(L1InfConstants(200, 1e3, (1.0,), 10), 100, 0.05, 1.0)
    assert bound.value == math.inf
    assert math.isfinite(bound.log_value)
    assert not bound.informative


def test_plain_sigmoid_and_nonsense_are_refused() -> None:
    with pytest.raises(AssumptionViolated, match="sigmoid"):
        l1inf_regression(L1InfConstants(1, 1.0, (1.0,), 2, "sigmoid"), 10, 0.05, 1.0)
    with pytest.raises(InvalidInput, match="delta = 0"):
        l1inf_regression(L1InfConstants(1, 1.0, (1.0,), 2), 10, 0, 1.0)
    with pytest.raises(InvalidInput, match=r"networks of one output, got o = \[1\.0, 2\.0\]"):
        l1inf_regression(L1InfConstants(1, 1.0, (1.0, 2.0), 2), 10, 0.05, 1.0)
    with pytest.raises(InvalidInput, match="k = -1"):
        l1inf_lipschitz_loss(L1InfConstants(-1, 1.0, (1.0,), 2), 10, 0.05, 1.0, 1.0)
