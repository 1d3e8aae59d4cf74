"""Kronecker sparsity patterns tell much about products without their values.

A pattern π = (a, b, c, d) allows the entries of I_a ⊗ 1_{b×c} ⊗ I_d, a matrix of abd rows and acd columns
(Definition 5.1.1; ERRATA 21): a blocks on the diagonal, each of them b × c diagonal matrices of size d × d.

Two patterns can follow each other in a product K₁K₂ if a₁c₁d₁ = a₂b₂d₂. They are *chainable* if besides a₁ divides a₂,
d₂ divides d₁, and r = a₁c₁/a₂ = b₂d₂/d₁ is whole. Then

    S_{π₁} S_{π₂} = r · S_π   with   π = (a₁, b₁d₁/d₂, a₂c₂/a₁, d₂):

the product's support is again a Kronecker pattern, and r is the rank of each of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from tamis.errors import AssumptionViolated, InvalidInput


@dataclass(frozen=True, order=True)
class Pattern:
    """A pattern is the support I_a ⊗ 1_{b×c} ⊗ I_d of a factor whose weight is a tensor of shape (a, b, c, d).

    The weight's entry (i, k, l, j) is the matrix's entry in row i·bd + k·d + j and column i·cd + l·d + j.

    Example:
        >>> Pattern(2, 48, 192, 1).rows, Pattern(2, 48, 192, 1).columns
        (96, 384)

    Reference: gonon2024thesis.
    """

    a: int
    b: int
    c: int
    d: int

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InvalidInput(f"a pattern is four whole numbers ≥ 1, got {field.name} = {size!r} in {self}")

    def __str__(self) -> str:
        return f"({self.a}, {self.b}, {self.c}, {self.d})"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (a, b, c, d), the shape of the weight."""
        return self.a, self.b, self.c, self.d

    @property
    def rows(self) -> int:
        """Return abd, the number of outputs."""
        return self.a * self.b * self.d

    @property
    def columns(self) -> int:
        """Return acd, the number of inputs."""
        return self.a * self.c * self.d

    @property
    def nonzeros(self) -> int:
        """Return abcd, the number of weights."""
        return self.a * self.b * self.c * self.d

    @property
    def density(self) -> Fraction:
        """Return the share of entries that may differ from 0: 1/(ad)."""
        return Fraction(1, self.a * self.d)

    @property
    def transposed(self) -> Pattern:
        """Return the pattern of the transposed matrix."""
        return Pattern(self.a, self.c, self.b, self.d)

    @property
    def time_ratio(self) -> float:
        """Return (b + c)/(bc), the numbers moved for each multiplication (5.2); where it is large, moving less pays."""
        return (self.b + self.c) / (self.b * self.c)

    @property
    def energy_ratio(self) -> float:
        """Return d(b + c)/(bc), the ratio for energy, since numbers that belong together lie d apart (section 5.4)."""
        return self.d * self.time_ratio

    def cost(self, batch: int = 1) -> int:
        """Count the multiplications, and as many additions, for a batch: B·abcd (section 5.1.1)."""
        return batch * self.nonzeros

    def support(self) -> Tensor:
        """Return the matrix I_a ⊗ 1_{b×c} ⊗ I_d, as bool."""
        outer, block, inner = torch.eye(self.a), torch.ones(self.b, self.c), torch.eye(self.d)
        return torch.kron(torch.kron(outer, block), inner).bool()


PatternLike = Pattern | Sequence[int]


def as_pattern(given: PatternLike) -> Pattern:
    """Return a pattern, given one or four numbers.

    Example:
        >>> as_pattern((1, 4, 2, 3))
        Pattern(a=1, b=4, c=2, d=3)
    """
    if isinstance(given, Pattern):
        return given
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or len(given) != 4:
        raise InvalidInput(f"a pattern is a Pattern or four whole numbers (a, b, c, d), got {given!r}")
    return Pattern(*given)


