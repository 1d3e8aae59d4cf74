"""The backend "cpu" runs kernels of the extension that read and write every number in place, in any layout."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels import dispatch, kronecker
from tamis.kronecker.backends import BATCH_LAST, NO_RULES, Backend, Step, add_bias, register
from tamis.kronecker.pattern import Pattern


def _accepts(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str:
    if x.dtype != torch.float32:
        return f"it multiplies float32, got {x.dtype}; take the backend 'bmm'"
    if x.device.type != "cpu":
        return f"it runs on the CPU, and x is on '{x.device}'; take the backend 'bmm'"
    if kronecker.is_transform_active():
        return NO_RULES
    return _explain_missing()


@torch.compiler.assume_constant_result
def _explain_missing() -> str:
    """Return why there are no kernels, or ""; a constant, since torch.compile cannot look into imports."""
    return "" if dispatch.native() is not None else f"{dispatch.explain_native()}; take the backend 'bmm'"


def _apply(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    return kronecker.multiply(x, weight, False, layout == BATCH_LAST)


def _prepare(weight: Tensor, pattern: Pattern, layout: str) -> Step:
    product = kronecker.prepare(weight, layout == BATCH_LAST)
    return lambda x, bias: add_bias(product(x), bias, layout)


def kernel() -> tuple[str | None, str]:
    """Return the kernel that runs on this processor, None if there is none, and why."""
    try:
        name, reason = dispatch.kronecker_kernel()
    except InvalidInput as error:
        return None, str(error)
    return (None if name == "torch" else name), reason


CPU = register(Backend("cpu", _accepts, _apply, _prepare))
