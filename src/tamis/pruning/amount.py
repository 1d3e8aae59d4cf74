"""An amount says how many weights to prune: a fraction, a count, or one of these for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real

from tamis.errors import InvalidInput, join_names
from tamis.graph import matches

Amount = float | int | Mapping[str, float | int]


def as_plain_amount(amount: Amount) -> Amount:
    """Return the same amount in Python's own numbers: numpy's are accepted, but a recipe cannot hold them."""
    if isinstance(amount, Mapping):
        return {name: as_plain_amount(each) for name, each in amount.items()}  # type: ignore[misc]
    if isinstance(amount, bool) or not isinstance(amount, Real):
        raise InvalidInput(f"the amount to prune must be a fraction (float) or a count (int), got {amount!r}")
    return int(amount) if isinstance(amount, Integral) else float(amount)


def count_of(amount: float | int, size: int, what: str) -> int:
    """Compute how many of `size` weights an amount is: an int is a count, a float a fraction, rounded to a count."""
    if isinstance(amount, int):
        if not 0 <= amount <= size:
            raise InvalidInput(f"amount={amount} is more or less than {what} has: between 0 and {size:,} weights")
        return amount
    if not 0.0 <= amount <= 1.0:  # NaN, too
        raise InvalidInput(f"amount={amount} is not a fraction between 0.0 and 1.0 (for a count, pass an int)")
    return round(amount * size)


def count_by_layer(amount: Amount, sizes: Mapping[str, int], halved: str | None) -> dict[str, int]:
    """Compute how many weights to prune in each parameter; of `halved`, half of a fraction."""
    if not isinstance(amount, Mapping):
        if halved is not None and isinstance(amount, int):
            raise InvalidInput(f"halve_final halves a rate, and amount={amount} is a count: pass a fraction")
        return {
            name: count_of(amount / 2 if name == halved else amount, size, f"'{name}'") for name, size in sizes.items()
        }
    if halved is not None:
        raise InvalidInput("halve_final and an amount for each layer exclude each other: halve it in the dict")
    given = _assign_amounts(amount, sizes)
    return {name: count_of(given.get(name, 0), size, f"'{name}'") for name, size in sizes.items()}


def _assign_amounts(amount: Mapping[str, float | int], names: Mapping[str, int]) -> dict[str, float | int]:
    """Return amounts by parameter, from amounts by name, which go first, and by pattern."""
    chosen = {name: name for name in amount if name in names}
    for pattern in amount:
        if pattern in names:
            continue
        named = [name for name in names if matches([name], (pattern,))]
        if not named:
            known = join_names(names)
            raise InvalidInput(f"amount names '{pattern}', which matches no parameter to prune; these are: {known}")
        # An exact name overrides patterns; two patterns for one parameter would depend on their order, and are refused.
        for name in named:
            if chosen.setdefault(name, pattern) not in (name, pattern):
                raise InvalidInput(f"amount names '{name}' twice, as '{chosen[name]}' and as '{pattern}'")
    return {name: amount[pattern] for name, pattern in chosen.items()}
