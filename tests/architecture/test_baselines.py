"""Random connections, and those of iterative magnitude pruning, as architectures."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tamis.architecture.baselines import amount_per_round, magnitude_architecture, random_architecture
from tamis.architecture.layers import maskable_weights
from tamis.architecture.transfer import transfer
from tamis.artifact import Masks
from tamis.errors import InvalidInput
from tamis.progress import Progress
from tamis.training import Settings, load_data, train
from tamis.training.models import digits_cnn, mlp

DATA, SETTINGS = load_data("digits:train[:100]"), Settings(epochs=2, batch=20)


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return mlp((64, 6, 10))


# -- at random -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.77, 0.99])
def test_random_connections_are_exactly_so_many(sparsity: float) -> None:
    masks = random_architecture(digits_cnn(8), sparsity, seed=0).masks
    assert masks.pruned == round(sparsity * masks.total)


def test_every_connection_is_as_likely_across_layers() -> None:
    """5 of 20 connections: each is kept by 1,000 seeds within 5 standard deviations of a quarter."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    drawn = [random_architecture(model, 0.75, seed).masks for seed in range(1000)]
    kept = torch.stack([torch.cat([mask.flatten() for mask in masks.values()]) for masks in drawn]).float().mean(0)
    assert len(kept) == 20 and (kept - 0.25).abs().max() < 5 * (0.25 * 0.75 / 1000) ** 0.5


def test_names_and_shapes_alone_count() -> None:
    one, other = mlp(), mlp()
    assert random_architecture(one, 0.5, 0) == random_architecture(other, 0.5, 0) != random_architecture(one, 0.5, 1)
    assert {*random_architecture(one, 0.5, 0, include="linear1").masks} == {"linear1.weight"}


# -- by magnitude --------------------------------------------------------------------------------------------------


def by_hand(model: nn.Module, sparsity: float, rounds: int) -> dict[str, Tensor]:
    """Train, sort, take the smallest, go back, again; the last time without training."""
    names = [name for name, value in model.named_parameters() if value.dim() > 1]
    total = sum(model.get_parameter(name).numel() for name in names)
    masks = {name: torch.ones_like(model.get_parameter(name), dtype=torch.bool) for name in names}
    fraction, left = 1 - (1 - sparsity) ** (1 / rounds), total
    for number in range(rounds):
        held = None if number == 0 else Masks(masks)
        trained = train(model, DATA, SETTINGS, masks=held, progress=False).model
        left = left - round(fraction * left) if number < rounds - 1 else total - round(sparsity * total)
        sizes = torch.cat([(trained.get_parameter(name).abs() * masks[name]).flatten() for name in names])
        smallest = sizes.sort(descending=True).values[left - 1]
        masks = {name: (trained.get_parameter(name).abs() >= smallest) & masks[name] for name in names}
    return masks


@pytest.mark.slow
def test_it_is_iterative_magnitude_pruning_written_out() -> None:
    found = magnitude_architecture(a_model(), DATA, 0.83, SETTINGS, rounds=3, progress=False)
    expected = by_hand(a_model(), sparsity=0.83, rounds=3)
    assert found.masks.keys() == expected.keys()
    assert all(torch.equal(found.masks[name], mask) for name, mask in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "rounds"), [(0, 1), (3, 5), (301, 2), (443, 2)])
def test_the_sparsity_is_exact_to_one_connection(taken: int, rounds: int) -> None:
    """Where each round's fraction of a connection is rounded up, too: 3 of 444 in 5 rounds are 0.6 a round."""
    settings = replace(SETTINGS, epochs=1)
    found = magnitude_architecture(a_model(), DATA, taken / 444, settings, rounds=rounds, progress=False)
    assert (found.masks.total, found.masks.pruned) == (444, taken)


@pytest.mark.slow
def test_the_layers_are_those_of_a_search() -> None:
    model = digits_cnn(2)
    found = magnitude_architecture(model, DATA, 0.5, SETTINGS, rounds=1, progress=False)
    assert found.fingerprint == random_architecture(model, 0.5, seed=0).fingerprint
    assert {*found.masks} == {*maskable_weights(model)}


def test_the_model_is_left_alone_and_what_is_found_can_be_trained() -> None:
    model = a_model()
    before, state = deepcopy(model.state_dict()), torch.get_rng_state()
    found = magnitude_architecture(model, DATA, 0.8, SETTINGS, rounds=2, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    trained = transfer(a_model(), found, DATA, SETTINGS, progress=False).model
    assert all(torch.equal(trained.get_parameter(name) != 0, mask) for name, mask in found.masks.items())


class Stop(Exception):
    """What breaks a pruning off."""


def stop_after(epochs: int) -> Callable[[Progress], None]:
    def listen(now: Progress) -> None:
        if now.done == epochs:
            raise Stop

    return listen


@pytest.mark.slow
def test_broken_off_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        magnitude_architecture(a_model(), DATA, 0.8, SETTINGS, rounds=2, directory=tmp_path, progress=stop_after(3))
    told: list[Progress] = []
    again = magnitude_architecture(a_model(), DATA, 0.8, SETTINGS, rounds=2, directory=tmp_path, progress=told.append)
    assert [now.done for now in told] == [4]
    assert again == magnitude_architecture(a_model(), DATA, 0.8, SETTINGS, rounds=2, progress=False)
    with pytest.raises(InvalidInput, match="use another directory"):
        magnitude_architecture(a_model(), DATA, 0.9, SETTINGS, rounds=2, directory=tmp_path, progress=False)


def test_weights_that_no_search_masks_are_refused_before_training(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.own = nn.Linear(64, 6), nn.Parameter(torch.randn(10, 6))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.first(x.flatten(1)), self.own)

    with pytest.raises(InvalidInput, match=r"the same connections of Own: only one of them takes own"):
        magnitude_architecture(Own(), DATA, 0.5, SETTINGS, directory=tmp_path, progress=False)
    assert not [*tmp_path.iterdir()]


def test_so_much_of_what_is_left_goes_in_each_round() -> None:
    assert amount_per_round(0.75, 2) == 0.5
    assert (1 - amount_per_round(0.9, 7)) ** 7 == pytest.approx(0.1)


@pytest.mark.parametrize(("sparsity", "rounds"), [(0.9, 0), (0.9, 1.5), (1.0, 3), (-0.1, 3), (True, 3)])
def test_what_makes_no_sense_is_refused(sparsity: float, rounds: int) -> None:
    with pytest.raises(InvalidInput, match="must be a"):
        amount_per_round(sparsity, rounds)
    with pytest.raises(InvalidInput, match="must be a"):
        magnitude_architecture(a_model(), DATA, sparsity, SETTINGS, rounds=rounds, progress=False)
