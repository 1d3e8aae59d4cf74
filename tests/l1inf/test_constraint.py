"""The ball as a constraint on `train`: every step, broken off or not, with pruned weights, alone and in a team."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ddp_l1inf_constraint
import pytest
import torch
import torch.nn.functional as F
from ddp_l1inf_constraint import MASKS, C, Watched, small_mlp
from torch import Tensor, nn
from torchrun import team_of

from tamis.errors import InvalidInput, TrainingDiverged
from tamis.l1inf import L1InfConstraint, project, statistics
from tamis.progress import Progress
from tamis.training import Data, Settings, Trained, learning_rate_at, load_data, read_checkpoint, train

DATA = load_data("digits:train[:100]")
SETTINGS = Settings(epochs=3, batch=30)


def trained(**options: Any) -> Trained:
    return train(small_mlp(), options.pop("data", DATA), **{"settings": SETTINGS, "progress": False, **options})


def assert_same(one: nn.Module, other: nn.Module) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Stop(Exception):
    """What breaks a training off."""


def stop_after(epochs: int) -> Callable[[Progress], None]:
    def listen(now: Progress) -> None:
        if now.done == epochs:
            raise Stop

    return listen


# -- every step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [C, {"linear1": 0.2, "linear3": 2.0}], ids=["all hidden layers", "named layers"])
def test_it_is_algorithm_1_written_out(c: Any) -> None:
    """The batches that training asked for, plain SGD on them, and the projection after each step."""
    asked: list[Tensor] = []

    class Asked(Data):
        def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
            asked.append(indices.clone())
            return super().batch(indices)

    settings = Settings(epochs=3, batch=30, momentum=0.0, weight_decay=0.0)
    got = trained(
        data=Asked(DATA.inputs, DATA.labels, DATA.name), settings=settings, constraint=L1InfConstraint(c)
    ).model
    model = small_mlp()
    radii = c if isinstance(c, dict) else {"linear1": c, "linear2": c}
    assert len(asked) == 12
    for step, indices in enumerate(asked):
        inputs, labels = DATA.batch(indices)
        loss = F.cross_entropy(model(inputs), labels)
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(learning_rate_at(settings, step / 4) * gradient)
            for name, radius in radii.items():
                layer = model.get_submodule(name)
                weight, bias = project(layer.weight, radius, layer.bias)  # type: ignore[arg-type]
                layer.weight.copy_(weight)  # type: ignore[operator]
                layer.bias.copy_(bias)  # type: ignore[operator]
    for one, other in zip(got.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert all(layer.norm <= radii[layer.name] * (1 + 1e-6) for layer in L1InfConstraint(c).statistics(got).layers)
    assert L1InfConstraint(c).statistics(got).sparsity > 0.1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_step_ends_within_and_leaves_what_is_pruned_at_zero(optimizer: Any) -> None:
    settings = Settings(epochs=4, batch=30, optimizer=optimizer, learning_rate=0.02, weight_decay=0.1)
    constraint = Watched(C)
    model = trained(settings=settings, constraint=constraint, masks=MASKS).model
    assert len(constraint.norms) == 16 and max(constraint.norms) <= C * (1 + 1e-6)
    for name, mask in MASKS.items():
        value = model.get_parameter(name)
        assert not value[~mask].any() and value[mask].any()
        assert not value[~mask].signbit().any()


def test_the_model_is_left_as_it_is() -> None:
    model = small_mlp()
    before = [value.clone() for value in model.parameters()]
    train(model, DATA, SETTINGS, constraint=L1InfConstraint(0.0), progress=False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_radius_of_0_leaves_nothing_but_the_output_layer() -> None:
    found = statistics(trained(constraint=L1InfConstraint(0.0)).model)
    assert found.c == 0.0 and found.sparsity == 1.0


# -- going on ------------------------------------------------------------------------------------------------------


def test_broken_off_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"constraint": L1InfConstraint(C), "masks": MASKS}
    with pytest.raises(Stop):
        trained(**options, directory=tmp_path, progress=stop_after(1))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.epoch == 1 and checkpoint.optimizer["l1inf"] == {"steps": 4}
    resumed = trained(**options, directory=tmp_path)
    assert_same(resumed.model, trained(**options).model)
    assert_same(resumed.model, trained(**options, directory=tmp_path).model)  # finished: read, not trained


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (L1InfConstraint(0.5), None, r"l1inf was \{'c': 0\.5\}, now it is None"),
        (None, L1InfConstraint(0.5), r"l1inf was None, now it is \{'c': 0\.5\}"),
        (L1InfConstraint(0.5), L1InfConstraint(0.25), r"l1inf was \{'c': 0\.5\}, now it is \{'c': 0\.25\}"),
        (L1InfConstraint(0.5), L1InfConstraint({"linear1": 0.5}), r"now it is \{'c': \{'linear1': 0\.5\}\}"),
    ],
)
def test_another_constraint_is_another_training(first: Any, second: Any, message: str, tmp_path: Path) -> None:
    trained(constraint=first, directory=tmp_path)
    with pytest.raises(InvalidInput, match=message):
        trained(constraint=second, directory=tmp_path)


# -- a team --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_every_step_of_a_team_all_hold_the_same_bits_within_the_ball(tmp_path: Path) -> None:
    done = team_of(2, tmp_path, script=Path(ddp_l1inf_constraint.__file__), seconds=120)
    assert done.returncode == 0, done.stdout
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["digests"] == second["digests"] and len(set(first["digests"])) == 12
    assert first["norms"] == second["norms"] and max(first["norms"]) <= C * (1 + 1e-6)
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name])
        assert name not in MASKS or not value[~MASKS[name]].any()


# -- what it says --------------------------------------------------------------------------------------------------


def test_it_says_what_is_in_effect_in_plain_values() -> None:
    assert L1InfConstraint(torch.tensor(0.5)).in_effect == {"l1inf": {"c": 0.5}}  # type: ignore[arg-type]
    assert L1InfConstraint({"linear1": 1}).in_effect == {"l1inf": {"c": {"linear1": 1.0}}}


def test_statistics_are_of_the_layers_that_are_constrained() -> None:
    model = small_mlp()
    whole = statistics(model, exclude=())
    assert [layer.name for layer in L1InfConstraint(1.0).statistics(model).layers] == ["linear1", "linear2"]
    found = L1InfConstraint({"linear3": 1.0}).statistics(model)
    assert found.layers == whole.layers[2:] and found.c == whole.layers[2].norm


@pytest.mark.parametrize("c", [-1.0, float("nan"), "0.1", True, {"linear1": -1.0}, lambda step: 1.0])
def test_what_is_no_radius_is_refused(c: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a number ≥ 0"):
        L1InfConstraint(c)


def test_a_layer_that_is_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="c names 'linear9', which is no layer; these are: linear1, linear2, linear3"
    ):
        trained(constraint=L1InfConstraint({"linear9": 1.0}), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(TrainingDiverged):
        trained(
            settings=Settings(epochs=3, batch=30, learning_rate=1e38), constraint=L1InfConstraint({"linear2": 1e30})
        )


def test_statistics_of_a_constraint_have_the_norms_of_the_outputs() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    expected = (model[2].weight.abs().sum(1) + model[2].bias.abs()).tolist()
    for constraint in (L1InfConstraint(1.0), L1InfConstraint({"0": 1.0})):
        assert constraint.statistics(model).o == pytest.approx(expected)
    assert L1InfConstraint({"0": 1.0, "2": 1.0}).statistics(model).o == ()
