"""Multiplying by Kronecker-sparse matrices: Tables 5.3 to 5.5 and figures 5.8 and 5.9 of the thesis, beside ours.

    python -m experiments kronecker                                  minutes on a core: few patterns, a small batch
    python -m experiments kronecker --full --device cuda --results experiments/results
    python -m experiments kronecker --full --device cuda --patterns 40 --only multiply          a minute
    python -m experiments kronecker --full --device cuda --show --results experiments/results          of what is stored

Three parts: `vit` (Table 5.5, and a step of training), `energy` (figure 5.9), and `multiply` (Tables 5.3 and 5.4,
figure 5.8). The last takes patterns in an order that is drawn once, so that those it has come to are a fair sample
whenever it ends: with --seconds, or killed. Rows are stored as they are measured, and a run with the same --results on
the same machine goes on where the last one ended; after a change of a kernel, move the file away first.

Deviations from the text:
    1. What it calls 600 patterns are the 627 that its code gives (kronecker_patterns.py).
    2. Peers are bmm, einsum and dense. They, as our kernels, have weights stored as each likes best. Its bsr and
       sparse, which it found to be slower than bmm in nearly all cases, are left out.
    3. "dense" is not run where its multiplications alone, at the rate of a large square product on the same machine,
       take longer than the fastest of the others: that time stands for it. It cannot be the fastest there, and factors
       against it are too small rather than too large.
    4. Kernels' results are compared with float64 on some vectors; a kernel that is wrong has no time.
    5. On a GPU times are of the device alone, its cache emptied before each (tamis.kernels.timing), medians of 3 to 50
       runs; the text has 10 measurements of 10 runs.
    6. Products of float32 are exact ones, as they were in the text: torch's are not rounded to TF32.
    7. Energy is what NVML or RAPL count, the device's rest among it, for some patterns of the text's list.

Reference: gonon2024thesis.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from experiments.command_line import Parser
from experiments.kronecker_compile import compile_layers, compile_products
from experiments.kronecker_patterns import BATCH, benchmark_patterns, list_energy_patterns, spread
from experiments.kronecker_peers import BMM_PEER, CHOSEN, Bench, Row, from_line, list_kernel_names, write_line
from experiments.kronecker_tables import ENERGY, MULTIPLY, PARTS, RIGHT, SHOWN, VIT, Figures, make_panels, summarise
from experiments.kronecker_vit import DOWN, SQUARE, UP, measure_parts
from experiments.pictures import draw_panels
from experiments.record import describe_environment, keep
from tamis.kernels import NOT_MEASURED, measure_energy
from tamis.kernels.energy import find_counter
from tamis.kronecker import BATCH_FIRST, Pattern
from tamis.kronecker.backends import LAYOUTS
from tamis.progress import reporting

SECONDS_BETWEEN_STORES = 5.0
SAME_MACHINE = ("processor", "gpu", "torch")


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        batch: vectors.
        patterns: how many of the text's; None for all.
        dtypes: names of torch's.
        cell: seconds of the rounds of one pattern, dtype and layout, about.
        images: in a batch of the vision transformer.
        depth: its blocks; None for all 12.
        row: seconds of the rounds of one of its parts, about.
        energies: for how many patterns energy is measured.
        run: seconds of one such measurement.
        seconds: after which no further pattern is begun.
    """

    batch: int = BATCH
    patterns: int | None = None
    dtypes: tuple[str, ...] = ("float32", "float16")
    cell: float = 0.03
    images: int = 128
    depth: int | None = None
    row: float = 0.5
    energies: int = 10
    run: float = 0.5
    seconds: float = 230.0


FULL = Plan()
SHORT = Plan(batch=512, patterns=24, dtypes=("float32",), cell=0.2, images=2, depth=2, row=0.5, energies=4, run=0.3)
Note = Callable[[Figures], None]


# -- the parts ---------------------------------------------------------------------------------------------------------


