"""Training that is broken off goes on to the bit; a checkpoint of something else, or a damaged one, is refused."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.artifact import Masks
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.progress import Progress
from tamis.training import Settings, Trained, load_data, train
from tamis.training.checkpoint import (
    CHECKPOINT,
    DATA_CONTENT,
    list_saved_epochs,
    load_epoch_weights,
    read_checkpoint,
    save_epoch_weights,
)
from tamis.training.models import digits_cnn

DATA = load_data("digits:train[:150]")
TEST = load_data("digits:test[:100]")
SETTINGS = Settings(epochs=4, batch=40, augment=True)
SECONDS = 120  # after which something hangs

# It lingers after its second epoch: a slow machine, too, notices that training is under way, and kills it.
LINGERING_TRAINING = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_checkpoint import fitted, half, with_dropout
fitted(Path(sys.argv[1]), masks=half(with_dropout()), progress=lambda now: time.sleep(60 * (now.done == 2)))
"""


class Stopped(Exception):
    pass


def with_dropout(width: int = 4, rate: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(digits_cnn(width), nn.Dropout(rate))


def with_tanh() -> nn.Module:
    model = with_dropout()
    model[0].relu = nn.Tanh()
    return model


def with_frozen_classifier() -> nn.Module:
    model = with_dropout()
    model[0].classifier.weight.requires_grad_(False)
    return model


def half(model: nn.Module, seed: int = 0) -> Masks:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: value for name, value in model.named_parameters() if value.dim() > 1}
    return Masks({name: torch.rand(value.shape, generator=generator) < 0.5 for name, value in weights.items()})


def stop_after(epoch: int) -> Callable[[Progress], None]:
    def listener(now: Progress) -> None:
        if now.done == epoch:
            raise Stopped

    return listener


def fitted(directory: Path | None, model: nn.Module | None = None, **options: Any) -> Trained:
    chosen = {"data": DATA, "settings": SETTINGS, "test": TEST, "progress": False, **options}
    return train(model or with_dropout(), directory=directory, **chosen)


def assert_same(result: Trained, expected: Trained) -> None:
    assert [replace(epoch, seconds=0) for epoch in result.history] == [
        replace(epoch, seconds=0) for epoch in expected.history
    ]
    weights = expected.model.state_dict()
    assert result.model.state_dict().keys() == weights.keys()
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


# -- going on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_broken_off_after_any_epoch_it_goes_on_to_the_bit(optimizer: str, masked: bool, tmp_path: Path) -> None:
    options = {
        "settings": replace(SETTINGS, optimizer=optimizer, learning_rate=0.01, weight_decay=0.1),
        "masks": half(with_dropout()) if masked else None,
    }
    whole = fitted(None, **options)
    for epoch in (1, 2, 3):
        with pytest.raises(Stopped):
            fitted(tmp_path, **options, progress=stop_after(epoch))
        checkpoint = read_checkpoint(tmp_path)
        assert checkpoint is not None and checkpoint.epoch == epoch
    assert_same(fitted(tmp_path, **options), whole)
    for name, mask in (options["masks"] or {}).items():
        assert torch.equal(whole.model.get_parameter(name) != 0, mask)


def test_a_finished_training_returns_at_once_whatever_the_weights_given(tmp_path: Path) -> None:
    told = list[Progress]()
    finished = fitted(tmp_path)
    written = (tmp_path / CHECKPOINT).stat().st_mtime_ns
    other = with_dropout()
    nn.init.zeros_(other[0].classifier.weight)
    again = fitted(tmp_path, other, progress=told.append)
    assert_same(again, finished)
    assert again.history == finished.history
    assert not told and (tmp_path / CHECKPOINT).stat().st_mtime_ns == written


def test_a_rewound_training_goes_on_too(tmp_path: Path) -> None:
    whole = fitted(None, first_epoch=1)
    with pytest.raises(Stopped):
        fitted(tmp_path, first_epoch=1, progress=stop_after(3))
    assert_same(fitted(tmp_path, first_epoch=1), whole)
    assert [epoch.epoch for epoch in whole.history] == [2, 3, 4]


