"""The backend "triton" makes one pass over input and output on a GPU, in any layout and for any pattern."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from tamis.kernels import (
    is_intercepted,
    is_transform_active,
    multiply_with_torch,
    needs_gradient,
    needs_torch_rules,
    weight_gradient_with_torch,
)
from tamis.kernels.triton import kronecker_tiles
from tamis.kronecker.backends import (
    BATCH_FIRST,
    BATCH_LAST,
    HALF,
    NO_RULES,
    Backend,
    Step,
    is_aligned,
    register,
)
from tamis.kronecker.pattern import Pattern
from tamis.kronecker.tuned_table import next_power_of_two

DTYPES = (torch.float32, *HALF)
MEASURED = 25088  # vectors that products were measured for
# Multiplications for each number moved, below which a dense product in half precision was faster than these ways.
MOST_DENSE = {"rows, d = 1": 100, "rows, d ≤ 3": 310, "rows": 160, "columns, a > 1": 390, "columns": 800, "turned": 820}
MOST_DENSE_ENTRIES = 160  # the same for "entries", and more for each entry of a row:
MORE_DENSE_ENTRIES = {BATCH_FIRST: 64, BATCH_LAST: 32}
FILLED = 2**20  # outputs from which on there are tiles for all of a GPU
SMALL = 2**22  # entries of a matrix that one vector is multiplied by faster than by its blocks
INSTALLED = find_spec("triton") is not None  # asked here: torch.compile could not trace it in a call
OLDEST = (8, 0)  # the compute capability from which on tensor cores multiply TF32 and bfloat16 numbers


@torch.library.custom_op("tamis::kronecker_multiply", mutates_args=())
def kronecker_multiply(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    """Compute x Kᵀ, or K x where the batch is last, as one operator for torch.compile and torch.export."""
    return _multiply(x, weight, batch_last)


def _multiply(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    from tamis.kernels.triton import kronecker as kernels

    return kernels.multiply(_make_contiguous(x), weight.resolve_neg(), batch_last, allows_tf32())


@kronecker_multiply.register_fake
def _(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    rows = weight.shape[0] * weight.shape[1] * weight.shape[3]
    return x.new_empty((rows, x.shape[1]) if batch_last else (x.shape[0], rows))


@torch.library.custom_op("tamis::kronecker_weight_gradient", mutates_args=())
def kronecker_weight_gradient(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    """Compute the gradient of `kronecker_multiply` in the weight, which has this shape."""
    return _weight_gradient(x, gradient, shape, batch_last)


def _weight_gradient(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    from tamis.kernels.triton import kronecker as kernels

    a, b, c, d = shape
    return kernels.weight_gradient(
        _make_contiguous(x), _make_contiguous(gradient), (a, b, c, d), batch_last, allows_tf32()
    )


def _make_contiguous(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor as kernels read it, negated where torch has deferred that (`z.conj().imag`)."""
    return tensor.resolve_neg().contiguous()


