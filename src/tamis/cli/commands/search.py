"""The options of `tamis search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Checkpoints, Device, Factory, Json, TrainingData, Weights
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup


@command
@with_images
def search(
    model: Factory,
    data: TrainingData,
    sparsity: Annotated[float, typer.Option(metavar="PART", help="The part of all connections that goes, as 0.9.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .architecture file to write.")],
    settings: TrainingGroup,
    t_l: Annotated[
        float | None, typer.Option("--t-l", metavar="T", help="The inverse of the low temperature, of the masks.")
    ] = None,
    t_s: Annotated[
        float | None,
        typer.Option(
            "--t-s", metavar="T", help="The inverse of the high temperature, of their gradient. Default: t_l / 10."
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            metavar="GAMMA",
            help="Of the penalty. Default: one that takes connections that nothing holds in half of the epochs.",
        ),
    ] = None,
    mask_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="The largest learning rate of the masks.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Mask only these weights or modules; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Leave these weights or modules whole, as the last layer; may be repeated."
        ),
    ] = None,
    directory: Checkpoints = None,
    device: Device = "cpu",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Find which connections of a network to keep, by training masks and weights together.

    Training begins with --weights, or with the factory's. FILE holds the connections and no weight: `tamis transfer`
    trains them anew, on other data if you like. Options left out are as tamis.architecture.search has them. After a
    kill, the same command goes on from the last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.search import search

    how = {"t_l": t_l, "t_s": t_s, "gamma": gamma, "mask_rate": mask_rate, "include": include, "exclude": exclude}
    given = {name: value for name, value in how.items() if value is not None}
    search(model, weights, data, sparsity, directory, out, device, as_json, settings, **given)
