"""`tamis train` as a user calls it: the library's training, what it writes and how it goes on, what it refuses."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_setting import EVERY_SETTING, options_of_every_setting
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.cli.train import parse_settings
from tamis.errors import InvalidInput
from tamis.training import Settings, evaluate, load_data, read_checkpoint, train
from tamis.training.loop import TrainingRun
from tamis.training.models import MODELS

MLP = "tamis.training.models:mlp"
DATA, TEST = "digits:train[:150]", "digits:test"
QUICK = ("--data", DATA, "--epochs", 2, "--batch", 32, "--directory", "run")


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)


def run_train(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert all(line.startswith("training ") for line in result.stderr.splitlines())
    return result.stdout


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small() -> tamis.Compressed:
    """Half of the network, in small.tamis."""
    small = tamis.prune(load_module(MLP).module, 0.5, example=torch.zeros(1, 1, 8, 8))
    small.save("small.tamis")
    return small


def expected_weights(settings: Settings, seed: int = 0, **options: Any) -> dict[str, Tensor]:
    """What the library trains when it is called by hand."""
    model = options.pop("model", None) or load_module(MLP, seed=seed).module
    return train(model, load_data(DATA), settings, progress=False, **options).model.state_dict()


def assert_same(state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in state.items())


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_left_out_are_those_of_the_library() -> None:
    run_train(MLP, "--data", DATA, "--epochs", 1, "--directory", "run", "-o", "w.safetensors")
    checkpoint = read_checkpoint("run")
    assert checkpoint is not None
    defaults = asdict(Settings(epochs=1))
    assert {name: checkpoint.origin[name] for name in defaults} == defaults


def test_every_setting_has_an_option() -> None:
    wanted, given = EVERY_SETTING, options_of_every_setting()
    run_train(MLP, "--data", DATA, "--directory", "run", "-o", "w.safetensors", *given)
    checkpoint = read_checkpoint("run")
    assert checkpoint is not None
    assert {name: checkpoint.origin[name] for name in asdict(wanted)} == asdict(wanted)


@pytest.mark.parametrize("text", ["", "30,", "30,sixty", "-1", "1.5"])
def test_milestones_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"--milestones must be epochs, such as 30,60,80; got '{text}'"):
        parse_settings({"epochs": 90, "schedule": "multistep", "milestones": text})


# -- what is written ---------------------------------------------------------------------------------------------------


def test_weights_are_those_that_the_library_trains() -> None:
    text = run_train(MLP, *QUICK, "--test", TEST, "-o", "new/trained.safetensors")
    assert_same(load_file("new/trained.safetensors"), expected_weights(Settings(epochs=2, batch=32)))
    model = MODELS["mlp"]()
    model.load_state_dict(load_file("new/trained.safetensors"))
    assert f"test accuracy {evaluate(model, load_data(TEST)):.1%} after 2 epochs" in text
    assert f"saved new/trained.safetensors, {Path('new/trained.safetensors').stat().st_size:,} bytes" in text
    for part in (f"{DATA}, 150 examples", "digits:test, 360 examples", "seed 0", "optimizer sgd", "cpu"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


def test_it_learns() -> None:
    options = ("--data", "digits:train", "--epochs", 5, "--batch", 64, "--directory", "run", "-o", "w.safetensors")
    text = run_train(MLP, *options, "--test", TEST)
    found = re.search(r"test accuracy (\S+)% after 5 epochs", text)
    assert found is not None and float(found[1]) > 85


def test_the_seed_is_that_of_the_first_weights_too() -> None:
    run_train(MLP, *QUICK, "--seed", 4, "-o", "w.safetensors")
    assert_same(load_file("w.safetensors"), expected_weights(Settings(epochs=2, batch=32, seed=4), seed=4))


def test_training_goes_on_from_given_weights() -> None:
    run_train(MLP, *QUICK, "-o", "first.safetensors")
    more = ("--data", DATA, "--epochs", 1, "--directory", "more", "--weights", "first.safetensors")
    run_train(MLP, *more, "-o", "second.safetensors")
    model = load_module(MLP).module
    model.load_state_dict(load_file("first.safetensors"))
    assert_same(load_file("second.safetensors"), expected_weights(Settings(epochs=1), model=model))


def test_a_tamis_file_of_a_dense_network() -> None:
    run_train(MLP, *QUICK, "-o", "dense.tamis")
    dense = tamis.load("dense.tamis", MODELS["mlp"]())
    assert_same(dense.state_dict(), expected_weights(Settings(epochs=2, batch=32)))
    assert len(dense.masks) == 0
    (step,) = dense.recipe
    settings = {"epochs": 2, "batch": 32, "optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    settings |= {"weight_decay": 1e-4, "schedule": "cosine", "warmup_epochs": 0, "seed": 0}
    assert step == {"step": "train", "data": DATA, **settings}


def test_without_test_data_the_accuracy_is_that_of_training() -> None:
    text = run_train(MLP, *QUICK, "-o", "w.safetensors")
    checkpoint = read_checkpoint("run")
    assert checkpoint is not None
    assert f"training accuracy {checkpoint.history[-1]['accuracy']:.1%} after 2 epochs" in text


def test_what_it_found_for_machines() -> None:
    found = json.loads(run_train(MLP, *QUICK, "--test", TEST, "--l1inf", 0.5, "-o", "w.tamis", "--json"))
    checkpoint = read_checkpoint("run")
    assert checkpoint is not None
    last = checkpoint.history[-1]
    assert found["accuracy"] == {"training": last["accuracy"], "test": last["test_accuracy"]}
    assert (found["file"], found["bytes"]) == ("w.tamis", Path("w.tamis").stat().st_size)
    assert found["recipe"] == list(tamis.load("w.tamis", load_module(MLP).module).recipe)
    assert 0 < found["l1inf"]["sparsity"] < 1 and found["l1inf"]["c"] <= 0.5 + 1e-6


def test_tied_weights_are_written_once_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine_tied_to_train.py").write_text(
        "from torch import nn\n"
        "def model():\n"
        "    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))\n"
        "    made[3].weight = made[1].weight\n"
        "    return made\n"
    )
    run_train("mine_tied_to_train:model", *QUICK, "-o", "w.safetensors")
    again = load_module("mine_tied_to_train:model", Path("w.safetensors")).module
    run_train("mine_tied_to_train:model", *QUICK, "-o", "w.tamis")
    assert_same(dict(again.state_dict()), tamis.load("w.tamis", again).state_dict())


# -- masks -------------------------------------------------------------------------------------------------------------


def test_masks_are_held(small: tamis.Compressed) -> None:
    options = ("--optimizer", "adamw", "--weight-decay", 0.1, "--weights", "small.tamis")
    text = run_train(MLP, *QUICK, *options, "-o", "tuned.tamis")
    assert "small.tamis, 1,696 of 3,392 weights pruned" in text
    tuned = tamis.load("tuned.tamis", MODELS["mlp"]())
    for name, mask in small.masks.items():
        assert torch.equal(tuned.masks[name], mask)
        assert not tuned.params[name][~mask].any()
        assert not torch.equal(tuned.params[name], small.params[name])
    assert len(tuned.masks) == 3
    assert [step["step"] for step in tuned.recipe] == ["prune", "train"]
    assert tuned.recipe[1]["optimizer"] == "adamw"
    settings = Settings(epochs=2, batch=32, optimizer="adamw", weight_decay=0.1)
    model = small.apply_to(MODELS["mlp"]())
    assert_same(tuned.state_dict(), expected_weights(settings, model=model, masks=small.masks))


def test_pruned_weights_need_a_file_that_remembers_them(small: tamis.Compressed) -> None:
    result = invoke(MLP, *QUICK, "--weights", "small.tamis", "-o", "tuned.safetensors")
    wanted = "-o must end in .tamis, to remember what is pruned in 'small.tamis', got 'tuned.safetensors'"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {wanted}\n")


def test_a_tamis_file_without_masks_can_become_plain_weights() -> None:
    run_train(MLP, *QUICK, "-o", "dense.tamis")
    more = ("--data", DATA, "--epochs", 1, "--directory", "more", "--weights", "dense.tamis")
    run_train(MLP, *more, "-o", "more.safetensors")
    run_train(MLP, *more, "-o", "more.tamis")
    twice = tamis.load("more.tamis", MODELS["mlp"]())
    assert_same(load_file("more.safetensors"), twice.state_dict())
    assert [step["epochs"] for step in twice.recipe] == [2, 1]


# -- going on ----------------------------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tamis.training.loop.TrainingRun.run_epoch", interrupted_at(2))
        assert invoke(MLP, *QUICK, "-o", "w.safetensors").exit_code == 130
    assert not Path("w.safetensors").exists()
    text = run_train(MLP, *QUICK, "-o", "w.safetensors")
    assert "of run, after epoch 1" in text
    assert_same(load_file("w.safetensors"), expected_weights(Settings(epochs=2, batch=32)))


def interrupted_at(last: int) -> Any:
    original = TrainingRun.run_epoch

    def epoch(training: Any, number: int) -> Any:
        if number == last:
            raise KeyboardInterrupt
        return original(training, number)

    return epoch


def test_a_finished_training_writes_its_file_again() -> None:
    run_train(MLP, *QUICK, "-o", "w.safetensors")
    first = Path("w.safetensors").read_bytes()
    Path("w.safetensors").unlink()
    assert "of run, after epoch 2" in run_train(MLP, *QUICK, "-o", "w.safetensors")
    assert Path("w.safetensors").read_bytes() == first


@pytest.mark.slow
def test_two_processes_write_one_file() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tamis"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    arguments = map(str, ["train", MLP, *QUICK, "-o", "w.safetensors"])
    finished = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("training accuracy") == finished.stdout.count("saved w.safetensors") == 1
    for name, value in expected_weights(Settings(epochs=2, batch=32)).items():
        torch.testing.assert_close(load_file("w.safetensors")[name], value, rtol=1e-3, atol=1e-5)


# -- the input's shape -------------------------------------------------------------------------------------------------


def test_the_shape_comes_from_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine_to_train.py").write_text("from torch import nn\ndef model():\n    return nn.Linear(3, 2)\n")
    generator = np.random.default_rng(0)
    np.savez("flat.npz", x=generator.normal(size=(20, 3)).astype(np.float32), y=generator.integers(0, 2, 20))
    run_train("mine_to_train:model", "--data", "flat.npz", "--epochs", 1, "--directory", "run", "-o", "flat.tamis")
    assert tamis.load("flat.tamis", nn.Linear(3, 2)).network.input_shapes == ((1, 3),)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        (MLP, {"-o": "w.pt"}, "-o must end in .safetensors or .tamis, got 'w.pt'"),
        (MLP, {"-o": "taken.tamis"}, "is a directory: taken.tamis"),
        (MLP, {"--epochs": 0}, "epochs must be a whole number ≥ 1, got 0"),
        (MLP, {"--optimizer": "adam"}, "optimizer must be sgd or adamw, got 'adam'"),
        (MLP, {"--milestones": "1,x"}, "--milestones must be epochs, such as 30,60,80; got '1,x'"),
        (MLP, {"--schedule": "multistep"}, "--milestones must be given with --schedule multistep"),
        (MLP, {"--data": "no_such_data"}, "there is no dataset 'no_such_data:train'"),
        (MLP, {"--test": "digits:test[9:9]"}, "'digits:test[9:9]' is empty"),
        (MLP, {"--device": "gpu"}, "--device must be cpu or cuda, got 'gpu'"),
        (MLP, {"--device": "cuda:99"}, "--device cuda:99 needs a GPU, and torch"),
        (MLP, {"--device": "meta"}, "--device must be cpu or cuda, got 'meta'"),
        (MLP, {"--weights": "none.tamis"}, "no such file or directory: none.tamis"),
        ("m.pt2", {}, "train needs package.module:factory; 'm.pt2' is a program"),
        ("mlp", {}, "did you mean tamis.training.models:mlp?"),
        ("tamis.training.models:resnet20", {}, "resnet20 does not take 'digits:train[:150]', of shape (1, 1, 8, 8): "),
        (
            MLP,
            {"--data": "many.npz"},
            "scores of shape (1, 12), a score for each class of 'many.npz'; got shape (1, 10)",
        ),
        (MLP, {"--test": "many.npz"}, "a score for each class of 'many.npz'"),
        ("torch.nn:Identity", {}, "torch.nn:Identity must turn one input into scores of shape (1, 10)"),
    ],
)
def test_errors_are_one_line_and_come_before_training(model: str, options: dict[str, object], part: str) -> None:
    Path("taken.tamis").mkdir()
    np.savez("many.npz", x=np.zeros((12, 8, 8), np.uint8), y=np.arange(12))
    before = sorted(path.name for path in Path().iterdir())
    given = {"--data": DATA, "--epochs": 2, "--directory": "run", "-o": "w.safetensors", **options}
    result = invoke(model, *(word for option in given.items() for word in option))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == before


def test_another_training_in_the_same_directory_is_refused() -> None:
    run_train(MLP, *QUICK, "-o", "w.safetensors")
    result = invoke(MLP, *QUICK, "--seed", 1, "-o", "w.safetensors")
    assert result.exit_code == 2
    assert "run/checkpoint.pt comes from another training: seed was 0, now it is 1" in result.stderr
