"""How many weights to prune: from a fraction, a count, or one of these for each layer, to numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tamis.errors import InvalidInput
from tamis.prune.prunable import matches, some

Amount = float | int | Mapping[str, float | int]


def count_of(amount: float | int, size: int, what: str) -> int:
    """How many of `size` weights an amount is: an int is a count, a float a fraction, rounded to the nearest count."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise InvalidInput(f"the amount to prune must be a fraction (float) or a count (int), got {amount!r}")
    if isinstance(amount, int):
        if not 0 <= amount <= size:
            raise InvalidInput(f"amount={amount} is more or less than {what} has: between 0 and {size:,} weights")
        return amount
    if not 0.0 <= amount <= 1.0:  # NaN, too
        raise InvalidInput(f"amount={amount} is not a fraction between 0.0 and 1.0 (for a count, pass an int)")
    return round(amount * size)


def counts_by_layer(amount: Amount, sizes: Mapping[str, int], halved: str | None) -> dict[str, int]:
    """How many weights to prune in each parameter; of `halved`, half of a fraction."""
    if not isinstance(amount, Mapping):
        if halved is not None and isinstance(amount, int):
            raise InvalidInput(f"halve_final halves a rate, and amount={amount} is a count: pass a fraction")
        return {
            name: count_of(amount / 2 if name == halved else amount, size, f"'{name}'") for name, size in sizes.items()
        }
    if halved is not None:
        raise InvalidInput("halve_final and an amount for each layer exclude each other: halve it in the dict")
    chosen: dict[str, str] = {}
    for pattern in amount:
        named = [pattern] if pattern in sizes else [name for name in sizes if matches(name, (pattern,))]
        if not named:
            raise InvalidInput(
                f"amount names '{pattern}', which matches no parameter to prune; these are: {some(list(sizes))}"
            )
        for name in named:
            if name in chosen and name not in amount:
                raise InvalidInput(f"amount names '{name}' twice, as '{chosen[name]}' and as '{pattern}'")
            if name not in amount or pattern == name:
                chosen[name] = pattern
    return {name: count_of(amount[chosen[name]], sizes[name], f"'{name}'") if name in chosen else 0 for name in sizes}
