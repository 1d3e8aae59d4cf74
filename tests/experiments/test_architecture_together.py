"""Networks trained together are those that `transfer` trains one by one."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from experiments.architecture_together import Together, measure_accuracies, train_together
from experiments.architecture_transfer import make_small_vgg
from tamis.architecture import Architecture, reinitialise, transfer
from tamis.architecture.baselines import random_architecture
from tamis.errors import InvalidInput, InvalidParameters
from tamis.training import Data, Settings, evaluate, load_data

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

MODEL = make_small_vgg((3, 5), 10, channels=1)
TEST = load_data("digits:test[:150]")
DATA = {seed: load_data(f"digits:train[{40 * seed}:{40 * seed + 40}]") for seed in (0, 1)}


def pairs() -> list[tuple[Architecture, int]]:
    return [
        (random_architecture(MODEL, sparsity, number), number % 2) for number, sparsity in enumerate((0.0, 0.5, 0.8))
    ]


def state_of(together: Together, number: int) -> dict[str, torch.Tensor]:
    names = [name for name in MODEL.state_dict() if not name.endswith("num_batches_tracked")]
    return {name: getattr(together, name.replace(".", "_"))[number].detach() for name in names}


def test_one_step_has_the_loss_and_gradients_of_each_network_alone() -> None:
    together = Together(MODEL, pairs(), "cpu").train()
    images, labels = zip(*(DATA[seed].batch(torch.arange(40)) for _, seed in pairs()), strict=True)
    scores = together(torch.stack(images, 1).flatten(1, 2))
    sum(F.cross_entropy(scores[:, k], labels[k]) for k in range(3)).backward()  # type: ignore[union-attr]
    for number, (architecture, seed) in enumerate(pairs()):
        alone = reinitialise(MODEL, seed).train()
        for name, mask in architecture.masks.items():
            alone.get_parameter(name).data.mul_(mask)
        own = alone(images[number])
        torch.testing.assert_close(scores[:, number], own)
        F.cross_entropy(own, labels[number]).backward()
        for name, value in alone.named_parameters():
            mask = architecture.masks.get(name, torch.ones_like(value, dtype=torch.bool))
            got = together.get_parameter(name.replace(".", "_")).grad
            assert got is not None and value.grad is not None
            torch.testing.assert_close(got[number], value.grad * mask, rtol=1e-4, atol=1e-6)


def test_trainings_together_are_the_transfers_one_by_one() -> None:
    """All examples in one batch, so that their order, which is drawn otherwise, does not count."""
    settings = Settings(epochs=6, batch=40, learning_rate=0.05, weight_decay=1e-3)
    together = train_together(MODEL, pairs(), DATA, settings, "cpu")
    measured = measure_accuracies(together, TEST, amp=False)
    for number, (architecture, seed) in enumerate(pairs()):
        alone = transfer(MODEL, architecture, DATA[seed], replace(settings, seed=seed), progress=False).model
        for name, value in state_of(together, number).items():
            torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)
        assert measured[number] == pytest.approx(evaluate(alone, TEST), abs=2 / len(TEST))


def test_what_is_masked_stays_zero_in_small_batches_too() -> None:
    together = train_together(MODEL, pairs(), DATA, Settings(epochs=2, batch=16), "cpu")
    for number, (architecture, _) in enumerate(pairs()):
        for name, mask in architecture.masks.items():
            assert torch.equal(state_of(together, number)[name] != 0, mask)


def test_what_it_cannot_train_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'0' \(Dropout\) cannot be trained for several networks at once"):
        Together(nn.Sequential(nn.Dropout(), *MODEL), pairs(), "cpu")
    with pytest.raises(InvalidParameters, match="this architecture is of another network"):
        Together(make_small_vgg((3, 4), 10, channels=1), pairs(), "cpu")
    for settings in (Settings(epochs=1, optimizer="adamw"), Settings(epochs=1, augment=True)):
        with pytest.raises(InvalidInput, match="by SGD without augmentation only"):
            train_together(MODEL, pairs(), DATA, settings, "cpu")


def test_each_network_is_measured_on_all_of_the_test_data() -> None:
    """One whose scores are constant gives the share of one class."""
    together = Together(MODEL, pairs(), "cpu").eval()
    weight, bias = (f"{len(MODEL) - 1}_{name}" for name in ("weight", "bias"))
    together.get_parameter(weight).data.zero_()
    together.get_parameter(bias).data.copy_(torch.eye(10)[:3])
    assert measure_accuracies(together, TEST, amp=False) == [
        float((TEST.labels == label).double().mean()) for label in range(3)
    ]
    assert isinstance(TEST, Data)
