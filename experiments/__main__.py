"""The papers' experiments, from the root of a clone.

python -m experiments list [--json]                               what there is, and what is stored of it
python -m experiments NAME [--only PART] [--full] [--json] [...]  run one; --json prints its figures alone
python -m experiments NAME --help                                 its parts, and the options that are its own
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.text import Text

from experiments import RESULTS
from experiments.catalogue import NAMES, Experiment, find_module, list_experiments
from tamis.cli.display import make_console, table
from tamis.errors import InvalidInput, TamisError


def main(arguments: Sequence[str]) -> None:
    """Run what the arguments of the command line name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print((__doc__ or "") + f"\nThere are {', '.join(NAMES)}.")
        return
    (name, *options), as_json = [each for each in arguments if each != "--json"] or [""], "--json" in arguments
    if name == "list":
        show(list_experiments(RESULTS), as_json)
    elif not name or name.startswith("-"):
        raise InvalidInput(f"name an experiment before its options: {', '.join(NAMES)}")
    else:
        run(find_module(name), options, as_json)


def run(module: str, options: Sequence[str], as_json: bool) -> None:
    """Run one experiment; with `as_json`, what people read goes to stderr, and the figures are printed in the end."""
    program = import_module(f"experiments.{module}").main
    if not as_json:
        program(options)
        return
    if any(option.partition("=")[0] == "--results" for option in options):
        raise InvalidInput("--json prints the figures instead of storing them: leave out --json or --results")
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(sys.stderr):
            program([*options, "--results", folder])
        figures = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    print(json.dumps(figures, indent=2))


def show(found: Sequence[Experiment], as_json: bool) -> None:
    """Print the list of experiments."""
    if as_json:
        print(json.dumps([asdict(experiment) for experiment in found], indent=2))
        return
    rows = table()
    for heading in ("name", "what it is", "stored"):
        rows.add_column(heading, overflow="fold")
    for experiment in found:
        stored = "\n".join(f"{each.date}, {each.hardware}\n{each.file}" for each in experiment.stored)
        rows.add_row(experiment.name, experiment.summary, stored or Text("nothing", "dim"))
    make_console().print(rows)
    make_console().print("\nrun one  python -m experiments NAME [--only PART] [--full] [--json]")


def run_program(arguments: Sequence[str]) -> None:
    """Run `main` as a program does: an error of tamis is one line on stderr and an exit status."""
    try:
        main(arguments)
    except TamisError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, InvalidInput) else 1) from error


if __name__ == "__main__":
    run_program(sys.argv[1:])
