"""Known families of matrices are products of Kronecker-sparse factors: the chains of Table 5.1, leftmost first.

Reference: gonon2024thesis.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kronecker.pattern import Pattern, PatternLike, as_chain


def dense(M: int, N: int) -> list[Pattern]:
    """Return the pattern of any matrix of M rows and N columns: (1, M, N, 1)."""
    _check_sizes(M=M, N=N)
    return [Pattern(1, M, N, 1)]


def low_rank(M: int, N: int, rank: int) -> list[Pattern]:
    """Return the patterns of matrices of at most this rank: (1, M, r, 1), (1, r, N, 1)."""
    _check_sizes(M=M, N=N, rank=rank)
    return [Pattern(1, M, rank, 1), Pattern(1, rank, N, 1)]


def butterfly(n: int) -> list[Pattern]:
    """Return the patterns of square dyadic butterflies, n = 2^L: (2^{ℓ−1}, 2, 2, 2^{L−ℓ}) for ℓ = 1…L.

    The Hadamard matrix is one; so is the Fourier matrix, when its columns are put in the order `bit_reversal(n)`.

    Example:
        >>> [str(pattern) for pattern in butterfly(8)]
        ['(1, 2, 2, 4)', '(2, 2, 2, 2)', '(4, 2, 2, 1)']
    """
    return block_butterfly(n, 1)


def kaleidoscope(n: int) -> list[Pattern]:
    """Return a butterfly of size n = 2^L and, to its right, one in the reverse order, ℓ = L…1."""
    forth = butterfly(n)
    return [*forth, *reversed(forth)]


def block_butterfly(n: int, block: int) -> list[Pattern]:
    """Return the patterns of butterflies of blocks, n = 2^L·t: (2^{ℓ−1}, 2t, 2t, 2^{L−ℓ}) for ℓ = 1…L.

    Args:
        n: rows and columns.
        block: t, such that n/t is a power of 2.
    """
    doublings = _count_doublings(n, block)
    return [Pattern(2**step, 2 * block, 2 * block, 2 ** (doublings - step - 1)) for step in range(doublings)]


def monarch(M: int, N: int, p: int) -> list[Pattern]:
    """Return the patterns of Monarch matrices: (1, M/p, min(M, N)/p, p), (p, min(M, N)/p, N/p, 1).

    Their product is dense if p² ≤ min(M, N).

    Args:
        M, N: rows and columns.
        p: the number of blocks, which divides both.

    Example:
        >>> [str(pattern) for pattern in monarch(16, 8, 2)]
        ['(1, 8, 4, 2)', '(2, 4, 4, 1)']
    """
    _check_sizes(M=M, N=N, p=p)
    if M % p or N % p:
        raise InvalidInput(f"monarch({M}, {N}, {p}) needs a number of blocks that divides both sizes, got p = {p}")
    middle = min(M, N) // p
    return [Pattern(1, M // p, middle, p), Pattern(p, middle, N // p, 1)]


def deformable_butterfly(patterns: Iterable[PatternLike]) -> list[Pattern]:
    """Check that the sizes of any patterns fit, a_ℓ c_ℓ d_ℓ = a_{ℓ+1} b_{ℓ+1} d_{ℓ+1}, and return them.

    Example:
        >>> [str(pattern) for pattern in deformable_butterfly([(1, 3, 2, 2), (2, 2, 5, 1)])]
        ['(1, 3, 2, 2)', '(2, 2, 5, 1)']
    """
    return list(as_chain(patterns))


def bit_reversal(n: int) -> Tensor:
    """Return 0…n−1 with the binary digits of each in reverse order, n = 2^L.

    Example:
        >>> from tamis.kronecker import factorize
        >>> fourier = torch.fft.fft(torch.eye(8, dtype=torch.complex128))
        >>> factorize(fourier[:, bit_reversal(8)], butterfly(8)).relative_error < 1e-10
        True
    """
    doublings = _count_doublings(n, 1)
    digits = torch.arange(n).reshape([2] * doublings)
    return digits.permute(tuple(reversed(range(doublings)))).flatten()


def _count_doublings(n: int, block: int) -> int:
    """Return L with n = 2^L·block, where L is at least 1."""
    _check_sizes(n=n, block=block)
    times, rest = divmod(n, block)
    if rest or times < 2 or times & (times - 1):
        of = f" times the block, {block}" if block > 1 else ""
        raise InvalidInput(f"a butterfly has as many rows and columns as a power of 2 from 2 on{of}, got {n}")
    return times.bit_length() - 1


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"{name} must be a whole number ≥ 1, got {size!r}")
