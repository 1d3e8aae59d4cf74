"""The options of `tamis report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import Json, Shape, Trust, Weights
from tamis.cli.registration import command


@command
def report(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .json file.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .html file to write.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The original, as other commands take it: for layers, costs and latencies."),
    ] = None,
    small: Annotated[
        Path | None,
        typer.Option(metavar="SMALL", help="The .tamis file. Default: the one of its name beside the certificate."),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="How many inputs at once to measure the latency with.")] = 1,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Make a page of a certificate, for people to read, print or send on: one .html file that needs nothing else."""
    from tamis.cli.report import report

    report(certificate, out, model, weights, shape, trust, small, batch, as_json)
