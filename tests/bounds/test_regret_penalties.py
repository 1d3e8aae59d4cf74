"""The constants, the recursions and the rise of the loss against draws from the shifted prior."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad

from tamis.bounds.regret_penalties import (
    PerturbedLayer,
    compute_recursions,
    convolution_layer,
    dense_layer,
    perturbation_moments,
    perturbation_penalties,
)
from tamis.errors import AssumptionViolated, InvalidInput

some = settings(max_examples=40, deadline=None)

Floats = NDArray[np.float64]
Expert = list[tuple[Floats, Floats]]


def perturbations(expert: Floats, tau: float, R: float, many: int, rng: np.random.Generator) -> Floats:
    """Draws of w − w*, (many, *shape), by inverting the distribution function on either side of w*."""
    right, left = ((1 + (R - sign * expert) / tau) ** -3.0 for sign in (1, -1))
    negative = rng.random((many, *expert.shape)) < (1 - left) / (2 - left - right)
    tail = np.where(negative, left, right)
    sizes = tau * ((1 - rng.random(negative.shape) * (1 - tail)) ** (-1 / 3) - 1)
    return np.where(negative, -sizes, sizes)


def draw_expert(widths: list[int], rng: np.random.Generator, largest: float) -> Expert:
    """Weights and biases in [−largest, largest], about half of them zero."""

    def sparse(*shape: int) -> Floats:
        return rng.uniform(-largest, largest, shape) * rng.integers(0, 2, shape)

    return [(sparse(after, before), sparse(after)) for before, after in pairwise(widths)]


def activations(expert: Expert, x: Floats, tau: float, R: float, many: int, seed: int) -> list[tuple[Floats, Floats]]:
    """x_l of perturbed networks, (many, width), beside x*_l, layer by layer; the last without ReLU."""
    rng = np.random.default_rng(seed)
    moved, fixed, found = np.broadcast_to(x, (many, len(x))), x, []
    for position, (weight, bias) in enumerate(expert):
        w = weight + perturbations(weight, tau, R, many, rng)
        b = bias + perturbations(bias, tau, R, many, rng)
        moved, fixed = np.einsum("noi,ni->no", w, moved) + b, weight @ fixed + bias
        if position < len(expert) - 1:
            moved, fixed = np.maximum(moved, 0), np.maximum(fixed, 0)
        found.append((moved, fixed))
    return found


def layers_of(expert: Expert, tau: float, R: float) -> list[PerturbedLayer]:
    return [dense_layer(weight, bias, tau, R) for weight, bias in expert]


def cross_entropy(logits: Floats, label: int) -> Floats:
    largest = logits.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0] - logits[..., label])


@some
@given(st.floats(-1, 1), st.floats(0.05, 2), st.floats(1, 4))
def test_moments_by_integration(weight: float, tau: float, R: float) -> None:
    found = perturbation_moments([weight], tau, R)

    def integral(power: int, low: float, high: float) -> float:
        # No absolute tolerance: for a small τ the integral itself is about as small as the default.
        return float(quad(lambda u: u**power * (1 + abs(u) / tau) ** -4, low, high, epsabs=0, epsrel=1e-10)[0])

    sides = (-R - weight, 0.0), (0.0, R - weight)
    total = sum(integral(0, *side) for side in sides)
    assert found.mean[0] == pytest.approx(sum(integral(1, *side) for side in sides) / total / tau, abs=1e-5)
    assert found.square[0] == pytest.approx(sum(integral(2, *side) for side in sides) / total / tau**2, rel=1e-6)
    assert found.one_sided[0] == pytest.approx(max(integral(2, *side) for side in sides) / total / tau**2, rel=1e-6)
    assert found.square[0] <= 1


def test_without_truncation_the_standard_deviation_is_tau() -> None:
    layer = dense_layer(np.ones((5, 3)), np.ones(5), 0.3)
    assert layer.c1 == layer.c2 == pytest.approx(0.3 * math.sqrt(5 / 2))
    assert layer.d1 == layer.d2 == pytest.approx(0.3 * math.sqrt(5))
    kernel = convolution_layer(np.ones((4, 2, 3, 3)), np.ones(4), positions=36, tau=0.3)
    assert kernel.c1 == pytest.approx(0.3 * math.sqrt(4 * 9 / 2))
    assert kernel.c2 == pytest.approx(0.3 * math.sqrt(4 * 36 / 2))


@pytest.mark.parametrize("R", [0.5, 1.0, math.inf])
@pytest.mark.parametrize("shape", [(1, 1), (8, 3), (3, 40)])
def test_constants_of_dense_layers(shape: tuple[int, int], R: float) -> None:
    """For directions x at random, and along each input, and along the mean perturbation."""
    rng = np.random.default_rng(0)
    for weight in (np.zeros(shape), rng.uniform(-0.5, 0.5, shape), np.full(shape, 0.5)):
        bias = weight[:, 0]
        layer = dense_layer(weight, bias, 0.3, R)
        directions = np.vstack([rng.normal(size=(4, shape[1])), np.eye(shape[1])[:2], np.ones(shape[1])])
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        moved = perturbations(weight, 0.3, R, 4000, rng) @ directions.T
        shifts = perturbations(bias, 0.3, R, 4000, rng)
        for sign in (1, -1):
            assert np.linalg.norm(np.maximum(sign * moved, 0), axis=1).mean(0).max() <= layer.c1 * 1.02
            assert np.linalg.norm(np.maximum(sign * shifts, 0), axis=1).mean() <= layer.c2 * 1.02
        assert np.linalg.norm(moved, axis=1).mean(0).max() <= layer.d1 * 1.02
        assert np.linalg.norm(shifts, axis=1).mean() <= layer.d2 * 1.02


def test_many_truncated_inputs_need_the_mean() -> None:
    """With all weights near R perturbations point inwards and add up: τ√(n/2) alone would be too small."""
    weight = np.full((1, 400), 0.9)
    layer = dense_layer(weight, None, 0.3, 1.0)
    moved = perturbations(weight, 0.3, 1.0, 2000, np.random.default_rng(0))
    found = np.abs(moved.sum(2) / 20).mean()
    assert 0.3 * math.sqrt(1 / 2) < found <= layer.c1


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("R", [1.0, math.inf])
def test_constants_of_convolutions(stride: int, padding: int, R: float) -> None:
    rng = np.random.default_rng(0)
    kernel, bias = rng.uniform(-0.9, 0.9, (3, 2, 3, 3)), rng.uniform(-0.9, 0.9, 3)
    x = torch.from_numpy(rng.normal(size=(8, 2, 6, 6)))
    x = x / x.flatten(1).norm(dim=1)[:, None, None, None]
    own = F.conv2d(x, torch.from_numpy(kernel), stride=stride, padding=padding)
    places = own.shape[2:]
    layer = convolution_layer(kernel, bias, math.prod(places), 0.3, R)
    assert float(own.flatten(1).norm(dim=1).max()) <= layer.norm
    draws = [torch.from_numpy(each) for each in perturbations(kernel, 0.3, R, 500, rng)]
    moved = torch.stack([F.conv2d(x, each, stride=stride, padding=padding).flatten(1) for each in draws])
    assert float(moved.norm(dim=2).mean(0).max()) <= layer.d1
    assert float(moved.clamp_min(0).norm(dim=2).mean(0).max()) <= layer.c1
    shifts = perturbations(bias, 0.3, R, 4000, rng).repeat(math.prod(places), axis=1)
    assert np.linalg.norm(shifts, axis=1).mean() <= layer.d2 * 1.02
    assert layer.bias_norm == pytest.approx(np.linalg.norm(np.maximum(bias.repeat(math.prod(places)), 0)))


@pytest.mark.parametrize("R", [1.0, math.inf])
@pytest.mark.parametrize("widths", [[2, 3, 2], [3, 20, 20, 3], [1, 4, 4, 4, 2]])
@pytest.mark.parametrize("tau", [0.02, 0.3])
def test_the_recursions_and_the_rise(widths: list[int], tau: float, R: float) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        expert = draw_expert(widths, rng, largest=1.0)
        x = rng.normal(size=widths[0]) * 10 ** rng.uniform(-2, 1)
        layers, norm = layers_of(expert, tau, R), float(np.linalg.norm(x))
        *hidden, (logits, own) = activations(expert, x, tau, R, 3000, seed)
        sizes, distances = compute_recursions(layers[:-1])
        for (moved, fixed), size, distance in zip(hidden, sizes[1:], distances[1:], strict=True):
            assert np.linalg.norm(moved, axis=1).mean() <= 1.02 * (size.slope * norm + size.offset)
            assert np.linalg.norm(moved - fixed, axis=1).mean() <= 1.02 * (distance.slope * norm + distance.offset)
        rise = max(
            float(cross_entropy(logits, label).mean() - cross_entropy(own, label)) for label in range(widths[-1])
        )
        assert rise <= perturbation_penalties(layers).rise([norm])


def test_the_printed_lemma_4_3_does_not_hold() -> None:
    """Neurons that are active move both ways: E‖x − x*‖ is E‖b‖, not E‖ReLU(b)‖."""
    tau, width = 0.1, 200
    expert: Expert = [(np.zeros((width, 1)), np.full(width, 5.0)), (np.zeros((2, width)), np.zeros(2))]
    (moved, fixed), _ = activations(expert, np.zeros(1), tau, math.inf, 2000, 0)
    found = np.linalg.norm(moved - fixed, axis=1).mean()
    layer = dense_layer(*expert[0], tau)
    assert layer.c2 < found <= layer.d2


def test_the_recursions_written_out() -> None:
    first = PerturbedLayer(norm=2.0, bias_norm=0.5, c1=0.1, c2=0.2, d1=0.15, d2=0.3)
    last = PerturbedLayer(norm=3.0, bias_norm=0.7, c1=0.4, c2=0.6, d1=0.5, d2=0.9)
    found = perturbation_penalties([first, last])
    assert found.pen1 == pytest.approx(0.4 * (2.0 + 0.1) + 3.0 * 0.15)
    assert found.pen2 == pytest.approx(0.4 * (0.2 + 0.5) + 3.0 * 0.3 + 0.6)
    assert found.rise([1.0, 2.0]) == pytest.approx(2 * found.pen1 * 3.0 + 4 * found.pen2)


def test_penalties_are_proportional_to_tau_where_it_is_small() -> None:
    expert = draw_expert([3, 5, 5, 2], np.random.default_rng(0), 1.0)
    one, two = (perturbation_penalties(layers_of(expert, tau, math.inf)) for tau in (1e-6, 2e-6))
    assert two.pen1 == pytest.approx(2 * one.pen1, rel=1e-4)
    assert two.pen2 == pytest.approx(2 * one.pen2, rel=1e-4)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one layer"):
        perturbation_penalties([])
    with pytest.raises(InvalidInput, match=r"\(3,\)"):
        dense_layer(np.ones((2, 2)), np.ones(3), 0.3)
    with pytest.raises(InvalidInput, match="two dimensions"):
        dense_layer(np.ones(2), None, 0.3)
    with pytest.raises(AssumptionViolated, match="R = 1"):
        dense_layer(np.full((2, 2), 1.5), None, 0.3, 1.0)
