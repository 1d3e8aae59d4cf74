"""The options of `tamis verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Computed, Json, ModelGroup
from tamis.cli.registration import command


@command
@with_images
def verify(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .json file.")],
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="The .tamis file that it is about.")],
    model: ModelGroup,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="The held-out data, as it was certified on.")] = None,
    training: Annotated[str | None, typer.Option(metavar="DATA", help="The training data, if it was used.")] = None,
    signed_by: Annotated[
        Path | None, typer.Option(metavar="KEY", help="The public key, in PEM form, that must have signed it.")
    ] = None,
    device: Computed = "cpu",
    as_json: Json = False,
) -> None:
    """Check a certificate: compute everything that it says again, and stop at the first thing that is not so.

    MODEL and --weights are the original, and DATA is what it was certified on. The exit code is 0 if all of it is true,
    2 if something is not, and 1 if something could not be checked for want of DATA, unless --signed-by vouches for it.
    """
    from tamis.cli.verify import verify

    verify(certificate, small, model, data, training, signed_by, device, as_json)
