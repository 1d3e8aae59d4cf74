"""Iterative pruning against its rounds written out by hand; killed, it goes on to the bit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.artifact import Masks
from tamis.errors import InvalidInput, UnsupportedOp
from tamis.progress import Progress
from tamis.pruning.iterative_pruning import Rewinding, Round, TrainingTask, prune_iteratively
from tamis.training import (
    CHECKPOINT,
    Settings,
    Trained,
    evaluate,
    load_data,
    load_epoch_weights,
    read_checkpoint,
    train,
)
from tamis.training.models import digits_cnn, mlp

DATA = load_data("digits:train[:200]")
TEST = load_data("digits:test[:100]")
SETTINGS = Settings(epochs=3, batch=20)
ROUNDS, REWIND, AMOUNT = 2, 1, 0.3
TOTAL = 3 + 2 * 2  # epochs: of the dense training, and of two rounds after the first
WEIGHTS = ("classifier.weight", "first.0.weight", "second.0.weight", "skipped.0.weight")
FINAL = "classifier.weight"
SECONDS = 120  # after which something hangs

LONG = replace(SETTINGS, epochs=4)
# From round 1 on it lingers after each epoch: a slow machine, too, notices that a round is under way, and kills it.
LONG_RUN = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_iterative_pruning import LONG, pruned, small_mlp
linger = lambda now: time.sleep(now.figures["round"])
pruned(Path(sys.argv[1]), small_mlp(), settings=LONG, progress=linger)
"""

Scope = Literal["layer", "global"]


def small_cnn(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return digits_cnn(width)


def small_mlp() -> nn.Module:
    torch.manual_seed(0)
    return mlp((64, 6, 10))


def pruned(directory: Path, model: nn.Module | None = None, **options: Any) -> tuple[Round, ...]:
    given = {"rounds": ROUNDS, "amount": AMOUNT, "rewind": REWIND, **options}
    task = TrainingTask(given.pop("data", DATA), given.pop("settings", SETTINGS), given.pop("test", TEST))
    progress = given.pop("progress", False)
    return prune_iteratively(model or small_cnn(), task, Rewinding(**given), directory, progress=progress)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lottery") / "new"


@pytest.fixture(scope="module")
def told() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def found(directory: Path, told: list[Progress]) -> tuple[Round, ...]:
    """The dense network and two rounds by the default criterion: magnitude, layer by layer."""
    return pruned(directory, progress=told.append)


@pytest.fixture(scope="module")
def found_globally(tmp_path_factory: pytest.TempPathFactory) -> tuple[Round, ...]:
    return pruned(tmp_path_factory.mktemp("global"), by="phi", scope="global")


def masks_of(each: Round) -> dict[str, Tensor]:
    """With masks that keep everything for the dense network."""
    weights = {name: value for name, value in each.compressed.params.items() if value.dim() > 1}
    whole = {name: torch.ones_like(value, dtype=torch.bool) for name, value in weights.items()}
    return whole | dict(each.compressed.masks)


def weights_left(each: Round) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in masks_of(each).items()}


def to_prune(left: Mapping[str, int], halve_final: bool = True) -> dict[str, int]:
    """p of the remaining weights of each layer, half of it of the final one."""
    return {
        name: round(count * (AMOUNT / 2 if halve_final and name == FINAL else AMOUNT)) for name, count in left.items()
    }


def assert_same_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, value in state.items():
        assert torch.equal(value, expected[name]), name


def assert_same_training(trained: Trained, expected: Trained) -> None:
    assert [replace(epoch, seconds=0) for epoch in trained.history] == [
        replace(epoch, seconds=0) for epoch in expected.history
    ]
    assert_same_state(trained.model.state_dict(), expected.model.state_dict())


def assert_same_rounds(rounds: tuple[Round, ...], expected: tuple[Round, ...]) -> None:
    for mine, theirs in zip(rounds, expected, strict=True):
        assert (mine.number, mine.sparsity, mine.accuracy) == (theirs.number, theirs.sparsity, theirs.accuracy)
        assert_same_training(mine.trained, theirs.trained)
        assert_same_state(mine.compressed.masks, theirs.compressed.masks)
        assert_same_state(mine.compressed.params, theirs.compressed.params)
        assert mine.path.read_bytes() == theirs.path.read_bytes()


