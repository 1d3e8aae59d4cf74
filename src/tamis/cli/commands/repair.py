"""The options of `tamis repair`."""

from __future__ import annotations

from typing import Annotated, Any

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import make_settings_group
from tamis.cli.options import TAMIS_FILE, CalibrationGroup, ModelGroup, Output, Small, make_output_group
from tamis.cli.registration import command
from tamis.settings import Repair


@command
@with_images
def repair(
    model: ModelGroup,
    small: Small,
    data: CalibrationGroup,
    output: Annotated[Output, make_output_group(TAMIS_FILE)],
    choices: Annotated[dict[str, Any], make_settings_group(Repair)],
) -> None:
    """Refit what pruning and quantization left to the original network, without training.

    --weights are those of the original. Masks and levels stay; weights and scales are chosen anew. Layers that are
    finished lie in FILE.partial until all of them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.repair import repair

    repair(model, small, data, choices, output)
