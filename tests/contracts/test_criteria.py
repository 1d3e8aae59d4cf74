"""What every criterion for pruning must do; one is tested by being registered."""

from __future__ import annotations

import pytest
import torch

import tamis
from tamis.pruning.prune import CRITERIA, SCOPES
from tamis.training.models import digits_cnn, example_input

WEIGHTS = 28_576  # of digits_cnn's convolutions and its classifier


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    torch.manual_seed(0)
    return tamis.trace(digits_cnn().eval(), example_input("digits_cnn"))


@pytest.mark.parametrize("by", CRITERIA)
def test_scores_fit_the_parameters(by: str, net: tamis.Network) -> None:
    names = ["first.0.weight", "classifier.weight"]
    scores: dict[str, torch.Tensor] = {}
    CRITERIA[by](net, names, 0)(scores.__setitem__)
    assert sorted(scores) == sorted(names)
    for name in names:
        assert scores[name].shape == net.params[name].shape
        assert scores[name].is_floating_point() and not scores[name].isnan().any()


@pytest.mark.parametrize("amount", [0, 1, 4321, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("by", CRITERIA)
def test_counts_are_exact(by: str, amount: float, net: tamis.Network) -> None:
    masks = tamis.prune(net, amount, by=by).masks
    assert masks.total == WEIGHTS
    assert masks.pruned == (amount if isinstance(amount, int) else round(amount * WEIGHTS))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", CRITERIA)
def test_pruning_again_keeps_what_is_pruned(by: str, scope: str, net: tamis.Network) -> None:
    once = tamis.prune(net, 0.5, by=by, scope=scope, seed=1)
    twice = tamis.prune(once, 0.5, by=by, scope=scope, seed=2)
    assert twice.masks.pruned > once.masks.pruned
    assert not any((twice.masks[name] & ~once.masks[name]).any() for name in once.masks)


@pytest.mark.parametrize("by", CRITERIA)
def test_the_same_seed_gives_the_same_masks(by: str, net: tamis.Network) -> None:
    first, second = (tamis.prune(net, 0.6, by=by, seed=7).masks for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
