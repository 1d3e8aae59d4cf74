"""Effective sizes, tempering and systematic resampling against their definitions."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.bayes.resampling import effective_size, largest_part, systematic

some = settings(deadline=None)
LOGS = st.lists(st.floats(-20, 5), min_size=2, max_size=30)


def doubles(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@some
@given(LOGS)
def test_the_effective_size(logs: list[float]) -> None:
    weights = doubles(logs).exp()
    assert math.isclose(effective_size(doubles(logs)), float(weights.sum() ** 2 / (weights**2).sum()), rel_tol=1e-9)
    assert 1 - 1e-9 <= effective_size(doubles(logs)) <= len(logs) + 1e-9


@some
@given(st.lists(st.floats(0, 1e4), min_size=4, max_size=30), st.floats(0.1, 1))
def test_the_largest_part_of_an_increment(increments: list[float], rest: float) -> None:
    even, increment = torch.zeros(len(increments), dtype=torch.float64), doubles(increments)
    least = len(increments) / 2
    part = largest_part(even, increment, least, rest)
    assert 0 < part <= rest
    if part < rest:
        assert math.isclose(effective_size(-part * increment), least, rel_tol=1e-6)
    else:
        assert effective_size(-rest * increment) >= least


def test_there_is_progress_where_nothing_can_be_kept() -> None:
    assert largest_part(doubles([0.0, -50.0]), doubles([0.0, 1.0]), 1.9) > 0


@some
@given(LOGS, st.integers(0, 1000))
def test_each_particle_takes_its_share_of_places(logs: list[float], seed: int) -> None:
    places = systematic(doubles(logs), torch.Generator().manual_seed(seed))
    assert len(places) == len(logs)
    counts = torch.bincount(places, minlength=len(logs)).double()
    wanted = torch.softmax(doubles(logs), 0) * len(logs)
    assert bool(((counts >= (wanted - 1e-9).floor()) & (counts <= (wanted + 1e-9).ceil())).all())


def test_shares_are_right_on_average() -> None:
    logs, generator = doubles([0.0, -0.3, -1.0, 0.4, -2.0]), torch.Generator().manual_seed(0)
    counts = sum(torch.bincount(systematic(logs, generator), minlength=5).double() for _ in range(4000)) / 4000
    assert torch.allclose(counts, torch.softmax(logs, 0) * 5, atol=0.03)
