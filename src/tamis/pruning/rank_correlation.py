"""Two criteria are compared by the overlap of their masks and by the rank correlation of their scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tamis.errors import InvalidInput, join_names


def overlap(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Compute |S₁ ∩ S₂| / |S₁|, for S₁ and S₂ the entries that two masks prune (thesis, Table 3.1).

    Example:
        >>> first, second = torch.tensor([True, False, False]), torch.tensor([False, True, False])  # what is kept
        >>> overlap({"weight": first}, {"weight": second})
        0.5

    Reference: gonon2024thesis.
    """
    _check_alike(first, second)
    pruned = sum(int((~first[name]).count_nonzero()) for name in first)
    if pruned == 0:
        raise InvalidInput(
            "the first mask prunes nothing, so there is nothing that the second could have in common with it"
        )
    return sum(int((~first[name] & ~second[name]).count_nonzero()) for name in first) / pruned


def rank_correlation(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Compute Spearman's rank correlation over all entries of named tensors; ties get their average rank.

    Of two masks it is the φ coefficient; of magnitudes and Φ-costs it says how alike the two criteria are.

    Example:
        >>> magnitudes, costs = torch.tensor([0.1, 0.2, 0.7]), torch.tensor([3.0, 5.0, 4.0])
        >>> round(rank_correlation({"weight": magnitudes}, {"weight": costs}), 3)
        0.5
    """
    _check_alike(first, {name: second[name] for name in second if name in first})
    if not first:
        raise InvalidInput("there is nothing to correlate: the first has no values (masks of a network that is whole?)")
    # Over all parameters at once, as global pruning ranks them; sorted by name, so that both are in one order.
    ranks = [
        _compute_centred_ranks(torch.cat([each[name].flatten() for name in sorted(first)])) for each in (first, second)
    ]
    # Spearman's coefficient is Pearson's of the ranks, which holds with average ranks for ties.
    norms = [float(rank.norm()) for rank in ranks]
    if 0.0 in norms:
        raise InvalidInput("the rank correlation of values that are all equal is not defined")
    return float(ranks[0] @ ranks[1]) / (norms[0] * norms[1])


def _compute_centred_ranks(values: Tensor) -> Tensor:
    """Compute ranks minus their mean, in float64."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    # A group of ties has the ranks last − size + 1 … last; their average is exact in float64.
    return (last - (sizes - 1) / 2)[group] - (len(values) + 1) / 2


def _check_alike(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    if set(first) != set(second):
        alone = sorted(set(first) ^ set(second))
        raise InvalidInput(f"only one of the two has {join_names(alone)}: prune the same parameters to compare masks")
    for name in first:
        if first[name].shape != second[name].shape:
            shapes = f"{tuple(first[name].shape)} and {tuple(second[name].shape)}"
            raise InvalidInput(f"'{name}' has shapes {shapes}: these are not masks of one network")
