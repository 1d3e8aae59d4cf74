"""Products with Kronecker-sparse factors on a GPU against dense matrices in float64.

With TRITON_INTERPRET=1, the kernels as Triton interprets them on the CPU.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kronecker import BATCH_FIRST, KroneckerLinear, Pattern, multiply
from tamis.kronecker.backends import BATCH_LAST, LAYOUTS, as_matrix

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("there is no GPU here, and TRITON_INTERPRET=1 is not set", allow_module_level=True)
if INTERPRETED and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
    pytest.skip("the interpreter of this Triton needs numpy < 2.4", allow_module_level=True)

import tamis.kronecker.triton as backend  # noqa: E402
from tamis.kernels.triton import kronecker as kernels  # noqa: E402
from tamis.kernels.triton.kronecker_tiles import Tile  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter does not multiply bfloat16 numbers.
ALLOWED = {torch.float32: 1e-6, torch.float16: 2e-3} | ({} if INTERPRETED else {torch.bfloat16: 1.6e-2})
PATTERNS = [
    Pattern(1, 1, 1, 1),
    Pattern(2, 16, 16, 1),
    Pattern(1, 33, 20, 2),
    Pattern(1, 5, 7, 3),
    Pattern(2, 8, 48, 4),
    Pattern(1, 3, 1, 6),
    Pattern(1, 1, 40, 8),
    Pattern(3, 20, 17, 12),
    Pattern(1, 70, 10, 16),
    Pattern(2, 2, 2, 5),
]
if not INTERPRETED:
    PATTERNS += [Pattern(2, 96, 1024, 1), Pattern(1, 130, 1024, 4), Pattern(1, 64, 1024, 16), Pattern(1, 2, 2, 257)]
BATCHES = [0, 1, 7] if INTERPRETED else [0, 1, 7, 300]
TILES = [
    Tile("rows", 16, 16, 16, 1, 4, 2),
    Tile("filled", 16, 32, 16, 1, 4, 2),
    Tile("turned", 32, 16, 16, 1, 4, 2),
    Tile("entries", 16, 32, 16, 1, 4, 1),
    Tile("columns", 32, 16, 16, 2, 2, 1),
    Tile("columns", 16, 32, 32, 4, 4, 1),
    Tile("columns", 16, 16, 16, 8, 8, 1),
]
LAST_WAYS = ("rows", "entries")
# numpy, in which the interpreter computes, warns of infinities that are meant, and of numbers in arrays of one entry.
# Torch warns where the first matrix product of a thread, that of gradients, finds no CUDA context, and makes one.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.* encountered in .*:RuntimeWarning",
    "ignore:Conversion of an array:DeprecationWarning",
    "ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning",
)
needs_gpu = pytest.mark.skipif(INTERPRETED, reason="there is no GPU here")


def drawn(pattern: Pattern, layout: str, batch: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An input and a weight."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, pattern.columns, generator=generator)
    weight = torch.randn(pattern.shape, generator=generator)
    x = x if layout == BATCH_FIRST else x.T.contiguous()
    return x.to(DEVICE, dtype), weight.to(DEVICE, dtype)


def by_dense(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    matrix = as_matrix(weight.double(), pattern)
    return x.double() @ matrix.T if layout == BATCH_FIRST else matrix @ x.double()


def error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    assert found.shape == wanted.shape
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-300))


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_the_product_is_that_of_the_dense_matrix(pattern: Pattern, layout: str, dtype: torch.dtype) -> None:
    for batch in BATCHES:
        x, weight = drawn(pattern, layout, batch, dtype)
        y = multiply(x, weight, pattern, layout, backend="triton")
        assert y.dtype == dtype
        assert error(y, by_dense(x, weight, pattern, layout)) <= ALLOWED[dtype]


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_gradients_are_those_of_the_dense_matrix(pattern: Pattern, layout: str, dtype: torch.dtype) -> None:
    for batch in BATCHES:
        x, weight = (tensor.requires_grad_() for tensor in drawn(pattern, layout, batch, dtype))
        y = multiply(x, weight, pattern, layout, backend="triton")
        upstream = torch.randn_like(y)
        found = torch.autograd.grad(y, (x, weight), upstream)
        wanted = torch.autograd.grad(by_dense(x, weight, pattern, layout), (x, weight), upstream.double())
        for ours, theirs in zip(found, wanted, strict=True):
            assert error(ours, theirs.double()) <= 1.5 * ALLOWED[dtype]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("pattern", [Pattern(2, 20, 37, 2), Pattern(1, 17, 20, 4), Pattern(1, 18, 33, 9)], ids=str)
def test_every_way_and_tile_gives_the_same(pattern: Pattern, tile: Tile) -> None:
    x, weight = drawn(pattern, BATCH_FIRST, 37, torch.float32)
    y = kernels.multiply(x, weight, False, False, tile)
    assert error(y, by_dense(x, weight, pattern, BATCH_FIRST)) <= 1e-6
    found = kernels.weight_gradient(x, y, pattern.shape, False, False, tile)
    wide = weight.double().requires_grad_()
    (wanted,) = torch.autograd.grad(by_dense(x, wide, pattern, BATCH_FIRST), wide, y.double())
    assert error(found, wanted) <= 1e-6


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.way in LAST_WAYS], ids=lambda tile: tile.way)
@pytest.mark.parametrize("batch", [1, 2, 12, 24, 37, 48, 80])
def test_batches_that_other_powers_of_two_divide(batch: int, tile: Tile) -> None:
    pattern = Pattern(2, 20, 7, 3)
    x, weight = drawn(pattern, BATCH_LAST, batch, torch.float32)
    y = kernels.multiply(x, weight, True, False, tile)
    assert error(y, by_dense(x, weight, pattern, BATCH_LAST)) <= 1e-6
    found = kernels.weight_gradient(x, y, pattern.shape, True, False, tile)
    wanted = torch.einsum("ikjz,iljz->iklj", y.double().reshape(2, 20, 3, -1), x.double().reshape(2, 7, 3, -1))
    assert error(found, wanted) <= 1e-6


@pytest.mark.parametrize("batch", [1, 15, 16, 17])
def test_what_is_turned_has_vectors_of_zeros_that_do_not_show(batch: int) -> None:
    pattern, tile = Pattern(1, 20, 7, 5), Tile("turned", 32, 16, 16, 1, 4, 2)
    x, weight = drawn(pattern, BATCH_FIRST, batch, torch.float32)
    y = kernels.multiply(x, weight, False, False, tile)
    assert error(y, by_dense(x, weight, pattern, BATCH_FIRST)) <= 1e-6
    found = kernels.weight_gradient(x, y, pattern.shape, False, False, tile)
    wanted = torch.einsum("zkj,zlj->klj", y.double().reshape(-1, 20, 5), x.double().reshape(-1, 7, 5))
    assert error(found[0], wanted) <= 1e-6


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("tile", [None, *TILES], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_factor_is_packed_once_and_adds_a_bias(layout: str, tile: Tile | None, dtype: torch.dtype) -> None:
    pattern, last = Pattern(2, 20, 7, 3), layout == BATCH_LAST
    if last and tile is not None and tile.way not in LAST_WAYS:
        pytest.skip("other ways are for the layout batch_first")
    x, weight = drawn(pattern, layout, 21, dtype)
    bias = torch.randn(pattern.rows, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    factor = kernels.Factor(weight, last, False, tile)
    wanted = by_dense(x, weight, pattern, layout)
    other = by_dense(x[:, :9] if last else x[:9], weight, pattern, layout)
    for _ in range(2):
        assert error(factor(x), wanted) <= ALLOWED[dtype]
        added = bias.double().unsqueeze(1) if last else bias.double()
        assert error(factor(x, bias), wanted + added) <= ALLOWED[dtype]
        assert error(factor((x[:, :9] if last else x[:9]).contiguous()), other) <= ALLOWED[dtype]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_at_inference(layout: str) -> None:
    layer = KroneckerLinear([(1, 12, 6, 2), (2, 6, 8, 1)], layout=layout, backend="triton", device=DEVICE)
    x = torch.randn((5, 16) if layout == BATCH_FIRST else (16, 5), device=DEVICE)
    with torch.no_grad():
        wanted = layer(x)
        layer.eval()
        for _ in range(2):
            torch.testing.assert_close(layer(x), wanted)
        layer.factors[0].mul_(2)
        layer.bias.mul_(2)
        torch.testing.assert_close(layer(x), 2 * wanted)
        assert len(layer._cache) == 1


@needs_gpu
def test_layers_in_other_streams_and_graphs() -> None:
    layer = KroneckerLinear([(1, 12, 6, 2), (2, 6, 8, 1)], backend="triton", device="cuda").eval()
    x = torch.randn(5, 16, device="cuda")
    with torch.no_grad():
        wanted = layer(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            y = layer(x)
        torch.cuda.synchronize()
        assert torch.equal(y, wanted) and len(layer._cache) == 2
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        layer.factors[0].mul_(2)  # a graph reads the weights anew
        layer.bias.mul_(2)
        graph.replay()
        torch.testing.assert_close(y, 2 * wanted)


def test_programs_that_take_turns_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = Pattern(2, 20, 17, 16)
    x, weight = drawn(pattern, BATCH_FIRST, 210, torch.float32)
    monkeypatch.setattr(kernels, "CACHED", 32 * 17 * 64 * 3)  # of four tiles of the batch, three together
    assert error(kernels.multiply(x, weight, False, False), by_dense(x, weight, pattern, BATCH_FIRST)) <= 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_need_not_be_contiguous(layout: str) -> None:
    pattern = Pattern(2, 5, 6, 4)
    x, weight = drawn(pattern, layout, 10, torch.float32)
    apart = torch.stack((x, x), -1)[..., 0]
    turned = weight.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert not apart.is_contiguous() and not turned.is_contiguous()
    y = multiply(x, weight, pattern, layout, backend="triton")
    assert torch.equal(multiply(apart, turned, pattern, layout, backend="triton"), y)
    expanded = weight[:1].expand(2, -1, -1, -1)
    assert (
        error(multiply(x, expanded, pattern, layout, backend="triton"), by_dense(x, expanded, pattern, layout))
        <= ALLOWED[torch.float32]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", [Pattern(1, 3, 2, 1), Pattern(2, 2, 3, 2)], ids=str)
def test_gradcheck(pattern: Pattern, layout: str) -> None:
    """Differences of a product of two are exact but for rounding, however large the step."""
    x, weight = (tensor.requires_grad_() for tensor in drawn(pattern, layout, 2, torch.float32))
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(
            lambda x, weight: multiply(x, weight, pattern, layout, backend="triton"), (x, weight), eps=0.5, atol=1e-4
        )


def test_gradients_of_gradients() -> None:
    pattern = Pattern(2, 3, 4, 3)
    inputs = tuple(tensor.requires_grad_() for tensor in drawn(pattern, BATCH_FIRST, 5, torch.float32))
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in inputs)

    def second(x: Tensor, weight: Tensor, name: str) -> tuple[Tensor, ...]:
        y = multiply(x, weight, pattern, backend=name)
        first = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), (x, weight))

    for ours, theirs in zip(second(*inputs, "triton"), second(*wide, "reference"), strict=True):
        assert error(ours, theirs) <= 3e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_the_same_in_every_run(layout: str) -> None:
    pattern = Pattern(1, 16, 24, 2)
    x, weight = drawn(pattern, layout, 400 if INTERPRETED else 20_000, torch.float32)
    gradient = multiply(x, weight, pattern, layout, backend="triton")
    runs = [kernels.weight_gradient(x, gradient, pattern.shape, layout == BATCH_LAST, False) for _ in range(3)]
    assert all(torch.equal(runs[0], run) for run in runs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", [Pattern(1, 2, 3, 2), Pattern(2, 20, 17, 1), Pattern(1, 5, 70, 9)], ids=str)
def test_infinities_and_nans_stay_what_they_are(pattern: Pattern, layout: str) -> None:
    x = torch.ones(4, pattern.columns, device=DEVICE)
    x[0, 0], x[1, 0], x[2, 0] = torch.inf, -torch.inf, torch.nan
    weight = torch.ones(pattern.shape, device=DEVICE)
    y = multiply(x if layout == BATCH_FIRST else x.T, weight, pattern, layout, backend="triton")
    wanted = torch.full((4, pattern.rows), float(pattern.c))
    for row, value in enumerate((torch.inf, -torch.inf, torch.nan)):
        wanted[row, : pattern.b * pattern.d : pattern.d] = value
    assert torch.equal((y if layout == BATCH_FIRST else y.T).cpu().nan_to_num(nan=-1), wanted.nan_to_num(nan=-1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_with_an_infinite_weight_spoils_no_other(layout: str) -> None:
    pattern = Pattern(1, 40, 20, 3)
    x, weight = drawn(pattern, layout, 9, torch.float32)
    finite = multiply(x, weight, pattern, layout, backend="triton")
    weight[0, 7, 3, 1] = torch.inf
    y = multiply(x, weight, pattern, layout, backend="triton")
    spoilt = torch.zeros(pattern.rows, dtype=torch.bool, device=DEVICE)
    spoilt[7 * 3 + 1] = True
    spoilt = spoilt.expand(y.shape) if layout == BATCH_FIRST else spoilt.unsqueeze(1).expand(y.shape)
    assert torch.equal(~y.isfinite(), spoilt)
    assert torch.equal(y[~spoilt], finite[~spoilt])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", [Pattern(2, 20, 37, 2), Pattern(1, 33, 70, 8), Pattern(1, 40, 24, 9)], ids=str)
def test_small_and_large_vectors_are_multiplied_equally_well(pattern: Pattern, layout: str) -> None:
    """Beside others, each vector and each row of the weight is as exact as alone: |error| ≤ 10⁻⁶ Σ |weight · x|."""
    x, weight = drawn(pattern, BATCH_FIRST, 19, torch.float32)
    generator = torch.Generator().manual_seed(1)
    x *= 2.0 ** torch.randint(-40, 40, (19, 1), generator=generator).to(DEVICE)
    weight *= 2.0 ** torch.randint(-20, 20, (pattern.a, pattern.b, 1, pattern.d), generator=generator).to(DEVICE)
    y = multiply(x if layout == BATCH_FIRST else x.T, weight, pattern, layout, backend="triton")
    y = y if layout == BATCH_FIRST else y.T
    off = (y.double() - by_dense(x, weight, pattern, BATCH_FIRST)).abs()
    assert bool((off <= 1e-6 * by_dense(x.abs(), weight.abs(), pattern, BATCH_FIRST)).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", [Pattern(2, 20, 37, 2), Pattern(1, 33, 70, 8), Pattern(1, 40, 24, 9)], ids=str)
def test_entries_far_below_the_largest_are_off_by_little_of_it(pattern: Pattern, layout: str) -> None:
    """|error| ≤ 10⁻⁶ Σ |weight · x| + 2⁻³⁸ (max |x| Σ |weight| + max |weight| Σ |x|), of each output."""
    generator = torch.Generator().manual_seed(2)
    x, weight = (
        tensor * 2.0 ** torch.randint(-30, 30, tensor.shape, generator=generator).to(DEVICE)
        for tensor in drawn(pattern, BATCH_FIRST, 19, torch.float32)
    )
    y = multiply(x if layout == BATCH_FIRST else x.T, weight, pattern, layout, backend="triton")
    y = y if layout == BATCH_FIRST else y.T
    blocks, sizes = x.abs().reshape(-1, pattern.a, pattern.c, pattern.d), weight.abs()
    largest = blocks.amax(2, keepdim=True).expand(blocks.shape).reshape(x.shape)
    small = by_dense(largest, sizes, pattern, BATCH_FIRST)
    small += by_dense(x.abs(), sizes.amax(2, keepdim=True).expand(sizes.shape), pattern, BATCH_FIRST)
    allowed = 1e-6 * by_dense(x.abs(), sizes, pattern, BATCH_FIRST) + 2.0**-38 * small
    assert bool(((y.double() - by_dense(x, weight, pattern, BATCH_FIRST)).abs() <= allowed).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_operators_are_what_torch_wants_them_to_be(layout: str) -> None:
    pattern, last = Pattern(2, 3, 4, 2), layout == BATCH_LAST
    x, weight = drawn(pattern, layout, 6, torch.float32)
    y = multiply(x, weight, pattern, layout, backend="triton")
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        backend.kronecker_multiply, (x.requires_grad_(), weight.requires_grad_(), last), test_utils=tests
    )
    torch.library.opcheck(backend.kronecker_weight_gradient, (x, y, list(pattern.shape), last), test_utils=tests)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own use, for forward mode
def test_transforms_of_torch_are_refused_and_not_ignored() -> None:
    pattern = Pattern(2, 3, 4, 2)
    x, weight = drawn(pattern, BATCH_FIRST, 6, torch.float32)

    def product(x: Tensor) -> Tensor:
        return multiply(x, weight, pattern, backend="triton")

    with pytest.raises(InvalidInput, match="and forward-mode differentiation"):
        torch.func.jvp(product, (x,), (x,))
    with pytest.raises(InvalidInput, match="and forward-mode differentiation"):
        torch.func.vmap(product)(x)


@needs_gpu
def test_tf32_is_used_where_it_is_allowed() -> None:
    pattern = Pattern(1, 64, 256, 4)
    x, weight = drawn(pattern, BATCH_FIRST, 64, torch.float32)
    wanted = by_dense(x, weight, pattern, BATCH_FIRST)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert 1e-5 < error(multiply(x, weight, pattern, backend="triton"), wanted) <= 2e-3
    finally:
        torch.set_float32_matmul_precision(before)
    assert error(multiply(x, weight, pattern, backend="triton"), wanted) <= 1e-6


@needs_gpu
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own use
def test_layers_compile_and_export() -> None:
    layer = KroneckerLinear([(1, 12, 6, 2), (2, 6, 8, 1)], backend="triton", device="cuda")
    x = torch.randn(5, 16, device="cuda")
    compiled = torch.compile(layer, fullgraph=True)
    y = compiled(x)
    assert torch.allclose(y, layer(x), atol=1e-5)
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    other = torch.randn(9, 16, device="cuda")
    assert torch.allclose(exported.module()(other), layer(other), atol=1e-5)
