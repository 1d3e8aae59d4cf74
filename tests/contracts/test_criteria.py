"""What every criterion for pruning must do; one is tested by being registered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tamis
import tamis.errors
from tamis.pruning.criterion import CRITERIA
from tamis.settings.pruning import SCOPES
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


def small_fan_in(net: tamis.Network, names: Any, seed: int) -> Any:
    """|θ_i| divided by the norm of the neuron that it feeds: a criterion as a user writes it."""

    def sweep(visit: Any) -> None:
        for name in names:
            weight = net.params[name]
            norms = weight.flatten(1).norm(dim=1).clamp(min=1e-30)
            visit(name, weight.abs() / norms.view(-1, *[1] * (weight.dim() - 1)))

    return sweep


def test_a_function_is_taken_in_the_place_of_a_name(net: tamis.Network) -> None:
    small = tamis.prune(net, 0.5, by=small_fan_in)
    scores: dict[str, torch.Tensor] = {}
    small_fan_in(net, [*small.masks], 0)(scores.__setitem__)
    pruned, left = (torch.cat([scores[name][mask == kept] for name, mask in small.masks.items()]) for kept in (0, 1))
    assert pruned.max() <= left.min() and len(pruned) == WEIGHTS // 2
    assert small.recipe[-1]["by"] == "small_fan_in"


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda net, name: net.params[name][0], "must score '.*' with floats of shape"),
        (
            lambda net, name: torch.ones_like(net.params[name], dtype=torch.int64),
            "must score '.*' with floats of shape",
        ),
        (lambda net, name: net.params[name] * torch.nan, "scored '.*' with NaN"),
        (lambda net, name: None, "did not score '"),
    ],
)
def test_a_function_that_scores_badly_is_refused_by_its_name(net: tamis.Network, scores: Any, message: str) -> None:
    def careless(net: tamis.Network, names: Any, seed: int) -> Any:
        given = {name: scores(net, name) for name in names}
        return lambda visit: [visit(name, score) for name, score in given.items() if score is not None]

    with pytest.raises(tamis.errors.InvalidInput, match=f"by='careless' {message}"):
        tamis.prune(net, 0.5, by=careless)
