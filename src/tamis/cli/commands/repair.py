"""The options of `tamis repair`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import settings_group
from tamis.cli.options import Calibration, Json, ModelGroup, OutTamis, TestData
from tamis.cli.registration import command
from tamis.settings import Repair


@command
@with_images
def repair(
    model: ModelGroup,
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="A .tamis file of the model.")],
    calibration: Calibration,
    out: OutTamis,
    choices: Annotated[dict[str, Any], settings_group(Repair)],
    data: TestData = None,
    as_json: Json = False,
) -> None:
    """Refit what pruning and quantization left to the original network, without training.

    --weights are those of the original. Masks and levels stay; weights and scales are chosen anew. Layers that are
    finished lie in FILE.partial until all of them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.repair import repair

    repair(model, small, calibration, data, out, as_json, choices)
