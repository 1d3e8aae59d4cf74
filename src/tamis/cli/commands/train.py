"""The options of `tamis train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Device, Factory, Json, MeasuredData, TrainingData, Weights
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup


@command
@with_images
def train(
    model: Factory,
    data: TrainingData,
    directory: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Where each epoch leaves a checkpoint; the same command goes on from the last one."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="FILE", help="The file to write: weights (.safetensors) or a network (.tamis)."
        ),
    ],
    settings: TrainingGroup,
    test: MeasuredData = None,
    l1inf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="C",
            help="After each step, project every hidden neuron's weights with its bias onto the ℓ1 ball of this "
            "radius, which makes many of them zero; or those of a layer, as linear1=0.1, once for each layer, the "
            "others being free.",
        ),
    ] = None,
    device: Device = "cpu",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Train a network to classify; what a .tamis file has pruned stays pruned.

    Settings left out are those of tamis.training.Settings; what is in effect is printed at the beginning. Under
    torchrun (torchrun --nproc-per-node 4 -m tamis train ...) the processes share the work.
    """
    from tamis.cli.train import train

    train(model, weights, data, test, directory, out, device, l1inf or [], as_json, settings)
