"""Ways to multiply by one Kronecker-sparse factor, behind one small interface.

A backend says what it accepts and does it; `register` adds one. All of them are differentiable in the input and in the
weight, and take a batch as a matrix: (batch, acd) → (batch, abd) in the layout "batch_first", and (acd, batch) →
(abd, batch) in "batch_last".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.errors import InvalidInput
from tamis.kronecker.pattern import Pattern

BATCH_FIRST, BATCH_LAST = LAYOUTS = ("batch_first", "batch_last")
HALF = (torch.float16, torch.bfloat16)
MOST_FILLED = 4  # in half precision a GPU multiplies by up to so many times as many zeros faster than it moves numbers


@dataclass(frozen=True)
class Backend:
    """One way to multiply.

    Attributes:
        name: as `multiply(…, backend=name)` calls it.
        accepts: (x, weight, pattern, layout) → why it cannot do this, or "" if it can.
        apply: (x, weight, pattern, layout) → x Kᵀ, or K x in the layout "batch_last".
    """

    name: str
    accepts: Callable[[Tensor, Tensor, Pattern, str], str]
    apply: Callable[[Tensor, Tensor, Pattern, str], Tensor]


BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> Backend:
    """Make a backend known under its name."""
    if backend.name in BACKENDS:
        raise InvalidInput(f"there is a backend '{backend.name}' already; known: {', '.join(BACKENDS)}")
    BACKENDS[backend.name] = backend
    return backend


def chosen(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> tuple[Backend, str]:
    """The backend that multiplies if none is asked for, and one sentence saying why.

    The rule looks at the pattern, the layout, the dtype and the device, and never at the batch, which may be of any
    size in a network that is exported. There, blocks stay matrix products, which `tamis.trace` knows for what they are.
    """
    filled = pattern.a * pattern.d
    if filled == 1:
        return BACKENDS["dense"], f"dense: the pattern {pattern} is that of a dense matrix"
    if weight.is_cuda and weight.dtype in HALF and filled <= MOST_FILLED:
        return BACKENDS["dense"], (
            f"dense: in half precision on a GPU a dense product with {filled} times the multiplications of {pattern} "
            f"is faster, up to ad = {MOST_FILLED}"
        )
    if weight.device.type == "cpu" and _in_small_steps(pattern, layout) and not torch.compiler.is_exporting():
        return BACKENDS["elementwise"], (
            f"elementwise: products of {pattern.b} × {pattern.c} blocks are too small for batched products on a CPU"
        )
    return BACKENDS["bmm"], f"bmm: {filled} products of dense {pattern.b} × {pattern.c} blocks, batched"


def _in_small_steps(pattern: Pattern, layout: str) -> bool:
    """Whether one thread was measured to be faster entry by entry: up to 26 times for (1, 2, 2, 256)."""
    largest = max(pattern.b, pattern.c)
    return largest <= 2 or (layout == BATCH_FIRST and largest <= 8 and pattern.d >= 16)


def named(name: str, x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> tuple[Backend, str]:
    """The backend of this name, if it accepts what it is to multiply."""
    if name not in BACKENDS:
        raise InvalidInput(f"there is no backend {name!r}; known: {', '.join(BACKENDS)}, or None to have one chosen")
    refusal = BACKENDS[name].accepts(x, weight, pattern, layout)
    if refusal:
        raise InvalidInput(f"backend '{name}' does not multiply by {pattern} here: {refusal}")
    return BACKENDS[name], f"{name}: asked for"


def as_matrix(weight: Tensor, pattern: Pattern) -> Tensor:
    """The factor K as a dense matrix (abd, acd), zeros included; differentiable.

    Example:
        >>> as_matrix(torch.ones(1, 1, 2, 2), Pattern(1, 1, 2, 2))
        tensor([[1., 0., 1., 0.],
                [0., 1., 0., 1.]])
    """
    a, b, c, d = pattern.shape
    blocks = torch.diag_embed(weight).permute(0, 1, 3, 2, 4).reshape(a, b * d, c * d)  # (a, b, c, d, d) → (a, bd, cd)
    diagonal = torch.diag_embed(blocks.permute(1, 2, 0))  # (bd, cd, a, a)
    return diagonal.permute(2, 0, 3, 1).reshape(pattern.rows, pattern.columns)


def _accepts_all(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str:
    return ""


def _reference(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Algorithm 5.1.1, all blocks at once: Y[:, row] = X[:, col] Kᵀ[col, row] as one contraction."""
    a, _, c, d = pattern.shape
    if layout == BATCH_FIRST:
        y = torch.einsum("zacd,abcd->zabd", x.reshape(x.shape[0], a, c, d), weight)
        return y.reshape(x.shape[0], pattern.rows)
    y = torch.einsum("acdz,abcd->abdz", x.reshape(a, c, d, x.shape[1]), weight)
    return y.reshape(pattern.rows, x.shape[1])


def _bmm(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Algorithm 5.1.2: permute, multiply by ad dense blocks, permute back. With d = 1 nothing is copied on the way."""
    a, b, c, d = pattern.shape
    if layout == BATCH_FIRST:
        batch = x.shape[0]
        columns = x.reshape(batch, a, c, d).permute(1, 3, 0, 2).reshape(a * d, batch, c)
        y = torch.bmm(columns, weight.permute(0, 3, 2, 1).reshape(a * d, c, b))
        return y.reshape(a, d, batch, b).permute(2, 0, 3, 1).reshape(batch, pattern.rows)
    batch = x.shape[1]
    columns = x.reshape(a, c, d, batch).permute(0, 2, 1, 3).reshape(a * d, c, batch)
    y = torch.bmm(weight.permute(0, 3, 1, 2).reshape(a * d, b, c), columns)
    return y.reshape(a, d, b, batch).permute(0, 2, 1, 3).reshape(pattern.rows, batch)


def _elementwise(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """One column of the blocks after the other, entry by entry: c passes over the output, and nothing is permuted."""
    a, _, c, d = pattern.shape
    if layout == BATCH_FIRST:
        columns = x.reshape(x.shape[0], a, 1, c, d).unbind(3)
        weights = weight.unbind(2)
    else:
        columns = x.reshape(a, 1, c, d, x.shape[1]).unbind(2)
        weights = weight.unsqueeze(-1).unbind(2)
    y = columns[0] * weights[0]
    for column, weight_of_column in zip(columns[1:], weights[1:], strict=True):
        y = torch.addcmul(y, column, weight_of_column)
    return y.reshape((x.shape[0], pattern.rows) if layout == BATCH_FIRST else (pattern.rows, x.shape[1]))


def _dense(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """As if K had no zeros."""
    matrix = as_matrix(weight, pattern)
    return F.linear(x, matrix) if layout == BATCH_FIRST else matrix @ x


REFERENCE = register(Backend("reference", _accepts_all, _reference))
BMM = register(Backend("bmm", _accepts_all, _bmm))
ELEMENTWISE = register(Backend("elementwise", _accepts_all, _elementwise))
DENSE = register(Backend("dense", _accepts_all, _dense))
