"""`tamis compress`: run a recipe on a model, and leave a small file with its certificate, report and lock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from tamis.artifact import NOTHING, sentences
from tamis.cli.command_line import quote_as_written, write_command_line
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table, table
from tamis.cli.interruption import note_resumption
from tamis.cli.model_argument import draws_weights, load_module, open_network, warn_of_drawn_weights
from tamis.cli.options import Budget, ModelChoice, Output, SplitsChoice
from tamis.cli.requirement_options import check_requirements, end_with
from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.recipes import WORK_FOLDER, WORK_LOCK, Compression
from tamis.recipes import compress as compress_model


def compress(
    original: ModelChoice, recipe: str | None, data: SplitsChoice, budget: Budget, force: bool, output: Output
) -> None:
    """Run the command; arguments as on the command line."""
    out, target_bytes = output.out, budget.target_bytes
    required = check_requirements(asdict(budget))
    if recipe is None and target_bytes is None and budget.max_disagreement is None:
        raise InvalidInput("compress needs --recipe, --target-bytes or --max-disagreement; `tamis recipes` lists some")
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"-o must be a folder, and '{out}' is a file")
    where = parse_device(output.device)
    with Console(stderr=True).status(Text(f"reading {original.model}")):
        given, example = build_model(original)
    drawn = draws_weights(original.model, original.weights)
    note_resumption(out / WORK_FOLDER, WORK_LOCK)
    places: dict[str, Any] = {"example": example, "device": where, "force": force}
    places |= {"called": quote_as_written(original), "command": write_command_line()}
    places |= {"just_initialised": drawn}
    done = compress_model(
        given, recipe, data.data, out, test=data.test, target_bytes=target_bytes, **required, **places, progress=True
    )
    if drawn:
        warn_of_drawn_weights(original.model)
    if output.as_json:
        print(json.dumps(as_plain_data(done), indent=2, allow_nan=False))
    else:
        show(done, make_console())
    end_with(done.met)


def build_model(original: ModelChoice) -> tuple[nn.Module | Network, Tensor | None]:
    """Return the module, with an input for it where the user gives its shape; or else the program."""
    if original.model.endswith(".pt2"):
        return open_network(original).network, None
    loaded = load_module(original.model, original.weights)
    if loaded.compressed is not None:
        raise InvalidInput(f"'{original.weights}' is compressed already; compress begins with the whole network")
    if original.shape is None:
        return loaded.module, None
    network = open_network(original).network
    return loaded.module, torch.zeros(network.input_shapes[0], dtype=network.input_dtypes[0])


def as_plain_data(done: Compression) -> dict[str, Any]:
    """Return the result of a run as JSON takes it."""
    return {
        "folder": str(done.folder),
        "files": sorted(path.name for path in done.folder.iterdir() if not path.name.startswith(".")),
        "lock": done.lock.content,
        "stayed_float": [asdict(each) for each in done.small.untouched],
        "certificate": done.certificate.content,
        "met": done.met,
    }


def show(done: Compression, out: Console) -> None:
    """Print the certificate, and where everything is."""
    out.print(done.certificate.as_text(out.width), soft_wrap=True)
    out.print()
    if tried := done.lock.content["result"].get("tried"):
        out.print(make_tries_table(tried, done.lock.content["result"]["held_out"]))
        out.print()
    files = sorted(path.name for path in done.folder.iterdir() if not path.name.startswith("."))
    lines = {"folder": str(done.folder), "files": ", ".join(files)}
    if done.small.untouched:
        lines["stayed float"] = "\n".join(sentences(done.small.untouched))
    out.print(make_fact_table(lines))


def make_tries_table(tried: Sequence[Mapping[str, Any]], held_out: int) -> Table:
    """Make a table of the networks that a budget's search made, the smallest file first, with the winner marked."""
    rows = table()
    rows.add_column("")
    rows.add_column("tried", overflow="fold")
    rows.add_column("layers", overflow="fold")
    for heading in ("bytes", f"differs, of {held_out:,} held out", "outputs moved"):
        rows.add_column(heading, justify="right")
    for each in sorted(tried, key=lambda each: (each["bytes"], each["different"])):
        mark = Text("won", style="bold green") if each["chosen"] else ""
        moved = NOTHING if each["moved"] is None else f"{each['moved']:.3g}"
        different = f"{each['different']:,} ({each['different'] / held_out:.2%})"
        made = (Text(each["start"]), Text(each.get("layers", NOTHING)))  # runs of before did not note the second
        rows.add_row(mark, *made, f"{each['bytes']:,}", different, moved)
    return rows
