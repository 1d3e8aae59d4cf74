"""Arguments and options that several commands have in common. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.option_groups import Group

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .pt2 file of torch.export.save, or package.module:factory, a callable without arguments that "
        "returns a torch.nn.Module. Modules of the current directory are found.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A .safetensors, .pt or .pth file with all of the factory's parameters, or a .tamis file of the model.",
    ),
]
Shape = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="The shape of one input without the batch, such as 3,32,32. Default: the factory's or its module's "
        "attribute `example_shape`.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Read a .pt2 file even if it can run code of whoever made it, as with pickled weights or rare operations.",
    ),
]


@dataclass(frozen=True)
class ModelChoice:
    """The original network as a command names it: MODEL with the options that it needs to be read."""

    model: Model
    weights: Weights = None
    shape: Shape = None
    trust: Trust = False


ModelGroup = Annotated[ModelChoice, Group(ModelChoice)]
CALIBRATION_HELP = (
    "Inputs, as of training, some hundreds or thousands: a name or a path, as cifar10:train[:5000], or what is in a "
    "Python module, as mydata:loader."
)
Calibration = Annotated[str, typer.Option(metavar="DATA", help=CALIBRATION_HELP)]
TestData = Annotated[
    str | None, typer.Option("--data", metavar="DATA", help="What to measure accuracies on, before and after.")
]
OutTamis = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .tamis file to write.")]
MaxAccuracyDrop = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Require that at most so much accuracy is lost, as 1pt or 0.01: PASS or FAIL."),
]
MaxDisagreement = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Require that at most so many answers differ, as 2%: PASS or FAIL."),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Factory = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="package.module:factory, a callable without arguments that returns a torch.nn.Module with a score for "
        "each class. Modules of the current directory are found.",
    ),
]
TrainingData = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        help="What to train on: a name or a path, with a split and a slice if you like, as cifar10:train[:5000].",
    ),
]
MeasuredData = Annotated[str | None, typer.Option(metavar="DATA", help="What to measure on after each epoch.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        "--dir",
        metavar="DIR",
        help="Where each epoch leaves a checkpoint. Default: FILE.partial, which is gone when FILE is there.",
    ),
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to train.")]
Computed = Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="Where to compute.")]
