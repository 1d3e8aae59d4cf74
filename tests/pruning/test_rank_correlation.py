"""Overlap and rank correlation against their literal definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput
from tamis.pruning.rank_correlation import overlap, rank_correlation

quick = settings(max_examples=80, deadline=None)
SHAPES = {"b": (2, 3), "a": (4,), "c": (1, 1, 2)}


@st.composite
def two_sets(draw: Any, distinct: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two tensors for each of some names, of a few distinct values."""
    names = draw(st.permutations(sorted(SHAPES)))[: draw(st.integers(1, 3))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    first, second = (
        {name: torch.randint(0, distinct, SHAPES[name], generator=generator) / 4 for name in order}
        for order in (names, reversed(names))
    )
    return first, second


def entries(values: dict[str, Tensor]) -> list[float]:
    return [value for name in sorted(values) for value in values[name].flatten().tolist()]


def average_ranks(values: list[float]) -> list[float]:
    """Of each value: how many are smaller, and in the middle of those that are equal."""
    return [sum(v < value for v in values) + (1 + sum(v == value for v in values)) / 2 for value in values]


def pearson(x: list[float], y: list[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return float(covariance / (sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y)) ** 0.5)


@quick
@given(two_sets(distinct=2))
def test_overlap_is_the_share_of_pruned_weights_in_common(drawn: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    first, second = ({name: value == 0 for name, value in each.items()} for each in drawn)
    pruned = [
        {(n, i) for n, mask in each.items() for i, kept in enumerate(mask.flatten().tolist()) if not kept}
        for each in (first, second)
    ]
    if not pruned[0]:
        with pytest.raises(InvalidInput, match="the first mask prunes nothing"):
            overlap(first, second)
    else:
        assert overlap(first, second) == len(pruned[0] & pruned[1]) / len(pruned[0])
        assert overlap(first, first) == 1.0
        assert overlap(first, {name: torch.ones_like(mask) for name, mask in first.items()}) == 0.0


@quick
@given(st.sampled_from([2, 3, 10**6]).flatmap(lambda distinct: two_sets(distinct)))
def test_rank_correlation_is_spearmans(drawn: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    first, second = drawn
    values = entries(first), entries(second)
    if any(len(set(each)) == 1 for each in values):
        with pytest.raises(InvalidInput, match="values that are all equal is not defined"):
            rank_correlation(first, second)
    else:
        expected = pearson(*map(average_ranks, values))
        assert rank_correlation(first, second) == pytest.approx(expected, abs=1e-12)
        assert rank_correlation(first, first) == pytest.approx(1.0)
        assert rank_correlation(first, {name: -value for name, value in first.items()}) == pytest.approx(-1.0)
        monotone = {name: torch.exp(value.double() / 1e6) for name, value in first.items()}
        assert rank_correlation(monotone, second) == pytest.approx(expected, abs=1e-12)


@quick
@given(two_sets(distinct=2))
def test_of_two_masks_it_is_the_phi_coefficient(drawn: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    first, second = ({name: value == 0 for name, value in each.items()} for each in drawn)
    pairs = list(zip(entries(first), entries(second), strict=True))
    n11, n10, n01, n00 = (pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))
    sides = (n11 + n10) * (n01 + n00) * (n11 + n01) * (n10 + n00)
    if sides:
        assert rank_correlation(first, second) == pytest.approx((n11 * n00 - n10 * n01) / sides**0.5, abs=1e-12)


def test_other_scores_may_have_more_names() -> None:
    """So that costs of all parameters can be compared with magnitudes of those that are pruned."""
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.zeros(1, 4))
    small = tamis.prune(net, 0.5)
    magnitudes = {name: net.params[name].abs() for name in small.masks}
    costs = tamis.path_costs(net).values
    assert set(costs) > set(magnitudes)
    expected = pearson(*map(average_ranks, (entries(magnitudes), entries({n: costs[n] for n in magnitudes}))))
    assert rank_correlation(magnitudes, costs) == pytest.approx(expected)


def test_what_cannot_be_compared() -> None:
    mask, other = torch.tensor([True, False]), torch.tensor([[True, False]])
    for compare in (overlap, rank_correlation):
        with pytest.raises(InvalidInput, match=r"only one of the two has fc\.weight"):
            compare({"fc.weight": mask, "a": mask}, {"a": mask})
        with pytest.raises(InvalidInput, match=r"'a' has shapes \(2,\) and \(1, 2\)"):
            compare({"a": mask}, {"a": other})
        with pytest.raises(InvalidInput, match="nothing"):
            compare({}, {})
    with pytest.raises(InvalidInput, match=r"only one of the two has b"):
        overlap({"a": mask}, {"a": mask, "b": mask})
