"""`tamis sweep`: try many recipes on one model, alone or with workers elsewhere, and certify the best."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tamis.cli.command_line import quote_as_written, write_command_line
from tamis.cli.compress import build_model
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table, table
from tamis.cli.interruption import note_resumption
from tamis.cli.model_argument import draws_weights, warn_of_drawn_weights
from tamis.cli.options import ModelChoice, Output
from tamis.cli.requirement_options import check_requirements, end_with
from tamis.errors import InvalidInput
from tamis.sweeps import (
    RESULTS,
    Row,
    Sweep,
    SweepResult,
    as_plain_data,
    describe_point,
    hide_password,
    import_optuna,
    read_sweep,
    sweep,
    work,
)
from tamis.verification import format_rate

MOST_ROWS = 40


def run(spec: Path, required: Mapping[str, Any], storage: str | None, trust: bool, output: Output) -> None:
    """Run `tamis sweep run`; arguments as on the command line."""
    asked = check_requirements(required)
    command = write_command_line() if storage is None else write_command_line(storage, hide_password(storage))
    arguments = _make_arguments(spec, storage, trust, output)
    model, weights = _find_original(arguments["spec"])
    drawn = draws_weights(model, weights)
    found = sweep(**arguments, **asked, command=command, just_initialised=drawn)
    if drawn:
        warn_of_drawn_weights(model)
    if output.as_json:
        print(json.dumps(as_plain_data(found), indent=2, allow_nan=False))
    else:
        show(found, make_console())
    end_with(found.passed)
    if not found.certified:
        raise typer.Exit(1)


def worker(spec: Path, storage: str | None, trust: bool, output: Output) -> None:
    """Run `tamis sweep worker`; arguments as on the command line."""
    tried = work(**_make_arguments(spec, storage, trust, output))
    if output.as_json:
        print(
            json.dumps({"folder": str(output.out), "tried here": [describe_point(point) for point in tried]}, indent=2)
        )


def _make_arguments(path: Path, storage: str | None, trust: bool, output: Output) -> dict[str, Any]:
    """Make the arguments that `sweep` and `work` take."""
    out = output.out
    import_optuna()
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"-o must be a folder, and '{out}' is a file")
    where, spec = parse_device(output.device), read_sweep(path)
    if spec.spec.model is None:
        raise InvalidInput(f"{path}: 'model' is missing: a .pt2 file, or package.module:factory")
    original = ModelChoice(*_find_original(spec), spec.spec.shape, trust)
    with Console(stderr=True).status(Text(f"reading {original.model}")):
        model, example = build_model(original)
    note_resumption(out)
    places = {"out": out, "storage": storage, "device": where}
    return {"model": model, "spec": spec, "example": example, "called": quote_as_written(original), **places}


def _find_original(spec: Sweep) -> tuple[str, Path | None]:
    """Return MODEL and --weights, as the file of a sweep has them."""
    said = spec.spec
    return said.model or "", None if said.weights is None else Path(said.weights)


def show(found: SweepResult, out: Console) -> None:
    """Print whether it is as good as required, the candidates, what is certified, and where everything is."""
    if found.passed is not None:
        which = "PASS: a network" if found.passed else "FAIL: no network"
        out.print(f"{which} is certified to be as good as required\n")
    out.print(_make_table(found))
    out.print()
    for point, why in found.failed:
        out.print(f"not made: {describe_point(point)}: {why}", soft_wrap=True)
    lines = {"folder": str(found.folder), "results": RESULTS, "page": "report.html"}
    if not found.certified:
        out.print("no candidate is within the limits: nothing was certified")
        del lines["page"]
    else:
        lines["certified"] = (
            f"{len(found.certified)}; each certificate pays for {found.compared} compared on the test data"
        )
    out.print(make_fact_table(lines))


def _make_table(found: SweepResult) -> Table:
    """Make a table of candidates, those on the front marked: held-out figures first, then what is certified."""
    rows = table()
    rows.add_column("")
    rows.add_column("tried", overflow="fold")
    names = [name for name in ("bytes", "accuracy", "disagreement", "latency") if name in found.rows[0].figures]
    for name in names:
        rows.add_column("differs ≤" if name == "disagreement" else name, justify="right")
    rows.add_column("certified: differs ≤", justify="right")
    for row in found.rows[:MOST_ROWS]:
        mark = Text("*", style="bold green") if row.front else ""
        rows.add_row(
            mark,
            Text(describe_point(row.point)),
            *(_format_figure(row, name) for name in names),
            _format_certified(row),
        )
    return rows


def _format_figure(row: Row, name: str) -> str:
    value = row.figures[name]
    if name == "bytes":
        return f"{value:,}"
    if name == "latency":
        return f"{1e3 * value:.3g} ms"
    return format_rate(value) if name == "disagreement" else f"{value:.2%}"  # a bound, rounded up, and a measured rate


def _format_certified(row: Row) -> str:
    if row.certificate is None:
        return ""
    bound = format_rate(row.certificate["disagreement"].bound.value)
    return bound if row.certificate.passed is None else f"{bound} {'PASS' if row.certificate.passed else 'FAIL'}"
