"""(4.15): the closed form, what it grows with, and simulated complexities below it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tamis
from tamis.bounds.rademacher_arguments import BALL, sigma_of_box
from tamis.bounds.rademacher_covering import SHARING, rademacher_covering
from tamis.bounds.rademacher_peeling import rademacher_peeling
from tamis.bounds.shape import GraphShape, read_shape
from tamis.errors import InvalidInput

SHAPE = GraphShape(
    d_in=4,
    d_out=3,
    depth=5,
    kernel=1,
    pool_kinds=0,
    pool_layers=0,
    params=100,
    rescalings=20,
    biases=True,
    pooling_in_layers=True,
    weight_sharing=False,
)


def test_the_closed_form() -> None:
    bound = rademacher_covering(SHAPE, path_norm=2.0, sigma=7.0)
    assert bound.value == pytest.approx(144 * 7 * 5 * 10 * 2)
    assert rademacher_covering(replace(SHAPE, d_out=9), 2.0, 7.0).value == pytest.approx(144 * 7 * 9 * 10 * 2)
    # D counts identity neurons here.
    assert rademacher_covering(replace(SHAPE, longest_path=8), 2.0, 7.0).value == pytest.approx(144 * 7 * 8 * 10 * 2)
    assert rademacher_covering(SHAPE, log_path_norm=math.log(2), sigma=7.0).value == pytest.approx(bound.value)
    assert bound.source == "gonon2024thesis, Theorem 4.3.1" and BALL in bound.assumptions
    assert not bound.informative and rademacher_covering(SHAPE, 2.0, 1e6).informative


def test_shared_weights_are_for_the_user_to_vouch_for() -> None:
    shared = rademacher_covering(replace(SHAPE, weight_sharing=True), 2.0, 7.0)
    assert SHARING in shared.assumptions and shared.source.endswith("Theorem C.2.2")
    assert SHARING not in rademacher_covering(SHAPE, 2.0, 7.0).assumptions


def test_norms_beyond_float64() -> None:
    bound = rademacher_covering(SHAPE, log_path_norm=5000.0, sigma=7.0)
    assert bound.value == math.inf and bound.log_value == pytest.approx(5000 + math.log(144 * 7 * 5 * 10))
    nothing = rademacher_covering(SHAPE, path_norm=0.0, sigma=7.0)
    assert nothing.value == 0 and nothing.log_value == -math.inf
    assert rademacher_covering(replace(SHAPE, params=0), 1.0, 7.0).value == 0


@given(
    st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(0, 10**6)),
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**6)),
    st.floats(0.1, 100),
    st.floats(1, 10),
)
def test_it_grows_with_everything_it_is_made_of(
    at: tuple[int, int, int], more: tuple[int, int, int], norm: float, factor: float
) -> None:
    depth, d_out, params = at
    small = replace(SHAPE, depth=depth, longest_path=depth, d_out=d_out, params=params)
    large = replace(
        small, depth=depth + more[0], longest_path=depth + more[0], d_out=d_out + more[1], params=params + more[2]
    )
    value = rademacher_covering(small, norm, 3.0).value
    assert value <= rademacher_covering(large, norm, 3.0).value * (1 + 1e-12)
    assert value <= rademacher_covering(small, norm * factor, 3.0).value * (1 + 1e-12)
    assert rademacher_covering(small, norm, 3.0 * factor).value == pytest.approx(value * factor)


def test_peeling_is_smaller_on_networks() -> None:
    net = tamis.trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.zeros(1, 8))
    shape, sigma = read_shape(net), sigma_of_box(1000, 1.0)
    log_norm = tamis.path_norm(net, log=True)
    covering = rademacher_covering(shape, log_path_norm=log_norm, sigma=sigma)
    assert covering.log_value > rademacher_peeling(shape, log_path_norm=log_norm, sigma=sigma).log_value


def test_errors() -> None:
    with pytest.raises(InvalidInput, match="sigma_of_box"):
        rademacher_covering(SHAPE, 1.0)
    with pytest.raises(InvalidInput, match="one of the two"):
        rademacher_covering(SHAPE, sigma=1.0)
