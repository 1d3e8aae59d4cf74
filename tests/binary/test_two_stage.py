"""Training in two stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tamis.binary.conversion import binarize
from tamis.binary.layers import binary_layers
from tamis.binary.scales import analytic_scale
from tamis.binary.sparse_scales import count_zero_scales
from tamis.binary.two_stage import train_binary, with_binary_weights, with_real_weights
from tamis.errors import InvalidInput
from tamis.progress import Progress
from tamis.training import Data, Settings, load_data
from tamis.training.models import digits_cnn, mlp

SETTINGS = Settings(epochs=2, batch=64, optimizer="adamw", learning_rate=5e-3, weight_decay=0.0)
FEW = "digits:train[:256]"


def network(**options: str) -> nn.Module:
    torch.manual_seed(0)
    return binarize(mlp((64, 32, 32, 10), batch_norm=True), **options)


@pytest.fixture(scope="module")
def data() -> Data:
    return load_data(FEW)


def test_both_stages_are_gone_through(data: Data) -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = replace(SETTINGS, epochs=3)
    trained = train_binary(model, data, SETTINGS, first=first, test=data, progress=False)
    assert len(trained.activations) == 3 and len(trained.history) == 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    (layer,) = binary_layers(trained.model).values()
    assert not layer.real_weights and not layer.training
    assert layer.weight.abs().max() <= 1 and (layer.scale() > 0).all()
    assert not torch.equal(layer.weight, before["linear2.weight"])
    alone = train_binary(model, data, SETTINGS, progress=False)
    assert alone.activations == () and len(alone.history) == 2


def test_the_second_stage_begins_where_the_first_one_ended(data: Data) -> None:
    model = network()
    real = with_real_weights(model)
    (layer,), (original,) = binary_layers(real).values(), binary_layers(model).values()
    assert layer.real_weights and not original.real_weights
    assert not any(factor.requires_grad for factor in layer.factors.values())
    with torch.no_grad():
        layer.weight.mul_(2)
    (binary,) = binary_layers(with_binary_weights(real)).values()
    assert not binary.real_weights and layer.real_weights
    assert all(factor.requires_grad for factor in binary.factors.values())
    assert torch.equal(binary.scale(), analytic_scale(layer.weight))


def test_weights_are_clipped_after_every_step(data: Data) -> None:
    model = network()
    with torch.no_grad():
        model.get_parameter("linear2.weight").mul_(1000)
    trained = train_binary(model, data, replace(SETTINGS, epochs=1), progress=False)
    weight = trained.model.get_parameter("linear2.weight")
    assert weight.abs().max() == 1 and (weight.abs() < 1).any()


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_training_that_was_broken_off_goes_on_to_the_bit(data: Data, tmp_path: Path, stop_after: int) -> None:
    whole = train_binary(network(), data, SETTINGS, first=SETTINGS, penalty=1e-3, progress=False)
    seen: list[Progress] = []

    def stop(now: Progress) -> None:
        seen.append(now)
        if len(seen) == stop_after:
            raise Stop

    arguments = {"first": SETTINGS, "penalty": 1e-3, "directory": tmp_path}
    with pytest.raises(Stop):
        train_binary(network(), data, SETTINGS, progress=stop, **arguments)  # type: ignore[arg-type]
    resumed = train_binary(network(), data, SETTINGS, progress=stop, **arguments)  # type: ignore[arg-type]
    assert len(seen) == 4
    read = train_binary(network(), data, SETTINGS, progress=stop, **arguments)  # type: ignore[arg-type]
    assert len(seen) == 4
    for trained in (resumed, read):
        state = trained.model.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in whole.model.state_dict().items())
        assert [e.loss for e in trained.history] == [e.loss for e in whole.history]
        assert [e.loss for e in trained.activations] == [e.loss for e in whole.activations]


def test_another_first_stage_or_estimator_is_not_gone_on_with(data: Data, tmp_path: Path) -> None:
    short = replace(SETTINGS, epochs=1)
    train_binary(network(), data, short, directory=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match=r"the first stage was left out, now it is Training\(epochs=1, batch=64"):
        train_binary(network(), data, short, first=short, directory=tmp_path, progress=False)
    assert not (tmp_path / "activations").exists()  # nor is it gone through first
    with pytest.raises(InvalidInput, match="'linear2' was of scale 'rank_one' and estimator 'clipped', now it is"):
        train_binary(network(estimator="approx_sign"), data, short, directory=tmp_path, progress=False)


def test_what_another_first_stage_came_to_is_not_gone_on_with(data: Data, tmp_path: Path) -> None:
    short = replace(SETTINGS, epochs=1)
    train_binary(network(), data, short, first=short, directory=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match="now it is of scale 'rank_one' and estimator 'approx_sign'"):
        train_binary(network(estimator="approx_sign"), data, short, first=short, directory=tmp_path, progress=False)
    (tmp_path / "activations" / "checkpoint.pt").unlink()
    other = network()
    with torch.no_grad():
        other.get_parameter("linear2.weight").neg_()
    with pytest.raises(InvalidInput, match="what the first stage came to was"):
        train_binary(other, data, short, first=short, directory=tmp_path, progress=False)


def test_penalties_that_differ_by_little_are_different_trainings(data: Data, tmp_path: Path) -> None:
    short = replace(SETTINGS, epochs=1)
    for penalty, tau in ((1e-3, 0.1), (1.0000001e-3, 0.1), (1e-3, 0.10000001)):
        arguments = {"penalty": penalty, "tau": tau, "progress": False}
        here = train_binary(network(), data, short, directory=tmp_path, **arguments)  # type: ignore[arg-type]
        fresh = train_binary(network(), data, short, **arguments)  # type: ignore[arg-type]
        state = here.model.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in fresh.model.state_dict().items())
    assert len([*tmp_path.iterdir()]) == 3


def test_a_penalty_makes_scales_zero_and_progress_says_so(data: Data) -> None:
    seen: list[Progress] = []
    trained = train_binary(network(), data, SETTINGS, penalty=0.05, tau=0.01, progress=seen.append)
    zeros, total = count_zero_scales(trained.model)
    assert 0 < zeros < total == 32
    assert seen[-1].figures["sparsity"] == zeros / total


def test_wrong_arguments_are_named(data: Data) -> None:
    with pytest.raises(InvalidInput, match=r"Sequential has no binary layer: make some with tamis.binary.binarize"):
        train_binary(mlp(), data, SETTINGS)
    with pytest.raises(InvalidInput, match=r"penalty must be a number ≥ 0, got -1"):
        train_binary(network(), data, SETTINGS, penalty=-1)
    with pytest.raises(InvalidInput, match=r"tau must be a number > 0, got 0"):
        train_binary(network(), data, SETTINGS, tau=0)
    with pytest.raises(InvalidInput, match=r"penalty=0.1 is of learnt scales, and those of this model are analytic"):
        train_binary(network(scale="analytic"), data, SETTINGS, penalty=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["channel", "rank_one"])
def test_digits_are_learnt(scale: str) -> None:
    train, test = load_data("digits"), load_data("digits:test")
    torch.manual_seed(0)
    binary = binarize(digits_cnn(), example=train.example, scale=scale)
    stage = replace(SETTINGS, epochs=6)
    trained = train_binary(binary, train, replace(SETTINGS, epochs=10), first=stage, test=test, progress=False)
    assert trained.history[-1].reported_accuracy >= 0.95
