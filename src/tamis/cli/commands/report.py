"""The options of `tamis report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.option_groups import Group
from tamis.cli.options import ModelChoice, Output, Shape, Trust, Weights, make_output_group
from tamis.cli.registration import command
from tamis.errors import InvalidInput


def choose_original(
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The original, as other commands take it: for layers, costs and latencies."),
    ] = None,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
) -> ModelChoice | None:
    """Return the original that the page compares with, if there is one."""
    if model is None and (weights is not None or shape is not None):
        raise InvalidInput("--weights and --shape are those of the original: name it with --model")
    return None if model is None else ModelChoice(model, weights, shape, trust)


@command
def report(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .json file.")],
    output: Annotated[Output, make_output_group("The .html file to write.")],
    original: Annotated[ModelChoice | None, Group(choose_original)],
    small: Annotated[
        Path | None,
        typer.Option(metavar="SMALL", help="The .tamis file. Default: the one of its name beside the certificate."),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="How many inputs at once to measure the latency with.")] = 1,
) -> None:
    """Make a page of a certificate, for people to read, print or send on: one .html file that needs nothing else."""
    from tamis.cli.report import report

    report(certificate, original, small, batch, output)
