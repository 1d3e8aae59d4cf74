"""The loop against the same steps written out by hand, and what it promises to leave alone."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.artifact import Masks
from tamis.errors import InvalidInput, InvalidParameters, TrainingDiverged
from tamis.progress import Progress
from tamis.training import Data, Settings, Trained, evaluate, learning_rate_at, load_data, train
from tamis.training.augmentation import crop_and_flip
from tamis.training.checkpoint import load_epoch_weights, read_checkpoint
from tamis.training.models import digits_cnn, mlp

DIGITS = load_data("digits:train[:150]")
TEST = load_data("digits:test")


@dataclass(frozen=True, eq=False, repr=False)
class Watched(Data):
    """Data that remembers which batches were asked for, on whichever device."""

    asked: list[Tensor] = field(default_factory=list)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        self.asked.append(indices.clone())
        return super().batch(indices)


def watched(data: Data) -> Watched:
    return Watched(data.inputs, data.labels, data.name)


def small_mlp(seed: int = 0, *, dropout: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    model = mlp((64, 12, 10))
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), *list(model)[1:]) if dropout else model


def fitted(model: nn.Module, settings: Settings, data: Data = DIGITS, **options: Any) -> Trained:
    return train(model, data, settings, progress=options.pop("progress", False), **options)


@torch.no_grad()
def mean_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    return float(F.cross_entropy(model(inputs), labels))


def assert_same_weights(model: nn.Module, other: nn.Module) -> None:
    expected = other.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


# -- the learning rate ---------------------------------------------------------------------------------------------


def followed(scheduler: torch.optim.lr_scheduler.LRScheduler, epochs: int) -> Iterator[float]:
    for _ in range(epochs):
        yield scheduler.get_last_lr()[0]
        scheduler.optimizer.step()
        scheduler.step()


def any_optimizer(rate: float) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], rate)


def test_multistep_is_that_of_torch() -> None:
    settings = Settings(epochs=90, learning_rate=0.1, schedule="multistep", milestones=(30, 60, 80))
    schedule = torch.optim.lr_scheduler.MultiStepLR(any_optimizer(0.1), (30, 60, 80))
    for epoch, rate in enumerate(followed(schedule, 90)):
        assert learning_rate_at(settings, epoch) == pytest.approx(rate, rel=1e-12)
        assert learning_rate_at(settings, epoch + 0.999) == pytest.approx(rate, rel=1e-12)


def test_cosine_is_that_of_torch() -> None:
    settings = Settings(epochs=20, learning_rate=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(any_optimizer(0.3), 20)
    for epoch, rate in enumerate(followed(schedule, 20)):
        assert learning_rate_at(settings, epoch) == pytest.approx(rate, rel=1e-9)
    assert learning_rate_at(settings, 20) == pytest.approx(0, abs=1e-15)


def test_warmup_goes_up_in_a_line_and_then_the_schedule_begins() -> None:
    cosine = Settings(epochs=12, learning_rate=0.4, warmup_epochs=4)
    assert [learning_rate_at(cosine, epoch) for epoch in (0, 1, 2.5)] == pytest.approx([0, 0.1, 0.25])
    assert [learning_rate_at(cosine, epoch) for epoch in (4, 8, 12)] == pytest.approx([0.4, 0.2, 0])
    steps = Settings(epochs=12, learning_rate=0.4, warmup_epochs=4, schedule="multistep", milestones=(6,))
    assert [learning_rate_at(steps, epoch) for epoch in (3, 4, 5.9, 6)] == pytest.approx([0.3, 0.4, 0.4, 0.04])


@given(st.integers(1, 50), st.data())
def test_after_warmup_the_rate_never_rises(epochs: int, data: st.DataObject) -> None:
    settings = Settings(epochs=epochs, warmup_epochs=data.draw(st.integers(0, epochs - 1)))
    instants = st.floats(settings.warmup_epochs, epochs)
    early, late = sorted((data.draw(instants), data.draw(instants)))
    assert 0.1 >= learning_rate_at(settings, early) >= learning_rate_at(settings, late) >= 0


@pytest.mark.parametrize("epoch", [-0.1, 10.1, math.nan])
def test_an_epoch_outside_of_training_has_no_rate(epoch: float) -> None:
    with pytest.raises(InvalidInput, match="epoch must be from 0 to 10, got"):
        learning_rate_at(Settings(epochs=10), epoch)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number ≥ 1, got 0"),
        ({"epochs": 2.5}, "epochs must be a whole number ≥ 1, got 2.5"),
        ({"batch": 0}, "batch must be a whole number ≥ 1, got 0"),
        ({"optimizer": "adam"}, "optimizer must be sgd or adamw, got 'adam'"),
        ({"learning_rate": 0.0}, "learning_rate must be a number > 0, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be a number > 0, got nan"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"weight_decay": -1e-4}, "weight_decay must be a number ≥ 0, got -0.0001"),
        ({"schedule": "linear"}, "schedule must be cosine or multistep, got 'linear'"),
        ({"schedule": "multistep"}, r"milestones must be given with schedule='multistep', and only then, got \(\)"),
        ({"milestones": (3,)}, r"milestones must be given with schedule='multistep', and only then, got \(3,\)"),
        ({"schedule": "multistep", "milestones": (3, 10)}, r"rising order, from 1 to 9, got \(3, 10\)"),
        ({"schedule": "multistep", "milestones": (3, 2)}, r"rising order, from 1 to 9, got \(3, 2\)"),
        ({"warmup_epochs": 10}, "warmup_epochs must be a whole number from 0 to 9, got 10"),
        ({"seed": -1}, "seed must be a whole number ≥ 0, got -1"),
        ({"seed": True}, "seed must be a whole number ≥ 0, got True"),
        ({"batch": "64"}, "batch must be a whole number ≥ 1, got '64'"),
        ({"learning_rate": "1e-4"}, "learning_rate must be a number > 0, got '1e-4'"),
        ({"learning_rate": None}, "learning_rate must be a number > 0, got None"),
        ({"learning_rate": 10**400}, "learning_rate must be a number > 0, got 10000"),
        ({"momentum": [0.9]}, r"momentum must be in \[0, 1\), got \[0.9\]"),
        ({"weight_decay": 1j}, "weight_decay must be a number ≥ 0, got 1j"),
        ({"schedule": "multistep", "milestones": (3, None)}, r"rising order, from 1 to 9, got \(3, None\)"),
        ({"milestones": None}, r"milestones must be a sequence of epochs, such as \(30, 60\), got None"),
        ({"milestones": 30}, r"milestones must be a sequence of epochs, such as \(30, 60\), got 30"),
        ({"batch": 10**30}, "batch must be at most 9223372036854775807, got 10000"),
        ({"augment": np.array([1, 0])}, r"augment must be True or False, got array\(\[1, 0\]\)"),
        ({"amp": torch.tensor([1, 0])}, r"amp must be True or False, got tensor\(\[1, 0\]\)"),
        ({"augment": "no"}, "augment must be True or False, got 'no'"),
        ({"amp": None}, "amp must be True or False, got None"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Settings(**{"epochs": 10, **wrong})


# -- the steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_are_those_written_out_by_hand(optimizer: str) -> None:
    settings = Settings(epochs=3, batch=40, optimizer=optimizer, learning_rate=0.01, momentum=0.8, weight_decay=0.1)
    data = watched(DIGITS)
    trained = fitted(small_mlp(), settings, data)

    by_hand = small_mlp()
    chosen: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, 0.01, momentum=0.8, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.999), weight_decay=0.1),
    }
    steps = chosen[optimizer](by_hand.parameters())
    assert [len(batch) for batch in data.asked] == [40, 40, 40, 30] * 3
    for number, batch in enumerate(data.asked):
        steps.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * number / 12)) / 2
        steps.zero_grad()
        (F.cross_entropy(by_hand(DIGITS.inputs[batch]), DIGITS.labels[batch], reduction="sum") / len(batch)).backward()
        steps.step()
    for (name, value), expected in zip(trained.model.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6, msg=name)


def test_every_epoch_is_another_permutation_drawn_from_the_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        data = watched(DIGITS)
        fitted(small_mlp(), Settings(epochs=2, batch=64, seed=seed), data)
        whole = torch.cat(data.asked)
        orders.append((whole[:150], whole[150:]))
        for order in orders[-1]:
            assert torch.equal(order.sort().values, torch.arange(150))
    (first, second), again, other = orders
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second) and not torch.equal(first, other[0])


def test_an_epoch_reports_means_over_the_training_data() -> None:
    """At a learning rate too small to matter they are those of the model before."""
    model = small_mlp()
    settings = Settings(epochs=2, batch=40, learning_rate=1e-30)
    for number, epoch in enumerate(fitted(model, settings, test=TEST).history, start=1):
        assert epoch.epoch == number
        assert epoch.loss == pytest.approx(mean_loss(model, DIGITS.inputs, DIGITS.labels), rel=1e-6)
        assert epoch.accuracy == evaluate(model, DIGITS)
        assert epoch.test_accuracy == evaluate(model, TEST)
        assert epoch.learning_rate == learning_rate_at(settings, number - 1)
        assert epoch.seconds > 0


def test_it_learns_digits() -> None:
    torch.manual_seed(0)
    settings = Settings(epochs=6, batch=64, optimizer="adamw", learning_rate=0.02)
    trained = fitted(digits_cnn(8), settings, load_data("digits:train"), test=TEST)
    assert evaluate(trained.model, TEST) == trained.history[-1].test_accuracy
    assert trained.history[-1].test_accuracy > 0.85 > trained.history[0].test_accuracy
    assert trained.history[-1].loss < trained.history[0].loss


def test_augmented_images_are_those_of_crop_and_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def recorded(images: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(crop_and_flip(images, generator))
        return seen[-1]

    monkeypatch.setattr("tamis.training.loop.crop_and_flip", recorded)
    settings = Settings(epochs=2, batch=150, learning_rate=1e-30, augment=True)
    model, data = small_mlp(), watched(DIGITS)
    trained = fitted(model, settings, data)
    for images, batch, epoch in zip(seen, data.asked, trained.history, strict=True):
        assert not torch.equal(images, DIGITS.inputs[batch])
        assert epoch.loss == pytest.approx(mean_loss(model, images, DIGITS.labels[batch]), rel=1e-6)
    first, second = (images[batch.argsort()] for images, batch in zip(seen, data.asked, strict=True))
    assert not torch.equal(first, second)
    assert_same_weights(trained.model, fitted(model, settings).model)
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])


# -- what is left alone --------------------------------------------------------------------------------------------


def test_the_callers_model_data_and_random_state_stay_as_they_were() -> None:
    torch.manual_seed(3)
    model = digits_cnn(4)
    model.first.eval()
    before, modes = copy.deepcopy(model), [module.training for module in model.modules()]
    inputs, state = DIGITS.inputs.clone(), torch.get_rng_state()
    trained = fitted(model, Settings(epochs=1, augment=True), test=TEST)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(DIGITS.inputs, inputs)
    assert_same_weights(model, before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in [*model.parameters(), *trained.model.parameters()])
    assert not any(module.training for module in trained.model.modules())
    assert not torch.equal(trained.model.classifier.weight, model.classifier.weight)


def test_the_seed_decides_dropout_and_the_callers_generator_does_not() -> None:
    settings = Settings(epochs=2, batch=50)
    model = small_mlp(dropout=True)
    trained = []
    for callers in (1, 2):
        torch.manual_seed(callers)
        trained.append(fitted(model, settings))
    assert_same_weights(trained[0].model, trained[1].model)
    full_batch = [fitted(model, Settings(epochs=1, batch=150, seed=seed)).model for seed in (0, 1)]
    assert not torch.allclose(full_batch[0][2].weight, full_batch[1][2].weight, atol=1e-4)


def test_every_module_is_in_train_mode_while_it_is_trained() -> None:
    """A batch-norm that is frozen keeps its weights; its statistics move, though it was given in eval mode."""
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    model[1].requires_grad_(False).eval()
    trained = fitted(model, Settings(epochs=1)).model
    assert torch.equal(trained[1].weight, model[1].weight)
    assert not torch.equal(trained[1].running_mean, model[1].running_mean)


# -- evaluate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [7, 360, 1000])
def test_evaluate_counts_right_answers(batch: int) -> None:
    model = small_mlp(dropout=True)
    model[0].eval()
    modes = [module.training for module in model.modules()]
    accuracy = evaluate(model, TEST, batch)
    assert [module.training for module in model.modules()] == modes
    answers = copy.deepcopy(model).eval()(TEST.inputs).argmax(1)
    assert accuracy == sum(int(a) == int(b) for a, b in zip(answers, TEST.labels, strict=True)) / 360


def test_modes_are_put_back_when_the_model_fails() -> None:
    model = small_mlp(dropout=True)
    with pytest.raises(RuntimeError, match="shapes"):
        evaluate(model, Data(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64), "too narrow"))
    assert all(module.training for module in model.modules())


def test_evaluate_needs_a_batch() -> None:
    with pytest.raises(InvalidInput, match="batch must be a whole number ≥ 1, got 0"):
        evaluate(small_mlp(), TEST, 0)


# -- rewinding and masks -------------------------------------------------------------------------------------------


def test_training_from_a_kept_epoch_retraces_the_rest(tmp_path) -> None:
    """Without momentum the weights are all there is, so both go the same way, dropout included."""
    settings = Settings(epochs=5, batch=40, momentum=0.0, schedule="multistep", milestones=(3,))
    model = small_mlp(dropout=True)
    whole = fitted(model, settings, directory=tmp_path, keep=(0, 2, 5))
    rewound = copy.deepcopy(model)
    rewound.load_state_dict(load_epoch_weights(tmp_path, 2))
    rest = fitted(rewound, settings, first_epoch=2)
    assert_same_weights(rest.model, whole.model)
    assert [replace(epoch, seconds=0) for epoch in rest.history] == [
        replace(epoch, seconds=0) for epoch in whole.history[2:]
    ]
    for epoch, weights in ((0, model), (5, whole.model)):
        for name, value in load_epoch_weights(tmp_path, epoch).items():
            assert torch.equal(value, weights.state_dict()[name])


def half(model: nn.Module, seed: int = 0) -> Masks:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: value for name, value in model.named_parameters() if value.dim() > 1}
    return Masks({name: torch.rand(value.shape, generator=generator) < 0.5 for name, value in weights.items()})


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_pruned_weights_are_zero_after_a_hundred_steps(optimizer: str) -> None:
    torch.manual_seed(0)
    model = digits_cnn(4)
    masks = half(model)
    settings = Settings(epochs=25, batch=40, optimizer=optimizer, learning_rate=0.01, weight_decay=0.1)
    trained = fitted(model, settings, masks=masks).model
    for name, mask in masks.items():
        weight = trained.get_parameter(name)
        assert torch.equal(weight != 0, mask), name
        assert not torch.isclose(weight[mask], model.get_parameter(name)[mask]).any()
    F.cross_entropy(trained(DIGITS.inputs), DIGITS.labels).backward()
    assert bool(trained.classifier.weight.grad[~masks["classifier.weight"]].any())  # nothing is held any more


def test_masks_of_another_model_are_refused() -> None:
    with pytest.raises(InvalidParameters, match=r"there is a mask for 'first\.0\.weight', but Sequential"):
        fitted(small_mlp(), Settings(epochs=1), masks=half(digits_cnn(4)))


# -- progress ------------------------------------------------------------------------------------------------------


def test_each_epoch_is_reported() -> None:
    model, told = small_mlp(), list[Progress]()
    masks = half(model)
    trained = fitted(model, Settings(epochs=3, batch=50), test=TEST, masks=masks, progress=told.append)
    assert [(now.task, now.done, now.total) for now in told] == [("training", done, 3) for done in (1, 2, 3)]
    for now, epoch in zip(told, trained.history, strict=True):
        assert epoch.reported_accuracy == epoch.test_accuracy
        assert now.figures == {
            "loss": epoch.loss,
            "accuracy": epoch.test_accuracy,
            "learning_rate": epoch.learning_rate,
            "sparsity": masks.sparsity,
        }


def test_without_test_data_the_training_accuracy_is_reported() -> None:
    told = list[Progress]()
    trained = fitted(small_mlp(), Settings(epochs=1), progress=told.append)
    assert trained.history[0].reported_accuracy == trained.history[0].accuracy
    assert told[0].figures["accuracy"] == trained.history[0].accuracy and "sparsity" not in told[0].figures


# -- what goes wrong -----------------------------------------------------------------------------------------------


class BreaksAt(nn.Module):
    """A linear model whose scores are NaN from one call on."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.linear, self.calls, self.call = nn.Linear(64, 10), 0, call

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x.flatten(1)) * (math.nan if self.calls >= self.call else 1)


