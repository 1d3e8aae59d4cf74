"""`tamis kronecker bench`: how long each way to multiply by a Kronecker-sparse matrix takes, and which one runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, table
from tamis.cli.kronecker_patterns import parse_pattern
from tamis.cli.options import Multiplication
from tamis.errors import InvalidInput
from tamis.kernels import NOT_MEASURED, Energy, measure_energy, time_in_turns
from tamis.kronecker import BACKENDS, BATCH_FIRST, DENSE, Pattern, check_layout, multiply

DTYPES = ("float32", "float16", "bfloat16", "float64")
LARGEST_DENSE = 2**28  # entries of a dense matrix that is still made
SECONDS = 1.0  # of the rounds of one pattern
TUNING = "tamis.kronecker.tuning"


@dataclass(frozen=True)
class Measured:
    """A measurement of one pattern has seconds by backend, why others do not run, which one is chosen, and why."""

    pattern: Pattern
    seconds: dict[str, float]
    refused: dict[str, str]
    chosen: str
    why: str
    energy: dict[str, Energy]


def bench(patterns: Sequence[str], how: Multiplication, tune: bool, energy: bool, as_json: bool) -> None:
    """Run the command; arguments as on the command line."""
    wanted = [parse_pattern(text) for text in patterns]
    check_layout(how.layout)
    if how.dtype not in DTYPES:
        raise InvalidInput(f"--dtype must be one of {', '.join(DTYPES)}, got '{how.dtype}'")
    if how.batch < 1:
        raise InvalidInput(f"--batch must be at least 1, got {how.batch}")
    place, dtype = parse_device(how.device), getattr(torch, how.dtype)
    measured: list[Measured] = []
    for pattern in wanted:
        with Console(stderr=True).status(Text(f"measuring {pattern}")):
            if tune:
                _tune(pattern, how.batch, dtype, place, how.layout)
            measured.append(_measure(pattern, how.batch, dtype, how.layout, place, energy))
    if as_json:
        asked = {"batch": how.batch, "dtype": how.dtype, "layout": how.layout, "device": str(place), "tuned": tune}
        print(json.dumps({**asked, "patterns": [_write_plain(each) for each in measured]}, indent=2))
        return
    screen = make_console()
    for number, each in enumerate(measured):
        if number:
            screen.print()
        sizes = f"{each.pattern.rows} × {each.pattern.columns}, {each.pattern.nonzeros:,} weights"
        screen.print(f"{each.pattern}: {sizes}; batch {how.batch}, {how.dtype}, {how.layout}, {place}", soft_wrap=True)
        screen.print(_make_table(each, how.batch))
        for name, reason in each.refused.items():
            screen.print(f"{name} is not run: {reason}", soft_wrap=True)
        for reason in dict.fromkeys(energy.reason for energy in each.energy.values()):
            screen.print(f"energy: {reason}", soft_wrap=True)
        screen.print(Text.assemble("runs ", (each.why, "bold")), soft_wrap=True)


def _measure(
    pattern: Pattern, batch: int, dtype: torch.dtype, layout: str, device: torch.device, energy: bool
) -> Measured:
    x, weight = _draw_operands(pattern, batch, dtype, layout, device)
    refused = {name: backend.accepts(x, weight, pattern, layout) for name, backend in BACKENDS.items()}
    if pattern.rows * pattern.columns > LARGEST_DENSE:
        refused[DENSE.name] = f"the whole matrix has {pattern.rows * pattern.columns:,} entries"
    tasks = {
        name: lambda name=name: multiply(x, weight, pattern, layout, name)
        for name, reason in refused.items()
        if not reason
    }
    with torch.inference_mode():
        why = multiply(x, weight, pattern, layout, explain=True)[1]
        seconds = time_in_turns(tasks, device, SECONDS)
        drawn = {name: measure_energy(task, str(device)) for name, task in tasks.items()} if energy else {}
    refusals = {name: reason for name, reason in refused.items() if reason}
    return Measured(pattern, seconds, refusals, why.partition(":")[0], why, drawn)


def _draw_operands(
    pattern: Pattern, batch: int, dtype: torch.dtype, layout: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Draw inputs and a weight, as in appendix D.2.1 of the thesis."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, pattern.columns) if layout == BATCH_FIRST else (pattern.columns, batch)
    x = torch.randn(shape, generator=generator)
    weight = (2 * torch.rand(pattern.shape, generator=generator) - 1) / math.sqrt(pattern.c)
    return x.to(device, dtype), weight.to(device, dtype)


def _tune(pattern: Pattern, batch: int, dtype: torch.dtype, device: torch.device, layout: str) -> None:
    """Measure what is to be chosen from now on, and remember it."""
    if find_spec(TUNING) is None:
        raise InvalidInput("--tune: there is nothing to tune in this version of tamis")
    import_module(TUNING).tune(pattern, batch, dtype, device, layout)


def _write_plain(each: Measured) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pattern": list(each.pattern.shape),
        "milliseconds": {name: 1e3 * value for name, value in each.seconds.items()},
        "not_run": each.refused,
        "chosen": each.chosen,
        "why": each.why,
    }
    if each.energy:
        found["joules"] = {name: value.joules for name, value in each.energy.items()}
        found["energy"] = next(iter(each.energy.values())).reason
    return found


def _format_joules(energy: Energy) -> str:
    return NOT_MEASURED if energy.joules is None else str(energy)


def _make_table(each: Measured, batch: int) -> Table:
    rows = table()
    rows.add_column("backend")
    for heading in ("ms", "G multiplications/s", "× the fastest", *(["energy"] if each.energy else [])):
        rows.add_column(heading, justify="right")
    fastest = min(each.seconds.values())
    for name, seconds in sorted(each.seconds.items(), key=lambda item: item[1]):
        rate = each.pattern.cost(batch) / seconds / 1e9
        drawn = [_format_joules(each.energy[name])] if each.energy else []
        style = "bold green" if name == each.chosen else ""
        rows.add_row(name, f"{1e3 * seconds:.4g}", f"{rate:.4g}", f"{seconds / fastest:.2f}", *drawn, style=style)
    return rows
