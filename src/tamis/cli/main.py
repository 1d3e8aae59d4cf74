"""The `tamis` command: which commands there are, and how their errors and interruptions end.

Each command is declared in its file in `tamis.cli.commands`, which is imported when the command is called; the help of
`tamis` itself needs none of them.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from tamis import __version__
from tamis.cli import interruption
from tamis.cli.command_line import remember_arguments
from tamis.cli.messages import find_options, rewrite_in_options
from tamis.cli.registration import ListedCommands, make_group
from tamis.errors import TamisError

# The first sentence of each command's help, which the help of `tamis` lists.
SENTENCES = {
    "demo": "Train a small network in seconds, look at it, prune it, quantize it, and certify what that cost.",
    "inspect": "Show a network's operations, their cost, and its path-norms.",
    "prune": "Set the weights that matter least to zero, and bound what that changes.",
    "quantize": "Put the weights of every layer on a few levels, without training.",
    "repair": "Refit what pruning and quantization left to the original network, without training.",
    "train": "Train a network to classify; what a .tamis file has pruned stays pruned.",
    "search": "Find which connections of a network to keep, by training masks and weights together.",
    "transfer": "Train the connections of an architecture from fresh weights; all others are zero.",
    "binarize": "Make most layers of a network binary, +1 or -1 for weights and activations, and train it in two "
    "stages.",
    "compile": "Show a binary network as it runs, with packed weights and fused kernels, and check that it computes "
    "the same.",
    "online": "Learn from a stream round by round, over networks of several architectures, beside a bound of what "
    "that costs.",
    "certify": "Compare a small network with the original on held-out data, and write down how they differ, as a "
    "certificate.",
    "verify": "Check a certificate: compute everything that it says again, and stop at the first thing that is not so.",
    "report": "Make a page of a certificate, for people to read, print or send on: one .html file that needs "
    "nothing else.",
    "compress": "Run a recipe, or search for what fits a budget, and certify what that cost.",
    "recipes": "List the recipes that ship, print one to begin your own with, or print the schema.",
    "doctor": "Say what tamis finds here: torch, its own extension, which kernels run and why, GPUs, the data folder.",
    "sweep": "Make many small networks of one model, compare them, and certify the best: `tamis sweep SPEC -o DIR`.",
    "kronecker": "Products of Kronecker-sparse matrices in the place of dense ones.",
}


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in SENTENCES:
            raise KeyError(name)
        found = getattr(import_module(f"tamis.cli.commands.{name}"), name)
        return get_command(found) if isinstance(found, typer.Typer) else found

    def __iter__(self) -> Iterator[str]:
        return iter(SENTENCES)

    def __len__(self) -> int:
        return len(SENTENCES)


class Commands(ListedCommands):
    """Says in one red line, with exit code 2, what the user can put right; other errors are bugs with a traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return [*SENTENCES]

    def sentences(self) -> dict[str, str]:
        return SENTENCES

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remember_arguments(args)
        interruption.begin()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TamisError as error:
            _fail(rewrite_in_options(str(error), find_options(self.commands[ctx.invoked_subcommand]), self.commands))
        except KeyboardInterrupt:
            if interruption.is_leader():
                typer.echo(f"\n{interruption.explain_how_to_go_on()}", err=True)
            raise typer.Exit(interruption.INTERRUPTED) from None
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # whoever read our output has had enough
                raise
            what = (error.strerror or type(error).__name__).lower()
            _fail(what if error.filename is None else f"{what}: {error.filename}")


def _fail(message: str) -> None:
    color = False if os.environ.get("NO_COLOR") else None  # None: on a terminal
    typer.secho("error: " + " ".join(message.split()), fg=typer.colors.RED, err=True, color=color)
    raise typer.Exit(2)


app = make_group(
    name="tamis",
    cls=Commands,
    help="Make a trained network small, and certify what that cost.",
    no_args_is_help=True,
    epilog="Exit codes: 0 done; 1 something could not be checked, or nothing was found; 2 something to put right, said "
    "in one line; 3 FAIL: not as good as required; 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tamis {__version__}")
        raise typer.Exit


@app.callback()
def tamis(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `tamis` itself."""


def main() -> None:
    """Run the `tamis` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")  # a "?" for what it has no letters for, as ≤, and not an error
    app(prog_name="tamis")
