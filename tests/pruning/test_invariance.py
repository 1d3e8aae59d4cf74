"""ResNets: Φ-pruning does not see a rescaling, magnitude pruning does (thesis, section 3.5.2)."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
import torch
from pretrained import pretrained
from torch import Tensor

import tamis
from tamis.errors import DataNotFound
from tamis.pruning.rank_correlation import overlap
from tamis.training import load_data
from tamis.training.models import digits_cnn

AMOUNTS = (0.1, 0.2, 0.4, 0.6, 0.8)
SCOPES: tuple[Any, ...] = ("global", "layer")
SEEDS = range(5)


@cache
def traced(name: str) -> tamis.Network:
    return tamis.trace(pretrained(name), torch.zeros(1, 3, 32, 32))


@cache
def small_resnet() -> tamis.Network:
    """A small residual network as it was initialized: enough to see what a rescaling does."""
    torch.manual_seed(0)
    return tamis.trace(digits_cnn(8), torch.zeros(1, 1, 8, 8))


@cache
def images(count: int) -> tuple[Tensor, Tensor]:
    try:
        data = load_data(f"cifar10:test[:{count}]")
    except DataNotFound as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return data.batch(torch.arange(count))


def accuracy(net: tamis.Network, inputs: Tensor, labels: Tensor) -> float:
    right = [(net(x).argmax(1) == y).sum() for x, y in zip(inputs.split(250), labels.split(250), strict=True)]
    return int(sum(right)) / len(labels)


def assert_invariant(net: tamis.Network, seed: int, scope: Any, amount: float) -> None:
    rescaled = tamis.rescale(net, seed)
    mine, theirs = (tamis.prune(each, amount, "phi", scope).masks for each in (net, rescaled))
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    mine, theirs = (tamis.prune(each, amount, "magnitude", scope).masks for each in (net, rescaled))
    # Masks that have nothing to do with each other have `amount` in common.
    assert overlap(mine, theirs) < (1 + amount) / 2


@pytest.mark.parametrize("scope", SCOPES)
def test_phi_masks_do_not_see_a_rescaling(scope: Any) -> None:
    assert_invariant(small_resnet(), 0, scope, 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["resnet20", "resnet32"])
def test_phi_masks_see_no_rescaling_at_any_amount(name: str, seed: int, scope: Any, amount: float) -> None:
    assert_invariant(traced(name), seed, scope, amount)


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
def test_accuracy_without_retraining(scope: Any) -> None:
    """By Φ-cost it is the same for both networks; by magnitude it collapses where only the scales have changed."""
    net = traced("resnet20")
    rescaled = tamis.rescale(net, seed=1)
    inputs, labels = images(1000)
    whole = accuracy(net, inputs, labels)
    assert whole == accuracy(rescaled, inputs, labels) and whole > 0.9
    for amount in AMOUNTS:
        mine, theirs = (accuracy(tamis.prune(n, amount, "phi", scope).network, inputs, labels) for n in (net, rescaled))
        assert mine == theirs
        if amount <= 0.2:
            assert mine > whole - 0.02
    mine, theirs = (
        accuracy(tamis.prune(each, 0.4, "magnitude", scope).network, inputs, labels) for each in (net, rescaled)
    )
    assert mine > 0.85 and theirs < 0.3


def assert_bounded(net: tamis.Network, amount: float, by: Any, scope: Any, x: Tensor) -> None:
    small = tamis.prune(net, amount, by, scope).network
    change = (net(x) - small(x)).abs().sum(1)
    bound = tamis.path_metric(net, small, x)
    assert isinstance(bound, Tensor) and (change <= bound).all() and (change > 0).all()


@pytest.mark.parametrize("by", ["phi", "magnitude", "random"])
def test_the_change_of_real_outputs_is_below_the_path_metric(by: Any) -> None:
    assert_bounded(small_resnet(), 0.4, by, "global", load_data("digits:test[:4]").normalised())


@pytest.mark.slow
@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("by", ["phi", "magnitude", "random"])
@pytest.mark.parametrize("name", ["resnet20", "resnet32"])
def test_the_bound_holds_for_every_criterion_and_amount(name: str, by: Any, scope: Any, amount: float) -> None:
    assert_bounded(traced(name), amount, by, scope, images(1000)[0][:16])
