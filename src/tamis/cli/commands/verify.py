"""The options of `tamis verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import Group
from tamis.cli.options import CertifiedDataChoice, Computed, Json, ModelGroup
from tamis.cli.registration import command


def choose_data(
    data: Annotated[str | None, typer.Option(metavar="DATA", help="The held-out data, as it was certified on.")] = None,
    training: Annotated[str | None, typer.Option(metavar="DATA", help="The training data, if it was used.")] = None,
) -> CertifiedDataChoice:
    """Return the data of the certificate, as far as it is there."""
    return CertifiedDataChoice(data, training)


@dataclass(frozen=True)
class StatedFile:
    """A certificate and the file that it is about, in the order in which one types them."""

    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .json file.")]
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="The .tamis file that it is about.")]


@command
@with_images
def verify(
    stated: Annotated[StatedFile, Group(StatedFile)],
    model: ModelGroup,
    data: Annotated[CertifiedDataChoice, Group(choose_data)],
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
    from tamis.cli.verify import check, end_with

    found = check(stated.certificate, stated.small, model, data, signed_by, device)
    end_with(found, as_json)
