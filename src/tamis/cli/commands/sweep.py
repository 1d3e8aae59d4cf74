"""The commands of `tamis sweep` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.option_groups import with_groups
from tamis.cli.options import Device, Output, RequirementsGroup, Trust, make_output_group
from tamis.cli.registration import ListedCommands, make_group


class SweepCommands(ListedCommands):
    """`tamis sweep FILE` stands for `tamis sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and args[0] in ("-h", "--help", *self.commands)
        return super().parse_args(ctx, args if named or not args else ["run", *args])


sweep = make_group(
    name="sweep",
    cls=SweepCommands,
    help="Make many small networks of one model, compare them, and certify the best: `tamis sweep SPEC -o DIR`.",
    no_args_is_help=True,
)
SweepSpec = Annotated[Path, typer.Argument(metavar="SPEC", help="A .yaml file that says what to try, and on what.")]
SweepOutput = Annotated[Output, make_output_group("The folder to write to.", "DIR", Device)]
Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The database, as postgresql://user@host/name. Default: DIR/sweep.db, by SQLite."),
]


@sweep.command("run")
@with_groups
def sweep_run(
    spec: SweepSpec,
    output: SweepOutput,
    required: RequirementsGroup,
    storage: Storage = None,
    trust: Trust = False,
) -> None:
    """Make what SPEC asks for, together with all workers, and certify the best.

    The word `run` may be left out. DIR then has results.json, report.html, and a folder for each network made here.
    After a kill, the same command goes on. Where no network is within the limits of SPEC, the exit code is 1; where
    none is certified to be as good as --max-accuracy-drop and --max-disagreement require, it is 3.
    """
    from tamis.cli.sweep import run

    run(spec, required, storage, trust, output)


@sweep.command("worker")
@with_groups
def sweep_worker(
    spec: SweepSpec,
    output: SweepOutput,
    storage: Storage = None,
    trust: Trust = False,
) -> None:
    """Help with the sweep of SPEC, here or on another machine, until all networks are made."""
    from tamis.cli.sweep import worker

    worker(spec, storage, trust, output)
