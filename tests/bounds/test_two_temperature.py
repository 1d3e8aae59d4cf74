"""Theorem 2.1 by running what it speaks of: projected stochastic gradients with steps c/√t, many times."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.bounds.two_temperature import gradient_error, two_temperature
from tamis.errors import InvalidInput

some = settings(max_examples=50, deadline=None)

Floats = NDArray[np.float64]
RUNS = 200


@dataclass(frozen=True)
class Problem:
    """Samples' losses and gradients at v, (runs, d) and indices (runs,); the mean loss, its least value, and G."""

    d: int
    samples: int
    gradient: Callable[[Floats, NDArray[np.int64]], Floats]
    mean_loss: Callable[[Floats], Floats]
    least: float
    largest_gradient: float


def least_squares(d: int, seed: int) -> Problem:
    """½ (a·v − b)², with a solution inside the cube, so that the least mean loss is that of the residuals."""
    rng = np.random.default_rng(seed)
    a, solution = rng.normal(size=(20, d)), rng.random(d)
    residuals = rng.normal(size=20)
    residuals -= a @ np.linalg.lstsq(a, residuals, rcond=None)[0]  # so that the solution is the minimum
    b = a @ solution + 0.5 * residuals
    corners = np.abs(a @ (np.zeros(d)) - b) + np.abs(a).sum(1)
    return Problem(
        d,
        20,
        lambda v, z: ((v * a[z]).sum(1) - b[z])[:, None] * a[z],
        lambda v: ((v @ a.T - b) ** 2).mean(1) / 2,
        float((0.25 * residuals**2).mean() / 2),
        float((corners * np.linalg.norm(a, axis=1)).max()),
    )


def linear(d: int, seed: int) -> Problem:
    """±g·v + g·v/2 by turns: the minimum is a corner, and the noise as large as gradients can be."""
    g = np.random.default_rng(seed).normal(size=d)
    signs = np.array([1.5, -0.5])
    return Problem(
        d,
        2,
        lambda v, z: signs[z][:, None] * g,
        lambda v: v @ g / 2,
        float(np.minimum(g, 0).sum() / 2),
        1.5 * float(np.linalg.norm(g)),
    )


def run(problem: Problem, C: float, c: float, T: int, seed: int) -> tuple[float, float]:
    """The mean gap of the averaged and of the last iterate, errors r being as large as C allows, of either sign."""
    rng = np.random.default_rng(seed)
    v = np.broadcast_to(rng.integers(0, 2, problem.d).astype(float), (RUNS, problem.d))
    total = np.zeros_like(v)
    for t in range(1, T + 1):
        total = total + v
        gradient = problem.gradient(v, rng.integers(problem.samples, size=RUNS))
        direction = rng.normal(size=v.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        error = math.sqrt(C) * problem.largest_gradient * direction
        last, v = v, np.clip(v - c / math.sqrt(t) * (gradient - error), 0, 1)
    gaps = problem.mean_loss(total / T) - problem.least, problem.mean_loss(last) - problem.least
    return float(gaps[0].mean()), float(gaps[1].mean())


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([least_squares, linear]),
    st.integers(1, 6),
    st.floats(0, 3),
    st.floats(-2, 1),
    st.integers(1, 60),
    st.integers(0, 1000),
)
def test_the_mean_gap_never_exceeds_it(
    family: Callable[[int, int], Problem], d: int, C: float, log_c: float, T: int, seed: int
) -> None:
    problem, c = family(d, seed), 10**log_c
    average, _ = run(problem, C, c, T, seed)
    assert average <= two_temperature(d, problem.largest_gradient, C, c, T).value


def test_the_printed_bound_does_not_hold() -> None:
    """Many entries, each of which has the whole way to go: the printed bound does not know how many there are."""
    d, T = 100, 4
    g = np.full(d, 1 / math.sqrt(d))
    slope = Problem(d, 1, lambda v, z: np.broadcast_to(g, v.shape), lambda v: v @ g, 0.0, 1.0)
    v = np.ones((1, d))
    for t in range(1, T):
        v = np.clip(v - slope.gradient(v, np.zeros(1, int)) / math.sqrt(t), 0, 1)
    gap = float(slope.mean_loss(v)[0])
    bound = two_temperature(d, 1.0, 0.0, 1.0, T)
    assert gap > bound.terms["as printed, for the last iterate (does not hold)"]
    assert gap <= bound.value


@some
@given(st.integers(1, 50), st.floats(0, 9), st.floats(0, 9), st.floats(0.01, 9), st.integers(1, 10**6))
def test_the_formula(d: int, G: float, C: float, c: float, T: int) -> None:
    bound = two_temperature(d, G, C, c, T)
    root = math.sqrt(T)
    assert bound.value == pytest.approx(d / (2 * c * root) + c * G**2 * (1 + C) / root)
    assert math.exp(bound.log_value) == pytest.approx(bound.value)
    printed = bound.terms["as printed, for the last iterate (does not hold)"]
    assert printed == pytest.approx(1 / (c * root) + c * G**2 * (1 + C) * (1 + math.log(T)) / T)
    assert bound.informative == (bound.value < G * math.sqrt(d))


@some
@given(st.floats(0.1, 50), st.floats(0.1, 50), st.floats(0, 2), st.integers(0, 1000))
def test_the_error_of_the_gradient(t_l: float, t_s: float, largest: float, seed: int) -> None:
    """r = ∇f − D ∇f, D the product of the two slopes, at any iterates within [−M, M] (27)."""
    rng = np.random.default_rng(seed)
    gradient = rng.normal(size=(50, 4))
    theta, between = rng.uniform(-largest, largest, size=(2, 50, 4))

    def slope(s: Floats) -> Floats:
        return np.asarray(np.exp(-np.abs(s)) / (1 + np.exp(-np.abs(s))) ** 2)

    error = gradient * (1 - t_l * t_s * slope(t_l * between) * slope(t_s * theta))
    ratio = (error**2).sum(1) / (gradient**2).sum(1)
    assert float(ratio.max()) <= gradient_error(t_l, t_s, largest) * (1 + 1e-9)


def test_large_gradients_keep_a_logarithm() -> None:
    bound = two_temperature(1, 1e200, 1.0, 1.0, 1)
    assert bound.value == math.inf
    assert bound.log_value == pytest.approx(400 * math.log(10) + math.log(2))


def test_nonsense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="c = 0"):
        two_temperature(1, 1.0, 1.0, 0.0, 1)
    with pytest.raises(InvalidInput, match="T = 0"):
        two_temperature(1, 1.0, 1.0, 1.0, 0)
