"""`tamis compress`: run a recipe on a model, and leave a small file with its certificate, report and lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from tamis.cli.command_line import as_written, command_line
from tamis.cli.device_argument import parse_device
from tamis.cli.display import console, facts
from tamis.cli.interruption import resumes_from
from tamis.cli.model_argument import load_module, load_network, warn_of_drawn_weights
from tamis.cli.requirement_options import end_with, parse_requirements
from tamis.errors import InvalidInput
from tamis.graph.network import Network
from tamis.recipe.run import Compression
from tamis.recipe.run import compress as compress_model
from tamis.recipe.workspace import FOLDER, QUESTION


def compress(
    model: str,
    weights: Path | None,
    shape: str | None,
    trust: bool,
    recipe: str | None,
    data: str | None,
    test: str | None,
    out: Path,
    force: bool,
    device: str,
    as_json: bool,
    target_bytes: str | None,
    max_disagreement: str | None,
    max_accuracy_drop: str | None,
) -> None:
    """The command; arguments as on the command line."""
    required = parse_requirements(max_disagreement=max_disagreement, max_accuracy_drop=max_accuracy_drop)
    if recipe is None and target_bytes is None and max_disagreement is None:
        raise InvalidInput("compress needs --recipe, --target-bytes or --max-disagreement; `tamis recipes` lists some")
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"-o must be a folder, and '{out}' is a file")
    where = parse_device(device)
    with Console(stderr=True).status(Text(f"reading {model}")):
        given, example = model_of(model, weights, shape, trust)
    resumes_from(out / FOLDER, QUESTION)
    places: dict[str, Any] = {"example": example, "device": where, "force": force}
    places |= {"called": as_written(model, weights), "command": command_line()}
    done = compress_model(
        given, recipe, data, out, test=test, target_bytes=target_bytes, **required, **places, progress=True
    )
    warn_of_drawn_weights(model, weights)
    if as_json:
        print(json.dumps(as_plain_data(done), indent=2, allow_nan=False))
    else:
        show(done, console())
    end_with(done.met)


def model_of(
    model: str, weights: Path | None, shape: str | None, trust: bool
) -> tuple[nn.Module | Network, Tensor | None]:
    """The module, where there is one, with an input for it where the user gives its shape; or else the program."""
    if model.endswith(".pt2"):
        return load_network(model, weights, shape, trust).network, None
    loaded = load_module(model, weights)
    if loaded.compressed is not None:
        raise InvalidInput(f"'{weights}' is compressed already; compress begins with the whole network")
    if shape is None:
        return loaded.module, None
    return loaded.module, torch.zeros(load_network(model, weights, shape, trust).network.input_shapes[0])


def as_plain_data(done: Compression) -> dict[str, Any]:
    """What a run left, as JSON takes it."""
    return {
        "folder": str(done.folder),
        "files": sorted(path.name for path in done.folder.iterdir() if not path.name.startswith(".")),
        "lock": done.lock.content,
        "certificate": done.certificate.content,
        "met": done.met,
    }


def show(done: Compression, out: Console) -> None:
    """Print the certificate, and where everything is."""
    out.print(str(done.certificate))
    out.print()
    files = sorted(path.name for path in done.folder.iterdir() if not path.name.startswith("."))
    out.print(facts({"folder": str(done.folder), "files": ", ".join(files)}))
