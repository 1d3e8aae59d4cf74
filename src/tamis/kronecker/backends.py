"""A backend is one way to multiply by a Kronecker-sparse factor, behind one small interface.

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
ALIGNED = 16  # bytes that a GPU reads together, if they divide those of a batch that is last
NO_RULES = "it has no rules for torch.func and forward-mode differentiation; take the backend 'bmm'"
Step = Callable[[Tensor, Tensor | None], Tensor]  # (x, bias) → x Kᵀ + bias, without gradients


@dataclass(frozen=True, eq=False)  # each is itself alone, and is looked up as fast as that
class Backend:
    """A backend is one way to multiply.

    Attributes:
        name: as `multiply(…, backend=name)` calls it.
        accepts: (x, weight, pattern, layout) → why it cannot do this, or "" if it can.
        apply: (x, weight, pattern, layout) → x Kᵀ, or K x in the layout "batch_last".
        prepare: (weight, pattern, layout) → a function (x, bias) → x Kᵀ + bias for inference, with the weight as this
            backend reads it and nothing left to check; an `InferenceCache` calls it for as long as the weight stays
            what it was. None where `apply` has nothing to prepare.
    """

    name: str
    accepts: Callable[[Tensor, Tensor, Pattern, str], str]
    apply: Callable[[Tensor, Tensor, Pattern, str], Tensor]
    prepare: Callable[[Tensor, Pattern, str], Step] | None = None


BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> Backend:
    """Make a backend known under its name."""
    if backend.name in BACKENDS:
        raise InvalidInput(f"there is a backend '{backend.name}' already; known: {', '.join(BACKENDS)}")
    BACKENDS[backend.name] = backend
    return backend


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of this one are summed, which is float32 for half precision."""
    return torch.float32 if dtype in HALF else dtype


def is_aligned(batch: int, dtype: torch.dtype) -> bool:
    """Return whether columns of this many numbers, stored in sequence, begin where a GPU reads several at once."""
    return batch * dtype.itemsize % ALIGNED == 0


def as_matrix(weight: Tensor, pattern: Pattern) -> Tensor:
    """Return the factor K as a dense matrix (abd, acd), zeros included; differentiable.

    Example:
        >>> as_matrix(torch.ones(1, 1, 2, 2), Pattern(1, 1, 2, 2))
        tensor([[1., 0., 1., 0.],
                [0., 1., 0., 1.]])
    """
    a, b, c, d = pattern.shape
    # K has a blocks on its diagonal, and each is made of b × c diagonal matrices of size d. So there are two diagonals
    # to embed, the inner one over j and then the outer one over i.
    blocks = torch.diag_embed(weight).permute(0, 1, 3, 2, 4).reshape(a, b * d, c * d)  # (a, b, c, d, d) → (a, bd, cd)
    diagonal = torch.diag_embed(blocks.permute(1, 2, 0))  # (bd, cd, a, a)
    return diagonal.permute(2, 0, 3, 1).reshape(pattern.rows, pattern.columns)


