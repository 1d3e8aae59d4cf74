"""`tamis binarize` as a user calls it: the library's two stages, a bit for each weight, going on, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tamis
from tamis.binary import TrainedBinary, binarize, pack_network, train_binary
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.cli.setting_values import parse_keep
from tamis.training import Settings, evaluate, load_data
from tamis.training.loop import TrainingRun
from tamis.training.models import mlp

MLP = "tamis.training.models:mlp"
DATA, TEST = "digits:train[:150]", "digits:test"
SETTINGS = Settings(epochs=2, batch=30, learning_rate=0.02)
QUICK = ("--data", DATA, "--test", TEST, "--epochs", 2, "--batch", 30, "--learning-rate", 0.02)


def invoke(*arguments: object, command: str = "binarize") -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [command, *map(str, arguments)], catch_exceptions=False)


def run(*arguments: object, command: str = "binarize") -> str:
    result = invoke(*arguments, command=command)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def by_hand(first: int = 2, **how: Any) -> TrainedBinary:
    """What the library trains."""
    data = load_data(DATA)
    model = binarize(load_module(MLP).module, example=data.example, **how)
    stage = replace(SETTINGS, epochs=first) if first else None
    return train_binary(model, data, SETTINGS, first=stage, test=load_data(TEST), progress=False)


# -- what it writes ----------------------------------------------------------------------------------------------------


def test_the_file_holds_what_the_library_trains_with_a_bit_for_each_weight() -> None:
    text = run(MLP, *QUICK, "-o", "new/small.tamis")
    trained, example = by_hand(), load_data(DATA).example
    fresh = binarize(mlp(), example=example)
    small = tamis.load("new/small.tamis", fresh)
    expected = pack_network(trained.model, example)
    assert all(torch.equal(value, expected.params[name]) for name, value in small.params.items())
    assert {name: code.bits for name, code in small.codes.items()} == {"linear2.weight": 1.0}
    (step,) = small.recipe
    chosen = {"keep": ["first", "last"], "scale": "rank_one", "estimator": "clipped", "activation_epochs": 2}
    assert step == {"step": "binarize", **chosen, "data": DATA, **SETTINGS.in_effect}
    assert [path.name for path in Path("new").iterdir()] == ["small.tamis"]
    accuracy = evaluate(small.apply_to(fresh).eval(), load_data(TEST))
    assert accuracy == trained.history[-1].test_accuracy
    for part in (f"test accuracy {accuracy:.1%} after 2 and 2 epochs", "2 and 2 epochs", "saved new/small.tamis, "):
        assert part in text
    assert "linear2.weight" in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.slow
def test_every_choice_reaches_the_library() -> None:
    options = ("--scale", "channel", "--estimator", "rsign", "--keep", "last,linear2", "--activation-epochs", 0)
    told = json.loads(run(MLP, *QUICK, *options, "--dir", "kept", "-o", "small.tamis", "--json"))
    trained = by_hand(first=0, scale="channel", estimator="rsign", keep=("last", "linear2"))
    expected = pack_network(trained.model, load_data(DATA).example)
    assert told["layers"] == [{"name": "linear1.weight", "weights": 2048}]
    assert told["accuracy"]["test"] == trained.history[-1].test_accuracy
    assert told["recipe"][0]["activation_epochs"] == 0 and told["recipe"][0]["keep"] == ["last", "linear2"]
    assert told["bytes"] == Path("small.tamis").stat().st_size < told["float_bytes"]
    fresh = binarize(mlp(), ("last", "linear2"), load_data(DATA).example, "channel", "rsign")
    small = tamis.load("small.tamis", fresh)
    assert all(torch.equal(value, expected.params[name]) for name, value in small.params.items())
    assert files() == ["kept", "small.tamis"] and [path.name for path in Path("kept").iterdir()] == ["both"]


def test_it_begins_with_given_weights_and_leaves_what_is_not_ours_where_it_is() -> None:
    run(MLP, "--data", DATA, "--epochs", 1, "--directory", "dense", "-o", "dense.safetensors", command="train")
    Path("small.tamis.partial/both").mkdir(parents=True)
    Path("small.tamis.partial/both/notes.txt").write_text("mine")
    text = run(MLP, *QUICK, "--weights", "dense.safetensors", "-o", "small.tamis")
    assert "weights    dense.safetensors" in text
    assert [path.name for path in Path("small.tamis.partial").rglob("*")] == ["both", "notes.txt"]


def test_layers_to_keep() -> None:
    assert parse_keep("first, last") == ("first", "last") and parse_keep("") == ()


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run that nothing broke off."""
    path = tmp_path_factory.mktemp("whole") / "whole.tamis"
    run(MLP, *QUICK, "-o", path)
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("killed_at", "words"), [(2, "epoch 1 with binary activations"), (4, "with both binary")])
def test_it_goes_on_where_it_was_broken_off(
    killed_at: int, words: str, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, begun = TrainingRun.run_epoch, []

    def epoch(training: Any, number: int) -> Any:
        begun.append(number)
        if len(begun) == killed_at:
            raise KeyboardInterrupt
        return original(training, number)

    with monkeypatch.context() as patch:
        patch.setattr("tamis.training.loop.TrainingRun.run_epoch", epoch)
        assert invoke(MLP, *QUICK, "-o", "broken.tamis").exit_code == 130
    assert files() == ["broken.tamis.partial"]
    assert words in run(MLP, *QUICK, "-o", "broken.tamis")
    assert files() == ["broken.tamis"]
    assert Path("broken.tamis").read_bytes() == whole


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with masks."""
    path = tmp_path_factory.mktemp("pruned") / "pruned.tamis"
    tamis.prune(mlp(), 0.5, by="magnitude", example=torch.zeros(1, 1, 8, 8)).save(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        (MLP, {"-o": "small.safetensors"}, "-o must end in .tamis, got 'small.safetensors'"),
        (MLP, {"--scale": "rank_two"}, "scale must be one of analytic, channel, full, spatial, rank_one"),
        (MLP, {"--estimator": "soft"}, "estimator must be one of clipped, approx_sign, rsign, got 'soft'"),
        (MLP, {"--keep": "first,conv"}, "keep names 'conv', which matches no layer"),
        (MLP, {"--keep": "linear*"}, "leaves no layer to binarize"),
        (MLP, {"--activation-epochs": -1}, "epochs must be a whole number ≥ 1, got -1"),
        (MLP, {"--data": "no_such_data"}, "there is no dataset 'no_such_data:train'"),
        (MLP, {"--weights": "pruned.tamis"}, "'pruned.tamis' has pruned weights, which would come back"),
        ("m.pt2", {}, "binarize needs package.module:factory; 'm.pt2' is a program"),
        ("tamis.training.models:resnet20", {}, "resnet20 does not take 'digits:train[:150]'"),
    ],
)
def test_errors_are_one_line_and_come_before_training(
    model: str, options: dict[str, object], part: str, pruned: bytes
) -> None:
    Path("pruned.tamis").write_bytes(pruned)
    given = {"--data": DATA, "--epochs": 2, "-o": "small.tamis", **options}
    result = invoke(model, *(word for option in given.items() for word in option))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert files() == ["pruned.tamis"]
