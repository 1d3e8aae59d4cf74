"""For a dense matrix, chains of patterns are suggested under a budget of weights.

Chains of chainable patterns whose product is dense are these, for divisors a_2 | … | a_L of N and d_{L−1} | … | d_1
of M, and ranks r_1, …, r_{L−1}, with a_1 = d_L = 1, r_0 d_0 = M and r_L a_{L+1} = N:

    b_ℓ = r_{ℓ−1} d_{ℓ−1}/d_ℓ,   c_ℓ = r_ℓ a_{ℓ+1}/a_ℓ,   a_ℓ b_ℓ c_ℓ d_ℓ = r_{ℓ−1} d_{ℓ−1} · r_ℓ a_{ℓ+1}.

Section 7.4.1: among those that are expressive enough, maximise each ratio (b + c)/(bc), or d(b + c)/(bc) for energy.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tamis.errors import InvalidInput
from tamis.kronecker.families import dense
from tamis.kronecker.pattern import Pattern, nonzeros

TARGETS = ("time", "energy")
SHOWN = 20  # suggestions at most
USED = 0.5  # of the weights of the largest chain within the budget, so much at least is used: fewer express less


@dataclass(frozen=True)
class Suggestion:
    """A suggestion is a chain of patterns, leftmost first, with its weights and the smallest of its factors' ratios."""

    patterns: tuple[Pattern, ...]
    weights: int
    ratio: float


def suggest(M: int, N: int, budget: int | float, target: str = "time", factors: int = 2) -> list[Suggestion]:
    """Suggest chains whose product is dense, ordered by how fast a kernel that moves few numbers is expected to be.

    Of all chains within the budget, those that use at least half as many weights as the largest one are ranked, by the
    smallest ratio of their factors: (b + c)/(bc) for time, d(b + c)/(bc) for energy; then by the mean of their ratios,
    then by the fewest weights. The first 20 are given. Chains with a factor that its
    neighbour could absorb are left out; in chains of more than two factors, ranks are powers of 2.

    Args:
        M, N: rows and columns of the matrix.
        budget: the most weights: a whole number, or a share of M·N, above 0 and at most 1, as a float.
        target: "time" or "energy".
        factors: the most factors in a chain; more express more with the same weights, and run one after the other.

    Example:
        >>> [str(pattern) for pattern in suggest(384, 384, 0.25)[0].patterns]
        ['(1, 8, 48, 48)', '(48, 48, 8, 1)']

    Reference: gonon2024thesis.
    """
    most = _count_allowed_weights(M, N, budget)
    if target not in TARGETS:
        raise InvalidInput(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    if isinstance(factors, bool) or not isinstance(factors, int) or factors < 1:
        raise InvalidInput(f"factors must be a whole number ≥ 1, got {factors!r}")
    chains = [tuple(dense(M, N))] if most >= M * N else []
    for length in range(2, factors + 1):
        chains += _iterate_chains(M, N, most, length)
    if not chains:
        raise InvalidInput(
            f"no product of at most {factors} factors with at most {most} weights is dense at {M} × {N}: raise the "
            "budget or the number of factors"
        )
    used = USED * max(nonzeros(chain) for chain in chains)
    large = [chain for chain in chains if nonzeros(chain) >= used]
    ranked = heapq.nsmallest(SHOWN, large, key=lambda chain: _rank(chain, target))
    return [Suggestion(chain, nonzeros(chain), min(_list_ratios(chain, target))) for chain in ranked]


def _count_allowed_weights(M: int, N: int, budget: int | float) -> int:
    weights = nonzeros(dense(M, N))
    if isinstance(budget, float) and 0 < budget <= 1:
        return int(budget * weights)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise InvalidInput(
            f"budget must be a number of weights, or a share of {weights} in (0, 1] as a float, got {budget!r}"
        )
    return budget


def _list_ratios(chain: tuple[Pattern, ...], target: str) -> list[float]:
    return [pattern.time_ratio if target == "time" else pattern.energy_ratio for pattern in chain]


def _rank(chain: tuple[Pattern, ...], target: str) -> tuple[float, float, int, tuple[Pattern, ...]]:
    ratios = _list_ratios(chain, target)
    return -min(ratios), -sum(ratios) / len(ratios), nonzeros(chain), chain


def _iterate_chains(M: int, N: int, most: int, length: int) -> Iterator[tuple[Pattern, ...]]:
    """Yield every chain of `length` factors within a number of weights, from left to right."""
    # Each factor but the last multiplies the number of chains by the number of ranks, so that longer chains try fewer.
    ranks = range(1, most + 1) if length == 2 else [2**power for power in range(most.bit_length())]
    yield from _extend_chain(_Beginning((), 1, M, M), N, most, length, ranks)


class _Beginning(NamedTuple):
    """A beginning is the first factors of a chain, with the a, rows = r_{ℓ−1} d_{ℓ−1} and d_{ℓ−1} for the next one."""

    patterns: tuple[Pattern, ...]
    a: int
    rows: int
    d: int


def _extend_chain(
    beginning: _Beginning, N: int, most: int, length: int, ranks: Iterable[int]
) -> Iterator[tuple[Pattern, ...]]:
    """Yield the chains with this beginning, with `length` factors and at most `most` weights more."""
    before, a, rows, d_before = beginning
    if length == 1:  # the last factor: d = 1, c = N/a
        last = Pattern(a, rows, N // a, 1)
        if last.nonzeros <= most and _is_irreducible(before, last):
            yield (*before, last)
        return
    for d in _list_divisors(d_before):
        b = rows // d
        for step in _list_divisors(N // a):
            a_next = a * step
            for rank in ranks:
                # rank · rows · a_next is a·b·c·d, the weights of this factor. Ranks ascend, so later ones fail as well.
                if rank >= b or rank * rows * a_next > most:  # a square block of K_ℓ, or one too large
                    break
                pattern = Pattern(a, b, rank * step, d)
                if _is_irreducible(before, pattern):
                    left = most - pattern.nonzeros
                    longer = _Beginning((*before, pattern), a_next, rank * d, d)
                    yield from _extend_chain(longer, N, left, length - 1, ranks)


def _is_irreducible(before: tuple[Pattern, ...], pattern: Pattern) -> bool:
    """Return whether the rank between the last factor and this one is below its number of columns."""
    if not before:
        return True
    rank = pattern.b * pattern.d // before[-1].d
    return rank < pattern.c


def _list_divisors(n: int) -> list[int]:
    return [size for size in range(1, n + 1) if n % size == 0]
