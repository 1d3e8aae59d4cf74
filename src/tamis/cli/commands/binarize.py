"""The options of `tamis binarize`."""

from __future__ import annotations

from typing import Annotated, Any

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import make_settings_group
from tamis.cli.options import (
    TAMIS_FILE,
    Checkpoints,
    Device,
    FactoryGroup,
    Output,
    TrainingDataGroup,
    make_output_group,
)
from tamis.cli.registration import command
from tamis.cli.training_options import TrainingGroup
from tamis.settings import Binarization


@command
@with_images
def binarize(
    model: FactoryGroup,
    data: TrainingDataGroup,
    output: Annotated[Output, make_output_group(TAMIS_FILE, device=Device)],
    settings: TrainingGroup,
    choices: Annotated[dict[str, Any], make_settings_group(Binarization)],
    directory: Checkpoints = None,
) -> None:
    """Make most layers of a network binary, +1 or -1 for weights and activations, and train it in two stages.

    FILE has one bit for each binary weight; `tamis compile` runs it. After a kill, the same command goes on from the
    last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.binarize import binarize

    binarize(model, data, settings, choices, directory, output)
