"""The options of `tamis train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Device, FactoryGroup, Output, TrainingDataGroup, make_output_group
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup


@command
@with_images
def train(
    model: FactoryGroup,
    data: TrainingDataGroup,
    directory: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Where each epoch leaves a checkpoint; the same command goes on from the last one."
        ),
    ],
    output: Annotated[
        Output, make_output_group("The file to write: weights (.safetensors) or a network (.tamis).", device=Device)
    ],
    settings: TrainingGroup,
    l1inf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="C",
            help="After each step, project every hidden neuron's weights with its bias onto the ℓ1 ball of this "
            "radius, which makes many of them zero; or those of a layer, as linear1=0.1, once for each layer, the "
            "others being free.",
        ),
    ] = None,
) -> None:
    """Train a network to classify; what a .tamis file has pruned stays pruned.

    Settings left out are those of tamis.training.Settings; what is in effect is printed at the beginning. Under
    torchrun (torchrun --nproc-per-node 4 -m tamis train ...) the processes share the work.
    """
    from tamis.cli.train import train

    train(model, data, directory, settings, l1inf or [], output)
