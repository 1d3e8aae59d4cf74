"""Masks as a value, as zeros, and as a constraint that every optimizer keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, RMSprop

import tamis
from tamis.artifact.masks import Masks
from tamis.errors import InvalidInput, InvalidParameters

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: SGD(params, 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda params: SGD(params, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda params: Adam(params, 0.01, weight_decay=0.01),
    "adamw": lambda params: AdamW(params, 0.01, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda params: RMSprop(params, 0.01, momentum=0.5, centered=True),
    "lbfgs": lambda params: LBFGS(params, 0.5, max_iter=4),
}


def model_and_masks(seed: int = 0) -> tuple[nn.Sequential, Masks]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return model, Masks({name: torch.rand(value.shape) < 0.6 for name, value in model.named_parameters()})


class Task:
    """Regression on a fixed batch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x, self.y = torch.randn(16, 6, generator=generator), torch.randn(16, 3, generator=generator)

    def step(self, model: nn.Module, optimizer: Optimizer, between: Callable[[], Any] = lambda: None) -> None:
        """One step; `between` runs when the gradients are there."""

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(self.x) - self.y).square().mean()
            loss.backward()
            between()
            return loss

        if isinstance(optimizer, LBFGS):
            optimizer.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            optimizer.step()


def assert_plus_zero(model: nn.Module, masks: Masks) -> None:
    for name, mask in masks.items():
        pruned = model.get_parameter(name).detach()[~mask]
        assert not pruned.any() and not torch.signbit(pruned).any(), name


def assert_gradients_zero(model: nn.Module, masks: Masks) -> None:
    for name, mask in masks.items():
        gradient = model.get_parameter(name).grad
        assert gradient is not None and not gradient[~mask].any() and gradient[mask].any(), name


# -- held through training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dense_steps", [0, 10], ids=["from the start", "after dense training"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pruned_weights_stay_zero_and_the_others_train(name: str, dense_steps: int) -> None:
    """Also with an optimizer whose momentum dates from dense training: it pulls, and cannot revive."""
    model, masks = model_and_masks()
    task, optimizer = Task(), OPTIMIZERS[name](model.parameters())
    for _ in range(dense_steps):
        task.step(model, optimizer)
    before = {n: value.detach().clone() for n, value in model.named_parameters()}
    hold = masks.hold(model, optimizer)
    assert_plus_zero(model, masks)
    assert all(torch.equal(model.get_parameter(n)[mask], before[n][mask]) for n, mask in masks.items())
    for _ in range(8 if name == "lbfgs" else 20):  # each step of which is several
        task.step(model, optimizer, lambda: assert_gradients_zero(model, masks))
        assert_plus_zero(model, masks)
    for n, mask in masks.items():
        changed = model.get_parameter(n)[mask] != before[n][mask]
        assert changed.float().mean() > 0.6, "what is left is trained, but for a neuron that is never active"
    hold.release()
    for _ in range(3):
        task.step(model, optimizer)
    assert any(model.get_parameter(n)[~mask].any() for n, mask in masks.items()), "and free after release"


@pytest.mark.parametrize("fused", ["foreach", "fused"])
def test_other_implementations_of_a_step(fused: str) -> None:
    model, masks = model_and_masks()
    task, optimizer = Task(), AdamW(model.parameters(), 0.01, **{fused: True})
    masks.hold(model, optimizer)
    for _ in range(5):
        task.step(model, optimizer)
        assert_plus_zero(model, masks)


def test_gradients_are_zero_before_they_are_clipped() -> None:
    """The norm that clipping sees is that of the weights that are left."""
    model, masks = model_and_masks()
    task, optimizer = Task(), SGD(model.parameters(), 0.1)
    masks.hold(model, optimizer)

    def clip() -> None:
        own = torch.cat([model.get_parameter(n).grad[mask] for n, mask in masks.items()])  # type: ignore[index]
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 1e-3)) == pytest.approx(float(own.norm()), rel=1e-6)

    task.step(model, optimizer, clip)


def test_gradients_accumulate() -> None:
    model, masks = model_and_masks()
    task, optimizer = Task(), SGD(model.parameters(), 0.1)
    masks.hold(model, optimizer)
    for _ in range(2):
        (model(task.x) - task.y).square().mean().backward()
    assert_gradients_zero(model, masks)


