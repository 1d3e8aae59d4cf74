"""`tamis binarize`: make most layers of a network binary, train it in two stages, and write one bit for each weight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from tamis.artifact import Compressed
from tamis.binary import ACTIVATIONS, BOTH, TrainedBinary, pack_traced, train_binary
from tamis.binary import binarize as binarize_module
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table
from tamis.cli.model_argument import LoadedModule
from tamis.cli.options import ModelChoice, Output, TrainingDataChoice
from tamis.cli.output_argument import prepare_output
from tamis.cli.train import describe_training, load_trainable, load_training_data, parse_settings
from tamis.cli.training_directory import WRITTEN, open_training_directory
from tamis.errors import InvalidInput
from tamis.graph import trace
from tamis.training import Settings, join_team, read_checkpoint

STAGES = {BOTH: "with both binary", ACTIVATIONS: "with binary activations"}  # the last one first


def binarize(
    model: ModelChoice,
    data: TrainingDataChoice,
    options: Mapping[str, Any],
    choices: Mapping[str, Any],
    directory: Path | None,
    output: Output,
) -> None:
    """Run the command; `options` are those of `Settings` that are given, and `choices` those of `Binarization`."""
    settings = parse_settings(options)
    how = {name: choices[name] for name in ("scale", "estimator")}
    first = _make_first_stage(settings, choices["activation_epochs"])
    team = join_team(parse_device(output.device))
    prepare_output(output.out, ".tamis")
    loaded = load_trainable("binarize", model, settings.seed)
    if loaded.compressed is not None and loaded.compressed.masks:
        raise InvalidInput(f"'{model.weights}' has pruned weights, which would come back: a binary weight is +1 or −1")
    examples, test_examples = load_training_data(data, loaded.module, model.model)
    keep = choices["keep"]
    binary = binarize_module(loaded.module, keep, examples.example, **how)
    network = trace(binary, examples.example)  # now: what cannot be written need not be trained
    with open_training_directory(directory, output.out, team) as folder:
        origin = {
            "model": model.model,
            "weights": _describe_origin_of_weights(loaded, folder),
            "device": str(team.device),
        }
        origin |= {"keep": ",".join(keep), **how}
        if team.leads and not output.as_json:
            stages = {"stages": f"{first.epochs if first else 0} and {settings.epochs} epochs"}
            make_console().print(
                make_fact_table(origin | describe_training(examples, test_examples, settings) | stages)
            )
        trained = train_binary(
            binary, examples, settings, first=first, test=test_examples, directory=folder, device=team.device
        )
        step = {"step": "binarize", "keep": list(keep), **how, "activation_epochs": first.epochs if first else 0}
        step |= {"data": examples.name, **settings.in_effect}
        if team.leads:
            small = pack_traced(network, trained.model, [step])
            small.save(output.out)
        team.wait()  # until all of them have read what they need
        if team.leads and directory is None:
            _clear_stages(folder)
    if team.leads:
        asked = {"data": examples.name, "test": data.test, "recipe": [step], "file": str(output.out)}
        _report(small, trained, {**origin, **asked}, output.as_json)


def _make_first_stage(settings: Settings, epochs: int | None) -> Settings | None:
    return None if epochs == 0 else replace(settings, epochs=settings.epochs if epochs is None else epochs)


def _describe_origin_of_weights(loaded: LoadedModule, directory: Path) -> str:
    """Say where training begins: with the weights that were loaded, or where it was broken off."""
    for stage, words in STAGES.items():
        if (begun := read_checkpoint(directory / stage)) is not None:
            return f"of {directory}, after epoch {begun.epoch} {words}"
    return loaded.weights


def _clear_stages(directory: Path) -> None:
    """Remove what each stage of training wrote, and its directory if nothing else is in it."""
    for stage in STAGES:
        with suppress(OSError):  # the file is written
            for path in [*(directory / stage).iterdir()]:
                if WRITTEN.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            (directory / stage).rmdir()


def _report(small: Compressed, trained: TrainedBinary, origin: dict[str, Any], as_json: bool) -> None:
    last = trained.history[-1]
    if as_json:
        floats = sum(value.nbytes for value in small.params.values())
        layers = [{"name": name, "weights": code.indices.numel()} for name, code in small.codes.items()]
        figures = {"layers": layers, "bytes": small.nbytes, "float_bytes": floats}
        figures["accuracy"] = {"training": last.accuracy, "test": last.test_accuracy}
        print(json.dumps({**origin, **figures}, indent=2, allow_nan=False))
        return
    screen = make_console()
    screen.print()
    screen.print(Text(small.summary()), soft_wrap=True)
    screen.print()
    said = Text.assemble(
        f"{'training' if last.test_accuracy is None else 'test'} accuracy ",
        (f"{last.reported_accuracy:.1%}", "bold green"),
        f" after {len(trained.activations)} and {len(trained.history)} epochs\n",
        f"saved {origin['file']}, {small.nbytes:,} bytes",
    )
    screen.print(said, soft_wrap=True)