def test_a_loss_that_is_no_number_ends_training_and_leaves_the_checkpoint_before(tmp_path) -> None:
    settings = Settings(epochs=4, batch=50, learning_rate=0.2)
    with pytest.raises(TrainingDiverged, match=r"in epoch 3 of 4, begun at learning rate 0\.1: the loss is nan"):
        fitted(BreaksAt(8), settings, directory=tmp_path, keep=(2, 3))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.epoch == 2
    assert all(bool(value.isfinite().all()) for value in checkpoint.model.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "epoch_2.safetensors"]


def test_weights_that_the_last_step_breaks_are_not_written(tmp_path) -> None:
    """The loss before the step is fine."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    settings = Settings(epochs=1, batch=150, learning_rate=1e38, weight_decay=1e6)
    with pytest.raises(
        TrainingDiverged, match=r"in epoch 1 of 1, begun at learning rate 1e\+38: '1.weight' is not finite"
    ):
        fitted(model, settings, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_epoch": 3}, "first_epoch must be a whole number from 0 to 2, got 3"),
        ({"first_epoch": -1}, "first_epoch must be a whole number from 0 to 2, got -1"),
        ({"keep": (4,)}, r"keep must be epochs from 0 to 3, got \(4,\)"),
        ({"first_epoch": 2, "keep": (1,)}, r"keep must be epochs from 2 to 3, got \(1,\)"),
        ({"keep": 1}, r"keep must be a sequence of epochs, such as \(5,\), got 1"),
        ({"keep": (2,)}, r"to keep the weights of epochs \(2,\) give a directory"),
        ({"device": "meta"}, "training runs on cpu or cuda, got device 'meta'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fitted(small_mlp(), Settings(epochs=3), **options)


def test_augmentation_of_what_is_no_image_is_refused_before_anything_is_written(tmp_path) -> None:
    flat = replace(DIGITS, inputs=DIGITS.inputs.flatten(1), name="flat")
    wanted = r"the inputs of 'flat' have shape \(150, 64\); train them with augment=False"
    with pytest.raises(InvalidInput, match=wanted):
        fitted(small_mlp(), Settings(epochs=1, augment=True), flat, directory=tmp_path / "run", keep=(0,))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("lazy", "name"), [(nn.LazyLinear(10), "2.weight"), (nn.LazyBatchNorm1d(affine=False), "2.running_mean")]
)
def test_a_model_without_shapes_yet_is_refused(lazy: nn.Module, name: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), lazy)
    with pytest.raises(InvalidInput, match=f"'{name}' of Sequential has no shape yet, .* model\\(data.example\\)"):
        fitted(model, Settings(epochs=1))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    model = small_mlp().requires_grad_(False)
    with pytest.raises(InvalidInput, match="Sequential has no parameter to train"):
        fitted(model, Settings(epochs=1))
