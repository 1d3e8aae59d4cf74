"""Lemma 6 and Theorem 7: the formulas in plain Python, monotony, and networks that try to fool a sample."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from l1inf_members import ascend, draw, outputs, within
from torch import Tensor

from tamis.bounds.l1inf_class import L1InfConstants
from tamis.bounds.l1inf_classification import l1inf_classification, l1inf_lipschitz_vector_loss
from tamis.bounds.l1inf_regression import l1inf_lipschitz_loss
from tamis.errors import AssumptionViolated, InvalidInput

some = settings(max_examples=50, deadline=None)

NORMS = st.lists(st.floats(0, 4), min_size=2, max_size=6)
SIZES = (st.integers(0, 4), st.floats(0, 3), NORMS, st.integers(1, 500), st.integers(1, 10**6), st.floats(1e-6, 0.9))


def bracket(k: int, c: float, m: int) -> float:
    powers = sum(c**level for level in range(k + 1)) + c**k
    return math.sqrt((k + 1) * math.log(16)) * powers + c**k * math.sqrt(2 * math.log(2 * m))


@some
@given(*SIZES, st.floats(0, 3), st.floats(0, 3))
def test_lemma_6(k: int, c: float, o: list[float], m: int, n: int, delta: float, rho: float, largest: float) -> None:
    expected = largest * math.sqrt(math.log(2 / delta) / (2 * n))
    expected += 2 * math.sqrt(2) * rho / math.sqrt(n) * sum(o) * bracket(k, c, m)
    found = l1inf_lipschitz_vector_loss(L1InfConstants(k, c, tuple(o), m), n, delta, rho, largest)
    assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-300)
    scalar = l1inf_lipschitz_loss(L1InfConstants(k, c, (sum(o),), m), n, delta, math.sqrt(2) * rho, largest)
    assert found.value == pytest.approx(scalar.value, rel=1e-9, abs=1e-300)


@some
@given(*SIZES)
def test_theorem_7(k: int, c: float, norms: list[float], m: int, n: int, delta: float) -> None:
    classes = len(norms)
    output = (max(norms) + 1 / classes) * max(1.0, c**k)
    union = sum(math.log(classes * norm + 2) for norm in norms)
    expected = (2 * output + math.log(classes)) * math.sqrt((math.log(2 / delta) + 2 * union) / (2 * n))
    slope = 1 + math.sqrt(classes - 1) / (1 + (classes - 1) * math.exp(-2 * output))
    expected += 2 * math.sqrt(2) / math.sqrt(n) * (sum(norms) + 1) * slope * bracket(k, c, m)
    assert l1inf_classification(L1InfConstants(k, c, tuple(norms), m), n, delta).value == pytest.approx(
        expected, rel=1e-9
    )


@some
@given(*SIZES, st.floats(0, 2), st.integers(0, 5))
def test_monotony(k: int, c: float, norms: list[float], m: int, n: int, delta: float, more: float, which: int) -> None:
    here = l1inf_classification(L1InfConstants(k, c, tuple(norms), m), n, delta).value * (1 - 1e-12)
    wider = [norm + more * (position == which % len(norms)) for position, norm in enumerate(norms)]
    assert here <= l1inf_classification(L1InfConstants(k, c + more, tuple(norms), m), n, delta).value
    assert here <= l1inf_classification(L1InfConstants(k, c, tuple(wider), m), n, delta).value
    assert here <= l1inf_classification(L1InfConstants(k, c, tuple(norms), m + 1), n, delta).value
    assert here <= l1inf_classification(L1InfConstants(k, c, tuple(norms), m), n, delta / 2).value
    assert here >= l1inf_classification(L1InfConstants(k, c, tuple(norms), m), n + 1, delta).value * (1 - 1e-11)


@some
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.integers(0, 5))
def test_the_largest_loss_and_its_slope(logits: list[float], label: int) -> None:
    """No cross-entropy exceeds 2F + log m₂, nor its gradient the Lipschitz constant, where no output exceeds F."""
    bound = l1inf_classification(L1InfConstants(0, 1.0, tuple([max(map(abs, logits))] * len(logits)), 2), 100, 0.05)
    values = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(values, torch.tensor([label % len(logits)]))
    (gradient,) = torch.autograd.grad(loss, values)
    assert float(loss.detach()) <= bound.terms["largest loss"]
    assert float(gradient.norm()) <= bound.terms["Lipschitz constant of the loss"]


@pytest.mark.parametrize(("k", "c"), [(1, 2.0), (2, 1.0)])
def test_no_network_fools_a_sample_by_more(k: int, c: float) -> None:
    population, n, repeats, m, o, classes = 60, 30, 40, 2, 3.0, 3
    generator = torch.Generator().manual_seed(k)
    x = torch.rand(1, population, m, generator=generator, dtype=torch.float64) * 2 - 1
    labels = torch.randint(classes, (population,), generator=generator)
    drawn = torch.randint(population, (repeats, n), generator=generator)
    shares = torch.zeros(repeats, population, dtype=torch.float64)
    shares.scatter_add_(1, drawn, torch.full((repeats, n), 1 / n, dtype=torch.float64))
    layers = draw([m, *[6] * k, classes], repeats, generator)

    def gap(networks: list[Tensor]) -> Tensor:
        logits = outputs(within(networks, c, o), x, "relu")
        losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(repeats), reduction="none")
        losses = losses.reshape(repeats, population)
        return (losses.mean(1) - (losses * shares).sum(1)).abs()

    ascend(layers, gap)
    assert float(gap(layers).max()) <= l1inf_classification(L1InfConstants(k, c, (o,) * classes, m), n, 0.05).value


def test_it_is_informative_for_many_samples_only() -> None:
    few, many = (l1inf_classification(L1InfConstants(1, 0.5, (1.0, 1.0), 10), n, 0.05) for n in (100, 10**6))
    assert not few.informative
    assert many.informative


def test_beyond_float64_the_logarithm_stays() -> None:
    bound = l1inf_classification(L1InfConstants(200, 1e3, (1.0, 2.0), 10), 100, 0.05)
    assert bound.value == math.inf
    assert math.isfinite(bound.log_value)


def test_plain_sigmoid_and_nonsense_are_refused() -> None:
    with pytest.raises(AssumptionViolated, match="sigmoid"):
        l1inf_classification(L1InfConstants(1, 1.0, (1.0, 1.0), 2, "sigmoid"), 10, 0.05)
    with pytest.raises(InvalidInput, match=r"at least two outputs, got o = \[1\.0\]"):
        l1inf_classification(L1InfConstants(1, 1.0, (1.0,), 2), 10, 0.05)