def wait_for_epoch(directory: Path, epoch: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        checkpoint = read_checkpoint(directory) if directory.is_dir() else None
        if checkpoint is not None and checkpoint.epoch >= epoch:
            return
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "run"
    importable = (str(Path(tamis.__file__).parents[1]), str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(importable)}
    command = [sys.executable, "-c", LINGERING_TRAINING, str(directory)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for_epoch(directory, 2, process)
        process.kill()
        _, output = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    checkpoint = read_checkpoint(directory)
    assert checkpoint is not None and 2 <= checkpoint.epoch < SETTINGS.epochs, output
    options = {"masks": half(with_dropout())}
    assert_same(fitted(directory, **options), fitted(None, **options))


def test_what_killed_writes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed = (".checkpoint.pt.12.0a1b2c3d.part", ".epoch_3.safetensors.12.0a1b2c3d.part")
    others = (".mine.pt.12.0a1b2c3d.part", ".checkpoint.pt.swp", "notes.part")
    for name in (*killed, *others):
        (tmp_path / name).touch()
    with pytest.raises(Stopped):
        fitted(tmp_path, progress=stop_after(1))
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, *others}
    (tmp_path / killed[0]).touch()
    with pytest.raises(InvalidInput, match="comes from another training"):
        fitted(tmp_path, settings=replace(SETTINGS, seed=1))
    assert (tmp_path / killed[0]).exists()  # it may be writing at this moment
    fitted(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, *others}


@pytest.mark.parametrize("number", [np.float64, np.float32, np.array, torch.tensor])
def test_settings_in_numbers_of_numpy_and_torch_are_read_back(number: Callable[[float], Any], tmp_path: Path) -> None:
    whole = torch.tensor if number is torch.tensor else np.int64
    settings = Settings(
        epochs=whole(2),
        batch=whole(40),
        optimizer=np.str_("adamw"),
        learning_rate=number(0.25),
        momentum=number(0.5),
        weight_decay=number(0),
        schedule=np.str_("multistep"),
        milestones=np.array([1]),
        warmup_epochs=whole(1),
        augment=np.bool_(True),
        seed=whole(3),
        amp=np.bool_(False),
    )
    plain = Settings(2, 40, "adamw", 0.25, 0.5, 0.0, "multistep", (1,), 1, True, 3, False)
    assert settings == plain
    assert [type(value) for value in asdict(settings).values()] == [type(value) for value in asdict(plain).values()]
    with pytest.raises(Stopped):
        fitted(tmp_path, settings=settings, keep=(whole(1),), progress=stop_after(1))
    assert_same(fitted(tmp_path, settings=plain), fitted(None, settings=plain))
    assert list_saved_epochs(tmp_path) == [1]
    assert_same(fitted(None, settings=plain, first_epoch=whole(1)), fitted(None, settings=plain, first_epoch=1))


class WithExtraState(nn.Module):
    """A linear model with a state of its own in its state_dict."""

    def __init__(self, extra: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.extra = nn.Linear(64, 10), extra

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_a_state_that_is_no_tensor_is_refused_where_it_would_be_written(tmp_path: Path) -> None:
    wanted = r"'_extra_state' in the state of WithExtraState is no tensor but of type dict, .* without a directory"
    with pytest.raises(InvalidInput, match=wanted):
        fitted(tmp_path / "run", WithExtraState({"scale": 3}))
    assert not (tmp_path / "run").exists()
    without = fitted(None, WithExtraState({"scale": 3}))
    assert without.model.extra == {"scale": 3} and len(without.history) == SETTINGS.epochs


def test_a_state_of_tensors_is_written_and_read(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fitted(tmp_path, WithExtraState(torch.arange(3)), keep=(1,), progress=stop_after(1))
    assert torch.equal(load_epoch_weights(tmp_path, 1)["_extra_state"], torch.arange(3))
    whole = fitted(None, WithExtraState(torch.arange(3)))
    assert_same(fitted(tmp_path, WithExtraState(torch.zeros(3)), keep=(1,)), whole)


# -- something else ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a training of one epoch, broken off."""
    directory = tmp_path_factory.mktemp("begun")
    with pytest.raises(Stopped):
        fitted(directory, masks=half(with_dropout()), progress=stop_after(1))
    return directory


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"settings": replace(SETTINGS, learning_rate=0.2)}, "learning_rate was 0.1, now it is 0.2"),
        ({"settings": replace(SETTINGS, epochs=9, seed=3)}, "epochs was 4, now it is 9; seed was 0, now it is 3"),
        ({"data": DATA[:149]}, r"the data was digits:train\[:150\] \(150 examples\), now it is .* \(149 examples\)"),
        ({"data": TEST}, r"the data was digits:train.*, now it is digits:test\[:100\] \(100 examples\)"),
        ({"test": None}, r"the test data was digits:test\[:100\] \(100 examples\), now it is None"),
        ({"first_epoch": 1}, "first_epoch was 0, now it is 1"),
        ({"masks": None}, r"the mask of '0.first.0.weight' was one with \d+ of 36 pruned, now it is another: none"),
        ({"masks": half(with_dropout(), seed=1)}, r"the mask of '0.first.0.weight' was one with \d+ of 36 pruned, now"),
        ({"model": with_dropout(5), "masks": None}, r"the shape of '0.first.0.weight' was \(4, 1, .*, now it is \(5,"),
        ({"model": digits_cnn(4), "masks": None}, "the shape of '0.first.0.weight' was .*, now it is None"),
        (
            {"data": replace(DATA, labels=DATA.labels.flip(0))},
            "the content of the data was sha256 .*, now it is sha256",
        ),
        ({"data": replace(DATA, inputs=DATA.inputs // 2)}, "the content of the data was sha256 .*, now it is sha256"),
        ({"data": replace(DATA, mean=(0.5,), std=(0.5,))}, "the content of the data was sha256 .*, now it is sha256"),
        ({"test": replace(TEST, labels=TEST.labels.flip(0))}, "the content of the test data was sha256 .*, now it is"),
        ({"model": with_dropout(rate=0.3)}, r"the module '1' was Dropout\(p=0.2, .*, now it is Dropout\(p=0.3, "),
        ({"model": with_tanh()}, r"the module '0.relu' was ReLU\(.*\), now it is Tanh\(\)"),
        ({"model": with_frozen_classifier()}, "without requires_grad was None, now it is 0.classifier.weight"),
        ({"keep": (1, 2)}, "the weights of epoch 1 were not kept in .*, which is at epoch 1 already"),
    ],
)
def test_going_on_with_something_else_is_refused_by_name(begun: Path, other: dict[str, Any], message: str) -> None:
    before = (begun / CHECKPOINT).read_bytes()
    with pytest.raises(InvalidInput, match=message):
        fitted(begun, **{"masks": half(with_dropout()), **other})
    assert (begun / CHECKPOINT).read_bytes() == before


def test_data_chosen_otherwise_under_the_same_name_is_refused(tmp_path: Path) -> None:
    first, last = DATA[torch.arange(50)], DATA[torch.arange(100, 150)]
    assert first.name == last.name
    fitted(tmp_path, data=first)
    with pytest.raises(InvalidInput, match="another training: the content of the data was sha256"):
        fitted(tmp_path, data=last)


class Scaled(nn.Linear):
    """A layer that prints an object, as modules do that hold a function."""

    def extra_repr(self) -> str:
        return f"{object()}"


def test_what_a_module_prints_of_addresses_is_of_no_account(tmp_path: Path) -> None:
    first, again = (nn.Sequential(nn.Flatten(), Scaled(64, 10)) for _ in range(2))
    assert_same(fitted(tmp_path, first), fitted(tmp_path, again))


def test_a_checkpoint_that_does_not_know_its_data_is_refused(begun: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(begun)
    assert checkpoint is not None
    known = {name: value for name, value in checkpoint.origin.items() if name != DATA_CONTENT}
    replace(checkpoint, origin=known).write(tmp_path)
    with pytest.raises(InvalidInput, match=r"comes from an older tamis, .* in another directory"):
        fitted(tmp_path, masks=half(with_dropout()))


# -- two at a time -------------------------------------------------------------------------------------------------


def test_a_second_training_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    live = tmp_path / "run" / ".checkpoint.pt.12.0a1b2c3d.part"

    def listener(now: Progress) -> None:
        live.touch()
        if now.done < SETTINGS.epochs:
            with pytest.raises(InvalidInput, match=r"another training is at work in '.*run': wait for it, or train in"):
                fitted(tmp_path / "run")
        assert live.exists()

    assert_same(fitted(tmp_path / "run", progress=listener), fitted(None))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {CHECKPOINT, live.name}


def test_trainings_in_other_directories_may_go_on_meanwhile(tmp_path: Path) -> None:
    inner = list[Trained]()
    outer = fitted(tmp_path / "a", progress=lambda now: inner.append(fitted(tmp_path / "b")))
    for each in inner:
        assert_same(each, outer)


def test_what_is_finished_may_be_read_by_many_at_once(tmp_path: Path) -> None:
    read = list[Trained]()

    def listener(now: Progress) -> None:
        if now.done == SETTINGS.epochs:
            read.append(fitted(tmp_path))

    assert_same(fitted(tmp_path, progress=listener), read[0])


def test_however_a_training_ends_the_next_one_may_begin(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with suppress(Stopped):
            fitted(tmp_path, progress=stop_after(epoch))
    assert_same(fitted(tmp_path), fitted(None))


# -- damage --------------------------------------------------------------------------------------------------------


def another_file_of_torch(path: Path) -> bytes:
    torch.save({"weights": torch.zeros(3)}, path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content, _: b"",
        lambda content, _: content[: len(content) // 2],
        lambda content, _: content[:-1],
        lambda content, _: b"not a checkpoint" * 100,
        lambda _, path: another_file_of_torch(path),
    ],
    ids=["empty", "cut in half", "without its last byte", "text", "another file of torch"],
)
def test_a_damaged_checkpoint_is_refused(damage: Callable[[bytes, Path], bytes], begun: Path, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(damage((begun / CHECKPOINT).read_bytes(), tmp_path / "other.pt"))
    with pytest.raises(CorruptArtifact, match=f"{CHECKPOINT} is damaged or not a checkpoint of tamis .* delete it"):
        fitted(tmp_path)


def test_what_torch_does_not_load_is_refused_in_one_plain_line(tmp_path: Path) -> None:
    """torch itself answers with a page of advice, in colours."""
    torch.save({"epoch": np.float64(1)}, tmp_path / CHECKPOINT)
    with pytest.raises(CorruptArtifact, match=r"\(Unsupported global: .*numpy.*\); delete it") as refused:
        read_checkpoint(tmp_path)
    assert str(refused.value).isprintable()


def test_a_changed_weight_is_noticed(begun: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(begun)
    assert checkpoint is not None
    content = (begun / CHECKPOINT).read_bytes()
    weight = checkpoint.model["0.classifier.weight"].numpy().tobytes()
    assert content.count(weight) == 1
    (tmp_path / CHECKPOINT).write_bytes(content.replace(weight, bytes([weight[0] ^ 1]) + weight[1:]))
    with pytest.raises(CorruptArtifact, match=r"the checksum of .* is wrong"):
        read_checkpoint(tmp_path)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None


# -- kept weights --------------------------------------------------------------------------------------------------


def test_kept_weights_come_back_with_ties_and_any_layout(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "conv": nn.Conv2d(2, 2, 3)})
    model["b"].weight = model["a"].weight
    model.to(memory_format=torch.channels_last)
    save_epoch_weights(model, tmp_path, 7)
    kept: dict[str, Tensor] = load_epoch_weights(str(tmp_path), 7)
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in kept.items())


def test_weights_that_were_not_kept_are_missed_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no weights of epoch 5 in .*kept there: none.* keep=\(5,\)"):
        load_epoch_weights(tmp_path / "nowhere", 5)
    fitted(tmp_path, keep=(0, 2))
    assert list_saved_epochs(tmp_path) == [0, 2]
    with pytest.raises(InvalidInput, match=r"no weights of epoch 5 in .*kept there: 0, 2"):
        load_epoch_weights(tmp_path, 5)


def test_damaged_kept_weights_are_refused(tmp_path: Path) -> None:
    save_epoch_weights(nn.Linear(3, 3), tmp_path, 2)
    path = tmp_path / "epoch_2.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorruptArtifact, match=r"epoch_2\.safetensors is damaged"):
        load_epoch_weights(tmp_path, 2)


def test_weights_are_kept_once_more_when_training_is_broken_off_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr("tamis.training.checkpoint.Checkpoint.write", stop)
        fitted(tmp_path, keep=(1,))
    first = load_epoch_weights(tmp_path, 1)
    fitted(tmp_path, keep=(1,))
    assert all(torch.equal(value, first[name]) for name, value in load_epoch_weights(tmp_path, 1).items())
