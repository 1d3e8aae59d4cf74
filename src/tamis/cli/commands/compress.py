"""The options of `tamis compress`."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import Group
from tamis.cli.options import Budget, Device, ModelGroup, Output, SplitsChoice, make_output_group
from tamis.cli.registration import command


@command
@with_images
def compress(
    model: ModelGroup,
    output: Annotated[Output, make_output_group("The folder to write to.", "DIR", Device)],
    data: Annotated[SplitsChoice, Group(SplitsChoice)],
    budget: Annotated[Budget, Group(Budget)],
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE", help="A .yaml file, the name of one that ships (`tamis recipes`), or a lock file."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files in DIR, and over another run there, finished or not.")
    ] = False,
) -> None:
    """Run a recipe, or search for what fits a budget, and certify what that cost.

    DIR then has small.tamis, certificate.json, report.html and recipe.lock.yaml. After a kill, the same command goes on
    from what DIR/.tamis-compress holds. With --max-disagreement or --max-accuracy-drop the certificate says PASS or
    FAIL, and the exit code is 3 where it is FAIL.
    """
    from tamis.cli.compress import compress

    compress(model, recipe, data, budget, force, output)
