"""Suggestions against an exhaustive search over all pairs of patterns."""

from __future__ import annotations

from itertools import product as pairs
from typing import Any

import pytest

from tamis.errors import InvalidInput
from tamis.kronecker.families import butterfly
from tamis.kronecker.pattern import Pattern, is_chainable, is_dense, nonzeros
from tamis.kronecker.pattern import product as product_of
from tamis.kronecker.suggest import _iterate_chains, suggest


def divisors(n: int) -> list[int]:
    return [size for size in range(1, n + 1) if n % size == 0]


def every_pair(M: int, N: int, most: int) -> set[tuple[Pattern, ...]]:
    """Dense, chainable, within the budget, and no factor to be absorbed: found by trying all."""
    found: set[tuple[Pattern, ...]] = set()
    for d, a, middle in pairs(divisors(M), divisors(N), range(1, most + 1)):
        if middle % d or middle % a:
            continue
        left, right = Pattern(1, M // d, middle // d, d), Pattern(a, middle // a, N // a, 1)
        if not is_chainable(left, right) or nonzeros((left, right)) > most:
            continue
        rank = left.c // right.a
        if product_of(left, right) == Pattern(1, M, N, 1) and rank < min(left.b, right.c):
            found.add((left, right))
    return found


@pytest.mark.parametrize(("M", "N", "most"), [(12, 12, 100), (8, 24, 120), (30, 6, 150), (7, 5, 30), (16, 16, 256)])
def test_pairs_are_all_there_are(M: int, N: int, most: int) -> None:
    got = list(_iterate_chains(M, N, most, 2))
    assert set(got) == every_pair(M, N, most) and len(set(got)) == len(got) > 0


@pytest.mark.parametrize("target", ["time", "energy"])
@pytest.mark.parametrize("factors", [2, 3])
def test_they_are_dense_within_the_budget_and_in_order(target: str, factors: int) -> None:
    given = suggest(24, 36, 0.5, target, factors)
    assert 0 < len(given) <= 20
    for each in given:
        assert is_dense(each.patterns) and each.weights == nonzeros(each.patterns) <= 0.5 * 24 * 36
        assert (each.patterns[0].rows, each.patterns[-1].columns) == (24, 36) and len(each.patterns) <= factors
        ratios = [p.time_ratio if target == "time" else p.energy_ratio for p in each.patterns]
        assert each.ratio == min(ratios)
    assert [each.ratio for each in given] == sorted((each.ratio for each in given), reverse=True)
    assert min(each.weights for each in given) >= max(each.weights for each in given) / 2


@pytest.mark.parametrize("target", ["time", "energy"])
def test_the_first_is_the_best_of_all_pairs(target: str) -> None:
    all_pairs = every_pair(24, 24, 288)
    largest = max(nonzeros(chain) for chain in all_pairs)
    best = max(
        min(p.time_ratio if target == "time" else p.energy_ratio for p in chain)
        for chain in all_pairs
        if 2 * nonzeros(chain) >= largest
    )
    assert suggest(24, 24, 288, target)[0].ratio == best


def test_the_chains_of_the_experiments_are_among_them() -> None:
    """Section 5.5: those of ViT-S/16."""
    square = (Pattern(1, 192, 48, 2), Pattern(2, 48, 192, 1))
    up = (Pattern(1, 768, 192, 2), Pattern(6, 64, 64, 1))
    assert square in set(_iterate_chains(384, 384, nonzeros(square), 2))
    assert up in set(_iterate_chains(1536, 384, nonzeros(up), 2))


def test_butterflies_are_among_longer_chains() -> None:
    assert tuple(butterfly(8)) in set(_iterate_chains(8, 8, 48, 3))
    assert tuple(butterfly(16)) in set(_iterate_chains(16, 16, 128, 4))
    assert all(is_dense(chain) for chain in _iterate_chains(8, 8, 64, 3))


def test_everything_is_within_the_whole_budget() -> None:
    assert suggest(4, 4, 1.0, factors=1)[0].patterns == (Pattern(1, 4, 4, 1),)
    assert suggest(4, 4, 16, factors=1) == suggest(4, 4, 1.0, factors=1)


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "target": ((8, 8, 0.5, "speed"), "target must be one of time, energy, got 'speed'"),
    "share": ((8, 8, 1.5), r"a share of 64 in \(0, 1\] as a float, got 1.5"),
    "none": ((8, 8, 0), "got 0"),
    "factors": ((8, 8, 0.5, "time", 0), "factors must be a whole number ≥ 1, got 0"),
    "size": ((0, 8, 0.5), "M must be a whole number ≥ 1, got 0"),
    "too little": ((8, 8, 10), "no product of at most 2 factors with at most 10 weights is dense at 8 × 8"),
    "one factor": ((8, 8, 0.5, "time", 1), "raise the budget or the number of factors"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        suggest(*arguments)
