"""`tamis reproduce`: the experiments of the papers, what is stored of them, and one of them again."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import typer
from rich.text import Text

from tamis.cli.display import console, table
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
)  # in the order in which the pages of the documentation tell of them; each is a module of tamis.papers
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
    """One module of `tamis.papers`: its name here, what it is, and what is stored of it."""

    name: str
    summary: str
    stored: tuple[Stored, ...]


def reproduce(
    name: str | None, only: str | None, full: bool, results: Path, further: Sequence[str], as_json: bool
) -> None:
    """The command; arguments as on the command line."""
    if name is None:
        if only or full or further:
            raise InvalidInput(f"say which experiment: tamis reproduce NAME …, one of {', '.join(NAMES)}")
        _show(experiments(results), as_json)
        return
    module = name.replace("-", "_")
    if module not in EXPERIMENTS:
        raise InvalidInput(f"there is no experiment {name!r}; there are {', '.join(NAMES)}")
    options = [*(["--only", only] if only else []), *(["--full"] if full else []), *further]
    code = _measured(module, options) if as_json else _run(module, options, to_stderr=False)
    if code:
        raise typer.Exit(code)


def experiments(results: Path) -> list[Experiment]:
    """All of them, with what a folder has stored."""
    pairs = zip(NAMES, EXPERIMENTS, strict=True)
    return [Experiment(name, summary_of(module), stored_of(module, results)) for name, module in pairs]


def summary_of(module: str) -> str:
    """The first line of what the module says of itself; read, since importing it would import torch."""
    source = resources.files("tamis.papers").joinpath(f"{module}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def stored_of(module: str, folder: Path) -> tuple[Stored, ...]:
    """What is stored under the experiment's name; files that say no environment are none of ours."""
    found = []
    for path in sorted(folder.glob(f"{module}*.json")):
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"'{path}' holds no figures, for it is no JSON ({error}): move it") from None
        said = content.get("environment") if isinstance(content, dict) else None
        if isinstance(said, dict) and f"tamis.papers.{module}" in str(said.get("command")):
            hardware = said.get("gpu") or said.get("processor") or "unknown"
            found.append(Stored(str(path), said["command"], said.get("date", ""), hardware))
    return tuple(found)


def _run(module: str, options: Sequence[str], to_stderr: bool) -> int:
    """In a process of its own, so that what it stores names the command that anybody can repeat."""
    command = [sys.executable, "-m", f"tamis.papers.{module}", *options]
    return subprocess.run(command, stdout=sys.stderr if to_stderr else None, check=False).returncode


def _measured(module: str, options: Sequence[str]) -> int:
    """Run it, and print the figures alone; what people read goes to stderr."""
    if any(option.partition("=")[0] == "--results" for option in options):
        raise InvalidInput("--json prints the figures instead of storing them: leave it out, or `-- --results`")
    with tempfile.TemporaryDirectory() as folder:
        code = _run(module, [*options, "--results", folder], to_stderr=True)
        figures = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    if not code:
        print(json.dumps(figures, indent=2))
    return code


def _show(found: Sequence[Experiment], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(experiment) for experiment in found], indent=2))
        return
    rows = table()
    for heading in ("name", "what it is", "stored"):
        rows.add_column(heading, overflow="fold")
    for experiment in found:
        stored = "\n".join(f"{each.date}, {each.hardware}\n{each.file}" for each in experiment.stored)
        rows.add_row(experiment.name, experiment.summary, stored or Text("nothing here", "dim"))
    console().print(rows)
    usage = "tamis reproduce NAME [--only PART] [--full] [-- further options]"
    console().print(f"\nrun one  {usage}\n         tamis reproduce NAME -- --help lists its parts and options")