def as_chain(patterns: Iterable[PatternLike]) -> tuple[Pattern, ...]:
    """Check that the sizes of a product K₁…K_L fit, a₁c₁d₁ = a₂b₂d₂ and so on (ERRATA 21), and return its patterns."""
    if isinstance(patterns, (Pattern, str)) or not isinstance(patterns, Iterable):
        raise InvalidInput(f"the patterns of a product come in a list, leftmost first, got {patterns!r}")
    chain = tuple(as_pattern(each) for each in patterns)
    if not chain:
        raise InvalidInput("a product needs at least one pattern, got an empty list")
    for place, (left, right) in enumerate(pairwise(chain)):
        if left.columns != right.rows:
            raise InvalidInput(
                f"factors {place + 1} and {place + 2} do not fit: {left} has acd = {left.columns} columns and {right} "
                f"has abd = {right.rows} rows; patterns[0] is the leftmost factor"
            )
    return chain


def is_chainable(left: Pattern, right: Pattern) -> bool:
    """Return whether the product of these two has a Kronecker pattern as support, with blocks of one rank."""
    divides = right.a % left.a == 0 and left.d % right.d == 0 and left.a * left.c % right.a == 0
    return divides and left.columns == right.rows


def explain_not_chainable(left: Pattern, right: Pattern) -> str:
    """Explain what must divide what, for a message about two patterns that are not chainable."""
    return (
        f"{left} and {right} are not chainable: {left.a} must divide {right.a}, {right.d} must divide {left.d}, and "
        f"{right.a} must divide ac = {left.a * left.c}"
    )


def product(left: Pattern, right: Pattern) -> Pattern:
    """Return the pattern (a₁, b₁d₁/d₂, a₂c₂/a₁, d₂) of K₁K₂.

    Example:
        >>> product(Pattern(1, 2, 2, 2), Pattern(2, 2, 2, 1))
        Pattern(a=1, b=4, c=4, d=1)
    """
    as_chain((left, right))
    if not is_chainable(left, right):
        raise AssumptionViolated(
            f"the support of this product is no Kronecker pattern: {explain_not_chainable(left, right)}"
        )
    return Pattern(left.a, left.b * left.d // right.d, right.a * right.c // left.a, right.d)


def product_support(patterns: Iterable[PatternLike]) -> Tensor:
    """Return which entries of K₁…K_L may differ from 0, found by following the columns of the identity."""
    chain = as_chain(patterns)
    reached = torch.eye(chain[-1].columns)
    for pattern in reversed(chain):
        a, _, c, d = pattern.shape
        blocks = reached.reshape(a, 1, c, d, -1).amax(2)  # every output of a block reads every input of it
        reached = blocks.expand(-1, pattern.b, -1, -1).reshape(pattern.rows, -1)
    return reached.bool()


def product_density(patterns: Iterable[PatternLike]) -> Fraction:
    """Return the share of entries of K₁…K_L that may differ from 0.

    Example:
        >>> product_density([(1, 2, 2, 2), (2, 2, 2, 1)])
        Fraction(1, 1)
    """
    chain = _shorten(as_chain(patterns))
    if len(chain) == 1:
        return chain[0].density
    support = product_support(chain)
    return Fraction(int(support.sum()), support.numel())


def is_dense(patterns: Iterable[PatternLike]) -> bool:
    """Return whether every entry of K₁…K_L may differ from 0, so that every output sees every input."""
    return product_density(patterns) == 1


def nonzeros(patterns: Iterable[PatternLike]) -> int:
    """Count the weights of a product, which are also the multiplications for one vector."""
    return sum(pattern.nonzeros for pattern in as_chain(patterns))


def _shorten(chain: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
    """Return a shorter chain of the same support, with chainable neighbours joined and a dense factor left dense."""
    short = list(chain[:1])
    for pattern in chain[1:]:
        dense = 1 in (short[-1].density, pattern.density)
        # A dense matrix times any pattern is dense, since every row and column of a pattern has an entry.
        if dense:
            short[-1] = Pattern(1, short[-1].rows, pattern.columns, 1)
        elif is_chainable(short[-1], pattern):
            short[-1] = product(short[-1], pattern)
        else:
            short.append(pattern)
    return tuple(short) if len(short) == len(chain) else _shorten(tuple(short))
