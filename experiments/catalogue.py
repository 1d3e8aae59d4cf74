"""Which experiments there are, and what is stored of each."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tamis.errors import InvalidInput

EXPERIMENTS = (
    "phi_pruning",
    "gpfq",
    "bounds",
    "short_codes",
    "short_codes_randomised",
    "l1inf",
    "architecture",
    "xnor",
    "kronecker",
    "online",
)  # modules of this package, in the order in which the documentation treats them
NAMES = tuple(module.replace("_", "-") for module in EXPERIMENTS)


@dataclass(frozen=True)
class Stored:
    """A file of figures: by which command, when and where they were measured."""

    file: str
    command: str
    date: str
    hardware: str


@dataclass(frozen=True)
class Experiment:
    """One experiment: its name on the command line, what it is, and what is stored of it."""

    name: str
    summary: str
    stored: tuple[Stored, ...]


def list_experiments(results: Path) -> list[Experiment]:
    """List all experiments with what a folder has stored of them."""
    pairs = zip(NAMES, EXPERIMENTS, strict=True)
    return [Experiment(name, read_summary(module), find_stored(module, results)) for name, module in pairs]


def find_module(name: str) -> str:
    """Return the module of an experiment; its name may be written with either kind of dash.

    Raises:
        InvalidInput: there is none of this name; the message lists those there are.
    """
    module = name.replace("-", "_")
    if module not in EXPERIMENTS:
        raise InvalidInput(f"there is no experiment '{name}'; there are {', '.join(NAMES)}")
    return module


def read_summary(module: str) -> str:
    """Return the first line of a module's docstring; it is read from the file, since an import would import torch."""
    source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def find_stored(module: str, folder: Path) -> tuple[Stored, ...]:
    """Find the files in a folder that this experiment has stored, by the command that each of them names."""
    found = []
    for path in sorted(folder.glob(f"{module}*.json")):
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"'{path}' is not JSON ({error}): move it elsewhere, or run {module} again") from None
        said = content.get("environment") if isinstance(content, dict) else None
        if isinstance(said, dict) and _runs(str(said.get("command")), module):
            hardware = said.get("gpu") or said.get("processor") or "unknown"
            found.append(Stored(os.path.relpath(path), said["command"], said.get("date", ""), hardware))
    return tuple(found)


def _runs(command: str, module: str) -> bool:
    """Return whether a command runs this experiment, whichever way its name is written."""
    *program, name = command.split()[:4] or [""]
    return program == ["python", "-m", "experiments"] and name.replace("-", "_") == module
