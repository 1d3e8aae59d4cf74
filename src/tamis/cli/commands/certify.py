"""The options of `tamis certify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.image_options import with_images
from tamis.cli.options import Computed, Json, MaxAccuracyDrop, MaxDisagreement, ModelGroup
from tamis.cli.registration import command


@command
@with_images
def certify(
    model: ModelGroup,
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="A .tamis file of the model.")],
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Held-out data, which neither network was made with, as cifar10:test.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The certificate to write, a .json file.")],
    delta: Annotated[
        float, typer.Option(metavar="DELTA", help="The probability that any of the claims may be wrong.")
    ] = 0.05,
    training: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Training data: says how often SMALL is wrong from how short its code is."),
    ] = None,
    candidates: Annotated[
        int, typer.Option(metavar="N", help="If SMALL was chosen by DATA: among how many networks. It is paid for.")
    ] = 1,
    coverage: Annotated[
        float, typer.Option(metavar="PART", help="How far outputs move is said for this part of all inputs.")
    ] = 0.95,
    radius: Annotated[
        float | None,
        typer.Option(
            metavar="R", help="Also prove how far outputs move when inputs change by at most R in each entry."
        ),
    ] = None,
    boxed: Annotated[int, typer.Option(metavar="N", help="With --radius: for how many inputs of DATA.")] = 8,
    max_accuracy_drop: MaxAccuracyDrop = None,
    max_disagreement: MaxDisagreement = None,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="The claims shall hold however often you look again as samples come in."),
    ] = False,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign it with the Ed25519 private key in this PEM file.")
    ] = None,
    device: Computed = "cpu",
    as_json: Json = False,
) -> None:
    """Compare a small network with the original on held-out data, and write down how they differ, as a certificate.

    MODEL and --weights are the original; SMALL is the file that will be used. Every sentence of the certificate is a
    proof, or holds for other data with a confidence of 1 - DELTA, all of them together. A certificate that is there
    already is replaced. With --max-accuracy-drop or --max-disagreement it says PASS or FAIL, and the exit code is 3
    where it is FAIL. Under torchrun the processes share the data out.
    """
    from tamis.cli.certify import certify

    asked: dict[str, Any] = {"delta": delta, "candidates": candidates, "coverage": coverage, "radius": radius}
    asked |= {"boxed": boxed, "sequential": sequential, "sign": sign}
    required = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    certify(model, small, data, training, device, out, as_json, **required, **asked)
