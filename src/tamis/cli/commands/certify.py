"""The options of `tamis certify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.image_options import with_images
from tamis.cli.option_groups import Group, make_settings_group
from tamis.cli.options import CertifiedDataChoice, Computed, ModelGroup, Output, Small, make_output_group
from tamis.cli.registration import command
from tamis.settings import Certification


def choose_data(
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Held-out data, which neither network was made with, as cifar10:test.")
    ],
    training: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Training data: says how often SMALL is wrong from how short its code is."),
    ] = None,
) -> CertifiedDataChoice:
    """Return the data to certify on."""
    return CertifiedDataChoice(data, training)


@command
@with_images
def certify(
    model: ModelGroup,
    small: Small,
    data: Annotated[CertifiedDataChoice, Group(choose_data)],
    output: Annotated[Output, make_output_group("The certificate to write, a .json file.", device=Computed)],
    choices: Annotated[dict[str, Any], make_settings_group(Certification)],
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign it with the Ed25519 private key in this PEM file.")
    ] = None,
) -> None:
    """Compare a small network with the original on held-out data, and write down how they differ, as a certificate.

    MODEL and --weights are the original; SMALL is the file that will be used. Every sentence of the certificate is a
    proof, or holds for other data with a confidence of 1 - DELTA, all of them together. A certificate that is there
    already is replaced. With --max-accuracy-drop or --max-disagreement it says PASS or FAIL, and the exit code is 3
    where it is FAIL. Under torchrun the processes share the data out.
    """
    from tamis.cli.certify import certify

    certify(model, small, data, choices, sign, output)
