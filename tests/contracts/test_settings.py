"""A method's keywords in Python, keys in a recipe and options on the command line are the fields of its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
from typer.main import get_command

import tamis
from tamis.architecture import TwoTemperature, search
from tamis.bayes import OnlineLearner, RunSettings, Sampling
from tamis.cli.main import app
from tamis.pruning.criterion import CRITERIA, OBS
from tamis.quantization.quantizer import METHODS
from tamis.recipes.steps.base import Step
from tamis.recipes.steps.registry import STEPS
from tamis.recipes.steps.training import TrainingStep
from tamis.settings import (
    Binarization,
    Certification,
    Factorization,
    OnlineLearning,
    Pruning,
    Quantization,
    Repair,
    Search,
    Training,
)
from tamis.training import Settings, train


class Faces(NamedTuple):
    """Where the settings of a method show: a call, a command and a step of a recipe.

    `others` are the arguments of the call that say on what and where it works, and not how; `apart` are settings that
    the command and the step have, and the call has otherwise.
    """

    call: Callable[..., Any]
    others: set[str]
    command: str
    step: type[Step] | None
    apart: frozenset[str] = frozenset()


TRAINED = {field.name for field in fields(Training)}
FACES: dict[type, Faces] = {
    Quantization: Faces(tamis.quantize, {"net", "calibration", "pruned"}, "quantize", STEPS["quantize"]),
    Pruning: Faces(tamis.prune, {"net", "calibration"}, "prune", STEPS["prune"]),
    Repair: Faces(tamis.repair, {"net", "small", "calibration"}, "repair", STEPS["repair"]),
    Certification: Faces(
        tamis.certify,
        {"original", "file", "inputs", "labels", "rebuilt", "training", "prior", "sign"}
        | {"called", "data_called", "command", "just_initialised"},
        "certify",
        None,  # a recipe's last word is a certificate, which is no step
    ),
    Training: Faces(Settings, set(), "train", TrainingStep),  # `train` takes them as one object
    Search: Faces(search, {"model", "data", "settings", "device"}, "search", STEPS["search"]),
    Binarization: Faces(
        tamis.binary.binarize,
        {"model"},
        "binarize",
        STEPS["binarize"],
        apart=frozenset({"activation_epochs"}),  # the first stage has all settings of a training in Python
    ),
    Factorization: Faces(tamis.kronecker.replace, {"model", "patterns"}, "kronecker replace", STEPS["kronecker"]),
    OnlineLearning: Faces(RunSettings, set(), "online", None),  # `run_online` takes them as one object
}
# A run by the command is fast, and not exact, unless it is told to be; in Python it is the other way round.
OTHER_DEFAULTS_OF_COMMANDS = {(OnlineLearning, "subsample"): 32}
# A step names no patterns, but what to choose them by, and then convolutions are no reason to fail.
OF_THE_STEP = {Factorization: {"density", "smallest", "factors", "target"}}
OTHER_DEFAULTS_OF_STEPS = {(Factorization, "convolutions"): True}
# A learner by itself has more particles than a run, and no λ of its own, which depends on how many rounds there are.
OTHER_DEFAULTS_OF_PARTS = {(OnlineLearner, "particles"): 200, (OnlineLearner, "lam"): inspect.Parameter.empty}
# What has some of a method's settings, beside its call.
PARTS: dict[Callable[..., Any], tuple[type, set[str]]] = {
    TwoTemperature: (Search, {"t_l", "t_s", "include", "exclude", "spread"}),
    tamis.kronecker.factorize: (Factorization, {"refine"}),
    OnlineLearner: (OnlineLearning, {"lam", "particles", "seed"}),
    Sampling: (OnlineLearning, {"spread", "subsample"}),
}
OF_EVERY_CALL = {"directory", "activation_budget", "example", "progress"}
every_method = pytest.mark.parametrize("settings", FACES)


def default_of(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def of_the_call(settings: type) -> list[Field[Any]]:
    return [field for field in fields(settings) if field.name not in FACES[settings].apart]


@every_method
def test_keywords_are_the_fields(settings: type) -> None:
    call, others = FACES[settings].call, FACES[settings].others
    parameters = {
        name: each.default
        for name, each in inspect.signature(call).parameters.items()
        if name not in others | OF_EVERY_CALL
    }
    assert parameters == {field.name: default_of(field) for field in of_the_call(settings)}
    assert [*parameters] == [field.name for field in of_the_call(settings)]


@every_method
def test_the_docstring_has_the_help_of_every_field(settings: type) -> None:
    said = docstring(FACES[settings].call)
    assert all(f"{field.name}: {field.metadata['help']}" in said for field in of_the_call(settings))


@pytest.mark.parametrize("part", PARTS)
def test_what_has_some_of_the_settings_has_their_help(part: Callable[..., Any]) -> None:
    settings, names = PARTS[part]
    own = inspect.signature(part).parameters
    chosen = {field.name: field for field in fields(settings) if field.name in names}
    assert {*chosen} == names <= {*own}
    for name, field in chosen.items():
        assert f"{name}: {field.metadata['help']}" in docstring(part)
        assert own[name].default == OTHER_DEFAULTS_OF_PARTS.get((part, name), default_of(field))


def docstring(call: Callable[..., Any]) -> str:
    said = " ".join((call.__doc__ or "").split())
    assert "<settings>" not in said
    return said


@pytest.mark.parametrize("settings", [each for each, faces in FACES.items() if faces.step is not None])
def test_recipe_keys_are_the_fields(settings: type) -> None:
    step = FACES[settings].step
    assert step is not None
    keys, names = step.model_fields, {field.name for field in fields(settings)}
    assert {*keys} - {"step"} == names | (TRAINED if step.trains else set()) | OF_THE_STEP.get(settings, set())
    for field in fields(settings):
        assert keys[field.name].description == field.metadata["help"]
        assert keys[field.name].is_required() == (field.default is MISSING)
        default = keys[field.name].default
        wanted = OTHER_DEFAULTS_OF_STEPS.get((settings, field.name), field.default)
        assert as_tuple(default) in (None, wanted) or keys[field.name].is_required()
        if field.metadata["choices"]:
            assert set(literals(keys[field.name].annotation)) == set(field.metadata["choices"])


@every_method
def test_options_are_the_fields(settings: type) -> None:
    command: Any = get_command(app)
    for name in FACES[settings].command.split():
        command = command.commands[name]
    options = {each.name: each for each in command.params}
    for field in fields(settings):
        option = options[field.name]
        assert max(option.opts, key=len) == f"--{field.name.replace('_', '-')}"
        assert option.required == (field.default is MISSING)
        wanted = OTHER_DEFAULTS_OF_COMMANDS.get((settings, field.name), field.default)
        assert option.required or option.default == as_typed(wanted)
        first = field.metadata["help"].partition("`")[0]  # settings of the method are options there
        assert option.help.startswith(first), option.help
        assert option.metavar == field.metadata["metavar"]


def test_every_command_and_step_that_trains_has_the_settings_of_training() -> None:
    names = {field.name for field in fields(Training)}
    assert Settings is Training and inspect.signature(train).parameters["settings"].annotation == "Settings"
    for command in ("search", "transfer", "binarize"):
        assert names <= {each.name for each in get_command(app).commands[command].params}  # type: ignore[attr-defined]
    training = [step for step in STEPS.values() if step.trains]
    assert training and all(names <= {*step.model_fields} for step in training)


def as_typed(value: Any) -> Any:
    """A command takes several values as one text, and none for an empty one."""
    return ",".join(value) or None if isinstance(value, tuple) else value


def as_tuple(value: Any) -> Any:
    """A recipe has lists where Python has tuples."""
    return tuple(value) if isinstance(value, list) else value


def literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from literals(part)


def test_names_to_choose_from_are_the_registered_ones() -> None:
    choices = {field.name: field.metadata["choices"] for each in FACES for field in fields(each)}
    assert set(choices["method"]) == set(METHODS) and set(choices["by"]) == {*CRITERIA, OBS}


@every_method
def test_help_is_whole_sentences(settings: type) -> None:
    for field in fields(settings):
        assert re.fullmatch(r"[A-Z].*\.", field.metadata["help"]), field.name
