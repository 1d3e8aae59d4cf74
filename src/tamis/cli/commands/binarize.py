"""The options of `tamis binarize`."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Checkpoints, Device, Factory, Json, MeasuredData, OutTamis, TrainingData, Weights
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup


@command
@with_images
def binarize(
    model: Factory,
    data: TrainingData,
    out: OutTamis,
    settings: TrainingGroup,
    test: MeasuredData = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="rank_one|spatial|full|channel|analytic",
            help="What an output of a binary layer is multiplied with: learnt for channels, rows and columns, and how "
            "these go together, or the mean size of the weights.",
        ),
    ] = "rank_one",
    estimator: Annotated[
        str, typer.Option(metavar="clipped|approx_sign|rsign", help="What stands for the gradient of a sign.")
    ] = "clipped",
    keep: Annotated[
        str,
        typer.Option(
            metavar="LAYERS", help="Which layers stay real: first, last, and names or patterns, with commas between."
        ),
    ] = "first,last",
    activation_epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Epochs of the first stage, with binary activations and real weights; 0 leaves it out. Default: as "
            "--epochs, which are those of the second stage.",
        ),
    ] = None,
    directory: Checkpoints = None,
    device: Device = "cpu",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Make most layers of a network binary, +1 or -1 for weights and activations, and train it in two stages.

    FILE has one bit for each binary weight; `tamis compile` runs it. After a kill, the same command goes on from the
    last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.binarize import binarize

    how = {"scale": scale, "estimator": estimator}
    binarize(model, weights, data, test, keep, activation_epochs, directory, out, device, as_json, settings, **how)
