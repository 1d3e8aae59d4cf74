"""The backend "cpu" against the dense matrix in float64: every kernel of this processor, in every form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels import dispatch, kronecker
from tamis.kronecker.backends import as_matrix
from tamis.kronecker.families import butterfly, monarch
from tamis.kronecker.layer import KroneckerLinear
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern

pytestmark = pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())

LAYOUTS = ("batch_first", "batch_last")
KERNELS = ["avx512", "avx2", "plain"]
SIZES = st.sampled_from([1, 1, 2, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 33])
PATTERNS = st.builds(Pattern, SIZES, SIZES, SIZES, SIZES).filter(
    lambda pattern: pattern.rows * pattern.columns <= 2**18
)
BATCHES = st.sampled_from([0, 1, 2, 7, 8, 9, 25, 64, 70])
forced = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each kernel in turn, by the override."""
    extension = dispatch.native()
    if extension is not None and request.param not in extension.kronecker_kernels():
        pytest.skip(f"this processor has no {request.param}")
    monkeypatch.setenv("TAMIS_KERNEL", request.param)
    kronecker._find_extension.cache_clear()
    assert kronecker._find_extension()[1] == request.param
    yield request.param
    kronecker._find_extension.cache_clear()


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, wanted: Tensor) -> None:
    """Within 1e-6 of a result in float64, relative to its norm."""
    assert found.dtype == torch.float32 and found.shape == wanted.shape
    assert float((found.detach().double() - wanted).norm()) <= 1e-6 * float(wanted.norm())


def strided(matrix: Tensor) -> Tensor:
    """The same numbers, rows further apart than they are long."""
    return torch.cat([matrix, matrix], 1)[:, : matrix.shape[1]]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(PATTERNS, BATCHES, st.sampled_from(["contiguous", "rows apart", "turned"]))
@example(Pattern(1, 5, 700, 1), 9, "contiguous")  # sums in several parts
@example(Pattern(1, 5, 600, 3), 9, "rows apart")
@example(Pattern(40, 2, 2, 3), 33, "contiguous")
@example(Pattern(33, 1, 3, 2), 20, "rows apart")
@example(Pattern(1, 20, 20, 64), 50, "contiguous")
@example(Pattern(1, 64, 20, 16), 40, "rows apart")
@forced
def test_products_and_gradients(kernel: str, layout: str, pattern: Pattern, batch: int, how: str) -> None:
    first = layout == "batch_first"
    x = drawn(1, batch, pattern.columns) if first else drawn(1, pattern.columns, batch)
    gradient = drawn(2, batch, pattern.rows) if first else drawn(2, pattern.rows, batch)
    weight = drawn(3, *pattern.shape)
    if how == "rows apart":
        x, gradient = strided(x), strided(gradient)
    if how == "turned":
        x, gradient = x.T.contiguous().T, gradient.T.contiguous().T
        weight = weight.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    before = x.clone(), weight.clone()
    matrix = as_matrix(weight.double(), pattern)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y = multiply(x, weight, pattern, layout, "cpu")
    wide, wide_gradient = x.detach().double(), gradient.double()
    near(y, wide @ matrix.T if first else matrix @ wide)
    by_x, by_weight = torch.autograd.grad(y, (x, weight), gradient)
    near(by_x, wide_gradient @ matrix if first else matrix.T @ wide_gradient)
    of_matrix = wide_gradient.T @ wide if first else wide_gradient @ wide.T
    near(as_matrix(by_weight, pattern), of_matrix * pattern.support())
    assert torch.equal(x, before[0]) and torch.equal(weight, before[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, 8, 300])
@pytest.mark.parametrize(
    "shape", [(1, 192, 48, 2), (6, 64, 64, 1), (1, 24, 40, 33), (300, 2, 2, 1), (1, 2, 2, 400), (1, 30, 600, 2)]
)
def test_two_threads_give_the_bits_of_one(
    kernel: str, layout: str, batch: int, shape: tuple[int, int, int, int]
) -> None:
    if kernel == "plain" and batch == 300:
        shape = (shape[0], *[min(size, 40) for size in shape[1:3]], shape[3])
    pattern, first = Pattern(*shape), layout == "batch_first"
    x = (drawn(1, batch, pattern.columns) if first else drawn(1, pattern.columns, batch)).requires_grad_()
    gradient = drawn(2, batch, pattern.rows) if first else drawn(2, pattern.rows, batch)
    weight = drawn(3, *shape).requires_grad_()
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y = multiply(x, weight, pattern, layout, "cpu")
            results.append((y, *torch.autograd.grad(y, (x, weight), gradient)))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_gradients(layout: str) -> None:
    """Against those of the contraction, in float64 as near as float32 allows."""
    pattern = Pattern(3, 4, 5, 2)
    shape = (6, pattern.columns) if layout == "batch_first" else (pattern.columns, 6)
    x, weight, direction = drawn(1, *shape), drawn(2, *pattern.shape), drawn(3, *shape)

    def second(x: Tensor, weight: Tensor, direction: Tensor, backend: str) -> tuple[Tensor, ...]:
        x, weight = x.requires_grad_(), weight.requires_grad_()
        y = multiply(x, weight, pattern, layout, backend)
        by_x, by_weight = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad((by_x * direction).sum() + by_weight.square().sum(), (x, weight))

    wanted = second(x.double(), weight.double(), direction.double(), "reference")
    for found, want in zip(second(x, weight, direction, "cpu"), wanted, strict=True):
        near(found, want)


