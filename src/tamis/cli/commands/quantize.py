"""The options of `tamis quantize`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import make_settings_group
from tamis.cli.options import TAMIS_FILE, CalibrationGroup, Computed, ModelGroup, Output, make_output_group
from tamis.cli.registration import command
from tamis.settings import Quantization


@command
@with_images
def quantize(
    model: ModelGroup,
    data: CalibrationGroup,
    output: Annotated[Output, make_output_group(TAMIS_FILE, device=Computed)],
    choices: Annotated[dict[str, Any], make_settings_group(Quantization)],
    prune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT",
            help="First prune so much by magnitude, as `tamis prune` takes it, and fit what is left to the original.",
        ),
    ] = None,
) -> None:
    """Put the weights of every layer on a few levels, without training.

    What a .tamis file as --weights has pruned stays pruned. Layers that are finished lie in FILE.partial until all of
    them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.quantize import quantize

    quantize(model, data, prune or [], choices, output)
