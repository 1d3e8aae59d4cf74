"""`tamis online`: learn from a stream, over a union of architectures, and say what that cost beside a bound of it.

In the output directory are the rounds (`tamis.bayes.run`), and in the end summary.json and losses.svg.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tamis.artifact import replace_file
from tamis.bayes import (
    JOURNAL,
    LEAST_BOUND,
    OnlineLearner,
    RunSettings,
    Structure,
    build_space,
    compute_curves,
    count_rounds,
    describe_structure,
    find_experts,
    load_stream,
    run_online,
    summarise_run,
)
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table, round_up, table
from tamis.cli.interruption import note_resumption
from tamis.errors import InvalidInput
from tamis.progress import reporting
from tamis.reports import line_panels, online_panels

SUMMARY, PICTURE = "summary.json", "losses.svg"
LATELY = 50  # rounds over which the loss is shown
SHOWN = 5  # architectures
BAR = 24  # characters
KINDS = {"jumps": "jumps", "steps": "Langevin steps", "flips": "flips"}  # of moves


def online(choices: Mapping[str, Any], out: Path, device: str, as_json: bool) -> None:
    """Run the command; arguments as on the command line, `choices` those of `settings.OnlineLearning`."""
    asked, place = _parse_choices(choices), parse_device(device)
    torch.set_num_threads(1)  # sums come out alike on any number of cores, and networks this small lose by more
    if not as_json:
        make_console().print(make_fact_table(_describe_run(asked, out)))
    note_resumption(out, JOURNAL)
    with _show_progress(asked.rounds) as tell:
        run = run_online(asked, out, listen=tell, device=place)
    beside = find_experts(run)
    found = summarise_run(run, beside)
    _write(found, out / SUMMARY)
    drawn = _draw(compute_curves(run, beside), asked, out / PICTURE)
    if as_json:
        print(json.dumps({**found, "files": [str(out / name) for name in (SUMMARY, *drawn)]}, indent=2))
    else:
        _show(found, out, drawn)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _parse_choices(choices: Mapping[str, Any]) -> RunSettings:
    if choices["particles"] < 2:
        raise InvalidInput(f"--particles must be at least 2, got {choices['particles']}")
    return RunSettings(**choices)


def _describe_run(asked: RunSettings, out: Path) -> dict[str, str]:
    space, stream = build_space(
        load_stream(asked.data, asked.pool), asked.space, asked.layers, asked.filters, asked.sizes
    )
    counts = [space.count(structure) for structure in space.structures]
    union = f"{len(counts)} architectures, {min(counts):,} to {max(counts):,} weights"
    begun = f", going on from what is in {out}" if count_rounds(out / JOURNAL) else ""
    moves = f"moves see {'all' if asked.subsample is None else asked.subsample} past rounds"
    return {
        "data": f"{stream.name}, {len(stream):,} examples, {stream.classes} classes",
        "space": f"{asked.space}: {union}",
        "learner": f"{asked.particles} particles, λ {asked.lam:g}, τ {asked.tau:g}, seed {asked.seed}; {moves}",
        "rounds": f"{asked.rounds:,} of {asked.batch} examples{begun}",
    }


# -- while it runs -----------------------------------------------------------------------------------------------------


@contextmanager
def _show_progress(rounds: int) -> Iterator[Callable[[OnlineLearner], None]]:
    """Show how a run goes: a screen on a terminal, and a line now and then elsewhere."""
    if not sys.stderr.isatty():
        with reporting(True, "learning", rounds) as report:
            yield lambda learner: report(learner.rounds, **_collect_figures(learner), **_list_first(learner, 1))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, auto_refresh=False)
    task = bar.add_task("", total=rounds)
    with Live(bar, console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def tell(learner: OnlineLearner) -> None:
            bar.update(task, completed=learner.rounds)
            live.update(make_screen(bar, _collect_figures(learner), _list_first(learner, SHOWN)))

        yield tell


def make_screen(bar: Progress, figures: Mapping[str, float], shares: Mapping[str, float]) -> Group:
    """Make a bar, the figures of the moment, and the likeliest architectures with bars for their probabilities."""
    told = "   ".join(f"{name} {value:.4g}" for name, value in figures.items())
    rows = Table.grid(padding=(0, 2))
    for name, share in shares.items():
        rows.add_row(name, Text("━" * round(BAR * share), "green"), f"{share:.0%}")
    return Group(bar, Text(told), rows)


def _collect_figures(learner: OnlineLearner) -> dict[str, float]:
    posterior = learner.posterior
    lately = learner.regret.losses[-LATELY:]
    return {
        "loss": sum(lately) / len(lately),
        "effective sample": posterior.effective_size,
        **{f"{KINDS[kind]} accepted": share for kind, share in posterior.accepted.items()},
    }


def _list_first(learner: OnlineLearner, count: int) -> dict[str, float]:
    return {
        describe_structure(each): share for each, share in sort_likeliest(learner.posterior.probabilities())[:count]
    }


def sort_likeliest(shares: Mapping[Structure, float]) -> list[tuple[Structure, float]]:
    """Sort architectures by probability, the likeliest first."""
    return sorted(shares.items(), key=lambda pair: -pair[1])


# -- in the end --------------------------------------------------------------------------------------------------------


def _write(found: Mapping[str, Any], path: Path) -> None:
    with replace_file(path) as part:
        part.write_text(json.dumps(found, indent=2) + "\n")


def _draw(found: Mapping[str, Any], asked: RunSettings, path: Path) -> list[str]:
    """Draw the losses, and return the names of the pictures: one, or none without matplotlib."""
    try:
        line_panels(online_panels(found, f"{asked.data}, {asked.space}"), path)
    except InvalidInput as error:  # the summary is safe
        print(f"no picture was drawn: {error}", file=sys.stderr)
        return []
    return [path.name]


def _show(found: Mapping[str, Any], out: Path, drawn: Sequence[str]) -> None:
    paper = make_console()
    paper.print()
    paper.print(_make_loss_table(found))
    paper.print()
    paper.print(_make_architecture_table(found))
    sparsity = found["sparsity"]
    signs = f", and {sparsity['signs']:,.0f} signs" if sparsity["signs"] else ""
    told = f" of {sparsity['weights']:,.0f} weights are above τ = {sparsity['threshold']:g}{signs}"
    error = (f"{found['error of the averaged prediction']:.1%}", "bold green")
    paper.print()
    paper.print(Text.assemble("error of the averaged prediction in the last fifth of the rounds: ", error))
    paper.print(Text.assemble((f"{sparsity['nonzero']:,.0f}", "bold"), told, ", averaged over the posterior"))
    paper.print(f"saved {', '.join(str(out / name) for name in (SUMMARY, *drawn))}", soft_wrap=True)


def _make_loss_table(found: Mapping[str, Any]) -> Table:
    """Make a table of losses: sums over all rounds, and means."""
    rows = table()
    rows.add_column("loss over all rounds, nats")
    rows.add_column("sum", justify="right")
    rows.add_column("a round", justify="right")
    rounds = found["asked"]["rounds"]
    lines = {
        "networks drawn for each round": found["loss"],
        "averaged over particles": found["expected loss"],
        "bound of that, Theorem 4.1": found["bounds"][LEAST_BOUND]["value"],
        "best particle": found["loss of the best particle"],
        f"trained offline, {found['architecture trained offline']}": found["loss of the network trained offline"],
        "uniform guess": found["loss of a uniform guess"],
    }
    for name, value in lines.items():
        each = value / rounds
        if name.startswith("bound"):
            rows.add_row(name, f"{round_up(value, 1):,}", f"{round_up(each, 3)}")
        else:
            rows.add_row(name, f"{value:,.1f}", f"{each:.3f}")
    return rows


def _make_architecture_table(found: Mapping[str, Any]) -> Table:
    rows = table()
    rows.add_column("architecture")
    rows.add_column("probability", justify="right")
    for name, share in list(found["architectures"].items())[:SHOWN]:
        rows.add_row(name, f"{share:.1%}")
    return rows
