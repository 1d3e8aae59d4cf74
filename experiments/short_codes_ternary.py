"""A code for ternary weights whose alphabet {−1, 0, 1} is fixed in advance: a number of nonzeros, their places, signs.

A matrix of N weights with k nonzeros has the probability 1/(N + 1) · 1/C(N, k) · 2^−k: all numbers of nonzeros are as
likely, all places for so many, and both signs. No levels and no scale are told, as the architecture fixes them. The
message is one whole number, in digits of these bases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tamis.errors import CorruptArtifact


def encode(weights: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the message, and how many messages there are with these numbers of nonzeros, times all such numbers.

    Args:
        weights: of −1, 0 and 1, by name; the receiver knows names and shapes.

    Example:
        >>> encode({"weight": torch.tensor([0.0, 1.0])})  # of 3 numbers of nonzeros, 2 places and 2 signs
        (10, 12)
    """
    number, base = 0, 1
    for name, values in weights.items():
        flat = values.flatten().long()
        if not torch.equal(flat.clamp(-1, 1).to(values.dtype), values.flatten()):
            raise CorruptArtifact(f"'{name}' has weights other than −1, 0 and 1")
        places = flat.nonzero().flatten().tolist()
        signs = sum(1 << place for place, index in enumerate(places) if flat[index] > 0)
        # The combinatorial number system: places p₁ < p₂ < … are the Σ C(p_i, i)-th choice of so many.
        rank = sum(math.comb(place, position) for position, place in enumerate(places, start=1))
        choices = math.comb(len(flat), len(places))
        for digit, size in ((len(places), len(flat) + 1), (rank, choices), (signs, 1 << len(places))):
            number, base = number + digit * base, base * size
    return number, base


def decode(number: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the weights that a message tells, for the names and shapes of an architecture.

    Raises:
        CorruptArtifact: the number is no message.
    """
    weights = {}
    for name, shape in shapes.items():
        flat = torch.zeros(math.prod(shape))
        number, count = divmod(number, len(flat) + 1)
        number, rank = divmod(number, math.comb(len(flat), count))
        number, signs = divmod(number, 1 << count)
        for position, place in enumerate(_find_places(rank, len(flat), count)):
            flat[place] = 1.0 if signs >> (count - 1 - position) & 1 else -1.0
        weights[name] = flat.view(shape)
    if number:
        raise CorruptArtifact("the number is too large for a message of this architecture")
    return weights


def count_bits(base: int) -> int:
    """Return how many bits a message takes that is one of `base`."""
    return (base - 1).bit_length()


def _find_places(rank: int, entries: int, count: int) -> list[int]:
    """Return the choice of this rank, from the last place to the first."""
    places, place = [], entries
    for position in range(count, 0, -1):
        place -= 1
        ways = math.comb(place, position)
        while ways > rank:  # C(p − 1, i) = C(p, i)·(p − i)/p
            ways = ways * (place - position) // place
            place -= 1
        rank -= ways
        places.append(place)
    return places