def run_vit(plan: Plan, device: str, note: Note) -> dict[str, Any]:
    """Measure Table 5.5, for each dtype, and the time of a step of training."""
    figures: dict[str, Any] = {"plan": asdict(plan), "by dtype": {}}
    if _compiles(plan, device):
        compile_layers((SQUARE, UP, DOWN), [getattr(torch, dtype) for dtype in plan.dtypes])
    ways = {BMM_PEER: BMM_PEER, **{name: name for name in list_kernel_names()}, CHOSEN: None}
    for dtype in plan.dtypes:
        usable = {name: way for name, way in ways.items() if way is None or _runs(way, dtype, device)}
        rows: list[Row] = figures["by dtype"].setdefault(dtype, [])
        for row in measure_parts(usable, plan.images, device, getattr(torch, dtype), plan.row, plan.depth):
            rows.append(row)
            times = ", ".join(f"{name} {ms:.3f}" for name, ms in row["ms"].items())
            print(f"{VIT} {dtype} {row['part']}: {times} ms", flush=True)
            note(figures)
    return figures


def _compiles(plan: Plan, device: str) -> bool:
    """Return whether there are kernels to compile before they are timed."""
    return device.startswith("cuda") and _runs("triton", plan.dtypes[0], device)


def _runs(name: str, dtype: str, device: str) -> bool:
    """Return whether a backend multiplies by the patterns of the vision transformer here."""
    bench = Bench(Pattern(1, 192, 48, 2), 16, dtype, device)
    return name not in list_kernel_names() or name in bench.kernels(BATCH_FIRST)


def run_energy(plan: Plan, device: str, note: Note) -> dict[str, Any]:
    """Measure the joules of a product with each of some patterns, by kernels and by the faster two of the peers."""
    found: list[Row] = []
    figures: dict[str, Any] = {"plan": asdict(plan), "reason": "", "rows": found}
    counter = find_counter(device)
    if isinstance(counter, str):
        figures["reason"] = counter
        print(f"{ENERGY}: {NOT_MEASURED} ({counter})", flush=True)
        note(figures)
        return figures
    figures["reason"] = counter.name
    patterns = spread(_sort_by_ratio(list_energy_patterns(plan.batch)), plan.energies)
    with reporting(True, ENERGY, len(patterns)) as report:
        for done, pattern in enumerate(patterns, start=1):
            bench = Bench(pattern, plan.batch, plan.dtypes[0], device)
            joules: dict[str, float] = {}
            for layout in LAYOUTS:
                tasks = bench.peers(layout) | bench.kernels(layout)
                for name in tasks:
                    one = measure_energy(tasks[name], device, plan.run, counter).joules
                    if one is not None:
                        joules[name] = min(joules.get(name, math.inf), one)
            found.append({"pattern": list(pattern.shape), "joules": joules})
            note(figures)
            report(done)
    return figures


