"""The backend "triton": one pass over the input, one over the output, on a GPU, in any layout and for any pattern."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from tamis.kernels.binary import watched
from tamis.kernels.triton.kronecker_tiles import tile_of
from tamis.kronecker.backends import BATCH_LAST, HALF, Backend, Step, register
from tamis.kronecker.pattern import Pattern

DTYPES = (torch.float32, *HALF)
# Multiplications for each number moved, below which a dense product in half precision was faster than these ways.
MOST_DENSE = {"rows, d ≤ 3": 310, "rows": 160, "columns, a > 1": 390, "columns": 800, "turned": 820}
INSTALLED = find_spec("triton") is not None  # asked here, where torch.compile does not look on
OLDEST = (8, 0)  # the compute capability from which on tensor cores multiply TF32 and bfloat16 numbers


@torch.library.custom_op("tamis::kronecker_multiply", mutates_args=())
def kronecker_multiply(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    """x Kᵀ, or K x where the batch is last, as an operator that `torch.compile` and `torch.export` take as a whole."""
    return _multiply(x, weight, batch_last)


def _multiply(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    from tamis.kernels.triton import kronecker as kernels

    return kernels.multiply(x.contiguous(), weight, batch_last, _tf32_allowed())


@kronecker_multiply.register_fake
def _(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    rows = weight.shape[0] * weight.shape[1] * weight.shape[3]
    return x.new_empty((rows, x.shape[1]) if batch_last else (x.shape[0], rows))


@torch.library.custom_op("tamis::kronecker_weight_gradient", mutates_args=())
def kronecker_weight_gradient(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    """The gradient of `kronecker_multiply` in the weight, which has this shape."""
    return _weight_gradient(x, gradient, shape, batch_last)


def _weight_gradient(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    from tamis.kernels.triton import kronecker as kernels

    a, b, c, d = shape
    return kernels.weight_gradient(x.contiguous(), gradient.contiguous(), (a, b, c, d), batch_last, _tf32_allowed())


@kronecker_weight_gradient.register_fake
def _(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    return x.new_empty(shape)


def multiply(x: Tensor, weight: Tensor, batch_last: bool) -> Tensor:
    """`kronecker_multiply`, past PyTorch, which takes longer to call it than it takes, unless PyTorch looks on."""
    if _watched(x, weight):
        y: Tensor = kronecker_multiply(x, weight, batch_last)
    elif _differentiated(x, weight):
        y = _Product.apply(x, weight, batch_last)
    else:
        y = _multiply(x, weight, batch_last)
    return y


def weight_gradient(x: Tensor, gradient: Tensor, shape: list[int], batch_last: bool) -> Tensor:
    """`kronecker_weight_gradient`, likewise."""
    if _watched(x, gradient) or _differentiated(x, gradient):
        result: Tensor = kronecker_weight_gradient(x, gradient, shape, batch_last)
        return result
    return _weight_gradient(x, gradient, shape, batch_last)


def _watched(first: Tensor, second: Tensor) -> bool:
    if watched() or not {type(first), type(second)} <= {Tensor, nn.Parameter}:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None or first.device.type == "meta"


def _differentiated(first: Tensor, second: Tensor) -> bool:
    return torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)


def _keep_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None = None) -> None:
    x, weight, ctx.batch_last = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    by_x = by_weight = None
    if ctx.needs_input_grad[0]:
        by_x = multiply(gradient, weight.transpose(1, 2), ctx.batch_last)
    if ctx.needs_input_grad[1]:
        by_weight = weight_gradient(x, gradient, list(weight.shape), ctx.batch_last)
    return by_x, by_weight, None


def _keep_sides(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gradient, _, ctx.batch_last = inputs
    ctx.save_for_backward(x, gradient)


def _backward_of_gradient(ctx: Any, weight: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, gradient = ctx.saved_tensors
    by_x = multiply(gradient, weight.transpose(1, 2), ctx.batch_last)
    by_gradient = multiply(x, weight, ctx.batch_last)
    return by_x, by_gradient, None, None


class _Product(torch.autograd.Function):
    """`multiply` with its gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # no setup_context: PyTorch would look up the signature in each call
        _keep_factors(ctx, inputs)
        return _multiply(*inputs)

    backward = staticmethod(_backward)


kronecker_multiply.register_autograd(_backward, setup_context=_keep_factors)
kronecker_weight_gradient.register_autograd(_backward_of_gradient, setup_context=_keep_sides)


def prefers(pattern: Pattern, dtype: torch.dtype, layout: str, batch: int) -> str:
    """Which of "triton", "bmm" and "dense" is the fastest for tensors on a GPU, as measured on an H200.

    In float32 "triton" was, for each of 605 patterns with ad ≥ 2 in both layouts. In half precision "dense" was where
    it makes few multiplications for each number that it moves, n = ad · bc/(b + c); "bmm" never was. Measured for 25088
    vectors (benchmarks/kronecker_gpu.py); for fewer than a few hundred nothing was.

    Example:
        >>> prefers(Pattern(1, 192, 48, 2), torch.float32, "batch_first", 25088)
        'triton'
        >>> prefers(Pattern(1, 192, 48, 2), torch.float16, "batch_first", 25088)
        'dense'
    """
    a, b, c, d = pattern.shape
    if a * d == 1:
        return "dense"
    if dtype not in DTYPES:
        return "bmm"
    if dtype == torch.float32:
        return "triton"
    way = tile_of(pattern.shape, dtype, layout == BATCH_LAST, batch).way
    if way == "filled":
        return "dense"
    if way == "rows":
        most = MOST_DENSE["rows, d ≤ 3"] if d <= 3 else MOST_DENSE["rows"]
    elif way == "columns":
        most = MOST_DENSE["columns, a > 1"] if a > 1 else MOST_DENSE["columns"]
    else:
        most = MOST_DENSE["turned"]
    return "dense" if a * d * b * c < most * (b + c) else "triton"


def _tf32_allowed() -> bool:
    """Whether the user lets matrix products round float32 numbers to TF32 (torch.set_float32_matmul_precision)."""
    return torch.get_float32_matmul_precision() != "highest"


def _accepts(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str:
    if not INSTALLED:
        return "Triton is not installed: pip install triton, or take the backend 'bmm'"
    if x.dtype not in DTYPES:
        return f"it multiplies float32, float16 and bfloat16, got {x.dtype}; take the backend 'bmm'"
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
    from tamis.kernels.triton.kronecker import Factor

    factor = Factor(weight.detach(), layout == BATCH_LAST, _tf32_allowed())
    return lambda x, bias: factor(x.contiguous(), bias)


TRITON = register(Backend("triton", _accepts, _apply, _prepare))
