"""The choice of a backend follows what was measured here, and otherwise rules from measurements elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels import needs_gradient
from tamis.kronecker import cpu as cpu  # it makes itself known as a backend, as does triton
from tamis.kronecker import triton, tuned_table
from tamis.kronecker.backends import BACKENDS, BATCH_FIRST, BATCH_LAST, HALF, Backend
from tamis.kronecker.pattern import Pattern

LARGE_BLOCK = 2**18  # weights of a block from which on BLAS is as fast as the backend "cpu" at least
COPY_FREE = 16  # rows and columns of blocks from which on BLAS is as fast with the batch last, where it copies nothing
MOST_FILLED = 4  # in half precision a GPU multiplies by up to so many times as many zeros faster than it moves numbers


def choose_backend(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> tuple[Backend, str]:
    """Choose the backend that multiplies if none is asked for, and say why in one sentence.

    What `tamis.kronecker.tuning.tune` has measured here comes first. Without that, the rule looks at the pattern, the
    layout, the dtype and the device; at the batch on a GPU alone, and not in a network that is compiled or exported,
    where it may be of any size. In an exported one, blocks stay matrix products, which `tamis.trace` knows.
    """
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return _choose_for_torch(weight, pattern)
    if not torch.compiler.is_compiling():
        name = tuned_table.find_fastest(x, weight, pattern, layout)
        if name in BACKENDS and not BACKENDS[name].accepts(x, weight, pattern, layout):
            return BACKENDS[name], f"{name}: the fastest for {pattern} when it was tuned here, in {tuned_table.file()}"
    if weight.device.type == "cpu":
        return _choose_on_cpu(x, weight, pattern, layout)
    if weight.device.type == "cuda":
        return _choose_on_gpu(x, weight, pattern, layout)
    return _choose_for_torch(weight, pattern)


def _choose_on_cpu(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> tuple[Backend, str]:
    """Choose as measured with one thread and with two, for batches from 1 to 4096 (benchmarks/kronecker.py)."""
    if pattern.a * pattern.d == 1:
        return _choose_for_torch(weight, pattern)
    refusal = BACKENDS["cpu"].accepts(x, weight, pattern, layout).partition(";")[0]
    if not refusal:
        _, b, c, d = pattern.shape
        if d == 1 and (b * c >= LARGE_BLOCK or (layout == BATCH_LAST and min(b, c) >= COPY_FREE)):
            return BACKENDS["bmm"], (
                f"bmm: with d = 1 it copies nothing in the layout {layout}, and blocks of {b} × {c} are large enough"
            )
        return BACKENDS["cpu"], f"cpu: its kernels read and write what {pattern} takes where it stands, no copies"
    if _is_faster_elementwise(pattern, layout):
        return BACKENDS["elementwise"], (
            f"elementwise: products of {pattern.b} × {pattern.c} blocks are too small for batched products on a CPU; "
            f"not cpu: {refusal}"
        )
    backend, why = _choose_for_torch(weight, pattern)
    return backend, f"{why}; not cpu: {refusal}"


def _choose_on_gpu(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> tuple[Backend, str]:
    """Choose the preference of `tamis.kronecker.triton` where it runs."""
    refusal = triton.TRITON.accepts(x, weight, pattern, layout).partition(";")[0]
    if refusal:
        backend, why = _choose_for_torch(weight, pattern)
        return backend, f"{why}; not triton: {refusal}"
    compiling = torch.compiler.is_compiling()
    if pattern.a * pattern.d == 1 and (compiling or needs_gradient(x, weight) or triton.allows_tf32()):
        return _choose_for_torch(weight, pattern)  # which was not measured, or is torch's best
    batch = triton.MEASURED if compiling else x.shape[0] if layout == BATCH_FIRST else x.shape[1]
    name = triton.prefers(pattern, weight.dtype, layout, batch)
    for_what = f"{batch} vectors, {pattern}, {layout} and {weight.dtype}"
    return BACKENDS[name], f"{name}: the fastest for {for_what}, by rules from measurements on an H200"


def _choose_for_torch(weight: Tensor, pattern: Pattern) -> tuple[Backend, str]:
    """Choose among the backends that are matrix products of torch."""
    filled = pattern.a * pattern.d
    if filled == 1:
        return BACKENDS["dense"], f"dense: the pattern {pattern} is that of a dense matrix"
    if weight.is_cuda and weight.dtype in HALF and filled <= MOST_FILLED:
        return BACKENDS["dense"], (
            f"dense: in half precision on a GPU a dense product with {filled} times the multiplications of {pattern} "
            f"is faster, up to ad = {MOST_FILLED}"
        )
    return BACKENDS["bmm"], f"bmm: {filled} products of dense {pattern.b} × {pattern.c} blocks, batched"


def _is_faster_elementwise(pattern: Pattern, layout: str) -> bool:
    """Return whether one thread was measured to be faster entry by entry, up to 26 times for (1, 2, 2, 256)."""
    largest = max(pattern.b, pattern.c)
    return largest <= 2 or (layout == BATCH_FIRST and largest <= 8 and pattern.d >= 16)


def find_backend(name: str, x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> tuple[Backend, str]:
    """Return the backend of this name, and refuse one that does not accept what it is to multiply."""
    if name not in BACKENDS:
        raise InvalidInput(f"there is no backend {name!r}; known: {', '.join(BACKENDS)}, or None to have one chosen")
    refusal = BACKENDS[name].accepts(x, weight, pattern, layout)
    if refusal:
        raise InvalidInput(f"backend '{name}' does not multiply by {pattern} here: {refusal}")
    return BACKENDS[name], f"{name}: asked for"
