"""The options of `tamis search`."""

from __future__ import annotations

from typing import Annotated, Any

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import make_settings_group
from tamis.cli.options import Checkpoints, Device, FactoryGroup, Output, TrainingData, make_output_group
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup
from tamis.settings import Search


@command
@with_images
def search(
    model: FactoryGroup,
    data: TrainingData,
    output: Annotated[Output, make_output_group("The .architecture file to write.", device=Device)],
    settings: TrainingGroup,
    choices: Annotated[dict[str, Any], make_settings_group(Search)],
    directory: Checkpoints = None,
) -> None:
    """Find which connections of a network to keep, by training masks and weights together.

    Training begins with --weights, or with the factory's. FILE holds the connections and no weight: `tamis transfer`
    trains them anew, on other data if you like. After a kill, the same command goes on from the last epoch. Under
    torchrun the processes share the work.
    """
    from tamis.cli.search import search

    search(model, data, settings, choices, directory, output)
