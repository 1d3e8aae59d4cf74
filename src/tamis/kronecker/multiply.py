"""Multiplication takes a batch of vectors through one Kronecker-sparse factor."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kronecker.backends import BATCH_FIRST, LAYOUTS
from tamis.kronecker.choice import choose_backend, find_backend
from tamis.kronecker.pattern import Pattern, PatternLike, as_pattern


@overload
def multiply(
    x: Tensor,
    weight: Tensor,
    pattern: PatternLike,
    layout: str = ...,
    backend: str | None = ...,
    explain: Literal[False] = ...,
) -> Tensor: ...


@overload
def multiply(
    x: Tensor,
    weight: Tensor,
    pattern: PatternLike,
    layout: str = ...,
    backend: str | None = ...,
    *,
    explain: Literal[True],
) -> tuple[Tensor, str]: ...


def multiply(
    x: Tensor,
    weight: Tensor,
    pattern: PatternLike,
    layout: str = BATCH_FIRST,
    backend: str | None = None,
    explain: bool = False,
) -> Tensor | tuple[Tensor, str]:
    """Compute x Kᵀ for the Kronecker-sparse matrix K of a pattern (a, b, c, d), with B·abcd multiplications.

        y[…, i·bd + k·d + j] = Σ_l weight[i, k, l, j] · x[…, i·cd + l·d + j]

    Differentiable in x and in the weight. Any number of batch dimensions; a batch may be empty.

    Args:
        x: (…, acd), or (acd, …) in the layout "batch_last".
        weight: (a, b, c, d), of the dtype of x.
        pattern: `Pattern(a, b, c, d)`, or the four numbers.
        layout: "batch_first", as torch has it, or "batch_last", in which numbers that a block reads lie side by side.
        backend: "reference", "bmm", "elementwise", "dense", "cpu" (kernels of the extension, in float32) or "triton"
            (on a GPU); None chooses, as `tamis.kronecker.choice.choose_backend` says.
        explain: whether to give (y, one sentence saying which backend it was, and why).

    Example:
        >>> multiply(torch.ones(5, 384), torch.ones(2, 48, 192, 1), Pattern(2, 48, 192, 1)).shape
        torch.Size([5, 96])

    Reference: gonon2024thesis.
    """
    pattern = as_pattern(pattern)
    check_layout(layout)
    check_numbers("x", x)
    check_numbers("weight", weight)
    # Before the dtypes are compared: under autocast, a float32 weight and a half-precision input are no mistake.
    x, weight = as_autocast(x), as_autocast(weight)
    _check_tensors(x, weight, pattern, layout)
    # Backends know matrices only; all axes of the batch become one, and are given back below.
    flat = x if x.dim() == 2 else x.reshape((-1, pattern.columns) if layout == BATCH_FIRST else (pattern.columns, -1))
    way, why = (
        choose_backend(flat, weight, pattern, layout)
        if backend is None
        else find_backend(backend, flat, weight, pattern, layout)
    )
    y = way.apply(flat, weight, pattern, layout)
    if x.dim() != 2:
        y = y.reshape((*x.shape[:-1], pattern.rows) if layout == BATCH_FIRST else (pattern.rows, *x.shape[1:]))
    return (y, why) if explain else y


def as_autocast(tensor: Tensor) -> Tensor:
    """Cast a tensor to autocast's dtype where that is on, as torch does for its own products only."""
    device = tensor.device.type
    # As torch: autocast lowers float32 and half precisions, and leaves wider and complex numbers as they are.
    if tensor.is_complex() or tensor.dtype == torch.float64 or device == "meta":
        return tensor
    if not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def check_layout(layout: str) -> None:
    """Raise InvalidInput for a layout that is not in `LAYOUTS`."""
    if layout not in LAYOUTS:
        raise InvalidInput(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def check_numbers(name: str, tensor: Tensor) -> None:
    """Raise InvalidInput for an argument that is not a dense tensor of real or complex numbers."""
    if not isinstance(tensor, Tensor):
        raise InvalidInput(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise InvalidInput(f"{name} must hold real or complex numbers, got {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise InvalidInput(f"{name} must be a dense tensor, got one of {tensor.layout}; take {name}.to_dense()")


def _check_tensors(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> None:
    if tuple(weight.shape) != pattern.shape:
        raise InvalidInput(f"the weight of the pattern {pattern} has that shape, got {tuple(weight.shape)}")
    axis = -1 if layout == BATCH_FIRST else 0
    if x.dim() == 0 or x.shape[axis] != pattern.columns:
        wanted = f"(…, {pattern.columns})" if layout == BATCH_FIRST else f"({pattern.columns}, …)"
        raise InvalidInput(
            f"the pattern {pattern} takes an input of shape {wanted} in the layout {layout}, got {tuple(x.shape)}"
        )
    if x.dtype != weight.dtype:
        raise InvalidInput(f"x and weight must be of one dtype, got {x.dtype} and {weight.dtype}")
    if x.device != weight.device:
        raise InvalidInput(f"x and weight must be on one device, got {x.device} and {weight.device}")
