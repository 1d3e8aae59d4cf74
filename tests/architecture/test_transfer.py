"""Transfer: fresh weights, masks held, another architecture refused."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from tamis.architecture.architecture import Architecture
from tamis.architecture.baselines import random_architecture
from tamis.architecture.transfer import reinitialise, transfer
from tamis.errors import InvalidInput, InvalidParameters
from tamis.training import Settings, load_data, train
from tamis.training.models import digits_cnn, mlp

DATA, TEST = load_data("digits:train[:200]"), load_data("digits:test[:100]")
SETTINGS = Settings(epochs=2, batch=20)


def test_what_is_masked_is_zero_and_the_rest_is_trained_from_fresh_weights() -> None:
    model = digits_cnn(4)
    architecture = random_architecture(model, 0.7, seed=0)
    trained = transfer(model, architecture, DATA, SETTINGS, test=TEST, progress=False)
    for name, mask in architecture.masks.items():
        assert torch.equal(trained.model.get_parameter(name) != 0, mask), name
    fresh = reinitialise(model, SETTINGS.seed)
    expected = train(fresh, DATA, SETTINGS, test=TEST, masks=architecture.masks, progress=False)
    assert all(torch.equal(v, expected.model.state_dict()[n]) for n, v in trained.model.state_dict().items())
    assert trained.history[-1].test_accuracy is not None


def test_weights_of_the_model_are_of_no_account_and_stay() -> None:
    torch.manual_seed(0)
    one, other = digits_cnn(4), digits_cnn(4)
    architecture, before = random_architecture(one, 0.5, seed=0), deepcopy(one.state_dict())
    state = torch.get_rng_state()
    first, second = (transfer(model, architecture, DATA, SETTINGS, progress=False) for model in (one, other))
    assert all(torch.equal(v, second.model.state_dict()[n]) for n, v in first.model.state_dict().items())
    assert all(torch.equal(v, before[n]) for n, v in one.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_fresh_weights_differ_by_seed_and_from_those_that_the_seed_gives_the_caller() -> None:
    torch.manual_seed(3)
    model = mlp()
    one, same, other = (reinitialise(model, seed) for seed in (3, 3, 4))
    for name, value in one.named_parameters():
        assert torch.equal(value, same.get_parameter(name))
        assert not torch.equal(value, other.get_parameter(name))
        assert not torch.equal(value, model.get_parameter(name))


def test_statistics_of_batch_norm_begin_anew() -> None:
    trained = train(digits_cnn(4), DATA, SETTINGS, progress=False).model
    fresh = reinitialise(trained, 0)
    assert isinstance(norm := fresh.first[1], nn.BatchNorm2d)  # type: ignore[index]
    assert norm.running_mean is not None and not norm.running_mean.any()


def test_another_architecture_is_refused_by_its_first_difference() -> None:
    architecture = random_architecture(mlp((64, 6, 10)), 0.5, seed=0)
    with pytest.raises(
        InvalidParameters, match=r"'linear1\.weight' has shape \(6, 64\) in it and \(7, 64\) in Sequential"
    ):
        transfer(mlp((64, 7, 10)), architecture, DATA, SETTINGS, progress=False)
    with pytest.raises(InvalidParameters, match=r"it masks 'linear1\.weight', which DigitsCNN does not have"):
        transfer(digits_cnn(4), architecture, DATA, SETTINGS, progress=False)


def test_an_architecture_without_the_last_layer_goes_to_another_number_of_classes() -> None:
    architecture = random_architecture(mlp((64, 6, 10)), 0.5, seed=0, exclude="linear2")
    trained = transfer(mlp((64, 6, 12)), architecture, DATA, replace(SETTINGS, epochs=1), progress=False)
    assert trained.model.get_parameter("linear2.weight").shape == (12, 6)


def test_a_module_that_cannot_begin_anew_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.by * x

    model = nn.Sequential(mlp((64, 6, 10)), Scale())
    architecture = Architecture({"0.linear1.weight": torch.ones(6, 64, dtype=torch.bool)})
    with pytest.raises(InvalidInput, match=r"'1' \(Scale\) has the parameters by and no reset_parameters\(\)"):
        transfer(model, architecture, DATA, SETTINGS, progress=False)
