"""The commands of `tamis kronecker` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import Factory, Json, Shape, Weights
from tamis.cli.registration import ListedCommands, new_group

kronecker = new_group(
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
def kronecker_bench(
    patterns: Annotated[
        list[str],
        typer.Argument(metavar="PATTERN...", help="Patterns a,b,c,d, such as 1,192,48,2, one after the other."),
    ],
    batch: Annotated[int, typer.Option(metavar="B", help="Vectors to multiply.")] = 512,
    dtype: Annotated[str, typer.Option(metavar="float32|float16|bfloat16|float64")] = "float32",
    layout: Annotated[
        str, typer.Option(metavar="batch_first|batch_last", help="Vectors as rows, as torch has them, or as columns.")
    ] = "batch_first",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to multiply.")] = "cpu",
    tune: Annotated[
        bool, typer.Option("--tune", help="First measure what is fastest, and have it chosen from now on.")
    ] = False,
    energy: Annotated[bool, typer.Option("--energy", help="Measure joules, too: about a second for each.")] = False,
    as_json: Json = False,
) -> None:
    """Time every way to multiply by these Kronecker-sparse matrices, and say which one runs, and why."""
    from tamis.cli.kronecker_bench import bench

    bench(patterns, batch, dtype, layout, device, tune, energy, as_json)


@kronecker.command("replace")
def kronecker_replace(
    model: Factory,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="FILE", help="The file to write: a network (.tamis) or weights (.safetensors)."
        ),
    ],
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRODUCT",
            help="Patterns with / between, such as 1,192,48,2/2,48,192,1, for all layers of its size; may be repeated.",
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="Instead of --patterns: monarch:P, low_rank:R, butterfly, block_butterfly:T, kaleidoscope, or "
            "suggest:BUDGET.",
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option(metavar="LAYERS", help="Which layers stay: names or patterns, with commas between.")
    ] = "",
    begin: Annotated[
        str,
        typer.Option(metavar="factorized|scratch", help="Products nearest to the weights, or drawn anew for training."),
    ] = "factorized",
    convolutions: Annotated[bool, typer.Option("--convolutions", help="Replace convolutions, too.")] = False,
    refine: Annotated[int, typer.Option(metavar="N", help="Steps of L-BFGS after a factorization.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn.")] = 0,
    weights: Weights = None,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Replace linear layers by products of Kronecker-sparse factors, and say how far each is from what it was.

    Outputs change: train the network further. In Python, tamis.load(FILE, tamis.kronecker.replace(model, LAYERS,
    begin="scratch")) reads it, with LAYERS from its recipe.
    """
    from tamis.cli.kronecker_replace import replace

    how = {"begin": begin, "convolutions": convolutions, "refine": refine, "seed": seed}
    replace(model, weights, shape, patterns or [], family, keep, out, as_json, **how)
