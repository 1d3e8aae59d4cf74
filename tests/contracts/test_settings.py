"""A method's keywords in Python, keys in a recipe and options on the command line are the fields of its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, get_args, get_origin

import pytest
from typer.main import get_command

import tamis
from tamis.cli.main import app
from tamis.cli.training_options import given_settings
from tamis.pruning.criterion import CRITERIA, OBS
from tamis.quantization.quantizer import METHODS
from tamis.recipes.steps.registry import STEPS
from tamis.recipes.steps.training import TrainingStep
from tamis.settings import Certification, Pruning, Quantization, Repair
from tamis.training import Settings

# Each with the arguments of its call that say on what and where it works, and not how.
CALLS: dict[type, tuple[Callable[..., Any], set[str]]] = {
    Quantization: (tamis.quantize, {"net", "calibration", "pruned"}),
    Pruning: (tamis.prune, {"net", "calibration"}),
    Repair: (tamis.repair, {"net", "small", "calibration"}),
    Certification: (
        tamis.certify,
        {"original", "file", "inputs", "labels", "rebuilt", "training", "prior", "sign"}
        | {"called", "data_called", "command", "just_initialised"},
    ),
}
OF_EVERY_CALL = {"directory", "activation_budget", "example", "progress"}
COMMANDS = {Quantization: "quantize", Pruning: "prune", Repair: "repair", Certification: "certify"}
every_method = pytest.mark.parametrize("settings", CALLS)


def default_of(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


@every_method
def test_keywords_are_the_fields(settings: type) -> None:
    call, others = CALLS[settings]
    parameters = {
        name: each.default
        for name, each in inspect.signature(call).parameters.items()
        if name not in others | OF_EVERY_CALL
    }
    assert parameters == {field.name: default_of(field) for field in fields(settings)}
    assert [*parameters] == [field.name for field in fields(settings)]


@every_method
def test_the_docstring_has_the_help_of_every_field(settings: type) -> None:
    said = " ".join((CALLS[settings][0].__doc__ or "").split())
    assert "<settings>" not in said
    assert all(f"{field.name}: {field.metadata['help']}" in said for field in fields(settings))


@pytest.mark.parametrize("settings", [each for each in CALLS if each is not Certification])  # which is no step
def test_recipe_keys_are_the_fields(settings: type) -> None:
    keys = STEPS[COMMANDS[settings]].model_fields
    assert {*keys} - {"step"} == {field.name for field in fields(settings)}
    for field in fields(settings):
        assert keys[field.name].description == field.metadata["help"]
        assert keys[field.name].is_required() == (field.default is MISSING)
        assert keys[field.name].default in (None, field.default) or keys[field.name].is_required()
        if field.metadata["choices"]:
            assert set(literals(keys[field.name].annotation)) == set(field.metadata["choices"])


@every_method
def test_options_are_the_fields(settings: type) -> None:
    options = {each.name: each for each in get_command(app).commands[COMMANDS[settings]].params}  # type: ignore[attr-defined]
    for field in fields(settings):
        option = options[field.name]
        assert max(option.opts, key=len) == f"--{field.name.replace('_', '-')}"
        assert option.required == (field.default is MISSING) and (option.required or option.default == field.default)
        first = field.metadata["help"].partition("`")[0]  # settings of the method are options there
        assert option.help.startswith(first), option.help
        assert option.metavar == field.metadata["metavar"]


def test_training_has_the_same_settings_everywhere() -> None:
    names = {field.name for field in fields(Settings)}
    assert {*TrainingStep.model_fields} - {"step"} == names
    assert {*inspect.signature(given_settings).parameters} == names


def literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from literals(part)


def test_names_to_choose_from_are_the_registered_ones() -> None:
    choices = {field.name: field.metadata["choices"] for each in CALLS for field in fields(each)}
    assert set(choices["method"]) == set(METHODS) and set(choices["by"]) == {*CRITERIA, OBS}


@every_method
def test_help_is_whole_sentences(settings: type) -> None:
    for field in fields(settings):
        assert re.fullmatch(r"[A-Z].*\.", field.metadata["help"]), field.name