def _accepts_all(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str:
    return ""


def _multiply_by_definition(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Run algorithm 5.1.1 on all blocks at once: Y[:, row] = X[:, col] Kᵀ[col, row] as one contraction."""
    a, _, c, d = pattern.shape
    if layout == BATCH_FIRST:
        y = torch.einsum("zacd,abcd->zabd", x.reshape(x.shape[0], a, c, d), weight)
        return y.reshape(x.shape[0], pattern.rows)
    y = torch.einsum("acdz,abcd->abdz", x.reshape(a, c, d, x.shape[1]), weight)
    return y.reshape(pattern.rows, x.shape[1])


def _multiply_by_bmm(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Run algorithm 5.1.2: permute, multiply by ad dense blocks, permute back; with d = 1 no input is copied."""
    return _multiply_blocks(x, _arrange_blocks(weight, pattern, layout), pattern, layout)


def _arrange_blocks(weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Return the dense blocks as (ad, c, b), or (ad, b, c) where the batch is last."""
    a, b, c, d = pattern.shape
    if layout == BATCH_FIRST:
        return weight.permute(0, 3, 2, 1).reshape(a * d, c, b)
    return weight.permute(0, 3, 1, 2).reshape(a * d, b, c)


def _multiply_blocks(x: Tensor, blocks: Tensor, pattern: Pattern, layout: str) -> Tensor:
    a, b, c, d = pattern.shape
    if layout == BATCH_FIRST:  # numbers change places within a vector alone, which stays in the cache meanwhile
        batch = x.shape[0]
        if d == 1:
            return torch.bmm(x.reshape(batch, a, c).transpose(0, 1), blocks).transpose(0, 1).reshape(batch, a * b)
        columns = x.reshape(batch, a, c, d).transpose(2, 3).reshape(batch, a * d, c)
        y = torch.bmm(columns.transpose(0, 1), blocks).transpose(0, 1)
        return y.reshape(batch, a, d, b).transpose(2, 3).reshape(batch, pattern.rows)
    batch = x.shape[1]
    # With the batch last, whole rows of vectors change places, and each is contiguous.
    columns = x.reshape(a, c, d, batch).permute(0, 2, 1, 3).reshape(a * d, c, batch)
    return torch.bmm(blocks, columns).reshape(a, d, b, batch).permute(0, 2, 1, 3).reshape(pattern.rows, batch)


def _prepare_bmm(weight: Tensor, pattern: Pattern, layout: str) -> Step:
    blocks = _arrange_blocks(weight, pattern, layout)
    return lambda x, bias: add_bias(_multiply_blocks(x, blocks, pattern, layout), bias, layout)


def _multiply_elementwise(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Multiply entry by entry, one column of the blocks after the other, in c passes over the output.

    Sums of numbers in half precision are rounded once, in the end, as those of matrix products are.
    """
    a, _, c, d = pattern.shape
    # Half precision would round c times; the products of torch accumulate in float32, and so must this.
    dtype = x.dtype
    x, weight = x.to(accumulation_dtype(dtype)), weight.to(accumulation_dtype(dtype))
    if layout == BATCH_FIRST:
        columns = x.reshape(x.shape[0], a, 1, c, d).unbind(3)
        weights = weight.unbind(2)
    else:
        columns = x.reshape(a, 1, c, d, x.shape[1]).unbind(2)
        weights = weight.unsqueeze(-1).unbind(2)
    # In place from the second column on: the sum is this function's own, and each pass reads and writes it once.
    y = columns[0] * weights[0]
    for column, weight_of_column in zip(columns[1:], weights[1:], strict=True):
        y.addcmul_(column, weight_of_column)
    y = y.reshape((x.shape[0], pattern.rows) if layout == BATCH_FIRST else (pattern.rows, x.shape[1]))
    return y.to(dtype)


def _multiply_dense(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Multiply by K with its zeros."""
    matrix = _make_dense_matrix(weight, pattern)
    return F.linear(x, matrix) if layout == BATCH_FIRST else matrix @ x


def _make_dense_matrix(weight: Tensor, pattern: Pattern) -> Tensor:
    """Return `as_matrix` of the weight, without a copy where the pattern is dense."""
    return weight.reshape(pattern.b, pattern.c) if pattern.a * pattern.d == 1 else as_matrix(weight, pattern)


def _prepare_dense(weight: Tensor, pattern: Pattern, layout: str) -> Step:
    return make_matrix_step(_make_dense_matrix(weight, pattern), layout)


def make_matrix_step(matrix: Tensor, layout: str) -> Step:
    """Return the step that multiplies by a dense matrix."""
    if layout == BATCH_FIRST:
        return lambda x, bias: F.linear(x, matrix, bias)
    return lambda x, bias: matrix @ x if bias is None else torch.addmm(bias.unsqueeze(1), matrix, x)


def add_bias(y: Tensor, bias: Tensor | None, layout: str) -> Tensor:
    """Add the bias in place to y, which nothing else holds."""
    if bias is None:
        return y
    return y.add_(bias if layout == BATCH_FIRST else bias.unsqueeze(1))


REFERENCE = register(Backend("reference", _accepts_all, _multiply_by_definition))
BMM = register(Backend("bmm", _accepts_all, _multiply_by_bmm, _prepare_bmm))
ELEMENTWISE = register(Backend("elementwise", _accepts_all, _multiply_elementwise))
DENSE = register(Backend("dense", _accepts_all, _multiply_dense, _prepare_dense))
