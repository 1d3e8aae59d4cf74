"""Random connections, and those of iterative magnitude pruning, as architectures."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tamis.architecture.architecture import Architecture
from tamis.architecture.baselines import amount_per_round, random_architecture
from tamis.architecture.transfer import transfer
from tamis.errors import InvalidInput
from tamis.prune.iterative import prune_iteratively
from tamis.train.data import load_data
from tamis.train.loop import Settings
from tamis.train.models import digits_cnn, mlp


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


def test_rounds_of_magnitude_pruning_make_an_architecture(tmp_path: Path) -> None:
    data, settings = load_data("digits:train[:100]"), Settings(epochs=1, batch=20)
    amount = amount_per_round(0.75, 2)
    assert amount == 0.5
    rounds = prune_iteratively(
        mlp(), data, settings, tmp_path, rounds=2, amount=amount, rewind=0, halve_final=False, progress=False
    )
    found = Architecture(rounds[-1].compressed.masks)
    assert found.sparsity == pytest.approx(0.75, abs=1e-3)
    trained = transfer(mlp(), found, data, settings, progress=False).model
    assert all(not trained.get_parameter(name)[~mask].any() for name, mask in found.masks.items())


@pytest.mark.parametrize(("sparsity", "rounds"), [(0.9, 0), (0.9, 1.5), (1.0, 3), (-0.1, 3), (True, 3)])
def test_what_makes_no_sense_is_refused(sparsity: float, rounds: int) -> None:
    with pytest.raises(InvalidInput, match="must be a"):
        amount_per_round(sparsity, rounds)
