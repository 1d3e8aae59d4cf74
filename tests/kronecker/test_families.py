"""The chains of Table 5.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tamis.errors import InvalidInput
from tamis.kronecker.families import (
    bit_reversal,
    block_butterfly,
    butterfly,
    deformable_butterfly,
    dense,
    kaleidoscope,
    low_rank,
    monarch,
)
from tamis.kronecker.pattern import Pattern, as_chain, is_dense, product_support


def numbers(patterns: list[Pattern]) -> list[tuple[int, ...]]:
    return [pattern.shape for pattern in patterns]


def test_table_5_1() -> None:
    assert numbers(dense(3, 5)) == [(1, 3, 5, 1)]
    assert numbers(low_rank(3, 5, 2)) == [(1, 3, 2, 1), (1, 2, 5, 1)]
    assert numbers(butterfly(8)) == [(1, 2, 2, 4), (2, 2, 2, 2), (4, 2, 2, 1)]
    assert numbers(kaleidoscope(4)) == [(1, 2, 2, 2), (2, 2, 2, 1), (2, 2, 2, 1), (1, 2, 2, 2)]
    assert numbers(block_butterfly(12, 3)) == [(1, 6, 6, 2), (2, 6, 6, 1)]
    assert numbers(monarch(24, 12, 3)) == [(1, 8, 4, 3), (3, 4, 4, 1)]
    assert numbers(monarch(12, 24, 3)) == [(1, 4, 4, 3), (3, 4, 8, 1)]
    assert numbers(deformable_butterfly([(1, 3, 2, 2), Pattern(2, 2, 5, 1)])) == [(1, 3, 2, 2), (2, 2, 5, 1)]


@pytest.mark.parametrize("log2", [1, 2, 3, 6])
def test_they_fit_and_have_the_sizes_asked_for(log2: int) -> None:
    n = 2**log2
    for chain in (butterfly(n), kaleidoscope(n), block_butterfly(3 * n, 3), monarch(5 * n, 3 * n, n), dense(n, 3)):
        as_chain(chain)
    assert butterfly(n)[0].rows == n and block_butterfly(3 * n, 3)[-1].columns == 3 * n
    assert (monarch(5 * n, 3 * n, n)[0].rows, monarch(5 * n, 3 * n, n)[-1].columns) == (5 * n, 3 * n)
    for chain in (butterfly(n), kaleidoscope(n), block_butterfly(3 * n, 3)):
        assert is_dense(chain) and bool(product_support(chain).all())


@pytest.mark.parametrize(("M", "N"), [(12, 12), (24, 12), (12, 36), (36, 30)])
def test_monarch_is_dense_where_p_squared_is_at_most_the_smaller_size(M: int, N: int) -> None:
    for p in (p for p in range(1, 13) if M % p == 0 and N % p == 0):
        assert is_dense(monarch(M, N, p)) == (p * p <= min(M, N))


def test_bit_reversal() -> None:
    assert bit_reversal(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert torch.equal(bit_reversal(64)[bit_reversal(64)], torch.arange(64))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no power of 2": (lambda: butterfly(12), "a power of 2 from 2 on, got 12"),
    "size 1": (lambda: butterfly(1), "a power of 2 from 2 on, got 1"),
    "block": (lambda: block_butterfly(24, 5), "from 2 on times the block, 5, got 24"),
    "kaleidoscope": (lambda: kaleidoscope(6), "got 6"),
    "monarch": (lambda: monarch(12, 10, 3), r"monarch\(12, 10, 3\) needs a number of blocks that divides both"),
    "monarch kind": (lambda: monarch(12, 9, 1.5), r"p must be a whole number ≥ 1, got 1.5"),  # type: ignore[arg-type]
    "rank": (lambda: low_rank(3, 4, 0), "rank must be a whole number ≥ 1, got 0"),
    "dense": (lambda: dense(3, -4), "N must be a whole number ≥ 1, got -4"),
    "bits": (lambda: bit_reversal(10), "got 10"),
    "deformable": (lambda: deformable_butterfly([(1, 2, 2, 2), (1, 3, 2, 1)]), "do not fit"),
}


@pytest.mark.parametrize("case", BAD)
def test_sizes_that_do_not_fit_are_refused(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        call()
