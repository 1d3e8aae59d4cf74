"""What every criterion for pruning must do; one is tested by being registered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tamis
import tamis.errors
from tamis.pruning.criterion import CRITERIA
from tamis.testing import check_criterion
from tamis.training.models import digits_cnn, example_input

WEIGHTS = 28_576  # of digits_cnn's convolutions and its classifier


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    torch.manual_seed(0)
    return tamis.trace(digits_cnn().eval(), example_input("digits_cnn"))


@pytest.mark.parametrize("by", CRITERIA)
def test_it_keeps_the_contract(by: str, net: tamis.Network) -> None:
    assert tamis.prune(net, 0, by=by).masks.total == WEIGHTS
    check_criterion(by, net)


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
    check_criterion(small_fan_in, net)


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
