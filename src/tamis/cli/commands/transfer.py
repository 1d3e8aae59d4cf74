"""The options of `tamis transfer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import (
    TAMIS_FILE,
    Checkpoints,
    Device,
    Factory,
    Output,
    TrainingDataGroup,
    make_output_group,
)
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup


@command
@with_images
def transfer(
    model: Factory,
    architecture: Annotated[
        Path, typer.Argument(metavar="ARCHITECTURE", help="An .architecture file of `tamis search` for the model.")
    ],
    data: TrainingDataGroup,
    output: Annotated[Output, make_output_group(TAMIS_FILE, device=Device)],
    settings: TrainingGroup,
    directory: Checkpoints = None,
) -> None:
    """Train the connections of an architecture from fresh weights; all others are zero.

    After a kill, the same command goes on from the last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.transfer import transfer

    transfer(model, architecture, data, settings, directory, output)