def checkpoints(directory: Path) -> dict[str, int]:
    """When each was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in directory.glob(f"round_*/{CHECKPOINT}")}


# -- what is pruned ------------------------------------------------------------------------------------------------


def test_each_layer_loses_its_part_of_what_is_left(found: tuple[Round, ...]) -> None:
    left = {name: value.numel() for name, value in small_cnn().named_parameters() if name in WEIGHTS}
    total = sum(left.values())
    assert [each.number for each in found] == [0, 1, 2]
    for each in found:
        assert weights_left(each) == left
        assert each.sparsity == pytest.approx(1 - sum(left.values()) / total, abs=1e-15)
        left = {name: left[name] - count for name, count in to_prune(left).items()}


def test_globally_the_network_loses_as_many_weights_as_that_makes(found_globally: tuple[Round, ...]) -> None:
    for before, after in pairwise(found_globally):
        left = weights_left(before)
        assert sum(weights_left(after).values()) == sum(left.values()) - sum(to_prune(left).values())
    assert weights_left(found_globally[-1]) != weights_left(found_globally[0])


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_without_halving_all_layers_go_at_one_rate(scope: Scope, tmp_path: Path) -> None:
    dense, once = pruned(tmp_path, small_mlp(), rounds=1, halve_final=False, scope=scope)
    left, total = weights_left(dense), sum(weights_left(dense).values())
    if scope == "global":
        assert sum(weights_left(once).values()) == total - round(AMOUNT * total)
    else:
        assert weights_left(once) == {
            name: left[name] - count for name, count in to_prune(left, halve_final=False).items()
        }


@pytest.mark.parametrize("rounds", ["found", "found_globally"])
def test_what_was_pruned_stays_pruned(rounds: str, request: pytest.FixtureRequest) -> None:
    every: tuple[Round, ...] = request.getfixturevalue(rounds)
    for before, after in pairwise(every):
        kept, still = masks_of(before), masks_of(after)
        assert all(not (still[name] & ~kept[name]).any() for name in WEIGHTS)
        assert any((kept[name] & ~still[name]).any() for name in WEIGHTS)


@pytest.mark.parametrize("rounds", ["found", "found_globally"])
def test_pruned_weights_are_zero_in_the_model_the_network_and_the_file(
    rounds: str, request: pytest.FixtureRequest
) -> None:
    for each in request.getfixturevalue(rounds):
        loaded = tamis.load(each.path, small_cnn())
        assert_same_state(loaded.params, each.compressed.params)
        assert_same_state(loaded.masks, each.compressed.masks)
        assert loaded.recipe == each.compressed.recipe
        for state in (each.trained.model.state_dict(), each.compressed.params, loaded.params):
            for name, mask in each.compressed.masks.items():
                assert torch.equal(state[name] != 0, mask), name  # and what is kept has been trained
                assert not state[name][~mask].signbit().any()


def test_a_file_lies_with_its_training_and_says_how_it_was_pruned(found: tuple[Round, ...], directory: Path) -> None:
    assert [each.path for each in found] == [directory / f"round_{number}" / "network.tamis" for number in range(3)]
    prune = {"step": "prune", "by": "magnitude", "scope": "layer", "amount": AMOUNT, "seed": 0, "halve_final": True}
    dense, again = (
        {"step": "train", "data": DATA.name, **SETTINGS.in_effect, "first_epoch": epoch} for epoch in (0, REWIND)
    )
    assert [each.compressed.recipe for each in found] == [
        (dense,),
        (dense, prune, again),
        (dense, prune, again, prune, again),
    ]


# -- how it is trained ---------------------------------------------------------------------------------------------


def smallest_pruned(weight: Tensor, kept: Tensor, count: int) -> Tensor:
    """The mask without the `count` smallest of the weights that are kept."""
    magnitudes = weight.detach().abs().flatten().tolist()
    places = sorted(kept.flatten().nonzero().flatten().tolist(), key=lambda place: magnitudes[place])
    after = kept.flatten().clone()
    after[places[:count]] = False
    return after.view_as(kept)


def test_the_rounds_are_those_written_out(found: tuple[Round, ...], tmp_path: Path) -> None:
    last = train(small_cnn(), DATA, SETTINGS, test=TEST, directory=tmp_path, keep=(REWIND,), progress=False)
    assert_same_training(found[0].trained, last)
    kept = {name: torch.ones_like(last.model.get_parameter(name), dtype=torch.bool) for name in WEIGHTS}
    for each in found[1:]:
        counts = to_prune({name: int(mask.sum()) for name, mask in kept.items()})
        kept = {name: smallest_pruned(last.model.get_parameter(name), kept[name], counts[name]) for name in WEIGHTS}
        assert_same_state(masks_of(each), kept)
        rewound = small_cnn()
        rewound.load_state_dict(Masks(kept).zeroed(load_epoch_weights(tmp_path, REWIND)))
        options: dict[str, Any] = {"test": TEST, "masks": Masks(kept), "first_epoch": REWIND, "progress": False}
        last = train(rewound, DATA, SETTINGS, **options)
        assert_same_training(each.trained, last)


def test_rewinding_to_the_beginning(tmp_path: Path) -> None:
    dense, once = pruned(tmp_path, small_mlp(), rounds=1, rewind=0)
    assert_same_training(dense.trained, train(small_mlp(), DATA, SETTINGS, test=TEST, progress=False))
    options: dict[str, Any] = {"test": TEST, "masks": once.compressed.masks, "progress": False}
    assert_same_training(once.trained, train(small_mlp(), DATA, SETTINGS, **options))


def test_the_accuracy_is_that_of_the_network_in_the_file(found: tuple[Round, ...]) -> None:
    for each in found:
        model = tamis.load(each.path, small_cnn()).apply_to(small_cnn())
        assert each.accuracy == evaluate(model, TEST)


def test_without_test_data_the_accuracy_is_that_of_training(tmp_path: Path) -> None:
    for each in pruned(tmp_path, small_mlp(), rounds=1, test=None):
        assert each.accuracy == each.trained.history[-1].accuracy


def test_the_callers_model_and_randomness_are_left_alone(tmp_path: Path) -> None:
    model = small_mlp().train()
    model.relu1.eval()
    before, random = deepcopy(model.state_dict()), torch.get_rng_state()
    pruned(tmp_path, model, rounds=1)
    assert_same_state(model.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training and not model.relu1.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_no_round_is_a_dense_training(tmp_path: Path) -> None:
    told = list[Progress]()
    (dense,) = pruned(tmp_path, rounds=0, progress=told.append)
    assert_same_training(dense.trained, train(small_cnn(), DATA, SETTINGS, test=TEST, progress=False))
    assert (dense.number, dense.sparsity, len(dense.compressed.masks)) == (0, 0.0, 0)
    assert_same_state(tamis.load(dense.path, small_cnn()).params, dense.trained.model.state_dict())
    assert [(now.done, now.total) for now in told] == [(1, 3), (2, 3), (3, 3)]


# -- progress ------------------------------------------------------------------------------------------------------


def test_progress_counts_the_epochs_of_all_trainings(found: tuple[Round, ...], told: list[Progress]) -> None:
    assert [(now.task, now.done, now.total) for now in told] == [
        ("iterative pruning", epoch, TOTAL) for epoch in range(1, TOTAL + 1)
    ]
    expected = [
        {"round": each.number, "accuracy": epoch.test_accuracy, "sparsity": each.sparsity}
        for each in found
        for epoch in each.trained.history
    ]
    assert [now.figures for now in told] == expected


# -- going on ------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_read(found: tuple[Round, ...], directory: Path) -> None:
    written, told = checkpoints(directory), list[Progress]()
    assert_same_rounds(pruned(directory, progress=told.append), found)
    assert not told
    assert checkpoints(directory) == written and len(written) == 3


def test_a_further_round_goes_on_from_those_that_are_there(tmp_path: Path) -> None:
    first = pruned(tmp_path, small_mlp(), rounds=1)
    written, told = checkpoints(tmp_path), list[Progress]()
    assert_same_rounds(pruned(tmp_path, small_mlp(), rounds=2, progress=told.append)[:2], first)
    assert [(now.done, now.figures["round"]) for now in told] == [(6, 2), (7, 2)]
    assert checkpoints(tmp_path).items() > written.items()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


class Stopped(Exception):
    pass


def test_broken_off_in_a_round_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    """In the epoch after which the process of the next test is killed."""

    def stop(now: Progress) -> None:
        if now.done == LONG.epochs + 1:
            raise Stopped

    with pytest.raises(Stopped):
        pruned(tmp_path / "broken", small_mlp(), settings=LONG, progress=stop)
    assert_goes_on(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.slow
def test_killed_in_a_round_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    importable = (str(Path(tamis.__file__).parents[1]), str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(importable)}
    command = [sys.executable, "-c", LONG_RUN, str(broken)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(broken / "round_1" / CHECKPOINT, process)
        process.kill()
        _, output = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    assert_goes_on(broken, tmp_path / "whole")


def assert_goes_on(broken: Path, whole: Path) -> None:
    """A run that ended in its first round of pruning trains nothing twice, and ends as a whole one does."""
    checkpoint = read_checkpoint(broken / "round_1")
    assert checkpoint is not None and checkpoint.epoch < LONG.epochs
    dense, told = checkpoints(broken)["round_0"], list[Progress]()
    resumed = pruned(broken, small_mlp(), settings=LONG, progress=told.append)
    done = LONG.epochs + checkpoint.epoch - REWIND  # epochs that nobody trains again
    assert [now.done for now in told] == list(range(done + 1, LONG.epochs + 2 * (LONG.epochs - REWIND) + 1))
    assert checkpoints(broken)["round_0"] == dense
    assert_same_rounds(resumed, pruned(whole, small_mlp(), settings=LONG))


# -- something else ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"settings": replace(SETTINGS, learning_rate=0.2)}, "learning_rate was 0.1, now it is 0.2"),
        ({"model": small_cnn(5)}, r"the shape of 'first.0.weight' was \(4, 1, 3, 3\), now it is \(5, 1, 3, 3\)"),
        (
            {"amount": 0.5},
            r"round_1.pruned.tamis was pruned otherwise: by \{'amount': 0.3.* after 1 steps; use another directory",
        ),
        ({"rewind": 2}, r"the weights of epoch 2 were not kept in .*round_0"),
    ],
)
def test_going_on_with_something_else_is_refused_by_name(
    other: dict[str, Any], message: str, found: tuple[Round, ...], directory: Path
) -> None:
    written = checkpoints(directory)
    with pytest.raises(InvalidInput, match=message):
        pruned(directory, **other)
    assert checkpoints(directory) == written


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": -1}, "rounds=-1 must be a whole number ≥ 0"),
        ({"rounds": 1.5}, "rounds=1.5 must be a whole number ≥ 0"),
        ({"rounds": True}, "rounds=True must be a whole number ≥ 0"),
        ({"rewind": -1}, "rewind=-1 must be an epoch from 0 to 2"),
        ({"rewind": 3}, "rewind=3 must be an epoch from 0 to 2"),
        ({"rewind": 1.0}, "rewind=1.0 must be an epoch from 0 to 2"),
        ({"rewind": True}, "rewind=True must be an epoch from 0 to 2"),
        ({"amount": 1.5}, "amount=1.5 is not a fraction between 0.0 and 1.0"),
        ({"amount": 10}, "halve_final halves a rate, and amount=10 is a count: pass a fraction"),
        ({"amount": "most"}, "must be a fraction .* got 'most'"),
        ({"by": "size"}, "by='size' is not a criterion; these are: phi, magnitude, random"),
        ({"scope": "block"}, "scope='block' must be one of: global, layer"),
        ({"model": nn.Flatten()}, "there is nothing to prune"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_any_training(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        pruned(tmp_path / "new", **{"model": small_mlp(), **wrong})
    assert not (tmp_path / "new").exists()


def test_a_network_without_path_costs_is_refused_before_any_training(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.GELU(), nn.Linear(4, 10))
    with pytest.raises(UnsupportedOp, match="gelu"):
        pruned(tmp_path / "new", model, by="phi")
    assert not (tmp_path / "new").exists()
    (dense, once) = pruned(tmp_path / "new", model, rounds=1, by="magnitude")
    assert dense.sparsity == 0 < once.sparsity


def test_of_a_network_without_weights_nothing_more_is_pruned(tmp_path: Path) -> None:
    rounds = pruned(tmp_path, small_mlp(), amount=1.0, halve_final=False)
    assert [each.sparsity for each in rounds] == [0.0, 1.0, 1.0]
    assert_same_training(rounds[1].trained, rounds[2].trained)
