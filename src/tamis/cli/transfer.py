"""`tamis transfer`: train an architecture anew, from fresh weights, and write the small network to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.architecture import Architecture
from tamis.architecture import transfer as transfer_architecture
from tamis.artifact import Compressed
from tamis.cli.connection_report import as_plain_data, make_connection_table
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table
from tamis.cli.options import ModelChoice, Output, TrainingDataChoice
from tamis.cli.output_argument import prepare_output
from tamis.cli.train import describe_result, describe_training, load_trainable, load_training_data, parse_settings
from tamis.cli.training_directory import open_training_directory
from tamis.graph import trace
from tamis.training import join_team, read_checkpoint


def transfer(
    model: str,
    architecture: Path,
    data: TrainingDataChoice,
    options: Mapping[str, Any],
    directory: Path | None,
    output: Output,
) -> None:
    """Run the command; arguments as on the command line, `options` those of `Settings` that are given."""
    out = output.out
    settings = parse_settings(options)
    team = join_team(parse_device(output.device))
    prepare_output(out, ".tamis")
    loaded = load_trainable("transfer", ModelChoice(model), settings.seed)
    kept = Architecture.load(architecture)
    kept.check_fits(loaded.module)
    examples, test_examples = load_training_data(data, loaded.module, model)
    network = trace(loaded.module, examples.example)  # now: what cannot be written need not be trained
    with open_training_directory(directory, out, team) as folder:
        origin = {"model": model, "architecture": str(architecture), "weights": _describe_origin_of_weights(folder)}
        origin["device"] = str(team.device)
        if team.leads and not output.as_json:
            make_console().print(make_fact_table(origin | describe_training(examples, test_examples, settings)))
        trained = transfer_architecture(
            loaded.module, kept, examples, settings, test=test_examples, directory=folder, device=team.device
        )
        if not team.leads:
            return
        step = {"step": "transfer", "architecture": architecture.name, "data": examples.name, **settings.in_effect}
        small = Compressed(network.with_weights_of(trained.model), kept.masks, [step])
        small.save(out)
    if output.as_json:
        last = trained.history[-1]
        figures = {"accuracy": {"training": last.accuracy, "test": last.test_accuracy}, "bytes": small.nbytes}
        asked = {"data": examples.name, "test": data.test, "recipe": [step], "file": str(out)}
        print(json.dumps({**origin, **asked, **as_plain_data(kept), **figures}, indent=2, allow_nan=False))
    else:
        screen = make_console()
        screen.print()
        screen.print(make_connection_table(kept))
        screen.print()
        screen.print(describe_result(trained, out), soft_wrap=True)


def _describe_origin_of_weights(directory: Path) -> str:
    begun = read_checkpoint(directory)
    return "fresh" if begun is None else f"of {directory}, after epoch {begun.epoch}"