def test_an_infinite_gradient_does_not_reach_pruned_weights() -> None:
    model, masks = model_and_masks()
    optimizer = SGD(model.parameters(), 0.1)
    masks.hold(model, optimizer)
    (model(torch.full((2, 6), 1e30)).square().sum() * 1e30).backward()
    optimizer.step()
    assert_plus_zero(model, masks)


def test_a_schedule_and_a_saved_state(tmp_path: Path) -> None:
    """Stopping, saving optimizer and model, and going on elsewhere gives the very same weights."""

    def run(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        for _ in range(steps):
            task.step(model, optimizer)
            scheduler.step()
            assert_plus_zero(model, masks)

    task = Task()
    model, masks = model_and_masks()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    masks.hold(model, optimizer)
    run(model, optimizer, 5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    other, _ = model_and_masks(seed=1)
    resumed = OPTIMIZERS["sgd"](other.parameters())
    other.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    masks.hold(other, resumed)
    for each, its_optimizer in ((model, optimizer), (other, resumed)):
        run(each, its_optimizer, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_frozen_parameter_and_one_without_a_mask() -> None:
    model, masks = model_and_masks()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    some = Masks({name: masks[name] for name in ("0.weight", "2.weight")})
    optimizer = OPTIMIZERS["adamw"]([p for p in model.parameters() if p.requires_grad])
    some.hold(model, optimizer)
    bias = model[2].bias.detach().clone()
    for _ in range(5):
        Task().step(model, optimizer)
    assert_plus_zero(model, some)
    assert torch.equal(model[0].weight, frozen.masked_fill(~masks["0.weight"], 0))
    assert (model[2].bias != bias).all()


def test_tied_parameters_are_held_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    mask = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    for name in ("0.weight", "2.weight"):
        optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
        hold = Masks({name: mask}).hold(model, optimizer)
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        assert not model[0].weight[~mask].any()
        hold.release()


# -- wrapped models ------------------------------------------------------------------------------------------------


def test_a_compiled_model() -> None:
    inner, masks = model_and_masks()
    model = torch.compile(inner, backend="eager")
    assert isinstance(model, nn.Module)
    task, optimizer = Task(), OPTIMIZERS["sgd"](model.parameters())
    masks.hold(model, optimizer)
    before = {name: value.detach().clone() for name, value in inner.named_parameters()}
    for _ in range(5):
        task.step(model, optimizer, lambda: assert_gradients_zero(inner, masks))
        assert_plus_zero(inner, masks)
    assert all((inner.get_parameter(name)[mask] != before[name][mask]).all() for name, mask in masks.items())


def test_data_parallel_around_a_compiled_model() -> None:
    inner, masks = model_and_masks()
    model = nn.DataParallel(torch.compile(inner, backend="eager"))  # type: ignore[arg-type]
    masks.hold(model, SGD(model.parameters(), 0.1))
    assert_plus_zero(inner, masks)


@pytest.mark.parametrize("name", ["module", "inner"])
def test_a_users_own_wrapper_keeps_its_names(name: str) -> None:
    """Even one whose only child is called as DistributedDataParallel calls its own."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, nn.Linear(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, name)(x)  # type: ignore[no-any-return]

    model = Wrapper()
    small = tamis.prune(model, 3, example=torch.zeros(1, 3))
    small.masks.hold(model, SGD(model.parameters(), 0.1))
    assert_plus_zero(model, small.masks)
    small.masks.hold(nn.DataParallel(model), SGD(model.parameters(), 0.1))


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed training")
def test_two_processes_that_train_together(tmp_path: Path) -> None:
    script = Path(__file__).with_name("ddp_hold.py")
    package = str(Path(tamis.__file__).parents[1])
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "rendezvous")],
            env={**os.environ, "PYTHONPATH": package},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, errors = process.communicate(timeout=240)
            assert process.returncode == 0 and output.strip() == "held", errors
    finally:
        for process in processes:
            process.kill()


# -- errors --------------------------------------------------------------------------------------------------------


def test_masks_that_do_not_fit() -> None:
    model, masks = model_and_masks()
    optimizer = SGD(model.parameters(), 0.1)
    before = [value.clone() for value in model.parameters()]
    stranger = Masks({**masks, "fc.weight": torch.ones(2, dtype=torch.bool)})
    with pytest.raises(InvalidParameters, match=r"a mask for 'fc\.weight', but Sequential has no such .* 0\.weight"):
        stranger.hold(model, optimizer)
    with pytest.raises(InvalidParameters, match=r"mask of '2\.weight' has shape \(5, 3\), the parameter \(3, 5\)"):
        Masks({"2.weight": masks["2.weight"].T}).hold(model, optimizer)
    with pytest.raises(InvalidInput, match=r"hold needs a torch\.optim\.Optimizer, got float"):
        masks.hold(model, 0.1)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "nothing was done by half"
    with pytest.raises(InvalidParameters, match=r"a mask for '0\.weight', but the state_dict has no such"):
        masks.zeroed({"2.weight": model[2].weight})


@pytest.mark.parametrize(
    ("mask", "kind"), [(torch.ones(3), r"torch\.float32"), (torch.ones(3).int(), r"torch\.int32"), ([True], "list")]
)
def test_masks_that_are_not_boolean(mask: Any, kind: str) -> None:
    with pytest.raises(InvalidInput, match=rf"mask of 'w' must be a boolean tensor \(True: kept\), got {kind}"):
        Masks({"w": mask})


# -- as a value ----------------------------------------------------------------------------------------------------


def test_counts_and_words() -> None:
    masks = Masks({"a": torch.tensor([True, False, False]), "b": torch.tensor([[True]])})
    assert (masks.total, masks.pruned, masks.sparsity, len(masks)) == (4, 2, 0.5, 2)
    assert repr(masks) == "Masks(2 of 4 weights pruned, 2 parameters)"
    assert (Masks({}).total, Masks({}).pruned, Masks({}).sparsity) == (0, 0, 0.0)
    big = Masks({"w": torch.zeros(50, 40, dtype=torch.bool)})
    assert repr(big) == "Masks(2,000 of 2,000 weights pruned, 1 parameters)"


def test_what_two_masks_both_keep() -> None:
    first = Masks({"a": torch.tensor([True, True, False]), "b": torch.tensor([False])})
    second = Masks({"a": torch.tensor([True, False, True]), "c": torch.tensor([False, True])})
    both = first & second
    assert {name: mask.tolist() for name, mask in both.items()} == {
        "a": [True, False, False],
        "b": [False],
        "c": [False, True],
    }
    assert first["a"].tolist() == [True, True, False] and "c" not in first


def test_zeroed_is_a_copy_with_zeros() -> None:
    masks = Masks({"a": torch.tensor([True, False])})
    state = {"a": torch.tensor([-1.0, -2.0]), "b": torch.tensor([3])}
    result = masks.zeroed(state)
    assert result["a"].tolist() == [-1.0, 0.0] and not torch.signbit(result["a"][1])
    assert result["b"] is state["b"] and state["a"].tolist() == [-1.0, -2.0]
    masks.check_zeros(result)
    with pytest.raises(InvalidParameters, match=r"the mask of 'a' prunes entries that are not \+0\.0"):
        masks.check_zeros(state)
    with pytest.raises(InvalidParameters, match=r"the mask of 'a' prunes entries that are not \+0\.0"):
        masks.check_zeros({"a": torch.tensor([1.0, torch.nan])})
    with pytest.raises(InvalidParameters, match=r"the mask of 'a' prunes entries that are not \+0\.0"):
        masks.check_zeros({"a": torch.tensor([1.0, -0.0])})


def test_hold_refuses_an_optimizer_of_another_model() -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    masks = Masks({"weight": torch.ones(2, 3, dtype=torch.bool)})
    with pytest.raises(
        InvalidInput, match="the SGD does not train weight of Linear: make it from this model's parameters"
    ):
        masks.hold(model, torch.optim.SGD(other.parameters(), 0.1))


def test_hold_zeroes_gradients_from_before() -> None:
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    masks = Masks({"weight": torch.zeros(2, 3, dtype=torch.bool)})
    masks.hold(model, torch.optim.SGD(model.parameters(), 0.1))
    assert model.weight.grad is not None and not model.weight.grad.any()


def test_tied_parameters_are_pruned_by_the_masks_of_all_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    first, second = torch.tensor([[True, False], [True, True]]), torch.tensor([[True, True], [False, True]])
    Masks({"0.weight": first, "1.weight": second}).hold(model, torch.optim.SGD(model.parameters(), 0.1))
    assert torch.equal(model[0].weight != 0, first & second)


def test_masks_of_other_shapes_do_not_compose() -> None:
    with pytest.raises(InvalidParameters, match=r"the mask of 'a' has shape \(2,\), the parameter \(3,\)"):
        Masks({"a": torch.ones(2, dtype=torch.bool)}) & {"a": torch.ones(3, dtype=torch.bool)}
