"""Patterns against their matrices."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import AssumptionViolated, InvalidInput
from tamis.kronecker.families import butterfly, kaleidoscope
from tamis.kronecker.pattern import (
    Pattern,
    as_chain,
    is_chainable,
    is_dense,
    nonzeros,
    product,
    product_density,
    product_support,
)

SIZES = st.integers(1, 4)
PATTERNS = st.builds(Pattern, SIZES, SIZES, SIZES, SIZES)


@st.composite
def fitting_pairs(draw: st.DrawFn) -> tuple[Pattern, Pattern]:
    """Two patterns whose sizes fit, chainable or not."""
    left = draw(PATTERNS)
    a = draw(st.sampled_from([n for n in range(1, left.columns + 1) if left.columns % n == 0]))
    rest = left.columns // a
    d = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
    return left, Pattern(a, rest // d, draw(SIZES), d)


@given(PATTERNS)
def test_sizes_and_support_are_those_of_the_kronecker_product(pattern: Pattern) -> None:
    a, b, c, d = pattern.shape
    support = torch.kron(torch.kron(torch.eye(a), torch.ones(b, c)), torch.eye(d)).bool()
    assert torch.equal(pattern.support(), support)
    assert (pattern.rows, pattern.columns) == tuple(support.shape)
    assert pattern.nonzeros == int(support.sum()) == pattern.cost()
    assert pattern.cost(7) == 7 * pattern.nonzeros
    assert pattern.density == Fraction(int(support.sum()), support.numel())
    assert torch.equal(pattern.transposed.support(), support.T)
    moved = pattern.rows + pattern.columns
    assert pattern.time_ratio == pytest.approx(moved / pattern.nonzeros)
    assert pattern.energy_ratio == pytest.approx(d * moved / pattern.nonzeros)


@given(fitting_pairs())
def test_the_support_of_a_product_of_two(pair: tuple[Pattern, Pattern]) -> None:
    left, right = pair
    counts = left.support().double() @ right.support().double()
    assert torch.equal(product_support(pair), counts > 0)
    assert product_density(pair) == Fraction(int((counts > 0).sum()), counts.numel())
    assert is_dense(pair) == bool((counts > 0).all())
    if is_chainable(left, right):
        rank = left.a * left.c // right.a
        assert rank * left.d == right.b * right.d
        assert torch.equal(counts, rank * product(left, right).support().double())
    else:
        with pytest.raises(AssumptionViolated, match=r"no Kronecker pattern: .* are not chainable"):
            product(left, right)


@given(fitting_pairs(), st.data())
def test_the_density_of_longer_products(pair: tuple[Pattern, Pattern], data: st.DataObject) -> None:
    right = pair[1]
    third = Pattern(1, right.columns, data.draw(SIZES), 1) if data.draw(st.booleans()) else right.transposed
    chain = (*pair, third)
    counts = chain[0].support().double() @ chain[1].support().double() @ chain[2].support().double()
    assert product_density(chain) == Fraction(int((counts > 0).sum()), counts.numel())
    assert nonzeros(chain) == sum(int(each.support().sum()) for each in chain)


def test_butterflies_are_dense_and_their_parts_are_not() -> None:
    assert is_dense(butterfly(4096)) and is_dense(kaleidoscope(4096))
    for first, last in ((0, 3), (1, 4), (1, 2)):
        part = butterfly(16)[first:last]
        assert product_density(part) == Fraction(2 ** (last - first), 16)


def test_patterns_are_values() -> None:
    pattern = Pattern(1, 2, 3, 4)
    assert pattern == Pattern(a=1, b=2, c=3, d=4) and len({pattern, Pattern(1, 2, 3, 4)}) == 1
    assert str(pattern) == "(1, 2, 3, 4)" and as_chain([(1, 2, 3, 4)]) == (pattern,)
    with pytest.raises(FrozenInstanceError):
        pattern.a = 2  # type: ignore[misc]


@given(PATTERNS)
def test_perfect_shuffles_make_blocks_dense(pattern: Pattern) -> None:
    """(5.1) and Lemma D.3.1 with P_{p,q} of (D.1). Printed: P and Q transposed."""
    a, b, c, d = pattern.shape

    def shuffle(p: int, q: int) -> torch.Tensor:
        order = [i + q * j for i in range(q) for j in range(p)]
        return torch.kron(torch.eye(a), torch.eye(p * q)[order])

    blocks = torch.kron(torch.eye(a * d), torch.ones(b, c))
    assert torch.equal(shuffle(b, d) @ pattern.support().float() @ shuffle(c, d).T, blocks)


BAD: dict[str, tuple[Any, str]] = {
    "zero": ([(1, 0, 3, 4)], r"four whole numbers ≥ 1, got b = 0 in \(1, 0, 3, 4\)"),
    "fraction": ([(1, 2, 3.0, 4)], r"got c = 3.0"),
    "bool": ([(True, 2, 3, 4)], r"got a = True"),
    "three numbers": ([(1, 2, 3)], r"four whole numbers \(a, b, c, d\), got \(1, 2, 3\)"),
    "text": (["1234"], "got '1234'"),
    "not a list": (Pattern(1, 2, 3, 4), "come in a list, leftmost first, got Pattern"),
    "nothing": ([], "at least one pattern"),
    "sizes": (
        [(1, 2, 3, 4), (1, 2, 3, 5)],
        r"factors 1 and 2 do not fit: \(1, 2, 3, 4\) has acd = 12 columns and \(1, 2, 3, 5\) has abd = 10 rows",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_chain_is_refused(case: str) -> None:
    patterns, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        as_chain(patterns)
