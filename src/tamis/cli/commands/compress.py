"""The options of `tamis compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Device, Json, MaxAccuracyDrop, ModelGroup
from tamis.cli.registration import command


@command
@with_images
def compress(
    model: ModelGroup,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="The folder to write to.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE", help="A .yaml file, the name of one that ships (`tamis recipes`), or a lock file."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Training data; without a split, as digits, its train and test splits. Default: RECIPE's.",
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="DATA", help="What to certify on, which no step sees, as cifar10:test.")
    ] = None,
    target_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Fit the file into so much, as 200KB, with least disagreement.")
    ] = None,
    max_disagreement: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Require that at most so many answers differ, as 2%: PASS or FAIL. Find the smallest such file, "
            "unless there is --target-bytes, or RECIPE itself quantizes, binarizes or factorizes, or is a lock file.",
        ),
    ] = None,
    max_accuracy_drop: MaxAccuracyDrop = None,
    device: Device = "cpu",
    force: Annotated[
        bool, typer.Option("--force", help="Write over files in DIR, and over another run there, finished or not.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a recipe, or search for what fits a budget, and certify what that cost.

    DIR then has small.tamis, certificate.json, report.html and recipe.lock.yaml. After a kill, the same command goes on
    from what DIR/.tamis-compress holds. With --max-disagreement or --max-accuracy-drop the certificate says PASS or
    FAIL, and the exit code is 3 where it is FAIL.
    """
    from tamis.cli.compress import compress

    budget = {
        "target_bytes": target_bytes,
        "max_disagreement": max_disagreement,
        "max_accuracy_drop": max_accuracy_drop,
    }
    compress(model, recipe, data, test, out, force, device, as_json, **budget)
