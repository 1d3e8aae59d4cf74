"""Non-negative numbers of any size are float64 times powers of two, one for each entry (ERRATA 20 and 33).

A tensor is kept as a few parts, 2^e · value, with disjoint supports: an entry that is not zero lies in one part, and
there between 2^-REACH and 2^REACH. Ordinary networks need one part. However far apart its entries are, nothing that is
positive becomes zero, and since powers of two round nothing, only sums and products do, each entry relative to itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tamis.errors import InvalidParameters

REACH = 300  # a product of three numbers within 2^-300 … 2^300 is a normal number, and so is a sum of many of them
LOWEST, HIGHEST = 2.0**-REACH, 2.0**REACH
UNIT = 2.0**-53  # what one operation of float64 rounds, relatively
NOTHING = -(2**40)  # the exponent of zero, below all others

Part = tuple[Any, int]
"""A tensor, or several in a tuple or list, and the exponent of the power of two that multiplies all of it."""


@dataclass(frozen=True)
class Scaled:
    """A scaled tensor is Σ 2^e · value over disjoint parts.

    Attributes:
        parts: values and exponents, at least one.
        roundings: each entry is off by at most so many units `UNIT` of its own size, to first order.
    """

    parts: tuple[Part, ...]
    roundings: float = 0.0

    def __add__(self, other: Scaled) -> Scaled:
        # Both summands are ≥ 0, so that the sum's relative error is at most the larger one's, and one rounding of its
        # own.
        roundings = max(self.roundings, other.roundings) + 1
        (x, e), (y, f) = self.parts[0], other.parts[0]
        if len(self.parts) == len(other.parts) == 1 and e == f:
            return Scaled(((x + y, e),), roundings)
        return split_into_parts((*self.parts, *other.parts), roundings)

    def __mul__(self, other: Scaled) -> Scaled:
        # Parts of one factor have disjoint supports, so that at each entry one product at most is not zero: nothing is
        # added up here, and one rounding is all.
        products = [(map_pairs(torch.mul, x, y), e + f) for x, e in self.parts for y, f in other.parts]
        return split_into_parts(products, self.roundings + other.roundings + 1)

    def minimum(self, other: Scaled) -> Scaled:
        """Return the smaller of both, entry by entry."""
        roundings = max(self.roundings, other.roundings)
        (x, e), (y, f) = self.parts[0], other.parts[0]
        if len(self.parts) == len(other.parts) == 1 and e == f:
            return Scaled(((torch.minimum(x, y), e),), roundings)
        # In different units the values themselves cannot be compared.
        mine = is_smaller(self.unpack(), other.unpack())
        chosen = [(value.where(mine, 0.0), exponent) for value, exponent in self.parts]
        chosen += [(value.where(~mine, 0.0), exponent) for value, exponent in other.parts]
        return split_into_parts(chosen, roundings)

    def unpack(self) -> tuple[Tensor, Tensor]:
        """Return mantissas in [1/2, 1) and exponents of every entry of one tensor; those of zero are 0 and
        `NOTHING`.
        """
        mantissas = torch.zeros_like(self.parts[0][0])
        exponents = torch.full(mantissas.shape, NOTHING, dtype=torch.int64, device=mantissas.device)
        for value, exponent in self.parts:
            mantissa, own = torch.frexp(value)
            # Exact, since supports are disjoint: at each entry all but one of these are zero.
            mantissas = mantissas + mantissa
            exponents = exponents.where(value <= 0, own + exponent)
        return mantissas, exponents


def is_smaller(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Return where the first of two numbers ≥ 0 is the smaller, given mantissas in [½, 1), or 0, and exponents.

    The exponents of 0 must be below all others.
    """
    (mantissas, exponents), (others, of_others) = first, second
    # Exponents decide, and mantissas where they are equal.
    return (exponents < of_others) | ((exponents == of_others) & (mantissas < others))


def split_into_parts(
    terms: Sequence[Part], roundings: float, combine: Callable[[Tensor, Tensor], Tensor] = torch.add
) -> Scaled:
    """Sum terms 2^e · value ≥ 0, all finite, into parts; or, with `torch.maximum`, take the largest of them.

    Raises:
        InvalidParameters: one is not finite. Infinity and what is no number must not pass for zero further on.
    """
    # The usual case, one part of ordinary numbers, is returned as it is: no copy, and no rounding to count.
    if len(terms) == 1:
        (value, exponent) = terms[0]
        low, high, _ = extent(value)
        if high == math.inf:
            raise _make_not_finite_error()
        if high == 0 or (low >= LOWEST and high <= HIGHEST):
            return Scaled(((value, exponent),), roundings)
        # Still one part if a shift brings everything near 1: by a power of two, which rounds nothing.
        first, last = math.frexp(low)[1], math.frexp(high)[1]
        if last - first < 2 * REACH:
            middle = (first + last) // 2
            return Scaled(((times_power_of_two(value, -middle), exponent + middle),), roundings)
    return _group_by_exponent(terms, roundings + len(terms) + 1, combine)