def test_gradients_that_lie_nowhere() -> None:
    """That of a sum is one number, repeated; that of half of the outputs is not contiguous."""
    pattern = Pattern(2, 3, 4, 2)
    x, weight = drawn(1, 7, pattern.columns).requires_grad_(), drawn(2, *pattern.shape).requires_grad_()
    for loss in (lambda y: y.sum(), lambda y: (y[:, ::2] ** 2).sum(), lambda y: y.T[3:].sum()):
        found = torch.autograd.grad(loss(multiply(x, weight, pattern, backend="cpu")), (x, weight))
        wanted = torch.autograd.grad(loss(multiply(x, weight, pattern, backend="dense")), (x, weight))
        torch.testing.assert_close(found, wanted)


def test_only_what_is_asked_for_is_differentiated() -> None:
    pattern = Pattern(2, 3, 4, 2)
    x, weight = drawn(1, 7, pattern.columns), drawn(2, *pattern.shape)
    for with_x in (True, False):
        fixed = multiply(x.requires_grad_(with_x), weight.requires_grad_(not with_x), pattern, backend="cpu")
        fixed.sum().backward()
        assert (x.grad is not None) == with_x or weight.grad is not None
        x, weight = x.detach().clone(), weight.detach().clone()
    with torch.no_grad():
        assert not multiply(x, weight.requires_grad_(), pattern, backend="cpu").requires_grad
    with torch.inference_mode():
        multiply(x, weight, pattern, backend="cpu")


def test_the_operators_pass_the_checks_of_torch() -> None:
    x, weight = drawn(1, 7, 16).requires_grad_(), drawn(2, 2, 3, 4, 2).requires_grad_()
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.tamis.kronecker_cpu, (x, weight, False, False), test_utils=tests)
    gradient = drawn(3, 7, 12).requires_grad_()
    torch.library.opcheck(torch.ops.tamis.kronecker_cpu, (gradient, weight, True, False), test_utils=tests)
    arguments = (x, gradient, [2, 3, 4, 2], False)
    torch.library.opcheck(torch.ops.tamis.kronecker_cpu_weight_gradient, arguments, test_utils=tests)
    with pytest.raises(InvalidInput, match="kronecker_cpu needs 16 inputs"):
        torch.ops.tamis.kronecker_cpu(x[:, :15], weight, False, False)
    with pytest.raises(InvalidInput, match="shapes that do not agree"):
        torch.ops.tamis.kronecker_cpu_weight_gradient(x[:5], gradient, [2, 3, 4, 2], False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_keeps_the_operator_where_it_is_asked_for(layout: str) -> None:
    layer = KroneckerLinear(monarch(32, 16, 4), layout=layout, backend="cpu")
    x = drawn(1, 5, 16) if layout == "batch_first" else drawn(1, 16, 5)
    size = {0 if layout == "batch_first" else 1: torch.export.Dim("batch", min=2)}
    exported = torch.export.export(layer, (x,), dynamic_shapes=(size,))
    assert "tamis.kronecker_cpu.default" in {str(node.target) for node in exported.graph.nodes}
    other = drawn(2, 9, 16) if layout == "batch_first" else drawn(2, 16, 9)
    assert torch.equal(exported.module()(other), layer(other))


@pytest.mark.slow
def test_the_operators_pass_the_slow_checks_of_torch() -> None:
    x, weight, gradient = drawn(1, 7, 16), drawn(2, 2, 3, 4, 2), drawn(3, 7, 12)
    for tensor in (x, weight, gradient):
        tensor.requires_grad_()
    tests = ("test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.tamis.kronecker_cpu, (x, weight, False, False), test_utils=tests)
    arguments = (x, gradient, [2, 3, 4, 2], False)
    torch.library.opcheck(torch.ops.tamis.kronecker_cpu_weight_gradient, arguments, test_utils=tests)


@pytest.mark.slow
def test_compiled_networks_train_alike() -> None:
    layer = KroneckerLinear(butterfly(16), backend="cpu")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (4, 9):
        x = drawn(batch, batch, 16)
        grads = []
        for run in (layer, compiled):
            layer.zero_grad()
            run(x).square().sum().backward()
            grads.append([factor.grad.clone() for factor in layer.factors if factor.grad is not None])
        assert len(grads[0]) == 4 and all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
