"""The options of `tamis prune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import make_settings_group
from tamis.cli.options import CALIBRATION_HELP, Json, ModelGroup, OutTamis
from tamis.cli.registration import command
from tamis.settings import Pruning


@command
@with_images
def prune(
    model: ModelGroup,
    out: OutTamis,
    choices: Annotated[dict[str, Any], make_settings_group(Pruning)],
    calibration: Annotated[
        str | None,
        typer.Option(metavar="DATA", help=f"For `--by obs`, which refits what is left to it. {CALIBRATION_HELP}"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set the weights that matter least to zero, and bound what that changes.

    With a .tamis file as --weights, AMOUNT is pruned of the weights that are left in it. With --by obs, layers that are
    finished lie in FILE.partial until all of them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.prune import prune

    prune(model, calibration, out, as_json, choices)
