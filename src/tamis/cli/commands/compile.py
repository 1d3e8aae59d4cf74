"""The options of `tamis compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import Factory, Json
from tamis.cli.registration import command


@command
def compile(
    model: Factory,
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="A .tamis file of `tamis binarize` for the model.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="A .pt2 file of torch.export to write, with packed weights."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a binary network as it runs, with packed weights and fused kernels, and check that it computes the same.

    What reads FILE must import tamis.kernels.binary first, where its operations are.
    """
    from tamis.cli.compile import compile

    compile(model, small, out, as_json)
