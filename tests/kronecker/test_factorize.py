"""Factorizations: exact where there is one, and as far from W as the discarded singular values say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.errors import AssumptionViolated, InvalidInput
from tamis.kronecker.backends import as_matrix
from tamis.kronecker.factorize import factorize
from tamis.kronecker.families import (
    bit_reversal,
    block_butterfly,
    butterfly,
    dense,
    kaleidoscope,
    low_rank,
    monarch,
)
from tamis.kronecker.pattern import Pattern, product_support

CHAINS: dict[str, list[Pattern]] = {
    "dense": dense(6, 10),
    "sparse": [Pattern(2, 3, 5, 2)],
    "low rank": low_rank(6, 10, 3),
    "rank above what it can be": low_rank(4, 5, 7),
    "butterfly": butterfly(16),
    "block butterfly": block_butterfly(24, 3),
    "monarch": monarch(24, 12, 3),
    "monarch of another shape": monarch(16, 32, 4),
    "uneven monarch": monarch(12, 20, 4),
    "not dense": [Pattern(2, 3, 6, 4), Pattern(3, 16, 12, 1)],
    "not chainable": [Pattern(2, 3, 2, 1), Pattern(1, 2, 3, 2)],
    "three": [Pattern(1, 6, 4, 4), Pattern(2, 4, 4, 2), Pattern(4, 4, 9, 1)],
    "three and blocks around": [Pattern(2, 2, 4, 6), Pattern(4, 6, 2, 2), Pattern(8, 2, 3, 1)],
}


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def random_product(chain: list[Pattern], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    matrices = [as_matrix(drawn(seed + i, *p.shape, dtype=dtype), p) for i, p in enumerate(chain)]
    product = matrices[0]
    for matrix in matrices[1:]:
        product = product @ matrix
    return product


@pytest.mark.parametrize("log2", [1, 2, 3, 5, 8])
def test_fourier_and_hadamard(log2: int) -> None:
    n = 2**log2
    fourier = torch.fft.fft(torch.eye(n, dtype=torch.complex128))
    found = factorize(fourier[:, bit_reversal(n)], butterfly(n))
    assert found.relative_error < 1e-10 and found.factors[0].dtype == torch.complex128
    torch.testing.assert_close(found.dense()[:, bit_reversal(n)], fourier, rtol=0, atol=1e-10)
    if log2 > 1:  # in its usual order it is none
        assert factorize(fourier, butterfly(n)).relative_error > 0.1
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(log2):
        hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), hadamard)
    found = factorize(hadamard, butterfly(n))
    assert found.relative_error < 1e-10 and max(found.discarded, default=0) < 1e-10 * n


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", CHAINS)
def test_a_product_is_found_again(name: str, dtype: torch.dtype) -> None:
    W = random_product(CHAINS[name], dtype=dtype)
    found = factorize(W, CHAINS[name])
    assert found.relative_error < 1e-13 and found.outside == 0
    torch.testing.assert_close(found.dense(), W, rtol=1e-11, atol=1e-11)
    assert [tuple(factor.shape) for factor in found.factors] == [pattern.shape for pattern in CHAINS[name]]
    norms = [float(torch.linalg.vector_norm(factor)) for factor in found.factors]
    assert max(norms) == pytest.approx(min(norms))


@pytest.mark.parametrize("name", ["butterfly", "block butterfly", "three"])
def test_a_product_of_smaller_ranks_is_found_again(name: str) -> None:
    chain = CHAINS[name]
    factors = [drawn(i, *pattern.shape) for i, pattern in enumerate(chain)]
    factors[1][..., ::2, :] = 0
    W = as_matrix(factors[0], chain[0])
    for factor, pattern in zip(factors[1:], chain[1:], strict=True):
        W = W @ as_matrix(factor, pattern)
    assert factorize(W, chain).relative_error < 1e-13


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", CHAINS)
def test_the_error_is_what_was_discarded(name: str, dtype: torch.dtype) -> None:
    chain = CHAINS[name]
    W = drawn(0, chain[0].rows, chain[-1].columns, dtype=dtype)
    found = factorize(W, chain)
    assert found.error == pytest.approx(float(torch.linalg.vector_norm(W - found.dense())), rel=1e-12)
    assert found.error == pytest.approx(math.hypot(found.outside, *found.discarded), rel=1e-10, abs=1e-13)
    outside = W[~product_support(chain)]
    assert found.outside == pytest.approx(float(torch.linalg.vector_norm(outside)))
    assert found.least_error <= found.error * (1 + 1e-12) + 1e-13
    assert found.error <= math.sqrt(max(len(chain) - 1, 1)) * found.least_error * (1 + 1e-10) + 1e-13


def test_low_rank_and_monarch_are_truncated_decompositions() -> None:
    W = drawn(0, 12, 12)
    values = torch.linalg.svdvals(W)
    assert factorize(W, low_rank(12, 12, 5)).error == pytest.approx(float(values[5:].norm()))
    # Monarch with p = 3: rows of one residue, columns of one third, one rank for each.
    blocks = W.reshape(4, 3, 3, 4).permute(1, 2, 0, 3)
    tails = torch.linalg.svdvals(blocks)[..., 1:]
    # 4 middle indices for each of 3 × 3 blocks, 12 in all: block (j, i) has those m in [4i, 4i + 4) with m = j mod 3
    ranks = torch.tensor([[sum(m % 3 == j for m in range(4 * i, 4 * i + 4)) for i in range(3)] for j in range(3)])
    want = sum(float(tails[j, i, int(ranks[j, i]) - 1 :].square().sum()) for j in range(3) for i in range(3))
    assert factorize(W, monarch(12, 12, 3)).error == pytest.approx(math.sqrt(want))


@given(st.integers(0, 10_000), st.sampled_from(["butterfly", "block butterfly", "three", "three and blocks around"]))
@settings(max_examples=40, deadline=None)
def test_no_product_is_nearer_than_the_least_error(seed: int, name: str) -> None:
    """Attacked with products that W was made from, and with what refinement finds."""
    chain = CHAINS[name]
    near = random_product(chain, seed)
    noise = drawn(seed + 99, *near.shape)
    W = near + 10.0 ** -(seed % 4) * noise / noise.norm() * near.norm()
    found = factorize(W, chain)
    distance = float(torch.linalg.vector_norm(W - near))
    assert found.least_error <= distance * (1 + 1e-10)
    assert found.error <= math.sqrt(len(chain) - 1) * distance * (1 + 1e-10)
    refined = factorize(W, chain, refine=15)
    assert found.least_error * (1 - 1e-10) <= refined.error <= found.error * (1 + 1e-10)


@st.composite
def chainable_chains(draw: st.DrawFn) -> list[Pattern]:
    """Two to four factors, by what divides what: a upwards, d downwards, and a rank between two neighbours."""
    length = draw(st.integers(2, 4))
    steps = st.lists(st.integers(1, 2), min_size=length, max_size=length)
    a, d = draw(steps), draw(steps)
    for place in range(1, length):
        a[place] *= a[place - 1]
        d[-place - 1] *= d[-place]
    ranks, ends = draw(steps), draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    b = [ends[0], *(ranks[place] * d[place] // d[place + 1] for place in range(length - 1))]
    c = [*(ranks[place] * a[place + 1] // a[place] for place in range(length - 1)), ends[1]]
    return [Pattern(*sizes) for sizes in zip(a, b, c, d, strict=True)]


@given(chainable_chains(), st.integers(0, 1000), st.sampled_from([0.01, 0.3, 3.0]))
@settings(max_examples=60, deadline=None)
def test_any_chainable_chain(chain: list[Pattern], seed: int, noise: float) -> None:
    W = random_product(chain, seed)
    assert factorize(W, chain).error <= 1e-12 * float(W.norm())
    change = noise * drawn(seed + 99, *W.shape)
    found, distance = factorize(W + change, chain), float(change.norm())
    assert found.error == pytest.approx(math.hypot(found.outside, *found.discarded), rel=1e-9, abs=1e-11)
    assert found.least_error <= distance * (1 + 1e-9)
    assert found.error <= math.sqrt(len(chain) - 1) * distance * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_refinement_helps_where_it_can(dtype: torch.dtype) -> None:
    W = drawn(0, 16, 16, dtype=dtype)
    once, refined = factorize(W, butterfly(16)), factorize(W, butterfly(16), refine=100)
    assert refined.error < 0.995 * once.error and refined.discarded == once.discarded
    two = factorize(W, monarch(16, 16, 4)).error
    assert factorize(W, monarch(16, 16, 4), refine=50).error == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_factors_have_the_dtype_of_the_matrix(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    W = random_product(butterfly(16), dtype=wide).to(dtype)
    found = factorize(W, butterfly(16))
    assert all(factor.dtype == dtype for factor in found.factors)
    assert 0 < found.relative_error < 8 * torch.finfo(dtype).eps


def test_the_matrix_is_left_alone_and_the_same_matrix_gives_the_same_factors() -> None:
    W = drawn(0, 24, 12).requires_grad_()
    before, state = W.detach().clone(), torch.get_rng_state()
    first, second = factorize(W, monarch(24, 12, 3), refine=3), factorize(W, monarch(24, 12, 3), refine=3)
    assert torch.equal(W, before) and W.grad is None and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.factors, second.factors, strict=True))
    assert not any(factor.requires_grad for factor in first.factors)
    strided = factorize(W.detach().T.contiguous().T, monarch(24, 12, 3))
    assert strided.error == pytest.approx(first.error)


SCALES = [
    *((torch.float64, scale) for scale in (1e-315, 1e-170, 1e160, 1e307)),
    (torch.complex128, 1e-170),
    (torch.complex128, 1e160),
    (torch.float32, 1e-42),
    (torch.float32, 1e37),
]


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("name", ["dense", "monarch", "butterfly"])
def test_large_and_small_matrices(name: str, dtype: torch.dtype, scale: float) -> None:
    """Are factorized as others are: entries of 1e160, squared, are beyond float64, and those of 1e-170 are 0."""
    chain = CHAINS[name]
    W = drawn(0, chain[0].rows, chain[-1].columns, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    step = math.ulp(0.0) / scale if dtype.itemsize >= 8 else 2.0**-149 / scale  # W rounds to multiples of this one
    common = factorize(W, chain)
    found, refined = factorize((W * scale).to(dtype), chain), factorize((W * scale).to(dtype), chain, refine=20)
    near = max(1e-6, 100 * step)
    assert found.relative_error == pytest.approx(common.relative_error, rel=near, abs=near)
    for mine, theirs in ((found.error, common.error), (found.least_error, common.least_error)):
        assert mine / scale == pytest.approx(theirs, rel=near, abs=near)
    assert [each / scale for each in found.discarded] == pytest.approx(common.discarded, rel=near, abs=near)
    assert all(bool(factor.isfinite().all()) for factor in (*found.factors, *refined.factors))
    norms = [float((factor.abs().double() / scale ** (1 / len(chain))).norm()) for factor in found.factors]
    assert max(norms) == pytest.approx(min(norms), rel=near)
    if name == "butterfly":  # where refinement helps
        assert refined.relative_error < 0.999 * found.relative_error
    if name == "dense":
        assert torch.equal(found.dense(), (W * scale).to(dtype)) and found.error == 0


def test_the_conjugate_has_the_error_of_the_matrix() -> None:
    W = drawn(0, 16, 16, dtype=torch.complex128)
    assert factorize(W.conj(), butterfly(16)).error == pytest.approx(factorize(W, butterfly(16)).error)


def test_zero_is_zero() -> None:
    found = factorize(torch.zeros(16, 16), butterfly(16), refine=3)
    assert found.error == found.relative_error == found.least_error == 0 and not found.dense().any()


BAD: dict[str, tuple[Any, Any, int, type[Exception], str]] = {
    "shape": (torch.zeros(3, 4), dense(4, 3), 0, InvalidInput, r"has shape \(4, 3\), but W has \(3, 4\)"),
    "vector": (torch.zeros(4), dense(4, 1), 0, InvalidInput, r"but W has \(4,\)"),
    "kind": ([[1.0]], dense(1, 1), 0, InvalidInput, "needs a real or complex matrix, got list"),
    "whole": (torch.zeros(2, 2).long(), dense(2, 2), 0, InvalidInput, "got torch.int64"),
    "nan": (torch.full((2, 2), math.nan), dense(2, 2), 0, InvalidInput, "not finite"),
    "sparse": (torch.eye(2).to_sparse(), dense(2, 2), 0, InvalidInput, "got one of torch.sparse_coo; take W.to_dense"),
    "meta": (torch.empty(2, 2, device="meta"), dense(2, 2), 0, InvalidInput, "W is on the device 'meta'"),
    "refine": (torch.zeros(2, 2), dense(2, 2), -1, InvalidInput, "refine must be a number of steps ≥ 0, got -1"),
    "kaleidoscope": (
        torch.zeros(8, 8),
        kaleidoscope(8),
        0,
        AssumptionViolated,
        r"factors 4 and 5 of 6, \(4, 2, 2, 1\) and \(2, 2, 2, 2\) are not chainable: 4 must divide 2, 2 must divide 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_factorized_is_refused(case: str) -> None:
    W, patterns, refine, error, message = BAD[case]
    with pytest.raises(error, match=message):
        factorize(W, patterns, refine)
