"""`tamis search`: find which connections of a network to keep, and write them, without weights, to a file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tamis.architecture import Architecture
from tamis.architecture import search as search_architecture
from tamis.cli.connection_report import as_plain_data, make_connection_table
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table
from tamis.cli.options import ModelChoice, Output
from tamis.cli.output_argument import prepare_output
from tamis.cli.train import describe_origin_of_weights, describe_training, load_trainable, parse_settings
from tamis.cli.training_directory import open_training_directory
from tamis.training import check_fits, join_team, load_data


def search(
    model: ModelChoice,
    data: str,
    options: Mapping[str, Any],
    choices: Mapping[str, Any],
    directory: Path | None,
    output: Output,
) -> None:
    """Run the command; `options` are those of `Settings` that are given, and `choices` those of `settings.Search`."""
    out, as_json = output.out, output.as_json
    settings = parse_settings(options)
    team = join_team(parse_device(output.device))
    prepare_output(out, ".architecture")
    loaded = load_trainable("search", model, settings.seed)
    examples = load_data(data)
    check_fits(loaded.module, examples, called=model.model)
    with open_training_directory(directory, out, team) as folder:
        origin = {
            "model": model.model,
            "weights": describe_origin_of_weights(loaded, folder),
            "device": str(team.device),
        }
        if team.leads and not as_json:
            make_console().print(
                make_fact_table(
                    origin | describe_training(examples, None, settings) | {"sparsity": f"{choices['sparsity']:g}"}
                )
            )
        with _warnings_as_lines():
            found = search_architecture(
                loaded.module, examples, settings=settings, directory=folder, device=team.device, **choices
            )
        if team.leads:
            found.save(out)
    if team.leads and as_json:
        asked = {"data": examples.name, "settings": settings.in_effect, "file": str(out)}
        print(json.dumps({**origin, **asked, **as_plain_data(found), "bytes": out.stat().st_size}, indent=2))
    elif team.leads:
        _show(found, out)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print warnings of the search in a line of their own, without the line of code that warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module=__name__)
        warnings.showwarning = lambda message, *_: Console(stderr=True).print(
            Text(f"warning: {message}", style="yellow"), soft_wrap=True
        )
        yield


def _show(found: Architecture, out: Path) -> None:
    screen = make_console()
    screen.print()
    screen.print(make_connection_table(found))
    screen.print()
    saved = f"\nsaved {out}, {out.stat().st_size:,} bytes"
    screen.print(Text.assemble("sparsity ", (f"{found.sparsity:.1%}", "bold green"), saved), soft_wrap=True)