@kronecker_weight_gradient.register_fake
def _(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    return x.new_empty(shape)


def multiply(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    """Run `kronecker_multiply` without PyTorch's dispatcher, which takes longer than a small product, if possible."""
    if _is_intercepted(x, weight):
        y: Tensor = kronecker_multiply(x, weight, batch_last)
    elif needs_gradient(x, weight):
        y = _Product.apply(x, weight, batch_last)
    else:
        y = _multiply(x, weight, batch_last)
    return y


def weight_gradient(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    """Run `kronecker_weight_gradient` without PyTorch's dispatcher, if possible."""
    if _is_intercepted(x, gradient) or needs_gradient(x, gradient):
        result: Tensor = kronecker_weight_gradient(x, gradient, shape, batch_last)
        return result
    return _weight_gradient(x, gradient, shape, batch_last)


def _is_intercepted(first: Tensor, second: Tensor) -> bool:
    if is_intercepted() or not {type(first), type(second)} <= {Tensor, nn.Parameter}:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None or first.device.type == "meta"


def _save_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None = None) -> None:
    x, weight, ctx.batch_last = inputs
    ctx.save_for_backward(x, weight)


def _multiply_with_torch(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    return multiply_with_torch(x, weight, False, batch_last)


def _choose_products(gradient: Tensor) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Choose the functions that compute products and weight gradients from this gradient."""
    return (
        (_multiply_with_torch, weight_gradient_with_torch)
        if needs_torch_rules(gradient)
        else (multiply, weight_gradient)
    )


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    by_x = by_weight = None
    product, sums = _choose_products(gradient)
    if ctx.needs_input_grad[0]:
        by_x = product(gradient, weight.transpose(1, 2), ctx.batch_last)
    if ctx.needs_input_grad[1]:
        by_weight = sums(x, gradient, list(weight.shape), ctx.batch_last)
    return by_x, by_weight, None


def _save_sides(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gradient, _, ctx.batch_last = inputs
    ctx.save_for_backward(x, gradient)


def _backward_of_gradient(ctx: Any, weight: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, gradient = ctx.saved_tensors
    product, _ = _choose_products(weight)
    by_x = product(gradient, weight.transpose(1, 2), ctx.batch_last)
    by_gradient = product(x, weight, ctx.batch_last)
    return by_x, by_gradient, None, None


class _Product(torch.autograd.Function):
    """This autograd function is the product, which PyTorch calls faster than the operator."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # no setup_context: PyTorch would look up the signature in each call
        _save_factors(ctx, inputs)
        return _multiply(*inputs)

    backward = staticmethod(_backward)


kronecker_multiply.register_autograd(_backward, setup_context=_save_factors)
kronecker_weight_gradient.register_autograd(_backward_of_gradient, setup_context=_save_sides)


def prefers(pattern: Pattern, dtype: torch.dtype, layout: str, batch: int) -> str:
    """Return which of "triton", "bmm" and "dense" is the fastest for tensors on a GPU, as measured on an H200.

    For 25088 vectors and each of 605 patterns with ad ≥ 2, in both layouts, "triton" was in
    float32; in half precision "dense" was where it makes few multiplications for each number that it moves,
    n = ad · bc/(b + c). Where others are faster for other batches and small blocks benchmarks/kronecker_gpu.py shows.

    Example:
        >>> prefers(Pattern(1, 192, 48, 2), torch.float32, "batch_first", 25088)
        'triton'
        >>> prefers(Pattern(1, 192, 48, 2), torch.float16, "batch_first", 25088)
        'dense'
    """
    if dtype not in DTYPES:
        return "dense" if pattern.a * pattern.d == 1 else "bmm"
    last = layout == BATCH_LAST
    way = kronecker_tiles.tile_of(pattern.shape, dtype, last, batch).way
    return (
        _prefer_in_float32(pattern, way, last, batch)
        if dtype == torch.float32
        else _prefer_in_half(pattern, way, layout, is_aligned(batch, dtype))
    )


def _prefer_in_float32(pattern: Pattern, way: str, last: bool, batch: int) -> str:
    a, b, c, d = pattern.shape
    odd = not is_aligned(batch, torch.float32)
    if a * d == 1:  # which torch multiplies in float32 numbers, and "triton" in float16 ones
        return "triton" if next_power_of_two(batch) * b >= FILLED and not (last and odd) else "dense"
    if way == "entries":
        return "bmm" if last and d == 1 and min(b, c) > 8 else "triton"
    if batch == 1:
        return "dense" if d > 1 and pattern.rows * pattern.columns <= SMALL else "bmm"
    if last and odd:
        return "bmm"
    return "bmm" if _is_bmm_faster(pattern, 24 if last else 12) else "triton"


def _prefer_in_half(pattern: Pattern, way: str, layout: str, even: bool) -> str:
    a, b, c, d = pattern.shape
    last = layout == BATCH_LAST
    if a * d == 1 or way == "filled":
        return "dense"
    if last and not even:
        return "triton"
    if way == "rows":
        most = MOST_DENSE["rows, d = 1" if d == 1 else "rows, d ≤ 3" if d <= 3 else "rows"]
    elif way == "columns":
        most = MOST_DENSE["columns, a > 1"] if a > 1 else MOST_DENSE["columns"]
    elif way == "entries":
        most = MOST_DENSE_ENTRIES + MORE_DENSE_ENTRIES[layout] * c
    else:
        most = MOST_DENSE["turned"]
    # A dense product takes (ad)²bc multiplications, and a sparse one moves ad(b + c) numbers. Where their ratio,
    # ad·bc/(b + c), is small, multiplying by the zeros takes less time than leaving them out.
    if a * d * b * c < most * (b + c):
        return "dense"
    return "bmm" if way == "rows" and last and _is_bmm_faster(pattern, 12) else "triton"


def _is_bmm_faster(pattern: Pattern, most: int) -> bool:
    """Return whether "bmm" reads blocks in place, and they are so small that it is faster."""
    return pattern.d == 1 and pattern.b * pattern.c < most * (pattern.b + pattern.c)


def allows_tf32() -> bool:
    """Return whether the user lets float32 products round to TF32 (torch.set_float32_matmul_precision)."""
    return torch.get_float32_matmul_precision() != "highest"


def _accepts(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str:
    if not INSTALLED:
        return "Triton is not installed: pip install triton, or take the backend 'bmm'"
    if x.dtype not in DTYPES:
        return f"it multiplies float32, float16 and bfloat16, got {x.dtype}; take the backend 'bmm'"
    if is_transform_active():
        return NO_RULES
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    if x.device.type != "cuda":
        return f"it needs a GPU, and x is on '{x.device}'; take the backend 'bmm'"
    capability = torch.cuda.get_device_capability(x.device)
    if capability < OLDEST:
        return f"it needs a GPU of compute capability {OLDEST} or later, got {capability}; take the backend 'bmm'"
    return ""


def _apply(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    return multiply(x, weight, layout == BATCH_LAST)


def _prepare(weight: Tensor, pattern: Pattern, layout: str) -> Step:
    from tamis.kernels.triton import kronecker as kernels

    factor = kernels.Factor(weight.detach().resolve_neg(), layout == BATCH_LAST, allows_tf32())
    return lambda x, bias: factor(_make_contiguous(x), None if bias is None else bias.resolve_neg())


TRITON = register(Backend("triton", _accepts, _apply, _prepare))