def _sort_by_ratio(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Sort patterns in the order of d(b + c)/(bc), so that a few of them are of all ratios."""
    return sorted(patterns, key=lambda pattern: (pattern.energy_ratio, pattern.nonzeros))


def multiply(plan: Plan, device: str, known: Sequence[Row], note: Note, ends: float) -> dict[str, Any]:
    """Measure the times of all ways to multiply, for each pattern, dtype and layout; `known` rows are not measured
    again.
    """
    patterns = spread(benchmark_patterns(max(plan.batch, BATCH)), plan.patterns)
    random.Random(0).shuffle(patterns)
    rows = list(known)
    finished = {(row["pattern"], row["dtype"], row["layout"]) for row in rows}
    if _compiles(plan, device):
        measured = {row["pattern"] for row in rows}
        left = [pattern for pattern in patterns if pattern not in measured]
        compile_products(left, [getattr(torch, dtype) for dtype in plan.dtypes])
    figures: dict[str, Any] = {"plan": asdict(plan), "patterns": len(patterns)}
    stored = time.monotonic()
    with reporting(True, MULTIPLY, len(patterns)) as report:
        for done, pattern in enumerate(patterns, start=1):
            cells = [(dtype, layout) for dtype in plan.dtypes for layout in LAYOUTS]
            wanted = [cell for cell in cells if (pattern, *cell) not in finished]
            if wanted and time.monotonic() > ends:
                break
            for dtype, layout in wanted:
                rows.append(Bench(pattern, plan.batch, dtype, device).make_row(layout, plan.cell, RIGHT))
            if wanted and (time.monotonic() - stored > SECONDS_BETWEEN_STORES):
                stored = time.monotonic()
                note({**figures, **summarise(rows), "rows": [write_line(row) for row in rows]})
            report(done)
    figures |= {**summarise(rows), "rows": [write_line(row) for row in rows]}
    note(figures)
    return figures


# -- running -----------------------------------------------------------------------------------------------------------


def draw(part: str, figures: Figures, target: Path) -> None:
    """Draw the picture of a part beside its figures, if there is one to draw and something to draw it with."""
    drawn = make_panels(part, figures)
    if drawn:
        draw_panels(drawn, Path(f"{target}_{part}.svg"))


def find_stored(path: Path) -> dict[str, Any]:
    """Return the figures of each part that a file has."""
    figures: dict[str, Any] = json.loads(path.read_text())["figures"] if path.exists() else {}
    return figures


def find_rows_to_go_on_from(figures: Figures | None, plan: Plan) -> list[Row]:
    """Return rows of an earlier run of `multiply`, if it was on this machine and with this batch."""
    if not figures:
        return []
    here = describe_environment()
    same = all(figures["environment"][name] == here[name] for name in SAME_MACHINE)
    return [from_line(line) for line in figures["rows"]] if same and figures["plan"]["batch"] == plan.batch else []


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("kronecker", __doc__, "all patterns, the text's batch, both dtypes: for a GPU", PARTS)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--patterns", type=int, help="so many of the text's patterns, from all over its list")
    parser.add_argument("--batch", type=int, help="vectors, instead of the mode's")
    parser.add_argument("--seconds", type=float, help="after which no further pattern is begun; default: 230")
    parser.add_argument("--show", action="store_true", help="measure nothing: tables and pictures of what is stored")
    arguments = parser.parse_args(options)
    changed = {"patterns": arguments.patterns, "batch": arguments.batch, "seconds": arguments.seconds}
    plan = replace(
        FULL if arguments.full else SHORT, **{name: value for name, value in changed.items() if value is not None}
    )
    if plan.batch < 1 or (plan.patterns is not None and plan.patterns < 1):
        parser.error("--batch and --patterns must be at least 1")
    if arguments.show and not arguments.results:
        parser.error("--show needs --results, where figures are stored")
    name = "kronecker" + ("" if arguments.full else "_short") + ("_cuda" if arguments.device != "cpu" else "")
    target = arguments.results and arguments.results / name
    path = target and target.with_suffix(".json")
    before = find_stored(path) if path else {}
    ends = time.monotonic() + plan.seconds
    found: dict[str, Figures] = {}
    for part in [arguments.only] if arguments.only else PARTS:

        def note(figures: Figures, part: str = part) -> None:
            if path:
                keep(path, part, figures, PARTS)

        if arguments.show:
            found |= {part: before[part]} if part in before else {}
        elif part == VIT:
            found[part] = run_vit(plan, arguments.device, note)
        elif part == ENERGY:
            found[part] = run_energy(plan, arguments.device, note)
        else:
            found[part] = multiply(plan, arguments.device, find_rows_to_go_on_from(before.get(part), plan), note, ends)
    if not arguments.full:
        print("\nThis is the short mode: few patterns, a small batch, not the text's experiment.")
    for part, figures in found.items():
        SHOWN[part](figures)
        if target:
            draw(part, figures, target)
