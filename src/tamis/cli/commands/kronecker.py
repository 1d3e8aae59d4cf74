"""The commands of `tamis kronecker` and their options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tamis.cli.option_groups import Group, make_settings_group, with_groups
from tamis.cli.options import Json, Multiplication, Output, Products, ShapedFactoryGroup, make_output_group
from tamis.cli.registration import ListedCommands, make_group
from tamis.settings import Factorization

kronecker = make_group(
    name="kronecker",
    cls=ListedCommands,
    help="Products of Kronecker-sparse matrices in the place of dense ones.",
    no_args_is_help=True,
)


@kronecker.command("suggest")
def kronecker_suggest(
    rows: Annotated[int, typer.Argument(metavar="M", help="Rows of the dense matrix: outputs of the layer.")],
    columns: Annotated[int, typer.Argument(metavar="N", help="Its columns: inputs of the layer.")],
    budget: Annotated[
        str, typer.Option(metavar="BUDGET", help="The most weights: a share (0.25), a percentage (25%) or a number.")
    ],
    target: Annotated[
        str, typer.Option(metavar="time|energy", help="Which heuristic products are ranked by.")
    ] = "time",
    factors: Annotated[int, typer.Option(metavar="L", help="The most factors of a product.")] = 2,
    as_json: Json = False,
) -> None:
    """Rank products of Kronecker-sparse factors that are dense, for a matrix of M rows and N columns."""
    from tamis.cli.kronecker_suggest import suggest

    suggest(rows, columns, budget, target, factors, as_json)


@kronecker.command("bench")
@with_groups
def kronecker_bench(
    patterns: Annotated[
        list[str],
        typer.Argument(metavar="PATTERN...", help="Patterns a,b,c,d, such as 1,192,48,2, one after the other."),
    ],
    how: Annotated[Multiplication, Group(Multiplication)],
    tune: Annotated[
        bool, typer.Option("--tune", help="First measure what is fastest, and have it chosen from now on.")
    ] = False,
    energy: Annotated[bool, typer.Option("--energy", help="Measure joules, too: about a second for each.")] = False,
    as_json: Json = False,
) -> None:
    """Time every way to multiply by these Kronecker-sparse matrices, and say which one runs, and why."""
    from tamis.cli.kronecker_bench import bench

    bench(patterns, how, tune, energy, as_json)


@kronecker.command("replace")
@with_groups
def kronecker_replace(
    model: ShapedFactoryGroup,
    output: Annotated[Output, make_output_group("The file to write: a network (.tamis) or weights (.safetensors).")],
    products: Annotated[Products, Group(Products)],
    choices: Annotated[dict[str, Any], make_settings_group(Factorization)],
) -> None:
    """Replace linear layers by products of Kronecker-sparse factors, and say how far each is from what it was.

    Outputs change: train the network further. In Python, tamis.load(FILE, tamis.kronecker.replace(model, LAYERS,
    begin="scratch")) reads it, with LAYERS from its recipe.
    """
    from tamis.cli.kronecker_replace import replace

    replace(model, products, choices, output)
