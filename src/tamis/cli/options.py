"""Arguments and options that several commands have in common. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.option_groups import Group, list_parameters, make_settings_group
from tamis.settings import Certification, help_of

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
Small = Annotated[Path, typer.Argument(metavar="SMALL", help="A .tamis file of the model.")]
CALIBRATION_HELP = (
    "Inputs, as of training, some hundreds or thousands: a name or a path, as cifar10:train[:5000], or what is in a "
    "Python module, as mydata:loader."
)
Calibration = Annotated[str, typer.Option(metavar="DATA", help=CALIBRATION_HELP)]
TestData = Annotated[
    str | None, typer.Option("--data", metavar="DATA", help="What to measure accuracies on, before and after.")
]
OutTamis = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .tamis file to write.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Factory = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="package.module:factory, a callable without arguments that returns a torch.nn.Module with a score for "
        "each class. Modules of the current directory are found.",
    ),
]


def choose_factory(model: Factory, weights: Weights = None) -> ModelChoice:
    """Return the choice of a module that is made anew by a factory, as training needs it."""
    return ModelChoice(model, weights)


def choose_factory_of_shape(model: Factory, weights: Weights = None, shape: Shape = None) -> ModelChoice:
    """Return the choice of a factory, with the shape of an input where the module has to be traced as well."""
    return ModelChoice(model, weights, shape)


FactoryGroup = Annotated[ModelChoice, Group(choose_factory)]
ShapedFactoryGroup = Annotated[ModelChoice, Group(choose_factory_of_shape)]

# -- data --------------------------------------------------------------------------------------------------------------

TrainingData = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        help="What to train on: a name or a path, with a split and a slice if you like, as cifar10:train[:5000].",
    ),
]
MeasuredData = Annotated[str | None, typer.Option(metavar="DATA", help="What to measure on after each epoch.")]


@dataclass(frozen=True)
class TrainingDataChoice:
    """The data of a training as a command names it: to train on, and to measure on after each epoch."""

    data: TrainingData
    test: MeasuredData = None


TrainingDataGroup = Annotated[TrainingDataChoice, Group(TrainingDataChoice)]


@dataclass(frozen=True)
class CalibrationChoice:
    """The data of a command that works layer by layer: inputs to fit layers to, and what to measure accuracies on."""

    calibration: Calibration
    data: TestData = None


CalibrationGroup = Annotated[CalibrationChoice, Group(CalibrationChoice)]


@dataclass(frozen=True)
class CertifiedDataChoice:
    """The data that a certificate is about: held out, and, for the bound from the code length, that of training."""

    data: str | None
    training: str | None = None


@dataclass(frozen=True)
class SplitsChoice:
    """The data of `tamis compress`: what recipes train and fit on, and what no step sees."""

    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Training data; without a split, as digits, its train and test splits. Default: RECIPE's.",
        ),
    ] = None
    test: Annotated[
        str | None, typer.Option(metavar="DATA", help="What to certify on, which no step sees, as cifar10:test.")
    ] = None


# -- where a command computes, and what it leaves ----------------------------------------------------------------------

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


@dataclass(frozen=True)
class Output:
    """What a command leaves: the file or folder that it writes, where it computes it, and whether it prints JSON."""

    out: Path
    device: str = "cpu"
    as_json: Json = False


def make_output_group(help: str, metavar: str = "FILE", device: Any = None) -> Group:
    """Make the options -o, --json and, where a command may compute on a GPU, --device.

    Args:
        help: what is written.
        metavar: what stands for it, FILE or DIR.
        device: the option, `Device` for commands that train and `Computed` for others; None: there is none.
    """
    out = Annotated[Path, typer.Option("-o", "--out", metavar=metavar, help=help)]
    found = list_parameters(Output)
    options = {"out": found["out"].replace(annotation=out)}
    if device is not None:
        options["device"] = found["device"].replace(annotation=device)
    return Group(Output, {**options, "as_json": found["as_json"]})


TAMIS_FILE = "The .tamis file to write."
REQUIREMENTS = ("max_accuracy_drop", "max_disagreement")  # what a certificate must show
RequirementsGroup = Annotated[dict[str, Any], make_settings_group(Certification, REQUIREMENTS)]


@dataclass(frozen=True)
class Budget:
    """What the result of `tamis compress` may cost: bytes, answers that differ, accuracy."""

    target_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Fit the file into so much, as 200KB, with least disagreement.")
    ] = None
    max_disagreement: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Require that at most so many answers differ, as 2%: PASS or FAIL. Find the smallest such file, "
            "unless there is --target-bytes, or RECIPE itself quantizes, binarizes or factorizes, or is a lock file.",
        ),
    ] = None
    max_accuracy_drop: Annotated[
        str | None, typer.Option(metavar="RATE", help=help_of(Certification, "max_accuracy_drop"))
    ] = None


@dataclass(frozen=True)
class Multiplication:
    """What `tamis kronecker bench` multiplies, and where."""

    batch: Annotated[int, typer.Option(metavar="B", help="Vectors to multiply.")] = 512
    dtype: Annotated[str, typer.Option(metavar="float32|float16|bfloat16|float64")] = "float32"
    layout: Annotated[
        str, typer.Option(metavar="batch_first|batch_last", help="Vectors as rows, as torch has them, or as columns.")
    ] = "batch_first"
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to multiply.")] = "cpu"


@dataclass(frozen=True)
class Products:
    """By which products `tamis kronecker replace` replaces layers."""

    patterns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRODUCT",
            help="Patterns with / between, such as 1,192,48,2/2,48,192,1, for all layers of its size; may be repeated.",
        ),
    ] = None
    family: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="Instead of --patterns: monarch:P, low_rank:R, butterfly, block_butterfly:T, kaleidoscope, or "
            "suggest:BUDGET.",
        ),
    ] = None
