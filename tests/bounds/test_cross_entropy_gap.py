"""Theorem 4.1.1 for the cross-entropy: closed form, what it scales with, and a simulated gap below it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tamis
from tamis.bounds.bound import Bound
from tamis.bounds.cross_entropy_gap import cross_entropy_gap
from tamis.bounds.rademacher_arguments import UP_TO_CONSTANTS, sigma_of_box
from tamis.bounds.rademacher_peeling import rademacher_peeling
from tamis.bounds.shape import read_shape
from tamis.errors import AssumptionViolated, InvalidInput


def complexity(value: float, d_out: float = 10.0, assumptions: tuple[str, ...] = ("a", "b")) -> Bound:
    log_value = math.log(value)
    return Bound(value, log_value, True, "gonon2024thesis, Theorem 4.4.1", assumptions, ("c",), {"d_out": d_out})


@given(st.floats(1e-6, 1e12), st.integers(1, 10**9))
def test_the_closed_form(value: float, n: int) -> None:
    bound = cross_entropy_gap(complexity(value), n)
    assert bound.value == pytest.approx(2 * math.sqrt(2) * math.sqrt(2) / n * value)
    assert bound.log_value == pytest.approx(math.log(bound.value), abs=1e-9)
    assert bound.informative == (bound.value < math.log(10))
    assert cross_entropy_gap(complexity(value), n + 1).value < bound.value
    assert set(complexity(1.0).assumptions) < set(bound.assumptions) and bound.checked == ("c",)


def test_the_cross_entropy_is_root_two_lipschitz() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (10 * torch.randn(2000, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    F.cross_entropy(x, torch.randint(0, 5, (2000,), generator=generator), reduction="sum").backward()
    assert x.grad is not None
    assert 1.4 < float(x.grad.norm(dim=1).max()) <= math.sqrt(2)


def test_a_fitted_network_stays_below() -> None:
    """Labels are noise: whatever the classifier learns from 20 samples is gap."""
    net = tamis.trace(nn.Linear(2, 2, bias=False), torch.zeros(1, 2))
    n, norm = 20, 4.0
    bound = cross_entropy_gap(rademacher_peeling(read_shape(net), path_norm=norm, sigma=sigma_of_box(n, 1.0)), n)
    gaps = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        x = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1
        y = torch.randint(0, 2, (n,), generator=generator)
        candidates = torch.randn(500, 2, 2, generator=generator, dtype=torch.float64)
        candidates = norm * candidates / candidates.abs().sum((1, 2), keepdim=True)
        logits = torch.einsum("coi,ni->cno", candidates, x)
        losses = F.cross_entropy(logits.flatten(0, 1), y.repeat(500), reduction="none").view(500, n).mean(1)
        fitted = candidates[losses.argmin()]
        fresh = 2 * torch.rand(4000, 2, generator=generator, dtype=torch.float64) - 1
        logits = fresh @ fitted.T
        expected = -0.5 * F.log_softmax(logits, 1).sum(1).mean()  # both labels are equally likely
        gaps.append(float(expected - losses.min()))
    assert 0 < sum(gaps) / len(gaps) <= bound.value


def test_what_holds_up_to_constants_is_never_informative() -> None:
    assert cross_entropy_gap(complexity(1.0), 100).informative
    assert not cross_entropy_gap(complexity(1.0, assumptions=(UP_TO_CONSTANTS,)), 100).informative
    far = replace(complexity(1.0), value=math.inf, log_value=3000.0)
    assert cross_entropy_gap(far, 100).log_value == pytest.approx(3000 + math.log(0.04))


def test_errors() -> None:
    with pytest.raises(InvalidInput, match="n = 0"):
        cross_entropy_gap(complexity(1.0), 0)
    with pytest.raises(AssumptionViolated, match="two classes at least, the network has 1 output"):
        cross_entropy_gap(complexity(1.0, d_out=1), 10)
    with pytest.raises(InvalidInput, match=r"'d_out' in the terms of gonon2024thesis, Theorem 4\.4\.1"):
        cross_entropy_gap(replace(complexity(1.0), terms={}), 10)
