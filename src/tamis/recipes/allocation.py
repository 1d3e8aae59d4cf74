"""An allocation chooses one option for every layer; the useful ones save the most error for their bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, order=True)
class Choice:
    """A choice says what a layer's weight becomes.

    Attributes:
        levels: how many; 0: real numbers, as it is.
        amount: which part of the weights that are left is pruned first, the smallest ones.
    """

    levels: int
    amount: float = 0.0


UNCHANGED = Choice(0)
# Odd numbers of levels have a zero, which entropy coding makes cheap; pruning before 7 makes more of them.
CHOICES = (
    Choice(2),
    Choice(3, 0.6),
    Choice(3),
    Choice(4),
    Choice(5),
    Choice(7, 0.5),
    Choice(7),
    Choice(15),
    Choice(31),
    UNCHANGED,
)


@dataclass(frozen=True)
class Option:
    """An option is a choice for a layer, with its bytes in a file and the squared change of outputs it alone causes."""

    choice: Choice
    bytes: int
    cost: float


def list_allocations(options: Mapping[str, Sequence[Option]]) -> list[dict[str, Option]]:
    """List allocations from the fewest bytes to the most, each step taking the largest saving of cost per byte.

    Only the lower convex hull of each layer's (bytes, cost) matters; the edges of all hulls together are taken in the
    order of cost saved for a byte. So each allocation is the best of its size among all mixtures, up to the gaps
    between two of them.

    Example:
        >>> found = list_allocations({"a": [Option(Choice(3), 10, 4.0), Option(UNCHANGED, 40, 0.0)]})
        >>> [sum(option.bytes for option in each.values()) for each in found]
        [10, 40]
    """
    hulls = {name: _compute_hull(each) for name, each in options.items()}
    # The fewest bytes for every layer: from here on, each step spends some where they save most.
    chosen = {name: hull[0] for name, hull in hulls.items()}
    edges = [
        (_compute_slope(before, after), name, after) for name, hull in hulls.items() for before, after in pairwise(hull)
    ]
    allocations = [dict(chosen)]
    # Edges of one convex hull have rising slopes, so sorting all of them by slope keeps each layer's own order.
    # Ties go by name and size, so that the same measurements lead to the same allocations.
    for _, name, option in sorted(edges, key=lambda edge: (edge[0], edge[1], edge[2].bytes)):
        chosen[name] = option
        allocations.append(dict(chosen))
    return allocations


def _compute_hull(options: Sequence[Option]) -> list[Option]:
    """Compute the lower convex hull of (bytes, cost), from the fewest bytes on, as long as costs go down."""
    hull: list[Option] = []
    # This is Andrew's monotone chain, from the left. Of options with the same bytes the cheapest comes first, and the
    # others are left out by the next line: bytes only grow along the hull, and no slope divides by zero.
    for option in sorted(options, key=lambda each: (each.bytes, each.cost)):
        if hull and option.cost >= hull[-1].cost:
            continue  # more bytes for nothing
        # A point on or above the line between its neighbours is beaten by a mixture of them.
        while len(hull) > 1 and _compute_slope(hull[-2], hull[-1]) >= _compute_slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _compute_slope(before: Option, after: Option) -> float:
    return (after.cost - before.cost) / (after.bytes - before.bytes)


def describe_options(options: Iterable[Option]) -> str:
    """Say what layers become, and how many of them, from the fewest levels on.

    Example:
        >>> describe_options([Option(Choice(3), 40, 0.1), Option(UNCHANGED, 900, 0.0), Option(Choice(3), 50, 0.2)])
        '3 levels ×2, floats'
    """
    counts = Counter(option.choice for option in options)
    # Floats come last, and of equal levels what is pruned most comes first.
    ordered = sorted(counts, key=lambda choice: (choice.levels or math.inf, -choice.amount))
    return ", ".join(
        ("floats" if not choice.levels else f"{choice.levels} levels")
        + (f" after {choice.amount:.0%} pruned" if choice.amount else "")
        + (f" ×{counts[choice]}" if counts[choice] > 1 else "")
        for choice in ordered
    )
