"""Optimizers whose steps end on the ball: each step, each way to step, and going on where one was broken off."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torchrun import team_of

from tamis.errors import InvalidInput, TrainingDiverged
from tamis.l1inf import L1Inf, project, statistics
from tamis.l1inf.layers import find_layers

C = 0.4
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: Adam(params, lr=0.02, amsgrad=True),
    "adamw foreach": lambda params: AdamW(params, lr=0.02, foreach=True),
    "adam fused": lambda params: Adam(params, lr=0.02, fused=True),
}


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 20), nn.ReLU(), nn.Linear(20, 3))


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 1, 6, 6, generator=generator), torch.randint(3, (16,), generator=generator)


def loss_of(model: nn.Module, seed: int) -> Tensor:
    x, y = batch(seed)
    return nn.functional.cross_entropy(model(x), y)


def take_step(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    optimizer.step()


def norms(model: nn.Module) -> dict[str, float]:
    return {layer.name: float(layer.column_norms().max()) for layer in find_layers(model)}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_step_is_one_of_the_optimizer_and_then_the_projection(kind: str) -> None:
    model, plain = network(), network()
    wrapped, other = L1Inf(OPTIMIZERS[kind](model.parameters()), model, C), OPTIMIZERS[kind](plain.parameters())
    for seed in range(8):
        take_step(model, wrapped, seed)
        take_step(plain, other, seed)
        with torch.no_grad():
            for layer in (plain[0], plain[3]):
                weight, bias = project(layer.weight, C, layer.bias)
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
        reached = norms(model)
        assert max(reached["0"], reached["3"]) <= C * (1 + 1e-6) < reached["5"]
    assert statistics(model).sparsity > 0.3


def test_what_is_not_stepped_is_not_projected_until_asked() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, C)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    optimizer.project()
    assert max(norms(model)[name] for name in ("0", "3")) <= C * (1 + 1e-6)


def test_parameter_groups_are_those_of_the_wrapped_optimizer() -> None:
    model = network()
    inner = SGD([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[3].parameters()}], lr=0.01)
    optimizer = L1Inf(inner, model, C)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    optimizer.add_param_group({"params": model[5].parameters(), "lr": 0.0})
    assert [group["lr"] for group in inner.param_groups] == [0.5, 0.01, 0.0]
    output = model[5].weight.clone()
    take_step(model, optimizer, 0)
    assert torch.equal(model[5].weight, output)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_closures() -> None:
    model = network()
    optimizer = L1Inf(LBFGS(model.parameters(), lr=0.5, max_iter=4), model, C)
    seen: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        seen.append(loss.item())
        return loss

    first = optimizer.step(closure).item()
    assert first == seen[0] and len(seen) > 1
    assert max(norms(model)[name] for name in ("0", "3")) <= C * (1 + 1e-6)


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "steps": lambda optimizer: StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 10),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=10),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_learning_rate_schedulers(kind: str) -> None:
    model, plain = network(), network()
    wrapped, other = L1Inf(SGD(model.parameters(), lr=0.1), model, 1e6), SGD(plain.parameters(), lr=0.1)
    schedulers = SCHEDULERS[kind](wrapped), SCHEDULERS[kind](other)
    for seed in range(5):
        take_step(model, wrapped, seed)
        take_step(plain, other, seed)
        for scheduler in schedulers:
            scheduler.step()  # which would warn if it had not seen the step before
        assert wrapped.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_scheduler_that_looks_at_figures() -> None:
    model = network()
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, C)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        scheduler.step(1.0)
    assert optimizer.optimizer.param_groups[0]["lr"] < 0.1


def test_hooks_are_called_once_around_the_projection() -> None:
    model = network()
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, C)
    reached: list[float] = []
    optimizer.register_step_post_hook(lambda *_: reached.append(norms(model)["3"]))
    take_step(model, optimizer, 0)
    assert len(reached) == 1 and reached[0] <= C * (1 + 1e-6)


def trained(steps: range, state: tuple[Any, Any] | None = None, **options: Any) -> tuple[nn.Module, L1Inf]:
    model = network()
    optimizer = L1Inf(Adam(model.parameters(), lr=0.02), model, **options)
    if state is not None:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    for step in steps:
        take_step(model, optimizer, step)
    return model, optimizer


@pytest.mark.parametrize("c", [C, {"3": 0.2}, lambda step: 1 / step], ids=["number", "dict", "schedule"])
def test_going_on_gives_the_same_weights_as_never_stopping(c: Any, tmp_path: Path) -> None:
    whole, _ = trained(range(9), c=c)
    model, optimizer = trained(range(4), c=c)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "checkpoint.pt")
    resumed, last = trained(range(4, 9), torch.load(tmp_path / "checkpoint.pt", weights_only=True), c=c)
    assert last.steps == 9
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_state_of_another_optimizer_is_refused() -> None:
    model = network()
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, C)
    with pytest.raises(InvalidInput, match="state, param_groups, was not saved by L1Inf"):
        optimizer.load_state_dict(SGD(model.parameters(), lr=0.1).state_dict())


def test_schedules_count_steps_from_1() -> None:
    model = network()
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 1.0 / step

    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, schedule)
    for seed in range(3):
        take_step(model, optimizer, seed)
        assert norms(model)["3"] <= (1 + 1e-6) / (seed + 1)
    assert asked == [1, 2, 3]


def test_a_schedule_that_goes_below_0_is_named() -> None:
    model = network()
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, lambda step: -step)
    with pytest.raises(InvalidInput, match=r"c\(1\)=-1"):
        take_step(model, optimizer, 0)


def test_radii_by_layer() -> None:
    model = network()
    before = norms(model)
    optimizer = L1Inf(SGD(model.parameters(), lr=0.0), model, {"3": 0.1, "5": 0.2})
    take_step(model, optimizer, 0)
    after = norms(model)
    assert after["0"] == before["0"]
    assert after["3"] == pytest.approx(0.1) and after["5"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("exclude", "constrained"), [(None, "03"), ((), "035"), ("5", "03"), (["0", "5"], "3"), (["[03]"], "5")]
)
def test_layers_left_free(exclude: Any, constrained: str) -> None:
    model = network()
    before = norms(model)
    L1Inf(SGD(model.parameters(), lr=0.1), model, 0.05, exclude=exclude).project()
    after = norms(model)
    assert {name for name in after if after[name] != before[name]} == set(constrained)


def test_mixed_precision_on_a_cpu() -> None:
    model = network()
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, C)
    for seed in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, seed)
        loss.backward()
        optimizer.step()
        assert model[3].weight.dtype == torch.float32
        assert max(norms(model)[name] for name in ("0", "3")) <= C * (1 + 1e-6)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_scaler_leaves_out_steps_whose_gradients_are_not_finite(kind: str) -> None:
    model, plain = network(), network()
    optimizer = L1Inf(OPTIMIZERS[kind](model.parameters()), model, C)
    other = L1Inf(OPTIMIZERS[kind](plain.parameters()), plain, C)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, seed)).backward()
        before = copy.deepcopy(model.state_dict())
        if seed == 2:
            model[0].weight.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        if seed == 2:
            assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
            assert scaler.get_scale() == 512.0
        else:
            take_step(plain, other, seed)
    assert optimizer.steps == 3
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_copies_and_pickles_work_on_their_own_model() -> None:
    model, optimizer = trained(range(2), c=C)
    twin, twins = copy.deepcopy((model, optimizer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stored, stored_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    for each, its in ((model, optimizer), (twin, twins), (stored, stored_optimizer)):
        take_step(each, its, 5)
    for a, b, c in zip(model.parameters(), twin.parameters(), stored.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_layers_that_share_a_weight_are_both_within() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))
    model[2].weight = model[0].weight
    L1Inf(SGD(model.parameters(), lr=0.1), model, 0.3).project()
    assert max(norms(model)[name] for name in ("0", "2")) <= 0.3 * (1 + 1e-6)


def test_weights_that_are_no_numbers_are_named() -> None:
    model = network()
    optimizer = L1Inf(SGD(model.parameters(), lr=0.1), model, C)
    loss_of(model, 0).backward()
    model[3].weight.grad[7, 2] = math.nan
    with pytest.raises(TrainingDiverged, match="after step 1, layer '3': a weight of output 7 is nan"):
        optimizer.step()


def test_what_cannot_be_wrapped_is_refused() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="got Sequential"):
        L1Inf(model, model, C)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"must be an nn\.Module, got SGD"):
        L1Inf(optimizer, optimizer, C)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="c=-1"):
        L1Inf(optimizer, model, -1)
    with pytest.raises(InvalidInput, match="'7', which is no layer; these are: 0, 3, 5"):
        L1Inf(optimizer, model, {"7": 1.0})
    with pytest.raises(InvalidInput, match="c of '3'=nan"):
        L1Inf(optimizer, model, {"3": math.nan})
    with pytest.raises(InvalidInput, match="exclude names '4', which matches no layer"):
        L1Inf(optimizer, model, C, exclude="4")
    with pytest.raises(InvalidInput, match="leave out exclude='5'"):
        L1Inf(optimizer, model, {"3": 1.0}, exclude="5")
    with pytest.raises(InvalidInput, match="leaves no layer"):
        L1Inf(optimizer, nn.Sequential(nn.Linear(3, 2)), C)
    half = network().half()
    with pytest.raises(InvalidInput, match=r"layer '0': weight is torch\.float16"):
        L1Inf(SGD(half.parameters(), lr=0.1), half, C).project()
    model[3] = parametrizations.weight_norm(model[3])
    with pytest.raises(InvalidInput, match="the weight of '3' is no parameter of its own"):
        L1Inf(optimizer, model, C)


def test_it_says_what_it_is() -> None:
    model = network()
    text = repr(L1Inf(SGD(model.parameters(), lr=0.1), model, C))
    assert "SGD" in text and "'3'" in text and "0.4" in text


@pytest.mark.slow
def test_a_team_ends_with_the_same_weights_within_the_ball(tmp_path: Path) -> None:
    done = team_of(2, tmp_path, script=Path(__file__).with_name("ddp_l1inf.py"), seconds=120)
    assert done.returncode == 0, done.stdout
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name])
    assert first["norms"] == second["norms"] and len(first["norms"]) == 12
    assert max(first["norms"]) <= 0.3 * (1 + 1e-6)
