"""Allocations against enumeration, masks against sorting, predicted costs against networks that are made."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tamis
from tamis.recipes.allocation import CHOICES, UNCHANGED, Choice, Option, list_allocations
from tamis.recipes.layer_options import keep_largest, measure_options
from tamis.training import load_data

OPTIONS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=5)


@given(st.lists(OPTIONS, min_size=1, max_size=3))
def test_each_allocation_is_the_best_of_its_size(layers: list[list[tuple[int, int]]]) -> None:
    options = {
        f"layer{number}": [Option(Choice(place), size, float(cost)) for place, (size, cost) in enumerate(each)]
        for number, each in enumerate(layers)
    }
    every = [
        (sum(option.bytes for option in each), sum(option.cost for option in each))
        for each in product(*options.values())
    ]
    found = [
        (sum(option.bytes for option in each.values()), sum(option.cost for option in each.values()))
        for each in list_allocations(options)
    ]
    assert found == sorted(found) and [cost for _, cost in found] == sorted((cost for _, cost in found), reverse=True)
    assert found[0][0] == min(size for size, _ in every) and found[-1][1] == min(cost for _, cost in every)
    for size, cost in found:
        assert cost == min(other for least, other in every if least <= size)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30), st.floats(0, 1), st.data())
def test_the_smallest_weights_go(weights: list[float], amount: float, data: st.DataObject) -> None:
    weight = torch.tensor(weights)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights))))
    keep = keep_largest(weight, mask, amount)
    left = int(mask.sum())
    assert not (keep & ~mask).any() and int(keep.sum()) == left - round(amount * left)
    gone = weight.abs()[mask & ~keep]
    if len(gone) and keep.any():
        assert gone.max() <= weight.abs()[keep].min()


@pytest.mark.slow
def test_options_of_a_network(model: nn.Module, tmp_path: Path) -> None:
    data = load_data("digits:train[:100]")
    net = tamis.trace(model, data.example)
    (found,) = measure_options(net, [tamis.Compressed(net)], data, tmp_path, False)
    assert found.keys() == {"linear1.weight", "linear2.weight", "linear3.weight"}
    for options in found.values():
        assert [option.choice for option in options] == list(CHOICES)
        by_choice = {option.choice: option for option in options}
        assert by_choice[UNCHANGED].cost == 0 and by_choice[UNCHANGED].bytes > by_choice[Choice(31)].bytes
        assert by_choice[Choice(31)].cost < by_choice[Choice(7)].cost < by_choice[Choice(2)].cost
        assert by_choice[Choice(3)].bytes < by_choice[Choice(15)].bytes < by_choice[UNCHANGED].bytes
    (again,) = measure_options(net, [tamis.Compressed(net)], data, tmp_path, False)  # from the files
    assert again == found


@pytest.mark.slow
def test_networks_that_share_a_walk_have_options_of_their_own(model: nn.Module, tmp_path: Path) -> None:
    data = load_data("digits:train[:100]")
    net = tamis.trace(model, data.example)
    half = tamis.prune(net, 0.5, scope="layer")
    (alone,) = measure_options(net, [tamis.Compressed(net)], data, tmp_path / "alone", False)
    whole, pruned = measure_options(net, [tamis.Compressed(net), half], data, tmp_path / "both", False)
    assert whole == alone
    for name, options in pruned.items():
        by_choice = {option.choice: option.bytes for option in options}
        assert by_choice[UNCHANGED] < {option.choice: option.bytes for option in whole[name]}[UNCHANGED]