def _group_by_exponent(terms: Sequence[Part], roundings: float, combine: Callable[[Tensor, Tensor], Tensor]) -> Scaled:
    """Group entries by the exponent of their largest term, in parts of 2·REACH exponents from the largest on.

    What lies 2·REACH and more below that largest term of its own entry may be lost: less than one rounding.
    """
    leaves = [(list(_iterate_leaves(value)), exponent) for value, exponent in terms]
    tops = [
        _find_top_exponents([(values[i], exponent) for values, exponent in leaves]) for i in range(len(leaves[0][0]))
    ]
    highest = max((int(top.max()) for top in tops if top.numel()), default=NOTHING)
    # frexp gives ∞ and NaN arbitrary exponents, so that they would vanish in some group without this.
    if any(extent(value).high == math.inf for value, _ in terms):
        raise _make_not_finite_error()
    if highest <= NOTHING:
        return Scaled((terms[0],), roundings)
    # Group 0 has the largest entries. An entry goes where its largest term is; smaller terms of the same entry follow
    # it there and may underflow, which the rounding counted for them covers.
    groups = [torch.where(top > NOTHING, (highest - top) // (2 * REACH), -1) for top in tops]
    parts = []
    for group in sorted({int(g) for each in groups for g in each.unique()} - {-1}):
        # The middle of the group: what it holds then lies within 2^±REACH.
        centre = highest - 2 * REACH * group - REACH
        gathered = []
        for i, each in enumerate(groups):
            inside = each == group
            moved = [_shift_entries(v[i], inside, exponent - centre) for v, exponent in leaves]
            total = moved[0]
            for one in moved[1:]:
                total = combine(total, one)
            gathered.append(total)
        parts.append((_rebuild(terms[0][0], iter(gathered)), centre))
    return Scaled(tuple(parts), roundings)


def _make_not_finite_error() -> InvalidParameters:
    return InvalidParameters("a pass over the paths met a number that is not finite, so there is no bound to state")


def _shift_entries(value: Tensor, inside: Tensor, shift: int) -> Tensor:
    """Multiply some entries by 2^shift. Where a shift is so large that they must be tiny, zeros get no derivative by
    it.
    """
    return times_power_of_two(value.where(inside if shift <= 2 * REACH else inside & (value > 0), 0.0), shift)


def _find_top_exponents(terms: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Return the exponent of the largest term at each entry."""
    value, _ = terms[0]
    top = torch.full(value.shape, NOTHING, dtype=torch.int64, device=value.device)
    for value, exponent in terms:
        # frexp gives 0 the exponent 0, which would make an entry without any term look like one near 1.
        own = torch.frexp(value.detach()).exponent.long() + exponent
        top = torch.maximum(top, own.where(value.detach() > 0, NOTHING))
    return top


def align_parts(inputs: Mapping[str, Scaled]) -> list[tuple[dict[str, Any], int]]:
    """List what several tensors hold at each of their exponents, zeros where one holds nothing."""
    parts = {name: {exponent: value for value, exponent in scaled.parts} for name, scaled in inputs.items()}
    exponents = sorted({exponent for each in parts.values() for exponent in each}, reverse=True)
    zeros = {name: map_tensors(torch.zeros_like, scaled.parts[0][0]) for name, scaled in inputs.items()}
    return [({name: each.get(e, zeros[name]) for name, each in parts.items()}, e) for e in exponents]


class Extent(NamedTuple):
    """An extent holds the smallest and the largest positive entry, ∞ and 0 without any, and whether there are zeros."""

    low: float
    high: float
    zeros: bool


def extent(value: Any) -> Extent:
    """Find between which numbers the entries of non-negative tensors lie; what is not a number counts as ∞."""
    low, high, zeros = math.inf, 0.0, False
    for leaf in _iterate_leaves(value):
        if not leaf.numel():
            continue
        # One pass for both ends; the second one, for the smallest positive entry, is needed only where there are zeros.
        smallest, largest = (float(end) for end in torch.aminmax(leaf.detach()))
        if math.isnan(largest):
            return Extent(0.0, math.inf, True)
        if smallest == 0:
            smallest = float(leaf.detach().where(leaf > 0, math.inf).min()) if largest > 0 else math.inf
            zeros = True
        low, high = min(low, smallest), max(high, largest)
    return Extent(low, high, zeros)


def times_power_of_two(value: Any, exponent: int) -> Any:
    """Multiply by 2^exponent, exactly, as long as the result is a normal number."""
    exponent = max(-3000, min(3000, exponent))  # beyond, nothing of a float64 is left
    while exponent:  # in steps, because 2^exponent itself may not be representable
        step = max(-1000, min(1000, exponent))
        value, exponent = _multiply(value, math.ldexp(1.0, step)), exponent - step
    return value


def _multiply(value: Any, factor: float) -> Any:
    return map_tensors(lambda leaf: leaf * factor, value)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Compute 2^n for whole numbers n ≤ 1023, exactly; 2^-1022 for all n below."""
    # The bits of a float64 that is a power of two: exp2 is not exact on every machine.
    return ((exponents.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to every tensor inside nested results; None, which stands for indices, stays."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(function, item) for item in value)
    return None if value is None else function(value)


def map_pairs(function: Callable[[Tensor, Tensor], Any], first: Any, second: Any) -> Any:
    """Apply a function to the tensors at the same places of two nested results."""
    if isinstance(first, (tuple, list)):
        return type(first)(map_pairs(function, a, b) for a, b in zip(first, second, strict=True))
    return None if first is None else function(first, second)


def _iterate_leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _iterate_leaves(item)
    elif value is not None:
        yield value


def _rebuild(like: Any, leaves: Iterator[Tensor]) -> Any:
    return map_tensors(lambda _: next(leaves), like)


def is_weight(value: Any) -> bool:
    """Return whether a fixed value is a tensor of weights, not a size or an index."""
    return isinstance(value, Tensor) and value.is_floating_point()
