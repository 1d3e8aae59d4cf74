"""Effective sizes, tempering and resampling, of all particles or by structure, against their definitions."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.bayes.resampling import (
    Strata,
    effective_size,
    find_largest_part,
    group_by_structure,
    normalise_log_weights,
    resample_systematically,
)

some = settings(deadline=None, max_examples=40)
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
@given(LOGS, st.sampled_from([0.0, -1e3, -1e8, -1e16, -1e100]))
def test_weights_sum_to_one_however_small_they_are(logs: list[float], shift: float) -> None:
    shifted = doubles(logs) + shift
    found = normalise_log_weights(shifted)
    assert math.isclose(float(found.exp().sum()), 1, rel_tol=1e-8)
    kept = shifted - shifted.max()  # what rounding leaves of them
    assert torch.allclose(found.exp(), torch.softmax(kept, 0), rtol=1e-8)


@some
@given(st.lists(st.floats(0, 1e4), min_size=4, max_size=30), st.floats(0.1, 1))
def test_the_largest_part_of_an_increment(increments: list[float], rest: float) -> None:
    increment, least = doubles(increments), len(increments) / 2
    part = find_largest_part(lambda part: effective_size(-part * increment) >= least, rest)
    assert 0 < part <= rest
    if part < rest:
        assert math.isclose(effective_size(-part * increment), least, rel_tol=1e-6)
    else:
        assert effective_size(-rest * increment) >= least


def test_there_is_progress_where_nothing_can_be_kept() -> None:
    assert find_largest_part(lambda part: False) > 0


@some
@given(LOGS, st.integers(0, 1000))
def test_each_particle_takes_its_share_of_places(logs: list[float], seed: int) -> None:
    places = resample_systematically(doubles(logs), torch.Generator().manual_seed(seed))
    assert len(places) == len(logs)
    counts = torch.bincount(places, minlength=len(logs)).double()
    wanted = torch.softmax(doubles(logs), 0) * len(logs)
    assert bool(((counts >= (wanted - 1e-9).floor()) & (counts <= (wanted + 1e-9).ceil())).all())


def test_shares_are_right_on_average() -> None:
    logs, generator = doubles([0.0, -0.3, -1.0, 0.4, -2.0]), torch.Generator().manual_seed(0)
    counts = (
        sum(torch.bincount(resample_systematically(logs, generator), minlength=5).double() for _ in range(4000)) / 4000
    )
    assert torch.allclose(counts, torch.softmax(logs, 0) * 5, atol=0.03)


@some
@given(LOGS, st.data(), st.floats(0, 0.99), st.integers(0, 1000))
def test_structures_keep_their_weight_and_get_their_places(
    logs: list[float], data: st.DataObject, spread: float, seed: int
) -> None:
    structures = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=len(logs), max_size=len(logs))))
    weights, count = torch.softmax(doubles(logs), 0), len(logs)
    places, after = Strata(group_by_structure(structures), doubles(logs), spread).resample(
        torch.Generator().manual_seed(seed)
    )
    assert len(places) == count and math.isclose(float(after.exp().sum()), 1)
    present = structures.unique().tolist()
    dealt = torch.bincount(structures[places], minlength=5)
    due = {
        each: count * ((1 - spread) * float(weights[structures == each].sum()) + spread / len(present))
        for each in present
    }
    assert all(dealt[each] >= 1 for each in present)
    if all(each >= 1 for each in due.values()):
        assert all(abs(int(dealt[number]) - each) < 1 for number, each in due.items())
    for number in present:
        share = float(weights[structures == number].sum())
        assert math.isclose(float(after[structures[places] == number].exp().sum()), share, rel_tol=1e-9, abs_tol=1e-300)


def test_particles_keep_their_weight_on_average() -> None:
    logs, generator = doubles([0.0, -0.3, -1.0, 0.4, -2.0, -5.0]), torch.Generator().manual_seed(0)
    strata = Strata(group_by_structure(torch.tensor([0, 1, 0, 1, 1, 3])), logs, 0.5)
    total = torch.zeros(6, dtype=torch.float64)
    for _ in range(2000):
        places, after = strata.resample(generator)
        total.index_add_(0, places, after.exp() / 2000)
    assert torch.allclose(total, torch.softmax(logs, 0), atol=0.014)


@some
@given(LOGS, st.data(), st.floats(0, 0.99))
def test_what_is_alive_is_a_part_of_what_a_resampling_gives(
    logs: list[float], data: st.DataObject, spread: float
) -> None:
    structures = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(logs), max_size=len(logs))))
    strata = Strata(group_by_structure(structures), doubles(logs), spread)
    places, after = strata.resample(torch.Generator().manual_seed(0))
    assert math.isclose(strata.relative_size, effective_size(doubles(logs)) / effective_size(after), rel_tol=1e-9)
    assert math.isclose(Strata(group_by_structure(structures[places]), after, spread).relative_size, 1, rel_tol=1e-9)
    one = Strata([torch.arange(len(logs))], doubles(logs), spread)
    assert math.isclose(one.relative_size, effective_size(doubles(logs)) / len(logs), rel_tol=1e-9)
