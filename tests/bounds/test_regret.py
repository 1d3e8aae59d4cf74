"""Theorem 4.1 exactly, on finitely many experts and all draws of the learner; Theorem 3.1 on a grid of networks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from tamis.bounds.regret import Expert, sparse_regret, xnor_regret
from tamis.bounds.regret_divergence import kl_exact, kl_xnor
from tamis.bounds.regret_penalties import Penalties, dense_layer, perturbation_penalties
from tamis.errors import InvalidInput

some = settings(max_examples=50, deadline=None)

Floats = NDArray[np.float64]
NONE = Penalties(0.0, 0.0)
EXPERT = np.array([-0.6, 0.0])


def learner(losses: Floats, prior: Floats, lam: float, draws: tuple[int, ...]) -> tuple[float, Floats, Floats]:
    """Algorithm 1 for given draws: how likely they are, their losses, and the squared differences (rounds, experts)."""
    probability, h = 1.0, np.zeros(len(prior))
    own, squares = np.zeros(len(draws)), np.zeros(losses.shape)
    for t, drawn in enumerate(draws):
        posterior = prior * np.exp(-lam * (h - h.min()))
        probability *= posterior[drawn] / posterior.sum()
        own[t], squares[t] = losses[t, drawn], (losses[t] - losses[t, drawn]) ** 2
        h = h + losses[t] + lam / 2 * squares[t]
    return probability, own, squares


LOSSES = arrays(np.float64, (4, 3), elements=st.floats(0, 20))


@settings(max_examples=30, deadline=None)
@given(LOSSES, st.floats(0.01, 10), st.tuples(*[st.floats(0.01, 1)] * 3), st.tuples(*[st.floats(0, 1)] * 3))
def test_no_expert_and_no_mixture_is_beaten_by_more(
    losses: Floats, lam: float, masses: tuple[float, ...], mixing: tuple[float, ...]
) -> None:
    """Expectations over all 81 sequences of draws; losses need not be small."""
    prior = np.array(masses) / sum(masses)
    runs = [learner(losses, prior, lam, draws) for draws in itertools.product(range(3), repeat=4)]
    assert sum(run[0] for run in runs) == pytest.approx(1)
    expected = sum(probability * own.sum() for probability, own, _ in runs)
    squares = sum(probability * each for probability, _, each in runs)
    mixtures = [*np.eye(3), np.array(mixing) / sum(mixing)] if sum(mixing) else [*np.eye(3)]
    for rho in mixtures:
        kl = sum(p * math.log(p / q) for p, q in zip(rho, prior, strict=True) if p)
        bound = xnor_regret(
            Expert(float(losses.sum(0) @ rho), max(kl, 0.0)),
            0.0,
            float(np.sum(squares @ rho)),
            lam,
            rounds=4,
            classes=3,
        )
        assert expected <= bound.value * (1 + 1e-9) + 1e-9


def test_without_the_squared_differences_it_does_not_hold() -> None:
    """Two experts that trade places: at a large λ the learner follows the wrong one."""
    losses, prior, lam = np.array([[0.0, 0.1], [9.0, 0.0]]), np.array([0.5, 0.5]), 20.0
    runs = [learner(losses, prior, lam, draws) for draws in itertools.product(range(2), repeat=2)]
    expected = sum(probability * own.sum() for probability, own, _ in runs)
    second = float(losses[:, 1].sum()) + math.log(2) / lam
    assert expected > second


def grid_learner(lam: float, tau: float, R: float, seed: int, runs: int) -> tuple[float, float, Floats, Floats]:
    """A learner over logits (w₁x, w₂x), the prior on a grid: its loss, V_T, the inputs, and the expert's losses."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=25)
    labels = (rng.random(25) < 1 / (1 + np.exp(3 * x))).astype(int)
    axis = np.linspace(-R, R, 82)[:-1] + R / 81
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    prior, rho = (((1 + np.abs(grid - centre) / tau) ** -4).prod(1) for centre in (0.0, EXPERT))
    prior, rho = prior / prior.sum(), rho / rho.sum()
    logits = grid[:, None, :] * x[:, None]  # (networks, rounds, 2)
    losses = np.logaddexp(logits[..., 0], logits[..., 1]) - np.take_along_axis(logits, labels[None, :, None], 2)[..., 0]
    total, squared = 0.0, 0.0
    for _ in range(runs):
        h = np.zeros(len(grid))
        for t in range(len(x)):
            posterior = prior * np.exp(-lam * (h - h.min()))
            drawn = rng.choice(len(grid), p=posterior / posterior.sum())
            squares = (losses[:, t] - losses[drawn, t]) ** 2
            total, squared = total + losses[drawn, t], squared + float(rho @ squares)
            h = h + losses[:, t] + lam / 2 * squares
    own = np.logaddexp(EXPERT[0] * x, EXPERT[1] * x) - EXPERT[labels] * x
    return total / runs, squared / runs, x, own


@pytest.mark.parametrize("lam", [0.1, 1.0])
def test_a_learner_of_small_networks(lam: float) -> None:
    tau, R = 0.2, 2.0
    loss, squares, x, own = grid_learner(lam, tau, R, seed=0, runs=20)
    bound = sparse_regret(
        Expert(float(own.sum()), kl_exact(EXPERT, tau, R)),
        perturbation_penalties([dense_layer(EXPERT[:, None], None, tau, R)]),
        [float(size) for size in np.abs(x)],
        squares,
        lam,
        classes=2,
    )
    assert loss <= bound.value
    assert bound.terms["regret"] == pytest.approx(bound.value - own.sum())


@some
@given(st.floats(0, 100), st.floats(0, 3), st.floats(0, 3), st.floats(0, 50), st.floats(0, 50), st.floats(0.01, 10))
def test_the_formula(loss: float, pen1: float, pen2: float, squares: float, kl: float, lam: float) -> None:
    found = sparse_regret(Expert(loss, kl), Penalties(pen1, pen2), [0.5, 2.0, 1.0], squares, lam, classes=4)
    expected = loss + 2 * pen1 * 3.5 + 2 * 3 * pen2 + lam / 2 * squares + kl / lam
    assert found.value == pytest.approx(expected)
    assert found.informative == (found.value < 3 * math.log(4))


def test_an_xnor_learner_pays_for_its_signs() -> None:
    kl = kl_xnor([0.5], [0.3], signs=100, tau=0.3, R=1.0)
    bound = xnor_regret(Expert(10.0, kl), -1.0, 4.0, lam=2.0, rounds=100, classes=10)
    assert bound.value == pytest.approx(10 - 1 + 4 + kl / 2)
    assert bound.terms["KL/λ"] > 50 * math.log(2)
    assert bound.source == "chee2021xnor, Theorem 3.2"


def test_nonsense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lam = 0"):
        sparse_regret(Expert(1.0, 1.0), NONE, [1.0], 1.0, 0.0, classes=2)
    with pytest.raises(InvalidInput, match="kl = -1"):
        sparse_regret(Expert(1.0, -1.0), NONE, [1.0], 1.0, 1.0, classes=2)
    with pytest.raises(InvalidInput, match=r"1.0 \+ -2.0"):
        xnor_regret(Expert(1.0, 1.0), -2.0, 1.0, 1.0, rounds=1, classes=2)
    with pytest.raises(InvalidInput, match="input_norms"):
        sparse_regret(Expert(1.0, 1.0), NONE, [-1.0], 1.0, 1.0, classes=2)
    with pytest.raises(InvalidInput, match="classes = 1"):
        sparse_regret(Expert(1.0, 1.0), NONE, [1.0], 1.0, 1.0, classes=1)
