"""Every backend against the dense matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kronecker import tuned_table
from tamis.kronecker.backends import BACKENDS, Backend, as_matrix, register
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern

SIZES = st.sampled_from([1, 1, 2, 3, 4, 5, 7])
PATTERNS = st.builds(Pattern, SIZES, SIZES, SIZES, SIZES)
LAYOUTS = ("batch_first", "batch_last")
WAYS = [*BACKENDS, None]


@pytest.fixture(autouse=True, scope="module")
def nothing_tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAMIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        tuned_table.read_table.cache_clear()
        yield
    tuned_table.read_table.cache_clear()


def skip_refused(backend: str | None, dtype: torch.dtype) -> None:
    """Skip what a backend does not do on a CPU in this dtype; tests of its own say that it refuses aloud."""
    weight = torch.ones(2, 2, 2, 2, dtype=dtype)
    refusal = backend and BACKENDS[backend].accepts(weight.reshape(2, 8), weight, Pattern(2, 2, 2, 2), "batch_first")
    if refusal:
        pytest.skip(refusal)


def literal(weight: Tensor, pattern: Pattern) -> Tensor:
    """K by the rows and columns of Algorithm 5.1.1, one (i, j) after the other."""
    a, b, c, d = pattern.shape
    matrix = torch.zeros(pattern.rows, pattern.columns, dtype=weight.dtype)
    for i in range(a):
        for j in range(d):
            columns = [i * (pattern.columns // a) + j + step * d for step in range(c)]
            rows = [i * (pattern.rows // a) + j + step * d for step in range(b)]
            for k, row in enumerate(rows):
                for m, column in enumerate(columns):
                    matrix[row, column] = weight[i, k, m, j]
    return matrix


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@given(PATTERNS)
@settings(max_examples=40, deadline=None)
def test_the_matrix_of_a_weight_is_that_of_the_algorithm(pattern: Pattern) -> None:
    weight = drawn(0, *pattern.shape)
    assert torch.equal(as_matrix(weight, pattern), literal(weight, pattern))
    assert torch.equal(as_matrix(weight, pattern) != 0, pattern.support())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WAYS)
@given(PATTERNS, st.sampled_from([(), (0,), (1,), (7,), (2, 3), (2, 0, 3)]), st.booleans())
@settings(max_examples=15, deadline=None)
def test_every_backend_multiplies_by_the_matrix(
    backend: str | None, layout: str, pattern: Pattern, batch: tuple[int, ...], strided: bool
) -> None:
    skip_refused(backend, torch.float64)
    weight, x = drawn(0, *pattern.shape), drawn(1, *batch, pattern.columns)
    if strided:  # neither x nor the weight lies in memory in its own order
        weight = weight.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
        x = torch.stack([x, x + 1], -1)[..., 0]
    want = x @ literal(weight, pattern).T
    given_x = x if layout == "batch_first" else x.movedim(-1, 0)
    y = multiply(given_x, weight, pattern, layout, backend)
    y = y if layout == "batch_first" else y.movedim(0, -1)
    assert y.shape == want.shape and y.dtype == torch.float64
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("shape", [(2, 3, 2, 2), (1, 2, 3, 1), (3, 1, 2, 1), (1, 2, 1, 3), (2, 2, 2, 1)])
def test_gradients(backend: str | None, layout: str, shape: tuple[int, int, int, int]) -> None:
    skip_refused(backend, torch.float64)
    pattern = Pattern(*shape)
    weight = drawn(0, *shape).requires_grad_()
    x = drawn(1, 3, pattern.columns) if layout == "batch_first" else drawn(1, pattern.columns, 3)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: multiply(x, w, pattern, layout, backend), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: multiply(x, w, pattern, layout, backend), (x, weight))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WAYS)
@given(PATTERNS, st.sampled_from([0, 1, 7]))
@settings(max_examples=8, deadline=None)
def test_gradients_are_those_of_the_dense_product(
    backend: str | None, layout: str, pattern: Pattern, batch: int
) -> None:
    skip_refused(backend, torch.float64)
    first = layout == "batch_first"
    x = drawn(1, batch, pattern.columns) if first else drawn(1, pattern.columns, batch)
    y_gradient = drawn(2, batch, pattern.rows) if first else drawn(2, pattern.rows, batch)
    x, weight = x.requires_grad_(), drawn(0, *pattern.shape).requires_grad_()
    multiply(x, weight, pattern, layout, backend).backward(y_gradient)
    matrix = literal(weight.detach(), pattern)
    assert x.grad is not None and weight.grad is not None
    torch.testing.assert_close(x.grad, y_gradient @ matrix if first else matrix.T @ y_gradient)
    of_matrix = y_gradient.T @ x.detach() if first else y_gradient @ x.detach().T
    torch.testing.assert_close(as_matrix(weight.grad, pattern), of_matrix * pattern.support())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex128])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (1, 3, 8, 1), (1, 1, 3, 3)])
def test_other_dtypes(backend: str | None, layout: str, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> None:
    skip_refused(backend, dtype)
    pattern = Pattern(*shape)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    weight = drawn(0, *shape, dtype=wide).to(dtype)
    x = drawn(1, 7, pattern.columns, dtype=wide).to(dtype)
    want = x.to(wide) @ literal(weight, pattern).to(wide).T
    y = multiply(x if layout == "batch_first" else x.T, weight, pattern, layout, backend)
    assert y.dtype == dtype
    # sums of c products, rounded at every step
    step = torch.finfo(dtype).eps * (pattern.c + 1)
    sizes = x.to(wide).abs() @ literal(weight, pattern).to(wide).abs().T
    assert bool(((y if layout == "batch_first" else y.T).to(wide).sub(want).abs() <= 2 * step * sizes).all())


HALVES: list[tuple[tuple[int, int, int, int], str | None]] = [
    *(((1, 8, 8, 64), backend) for backend in ("reference", "bmm", "elementwise", "dense", None)),
    ((64, 2, 2, 64), None),
    ((4, 8, 8, 16), None),
    ((3, 40, 33, 2), None),
    ((1, 20, 64, 1), None),
    ((2, 8, 256, 16), "elementwise"),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "backend"), HALVES)
def test_half_precision_is_rounded_once(
    shape: tuple[int, int, int, int], backend: str | None, layout: str, dtype: torch.dtype
) -> None:
    """Products and gradients are within 2e-3, which is little more than it takes to round to bfloat16."""
    pattern, first = Pattern(*shape), layout == "batch_first"
    weight = drawn(0, *shape).to(dtype).requires_grad_()
    x = (drawn(1, 32, pattern.columns) if first else drawn(1, pattern.columns, 32)).to(dtype).requires_grad_()
    y = multiply(x, weight, pattern, layout, backend)
    upstream = drawn(2, *y.shape).to(dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    wide_y = multiply(wide[0], wide[1], pattern, layout, "bmm")
    found = y, *torch.autograd.grad(y, (x, weight), upstream)
    wanted = wide_y, *torch.autograd.grad(wide_y, wide, upstream.double())
    for mine, exact in zip(found, wanted, strict=True):
        assert mine.dtype == dtype and float((mine - exact).detach().norm()) <= 2e-3 * float(exact.detach().norm())


@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["x", "weight", "gradient"])  # the signs of two would cancel
def test_numbers_that_torch_has_yet_to_negate(which: str, layout: str, backend: str | None) -> None:
    """Views such as `z.conj().imag` have the memory of other numbers, and a bit that says so."""
    skip_refused(backend, torch.float32)
    pattern = Pattern(2, 4, 3, 2)
    shapes = {"x": (12, 1), "weight": pattern.shape, "gradient": (16, 1)}
    if layout == "batch_first":
        shapes |= {"x": (1, 12), "gradient": (1, 16)}
    plain = {name: drawn(seed, *shape).float() for seed, (name, shape) in enumerate(shapes.items())}
    for contiguous in (True, False):
        turned = plain[which] if contiguous else torch.stack([plain[which]] * 2, -1)[..., 0]
        negated = torch._neg_view(turned)
        assert negated.is_neg()
        results = []
        for each in (plain | {which: negated}, plain | {which: -turned}):
            x, weight = each["x"].detach().requires_grad_(), each["weight"].detach().requires_grad_()
            y = multiply(x, weight, pattern, layout, backend)
            with torch.no_grad():
                torch.testing.assert_close(multiply(x, weight, pattern, layout, backend), y.detach())
            results.append((y, *torch.autograd.grad(y, (x, weight), each["gradient"])))
        torch.testing.assert_close(*results)


def test_the_imaginary_part_of_a_conjugate() -> None:
    pattern, z = Pattern(2, 4, 3, 2), drawn(0, 12, 1, dtype=torch.complex128)
    weight = drawn(1, *pattern.shape).float()
    x = z.to(torch.complex64).conj().imag
    torch.testing.assert_close(multiply(x, weight, pattern, "batch_last"), as_matrix(weight, pattern) @ x)


@pytest.mark.parametrize("backend", WAYS)
def test_the_same_call_gives_the_same_bits(backend: str | None) -> None:
    skip_refused(backend, torch.float32)
    pattern = Pattern(3, 8, 5, 4)
    weight, x = drawn(0, *pattern.shape).float(), drawn(1, 33, pattern.columns).float()
    before = weight.clone(), x.clone()
    first = multiply(x, weight, pattern, backend=backend)
    assert torch.equal(first, multiply(x, weight, pattern, backend=backend))
    assert torch.equal(x, before[1]) and torch.equal(weight, before[0])


def test_autocast_decides_the_dtype() -> None:
    pattern = Pattern(2, 3, 4, 2)
    weight, x = drawn(0, *pattern.shape).float(), drawn(1, 5, pattern.columns).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        for backend in ("reference", "bmm", "elementwise", "dense", None):
            assert multiply(x, weight, pattern, backend=backend).dtype == torch.bfloat16


def test_the_one_asked_for_is_explained() -> None:
    y, why = multiply(torch.ones(2, 12), torch.ones(2, 3, 3, 2), (2, 3, 3, 2), backend="reference", explain=True)
    assert torch.equal(y, torch.full((2, 12), 3.0)) and why == "reference: asked for"


def test_a_backend_can_be_added_and_can_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = Backend(
        "picky", lambda x, w, p, layout: "" if p.d == 1 else f"d must be 1, got {p.d}", BACKENDS["reference"].apply
    )
    monkeypatch.setitem(BACKENDS, "picky", picky)  # so that it is gone after the test
    del BACKENDS["picky"]
    register(picky)
    assert multiply(torch.ones(2, 4), torch.ones(2, 3, 2, 1), (2, 3, 2, 1), backend="picky").shape == (2, 6)
    with pytest.raises(InvalidInput, match=r"'picky' does not multiply by \(2, 3, 1, 2\) here: d must be 1, got 2"):
        multiply(torch.ones(2, 4), torch.ones(2, 3, 1, 2), (2, 3, 1, 2), backend="picky")
    with pytest.raises(
        InvalidInput,
        match="there is a backend 'picky' already; known: reference, bmm, elementwise, dense, cpu, triton, picky",
    ):
        register(picky)


X, W, P = torch.ones(2, 12), torch.ones(2, 3, 3, 2), (2, 3, 3, 2)
BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "pattern": ((X, W, (2, 3, 3)), "four whole numbers"),
    "weight": ((X, W[0], P), r"the weight of the pattern \(2, 3, 3, 2\) has that shape, got \(3, 3, 2\)"),
    "columns": ((X[:, :11], W, P), r"shape \(…, 12\) in the layout batch_first, got \(2, 11\)"),
    "rows": ((X, W, P, "batch_last"), r"shape \(12, …\) in the layout batch_last, got \(2, 12\)"),
    "number": ((torch.tensor(1.0), W, P), r"got \(\)"),
    "dtype": ((X.double(), W, P), "one dtype, got torch.float64 and torch.float32"),
    "whole numbers": ((X.long(), W, P), "x must hold real or complex numbers, got torch.int64"),
    "no tensor": (([1.0], W, P), "x must be a tensor, got list"),
    "sparse": ((X.to_sparse(), W, P), "x must be a dense tensor, got one of torch.sparse_coo; take x.to_dense()"),
    "sparse weight": ((X, W.to_sparse(), P), "weight must be a dense tensor, got one of torch.sparse_coo"),
    "layout": ((X, W, P, "middle"), "layout must be one of batch_first, batch_last, got 'middle'"),
    "backend": (
        (X, W, P, "batch_first", "cuda"),
        "no backend 'cuda'; known: reference, bmm, elementwise, dense, cpu, triton, or None",
    ),
    "device": ((X, W.to("meta"), P), "one device, got cpu and meta"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        multiply(*arguments)
