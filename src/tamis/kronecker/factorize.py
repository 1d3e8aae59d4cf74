"""Factorization splits a matrix into Kronecker-sparse factors, by singular value decompositions.

Split K₁ off the rest, whose support is the pattern π₂*…*π_L. Column m of K₁ and row m of the rest meet in the block
R_m × C_m of W. Two of these blocks are the same or share no entry, so that the best K₁ and rest are those of truncated
decompositions, one for each block: those m that meet in it give its rank. K₁ takes the left singular vectors, the rest
takes what remains, Uᴴ W block by block, and is split in turn.

Since U has orthonormal columns in each block, errors add up at right angles: with δ_ℓ the norm of what the ℓ-th split
discards, and δ₀ that of the entries of W outside the support,

    ‖W − K₁…K_L‖²_F = δ₀² + δ₁² + … + δ_{L−1}².

No product of these patterns comes nearer to W than √(δ₀² + max δ_ℓ²), since the best one, projected in the same manner,
competes in each split. So what is found is within a factor √(L−1) of the best for L > 2, and the best for L ≤ 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from tamis.errors import AssumptionViolated, InvalidInput
from tamis.kronecker.backends import as_matrix
from tamis.kronecker.pattern import Pattern, PatternLike, as_chain, explain_not_chainable, is_chainable, product
from tamis.settings import Factorization as FactorizationSettings
from tamis.settings import documents

Scalable = TypeVar("Scalable", float, Tensor)


@dataclass(frozen=True)
class Factorization:
    """A factorization is an approximation W ≈ K₁…K_L by Kronecker-sparse factors.

    Attributes:
        patterns: leftmost first.
        factors: the weights, (a, b, c, d) each, of the dtype of W.
        error: ‖W − K₁…K_L‖_F of these factors, measured in float64.
        relative_error: the same over ‖W‖_F; 0 for W = 0.
        discarded: δ₁…δ_{L−1}, the norm of what each split discards; before any refinement.
        outside: δ₀, the norm of the entries of W outside the product's support.
    """

    patterns: tuple[Pattern, ...]
    factors: tuple[Tensor, ...]
    error: float
    relative_error: float
    discarded: tuple[float, ...]
    outside: float

    @property
    def least_error(self) -> float:
        """Return √(δ₀² + max δ_ℓ²), a lower bound of the error of every product of these patterns."""
        return math.hypot(self.outside, max(self.discarded, default=0.0))

    def dense(self) -> Tensor:
        """Return K₁…K_L as a matrix."""
        return _multiply_out(self.factors, self.patterns)


@documents(FactorizationSettings, "refine")
def factorize(W: Tensor, patterns: Iterable[PatternLike], refine: int = 0) -> Factorization:
    """Approximate a matrix by a product of Kronecker-sparse factors, exactly where it is such a product.

    Any two factors whose sizes fit will do, and longer chains whose neighbours are chainable: a_ℓ divides a_{ℓ+1},
    d_{ℓ+1} divides d_ℓ, and a_{ℓ+1} divides a_ℓ c_ℓ, as in butterflies and block butterflies. The work is done in
    float64, on W over a power of two, so that entries may be as large or small as the dtype has them.
    What `refine` makes smaller is ‖W − K₁…K_L‖².

    Args:
        W: a real or complex matrix.
        patterns: leftmost first.
        <settings>

    Returns:
        A `Factorization`, with factors of equal Frobenius norms.

    Example:
        >>> from tamis.kronecker import butterfly
        >>> hadamard = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> factorize(torch.kron(hadamard, hadamard), butterfly(4)).relative_error < 1e-6
        True

    Reference: gonon2024thesis.
    """
    chain = as_chain(patterns)
    _check(W, chain, refine)
    wide = W.detach().to(torch.complex128 if W.is_complex() else torch.float64)
    # The same power for every factor, so that scaling W back scales each factor by a whole power of two, exactly.
    share = _find_exponent(wide) // len(chain)  # of each factor in a power of two near to the largest entry
    whole = share * len(chain)
    target = _scale_by_power(wide, -whole)
    factors, discarded, outside = _split_all(target, chain)
    factors = _balance(factors)
    if refine:
        factors = _balance(_refine(target, factors, chain, refine))
    # Measured on the factors as they are returned, rounded to the dtype of W.
    rounded = tuple(_scale_by_power(factor, share).to(W.dtype) for factor in factors)
    error = _compute_error(target, [_scale_by_power(factor.to(target.dtype), -share) for factor in rounded], chain)
    norm = float(torch.linalg.vector_norm(target))
    return Factorization(
        chain,
        rounded,
        _scale_by_power(error, whole),
        error / norm if norm else 0.0,
        tuple(_scale_by_power(each, whole) for each in discarded),
        _scale_by_power(outside, whole),
    )


def _find_exponent(values: Tensor) -> int:
    """Return the e of the largest real or imaginary part m · 2^e with ½ ≤ m < 1, or 0 if all are 0."""
    parts = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    return math.frexp(float(parts.abs().max()))[1]


def _scale_by_power(value: Scalable, exponent: int) -> Scalable:
    """Compute value · 2^exponent in two steps, since 2^exponent itself may overflow or underflow."""
    # Powers of two change no mantissa, so that both products are exact but for underflow of the result itself.
    half = exponent // 2
    return value * 2.0**half * 2.0 ** (exponent - half)


def check_refine(refine: int) -> None:
    """Raise InvalidInput for anything that is not a number of steps."""
    if isinstance(refine, bool) or not isinstance(refine, int) or refine < 0:
        raise InvalidInput(f"refine must be a number of steps ≥ 0, got {refine!r}")


def _check(W: Tensor, chain: tuple[Pattern, ...], refine: int) -> None:
    if not isinstance(W, Tensor) or not (W.is_floating_point() or W.is_complex()):
        kind = W.dtype if isinstance(W, Tensor) else type(W).__name__
        raise InvalidInput(f"factorize needs a real or complex matrix, got {kind}")
    rows, columns = chain[0].rows, chain[-1].columns
    if tuple(W.shape) != (rows, columns):
        raise InvalidInput(f"a product of these patterns has shape ({rows}, {columns}), but W has {tuple(W.shape)}")
    if W.layout != torch.strided:
        raise InvalidInput(f"factorize needs a dense tensor, got one of {W.layout}; take W.to_dense()")
    if W.is_meta:
        raise InvalidInput("W is on the device 'meta', where tensors have a shape and no entries")
    if not W.isfinite().all():
        raise InvalidInput("W has entries that are not finite")
    check_refine(refine)
    if len(chain) <= 2:
        return
    for place, (left, right) in enumerate(pairwise(chain)):
        if not is_chainable(left, right):
            raise AssumptionViolated(
                f"factors {place + 1} and {place + 2} of {len(chain)}, {explain_not_chainable(left, right)}; of other "
                "chains only those of two factors are found by singular values, so train this one from scratch"
            )


def _split_all(W: Tensor, chain: tuple[Pattern, ...]) -> tuple[list[Tensor], tuple[float, ...], float]:
    """Return the factors from left to right, what each split discarded, and what lies outside the support."""
    rests = [chain[-1]]  # the patterns of K_ℓ…K_L, for ℓ = L, L−1, …, 2
    for pattern in reversed(chain[1:-1]):
        # A chain of more than two factors is chainable here, so that every such product has a pattern again.
        rests.append(product(pattern, rests[-1]))
    factors: list[Tensor] = []
    discarded: list[float] = []
    outside: list[float] = []  # 0 from the second split on
    rest = W
    for left in chain[:-1]:
        right = rests.pop()
        split = _split(rest, left, right)
        factors.append(split.left)
        discarded.append(split.discarded)
        outside.append(split.outside)
        rest = as_matrix(split.right, right)
    last = _extract_weight(rest, chain[-1])
    # For a single factor, this is the only error: what W has off its support. After splits the rest is on it already.
    outside.append(float(torch.linalg.vector_norm(rest - as_matrix(last, chain[-1]))))
    return [*factors, last], tuple(discarded), outside[0]


@dataclass(frozen=True)
class _Split:
    left: Tensor
    right: Tensor
    discarded: float  # the norm of the singular values that are not kept
    outside: float  # the norm of the entries in no block


def _split(W: Tensor, left: Pattern, right: Pattern) -> _Split:
    """Compute the best K₁ of the pattern `left` and the best rest of the pattern `right`, as weights."""
    # The axis between the two: m runs over the columns of K₁, which are the rows of the rest.
    middle = torch.arange(left.columns, device=W.device)
    rows_of = _make_line_indices(
        left.a, left.b, left.d, device=W.device
    )  # (ad, b): the rows that a class of columns of K₁ reaches
    columns_of = _make_line_indices(right.a, right.c, right.d, device=W.device)
    # Column m of K₁ reaches the rows of its class, and row m of the rest the columns of its class. All m with the same
    # two classes meet in the same block of W, and their number is its rank.
    row_class = middle // (left.c * left.d) * left.d + middle % left.d
    column_class = middle // (right.b * right.d) * right.d + middle % right.d
    blocks, block_of, ranks = torch.unique(
        row_class * len(columns_of) + column_class, return_inverse=True, return_counts=True
    )
    members = torch.argsort(block_of, stable=True)  # of the middle, block by block
    begins = ranks.cumsum(0) - ranks
    columns = W.new_zeros(left.columns, left.b)
    rows = W.new_zeros(left.columns, right.c)
    outside, discarded = W.clone(), 0.0
    # Blocks of the same rank have the same size, and one batched decomposition does for all of them.
    for rank in ranks.unique().tolist():
        here = ranks == rank
        which = members[begins[here][:, None] + torch.arange(rank, device=W.device)]  # (blocks, rank)
        at_rows = rows_of[blocks[here] // len(columns_of)]
        at_columns = columns_of[blocks[here] % len(columns_of)]
        block = W[at_rows[:, :, None], at_columns[:, None, :]]
        u, s, vh = torch.linalg.svd(block, full_matrices=False)
        kept = min(rank, s.shape[1])
        # K₁ takes U alone, with orthonormal columns: what later splits discard is then orthogonal to what this one
        # discards, and squares of errors add up (see the module).
        # Where a block has fewer singular values than its rank, the remaining columns and rows stay 0.
        columns[which[:, :kept]] = u[:, :, :kept].mT
        rows[which[:, :kept]] = s[:, :kept, None] * vh[:, :kept]
        # Eckart and Young: the best approximation of a block of this rank is off by its other singular values.
        discarded += _square(s[:, kept:])
        outside[at_rows[:, :, None], at_columns[:, None, :]] = 0  # what remains in the end lies in no block
    return _Split(
        # m = (i, l, j) of the pattern `left`: its column holds the b entries k, so that (i, l, j, k) → (i, k, l, j).
        columns.reshape(left.a, left.c, left.d, left.b).permute(0, 3, 1, 2),
        # m = (i, k, j) of the pattern `right`: its row holds the c entries l.
        rows.reshape(right.a, right.b, right.d, right.c).permute(0, 1, 3, 2),
        math.sqrt(discarded),
        float(torch.linalg.vector_norm(outside)),
    )


def _make_line_indices(a: int, size: int, d: int, device: torch.device) -> Tensor:
    """Return (ad, size), where row i·d + j holds i·size·d + k·d + j for each k."""
    return torch.arange(a * size * d, device=device).reshape(a, size, d).transpose(1, 2).reshape(a * d, size)


def _extract_weight(matrix: Tensor, pattern: Pattern) -> Tensor:
    """Return the entries of a matrix on the support, as a weight (a, b, c, d)."""
    a, b, c, d = pattern.shape
    # The two diagonals of `as_matrix`, read instead of written: the outer one over i, then the inner one over j.
    blocks = matrix.reshape(a, b, d, a, c, d).diagonal(dim1=0, dim2=3)  # (b, d, c, d, a)
    return blocks.diagonal(dim1=1, dim2=3).permute(2, 0, 1, 3)  # (b, c, a, d) → (a, b, c, d)


def _balance(factors: list[Tensor]) -> list[Tensor]:
    """Rescale factors to equal norms, with the same product, since small and large ones round and train worse."""
    norms = [float(torch.linalg.vector_norm(factor)) for factor in factors]
    # With a factor of zeros the product is 0 whatever the others are, and it has no logarithm.
    if len(norms) == 1 or min(norms) == 0:
        return factors
    # The geometric mean by logarithms: the product of many norms may overflow where their mean does not.
    common = math.exp(sum(math.log(norm) for norm in norms) / len(norms))
    return [factor * (common / norm) for factor, norm in zip(factors, norms, strict=True)]


def _refine(target: Tensor, factors: list[Tensor], chain: tuple[Pattern, ...], steps: int) -> list[Tensor]:
    """Refine factors by this many steps of L-BFGS, and return the given ones if it finds nothing better."""
    norm = _square(target)
    if norm == 0:
        return factors
    moving = [factor.clone(memory_format=torch.contiguous_format).requires_grad_() for factor in factors]
    # All factors at once, where splits fix them one after another; strong Wolfe, so that each step lowers the error.
    optimizer = torch.optim.LBFGS(moving, max_iter=steps, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def loss() -> Tensor:
        optimizer.zero_grad()
        # Relative to ‖W‖², because the optimizer's tolerances are absolute.
        value = (target - _multiply_out(moving, chain)).abs().square().sum() / norm
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    found = [factor.detach() for factor in moving]
    # Compared once more, because a step that overflows or stalls must not lose what the splits have found.
    return found if _compute_error(target, found, chain) < _compute_error(target, factors, chain) else factors


def _multiply_out(factors: Iterable[Tensor], chain: tuple[Pattern, ...]) -> Tensor:
    matrices = [as_matrix(factor, pattern) for factor, pattern in zip(factors, chain, strict=True)]
    # multi_dot takes the cheapest order of products, and two matrices at least.
    return torch.linalg.multi_dot(matrices) if len(matrices) > 1 else matrices[0]


def _compute_error(target: Tensor, factors: list[Tensor], chain: tuple[Pattern, ...]) -> float:
    return float(torch.linalg.vector_norm(target - _multiply_out(factors, chain)))


def _square(values: Tensor) -> float:
    return float(values.abs().square().sum())
