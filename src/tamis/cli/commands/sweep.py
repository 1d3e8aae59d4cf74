"""The commands of `tamis sweep` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.options import Device, Json, MaxAccuracyDrop, MaxDisagreement, Trust
from tamis.cli.registration import ListedCommands, new_group


class SweepCommands(ListedCommands):
    """`tamis sweep FILE` stands for `tamis sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and args[0] in ("-h", "--help", *self.commands)
        return super().parse_args(ctx, args if named or not args else ["run", *args])


sweep = new_group(
    name="sweep",
    cls=SweepCommands,
    help="Make many small networks of one model, compare them, and certify the best: `tamis sweep SPEC -o DIR`.",
    no_args_is_help=True,
)
SweepSpec = Annotated[Path, typer.Argument(metavar="SPEC", help="A .yaml file that says what to try, and on what.")]
SweepFolder = Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="The folder to write to.")]
Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The database, as postgresql://user@host/name. Default: DIR/sweep.db, by SQLite."),
]


@sweep.command("run")
def sweep_run(
    spec: SweepSpec,
    out: SweepFolder,
    storage: Storage = None,
    max_accuracy_drop: MaxAccuracyDrop = None,
    max_disagreement: MaxDisagreement = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Make what SPEC asks for, together with all workers, and certify the best.

    The word `run` may be left out. DIR then has results.json, report.html, and a folder for each network made here.
    After a kill, the same command goes on. Where no network is within the limits of SPEC, the exit code is 1; where
    none is certified to be as good as --max-accuracy-drop and --max-disagreement require, it is 3.
    """
    from tamis.cli.sweep import run

    required = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    run(spec, out, storage, device, trust, as_json, **required)


@sweep.command("worker")
def sweep_worker(
    spec: SweepSpec,
    out: SweepFolder,
    storage: Storage = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Help with the sweep of SPEC, here or on another machine, until all networks are made."""
    from tamis.cli.sweep import worker

    worker(spec, out, storage, device, trust, as_json)
