"""The commands and their options. Implementations, and with them torch, are imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tamis import __version__
from tamis.errors import TamisError


class Commands(TyperGroup):
    """Says in one red line, with exit code 2, what the user can put right; other errors are bugs with a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TamisError as error:
            _fail(str(error))
        except OSError as error:
            if error.filename is None:  # a broken pipe, say
                raise
            _fail(f"{(error.strerror or type(error).__name__).lower()}: {error.filename}")


def _fail(message: str) -> None:
    typer.secho("error: " + " ".join(message.split()), fg=typer.colors.RED, err=True)
    raise typer.Exit(2)


app = typer.Typer(
    name="tamis",
    cls=Commands,
    help="Make a trained network small, and certify what that cost.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # the help would import rich
    pretty_exceptions_enable=False,
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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to save the network.")] = Path("out/demo"),
) -> None:
    """Train a small network in seconds, and look at it."""
    from tamis.cli.demo import demo

    demo(out)


@app.command()
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A .pt2 file of torch.export.save, or package.module:factory, a callable without arguments that "
            "returns a torch.nn.Module. The current directory is importable.",
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .safetensors file with all of the factory's parameters.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="The shape of one input without the batch, such as 3,32,32. Default: the factory's or its module's "
            "attribute `example_shape`.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every row of a long table.")] = False,
) -> None:
    """Show a network's operations, their cost, and its path-norms."""
    from tamis.cli.inspect import inspect

    inspect(model, weights, shape, as_json, show_all)


def main() -> None:
    """The entry point of the `tamis` command."""
    app(prog_name="tamis")
