"""The penalty of Theorem 3.2 and the step that makes scales sparse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tamis.binary.layers import BinaryConv2d, BinaryLinear
from tamis.binary.sparse_scales import count_zero_scales, scale_penalty, shrink_scales
from tamis.bounds import kl_xnor
from tamis.errors import InvalidInput


def with_alpha(values: list[float]) -> BinaryLinear:
    layer = BinaryLinear(3, len(values)).double()
    with torch.no_grad():
        layer.factors["alpha"].copy_(torch.tensor(values, dtype=torch.float64))
    return layer


def shaken() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        BinaryConv2d(2, 3, 3, scale="rank_one", output_size=(4, 5)), nn.Flatten(), BinaryLinear(60, 7)
    ).double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            for factor in layer.factors.values():
                factor.normal_()
                factor[0] = 0.0
    return model


def factors(model: nn.Sequential) -> list[np.ndarray]:
    return [factor.detach().numpy() for layer in (model[0], model[2]) for factor in layer.factors.values()]


def formula(vectors: list[np.ndarray], signs: int, tau: float) -> float:
    total = signs * math.log(2)
    for a in vectors:
        count = np.count_nonzero(a)
        total += 4 * count * math.log(1 + np.abs(a).sum() / (tau * count)) if count else 0.0
    return total


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_the_penalty_is_the_formula(tau: float) -> None:
    model = shaken()
    signs = 3 * 2 * 9 + 60 * 7
    assert scale_penalty(model, tau).item() == pytest.approx(formula(factors(model), signs, tau), rel=1e-12)


@given(st.lists(st.just(0.0) | st.floats(0.001, 10), min_size=1, max_size=6), st.floats(0.01, 2))
def test_for_one_vector_it_is_the_divergence_of_the_bound(values: list[float], tau: float) -> None:
    layer = with_alpha(values)
    alpha = layer.factors["alpha"].detach().numpy()
    expected = kl_xnor([0.0], alpha, signs=3 * len(values), tau=tau)
    assert scale_penalty(layer, tau).item() == pytest.approx(expected)


def test_vectors_apart_cost_no_more_than_together() -> None:
    model = shaken()
    together = np.abs(np.concatenate(factors(model)))
    assert scale_penalty(model, 0.1).item() <= kl_xnor([0.0], together, signs=3 * 2 * 9 + 60 * 7, tau=0.1)


def test_its_gradient_is_that_of_the_l1_norm() -> None:
    model, tau = shaken(), 0.3
    scale_penalty(model, tau).backward()
    for layer in (model[0], model[2]):
        for factor in layer.factors.values():
            a = factor.detach()
            count = int(a.count_nonzero())
            assert factor.grad is not None
            torch.testing.assert_close(factor.grad, a.sign() * 4 * count / (tau * count + a.abs().sum()))


def test_a_step_minimises_the_tangent_and_the_distance() -> None:
    """The optimality conditions of min_{b ≥ 0} slope · b + (b − a)² / (2 step), for all but the largest."""
    step, tau = 0.05, 0.3
    before = [0.01, 0.5, -0.2, 3.0, -0.02]
    layer = with_alpha(before)
    slope = 4 * 5 / (tau * 5 + sum(map(abs, before)))
    shrink_scales(layer, step, tau)
    after = layer.factors["alpha"].tolist()
    for old, new in zip(before, after, strict=True):
        gradient = slope + (abs(new) - abs(old)) / step
        assert gradient == pytest.approx(0, abs=1e-9) if new else gradient >= 0
        assert new == 0 or math.copysign(1, new) == math.copysign(1, old)
    assert count_zero_scales(layer) == (2, 5)


def test_steps_lower_the_penalty_until_one_scale_is_left() -> None:
    model = shaken()
    penalties = [scale_penalty(model, 0.1).item()]
    for _ in range(300):
        shrink_scales(model, 0.05, 0.1)
        penalties.append(scale_penalty(model, 0.1).item())
    assert penalties == sorted(penalties, reverse=True)
    assert all(np.count_nonzero(a) == 1 for a in factors(model))
    zeros, total = count_zero_scales(model)
    assert (zeros, total) == (3 + 4 + 5 + 7 - 4, 3 + 4 + 5 + 7)


def test_a_scale_that_is_gone_stays_gone() -> None:
    model = shaken().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 2, 6, 7)).square().mean().backward()
        optimizer.step()
    assert all(a[0] == 0 for a in factors(model)) and count_zero_scales(model)[0] == 4


def test_a_vector_of_zeros_stays_zero() -> None:
    layer = with_alpha([0.0, 0.0])
    shrink_scales(layer, 0.1, 0.1)
    assert layer.factors["alpha"].tolist() == [0, 0]
    assert scale_penalty(layer, 0.1).item() == pytest.approx(6 * math.log(2))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidInput, match="tau must be a number > 0, got 0"):
        scale_penalty(shaken(), 0)
    with pytest.raises(InvalidInput, match=r"step must be a number ≥ 0, got -1"):
        shrink_scales(shaken(), -1, 0.1)
    with pytest.raises(InvalidInput, match="ReLU has no binary layer"):
        scale_penalty(nn.ReLU(), 0.1)
