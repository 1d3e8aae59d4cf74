"""Which backend is chosen, and what is said of it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.kronecker import triton
from tamis.kronecker.backends import Backend
from tamis.kronecker.choice import choose_backend
from tamis.kronecker.layer import KroneckerLinear
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern

pytestmark = pytest.mark.usefixtures("nothing_tuned")
LAYOUTS = ("batch_first", "batch_last")
Shape = tuple[int, int, int, int]


def names(shape: Shape, dtype: torch.dtype = torch.float32) -> list[str]:
    """Of the backends chosen in the two layouts."""
    pattern, weight = Pattern(*shape), torch.ones(shape, dtype=dtype)
    inputs = {
        "batch_first": torch.ones(3, pattern.columns, dtype=dtype),
        "batch_last": torch.ones(pattern.columns, 3, dtype=dtype),
    }
    return [choose_backend(inputs[layout], weight, pattern, layout)[0].name for layout in LAYOUTS]


@pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())
@pytest.mark.parametrize(
    ("shape", "first", "last"),
    [
        ((1, 192, 48, 2), "cpu", "cpu"),
        ((6, 64, 64, 1), "cpu", "bmm"),
        ((6, 64, 8, 1), "cpu", "cpu"),
        ((2, 512, 512, 1), "bmm", "bmm"),
        ((1, 512, 512, 2), "cpu", "cpu"),
        ((64, 2, 1, 1), "cpu", "cpu"),
        ((1, 2, 2, 1), "dense", "dense"),
    ],
)
def test_in_float32_on_a_cpu(shape: Shape, first: str, last: str) -> None:
    assert names(shape) == [first, last]


@pytest.mark.parametrize(
    ("shape", "first", "last"),
    [
        ((1, 2, 2, 256), "elementwise", "elementwise"),
        ((64, 2, 1, 1), "elementwise", "elementwise"),
        ((4, 8, 4, 16), "elementwise", "bmm"),
        ((4, 8, 4, 8), "bmm", "bmm"),
        ((4, 16, 4, 16), "bmm", "bmm"),
        ((1, 2, 2, 1), "dense", "dense"),
    ],
)
def test_other_dtypes_and_machines_without_the_extension(
    shape: Shape, first: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(shape, torch.float64) == names(shape, torch.float16) == [first, last]
    monkeypatch.setitem(sys.modules, "tamis._native", None)
    assert names(shape) == [first, last]


def test_a_choice_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def why(*shape: int, dtype: torch.dtype = torch.float32) -> str:
        x = torch.ones(2, shape[0] * shape[2] * shape[3], dtype=dtype)
        return multiply(x, torch.ones(shape, dtype=dtype), shape, explain=True)[1]

    assert why(1, 3, 12, 1) == "dense: the pattern (1, 3, 12, 1) is that of a dense matrix"
    assert why(2, 3, 3, 2, dtype=torch.float64) == (
        "bmm: 4 products of dense 3 × 3 blocks, batched; not cpu: it multiplies float32, got torch.float64"
    )
    assert why(3, 2, 2, 2, dtype=torch.float64).startswith("elementwise: products of 2 × 2 blocks are too small")
    if dispatch.native() is not None:
        assert why(2, 3, 3, 2) == "cpu: its kernels read and write what (2, 3, 3, 2) takes where it stands, no copies"
        assert why(2, 512, 512, 1) == (
            "bmm: with d = 1 it copies nothing in the layout batch_first, and blocks of 512 × 512 are large enough"
        )
    monkeypatch.setitem(sys.modules, "tamis._native", None)
    assert "; not cpu: native kernels are not used" in why(2, 3, 3, 2)


def test_networks_that_are_exported_keep_matrix_products() -> None:
    layer, x = KroneckerLinear([(1, 2, 2, 32), (2, 32, 32, 1)]), torch.randn(4, 64)
    operations = {str(node.target) for node in torch.export.export(layer, (x,)).graph.nodes}
    assert "aten.bmm.default" in operations and not any("tamis" in operation for operation in operations)


class OnGpu:
    is_cuda, dtype, device, shape, requires_grad = True, torch.float16, torch.device("cuda:0"), (7, 7), False


def test_on_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    weight: Any = OnGpu()
    refusing = Backend("triton", lambda *_: "Triton is not installed; take the backend 'bmm'", triton.TRITON.apply)
    monkeypatch.setattr(triton, "TRITON", refusing)
    assert choose_backend(weight, weight, Pattern(1, 64, 64, 4), "batch_first")[0].name == "dense"
    assert choose_backend(weight, weight, Pattern(8, 2, 2, 4), "batch_first")[0].name == "bmm"
    name, why = choose_backend(weight, weight, Pattern(2, 64, 64, 4), "batch_first")
    assert name.name == "bmm" and why.endswith("; not triton: Triton is not installed")
    monkeypatch.setattr(OnGpu, "dtype", torch.float32)
    assert choose_backend(weight, weight, Pattern(1, 64, 64, 4), "batch_first")[0].name == "bmm"


def test_on_a_gpu_triton_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def prefers(*arguments: Any) -> str:
        asked.append(arguments)
        return "dense"

    monkeypatch.setattr(triton, "TRITON", SimpleNamespace(accepts=lambda *_: ""))
    monkeypatch.setattr(triton, "prefers", prefers)
    weight, pattern = OnGpu(), Pattern(2, 64, 64, 4)
    backend, why = choose_backend(weight, weight, pattern, "batch_last")  # type: ignore[arg-type]
    assert (
        backend.name == "dense"
        and "the fastest for 7 vectors, (2, 64, 64, 4), batch_last and torch.float16, by rules" in why
    )
    assert asked == [(pattern, torch.float16, "batch_last", 7)]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # for a batch of any size
    choose_backend(weight, weight, pattern, "batch_last")  # type: ignore[arg-type]
    assert asked[1:] == [(pattern, torch.float16, "batch_last", triton.MEASURED)]
    assert choose_backend(weight, weight, Pattern(1, 64, 64, 1), "batch_last")[0].name == "dense" and len(asked) == 2  # type: ignore[arg-type]


def product(x: Tensor) -> Tensor:
    return multiply(x, torch.ones(2, 3, 3, 2), (2, 3, 3, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, for forward mode
def test_transforms_of_torch_get_what_they_can_transform() -> None:
    x = torch.randn(4, 12)
    want = torch.kron(torch.eye(2), torch.kron(torch.ones(3, 3), torch.eye(2)))
    torch.testing.assert_close(torch.func.jacrev(product)(x[0]), want)
    torch.testing.assert_close(torch.func.jacfwd(product)(x[0]), want)
    torch.testing.assert_close(torch.func.vmap(product)(x), x @ want.T)
    with torch.autograd.forward_ad.dual_level():
        dual = product(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(tangent, torch.ones(4, 12) @ want.T)


@pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())
def test_the_backend_cpu_refuses_aloud() -> None:
    weight, x = torch.ones(2, 3, 3, 2), torch.ones(2, 12)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        with pytest.raises(InvalidInput, match=rf"'cpu' does not .* it multiplies float32, got {dtype}; take .* 'bmm'"):
            multiply(x.to(dtype), weight.to(dtype), (2, 3, 3, 2), backend="cpu")
    with pytest.raises(InvalidInput, match="it runs on the CPU, and x is on 'meta'"):
        multiply(x.to("meta"), weight.to("meta"), (2, 3, 3, 2), backend="cpu")
    with pytest.raises(InvalidInput, match=r"no rules for torch\.func and forward-mode"):
        torch.func.vmap(lambda v: multiply(v, weight, (2, 3, 3, 2), backend="cpu"))(x)
