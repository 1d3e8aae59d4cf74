"""The commands and their options. Implementations, and with them torch, are imported when a command runs."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tamis import __version__
from tamis.cli import interruption
from tamis.cli.command_line import remember_arguments
from tamis.cli.image_options import with_images
from tamis.cli.messages import in_options, options_of
from tamis.cli.settings_options import with_settings
from tamis.errors import TamisError


class ListedCommands(TyperGroup):
    """Lists its commands in whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """With the whole first sentence of each, wrapped, where click would cut it to one line."""
        listed = [(name, command.help or "") for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.partition("\n\n")[0].replace("\n", " ")) for name, text in listed])


class Commands(ListedCommands):
    """Says in one red line, with exit code 2, what the user can put right; other errors are bugs with a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remember_arguments(args)
        interruption.begin()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TamisError as error:
            _fail(in_options(str(error), options_of(self.commands[ctx.invoked_subcommand]), self.commands))
        except KeyboardInterrupt:
            if interruption.leads():
                typer.echo(f"\n{interruption.how_to_go_on()}", err=True)
            raise typer.Exit(interruption.INTERRUPTED) from None
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # whoever read our output has had enough
                raise
            what = (error.strerror or type(error).__name__).lower()
            _fail(what if error.filename is None else f"{what}: {error.filename}")


def _fail(message: str) -> None:
    color = False if os.environ.get("NO_COLOR") else None  # None: on a terminal
    typer.secho("error: " + " ".join(message.split()), fg=typer.colors.RED, err=True, color=color)
    raise typer.Exit(2)


app = typer.Typer(
    name="tamis",
    cls=Commands,
    help="Make a trained network small, and certify what that cost.",
    no_args_is_help=True,
    epilog="Exit codes: 0 done; 1 something could not be checked, or nothing was found; 2 something to put right, said "
    "in one line; 3 FAIL: not as good as required; 130 interrupted.",
    rich_markup_mode=None,  # the help would import rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tamis {__version__}")
        raise typer.Exit


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


@app.callback()
def tamis(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `tamis` itself."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to save the network.")] = Path("out/demo"),
    as_json: Json = False,
) -> None:
    """Train a small network in seconds, look at it, prune it, quantize it, and certify what that cost."""
    from tamis.cli.demo import demo

    demo(out, as_json)


@app.command()
def inspect(
    model: Model,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    as_json: Json = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every row of a long table.")] = False,
) -> None:
    """Show a network's operations, their cost, and its path-norms."""
    from tamis.cli.inspect import inspect

    inspect(model, weights, shape, trust, as_json, show_all)


@app.command()
@with_images
def prune(
    model: Model,
    amount: Annotated[
        list[str],
        typer.Option(
            metavar="AMOUNT",
            help="How much to prune: a fraction (0.8), a percentage (80%) or a count (1000); or one of these for a "
            "layer, as conv1=0.5, once for each layer, the others being left whole.",
        ),
    ],
    out: OutTamis,
    by: Annotated[
        str, typer.Option(metavar="phi|magnitude|random|obs", help="What the weights are compared by.")
    ] = "phi",
    calibration: Annotated[
        str | None,
        typer.Option(metavar="DATA", help=f"For `--by obs`, which refits what is left to it. {CALIBRATION_HELP}"),
    ] = None,
    scope: Annotated[
        str, typer.Option(metavar="global|layer", help="Compare weights across layers, or within each.")
    ] = "global",
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Prune only these parameters or modules; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave these parameters or modules whole; may be repeated."),
    ] = None,
    biases: Annotated[bool, typer.Option("--biases", help="Prune biases, too.")] = False,
    halve_final: Annotated[bool, typer.Option("--halve-final", help="Prune the last layer at half the rate.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of `--by random`.")] = 0,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Set the weights that matter least to zero, and bound what that changes.

    With a .tamis file as --weights, AMOUNT is pruned of the weights that are left in it. With --by obs, layers that are
    finished lie in FILE.partial until all of them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.prune import prune

    chosen = {"by": by, "scope": scope, "include": include, "exclude": exclude, "biases": biases}
    prune(model, weights, shape, trust, amount, calibration, out, as_json, **chosen, halve_final=halve_final, seed=seed)


@app.command()
@with_images
def quantize(
    model: Model,
    calibration: Calibration,
    out: OutTamis,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="LEVELS", help="How many (3, unless --bits is given), or which, as they are meant: -0.5,0,0.5."
        ),
    ] = None,
    bits: Annotated[int | None, typer.Option(metavar="N", help="Instead of --levels, for 2^N of them.")] = None,
    method: Annotated[
        str, typer.Option(metavar="optq|gpfq|msq", help="How levels are chosen; optq is recommended.")
    ] = "optq",
    per: Annotated[
        str, typer.Option(metavar="channel|layer", help="What has a scale of its own: each output channel, or a layer.")
    ] = "channel",
    c_alpha: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="The largest level, in medians of the weights: a number, or several to choose from, as 1,2,3. "
            "Default: chosen from a list of ours.",
        ),
    ] = None,
    conv: Annotated[
        str,
        typer.Option(
            metavar="joint|per_channel", help="A convolution's weights all at once, or a 2-D kernel at a time."
        ),
    ] = "joint",
    order: Annotated[
        str | None,
        typer.Option(
            metavar="natural|norm", help="Of a neuron's weights; norm: largest inputs first. Default: the method's."
        ),
    ] = None,
    biases: Annotated[bool, typer.Option("--biases", help="Quantize biases, too.")] = False,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Quantize only these parameters or modules; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave these parameters or modules as they are; may be repeated."),
    ] = None,
    prune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT",
            help="First prune so much by magnitude, as `tamis prune` takes it, and fit what is left to the original.",
        ),
    ] = None,
    data: TestData = None,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    device: Computed = "cpu",
    as_json: Json = False,
) -> None:
    """Put the weights of every layer on a few levels, without training.

    What a .tamis file as --weights has pruned stays pruned. Layers that are finished lie in FILE.partial until all of
    them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.quantize import quantize

    how = {"bits": bits, "method": method, "per": per, "conv": conv, "order": order, "biases": biases}
    which = {"include": include, "exclude": exclude}
    first = prune or []
    quantize(
        model, weights, shape, trust, calibration, data, levels, c_alpha, first, device, out, as_json, **how, **which
    )


@app.command()
@with_images
def repair(
    model: Model,
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="A .tamis file of the model.")],
    calibration: Calibration,
    out: OutTamis,
    damping: Annotated[
        float | None,
        typer.Option(metavar="FRACTION", help="How much weights are held to what they are; a small positive number."),
    ] = None,
    data: TestData = None,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Refit what pruning and quantization left to the original network, without training.

    --weights are those of the original. Masks and levels stay; weights and scales are chosen anew. Layers that are
    finished lie in FILE.partial until all of them are: after a kill, the same command goes on from there.
    """
    from tamis.cli.repair import repair

    options = {} if damping is None else {"damping": damping}
    repair(model, weights, shape, trust, small, calibration, data, out, as_json, **options)


@app.command()
@with_images
@with_settings
def train(
    model: Factory,
    data: TrainingData,
    directory: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Where each epoch leaves a checkpoint; the same command goes on from the last one."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="FILE", help="The file to write: weights (.safetensors) or a network (.tamis)."
        ),
    ],
    settings: dict[str, Any],
    test: MeasuredData = None,
    l1inf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="C",
            help="After each step, project every hidden neuron's weights with its bias onto the ℓ1 ball of this "
            "radius, which makes many of them zero; or those of a layer, as linear1=0.1, once for each layer, the "
            "others being free.",
        ),
    ] = None,
    device: Device = "cpu",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Train a network to classify; what a .tamis file has pruned stays pruned.

    Settings left out are those of tamis.training.Settings; what is in effect is printed at the beginning. Under
    torchrun (torchrun --nproc-per-node 4 -m tamis train ...) the processes share the work.
    """
    from tamis.cli.train import train

    train(model, weights, data, test, directory, out, device, l1inf or [], as_json, settings)


@app.command()
@with_images
@with_settings
def search(
    model: Factory,
    data: TrainingData,
    sparsity: Annotated[float, typer.Option(metavar="PART", help="The part of all connections that goes, as 0.9.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .architecture file to write.")],
    settings: dict[str, Any],
    t_l: Annotated[
        float | None, typer.Option("--t-l", metavar="T", help="The inverse of the low temperature, of the masks.")
    ] = None,
    t_s: Annotated[
        float | None,
        typer.Option(
            "--t-s", metavar="T", help="The inverse of the high temperature, of their gradient. Default: t_l / 10."
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            metavar="GAMMA",
            help="Of the penalty. Default: one that takes connections that nothing holds in half of the epochs.",
        ),
    ] = None,
    mask_rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="The largest learning rate of the masks.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Mask only these weights or modules; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Leave these weights or modules whole, as the last layer; may be repeated."
        ),
    ] = None,
    directory: Checkpoints = None,
    device: Device = "cpu",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Find which connections of a network to keep, by training masks and weights together.

    Training begins with --weights, or with the factory's. FILE holds the connections and no weight: `tamis transfer`
    trains them anew, on other data if you like. Options left out are as tamis.architecture.search has them. After a
    kill, the same command goes on from the last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.search import search

    how = {"t_l": t_l, "t_s": t_s, "gamma": gamma, "mask_rate": mask_rate, "include": include, "exclude": exclude}
    given = {name: value for name, value in how.items() if value is not None}
    search(model, weights, data, sparsity, directory, out, device, as_json, settings, **given)


@app.command()
@with_images
@with_settings
def transfer(
    model: Factory,
    architecture: Annotated[
        Path, typer.Argument(metavar="ARCHITECTURE", help="An .architecture file of `tamis search` for the model.")
    ],
    data: TrainingData,
    out: OutTamis,
    settings: dict[str, Any],
    test: MeasuredData = None,
    directory: Checkpoints = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Train the connections of an architecture from fresh weights; all others are zero.

    After a kill, the same command goes on from the last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.transfer import transfer

    transfer(model, architecture, data, test, directory, out, device, as_json, settings)


@app.command()
@with_images
@with_settings
def binarize(
    model: Factory,
    data: TrainingData,
    out: OutTamis,
    settings: dict[str, Any],
    test: MeasuredData = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="rank_one|spatial|full|channel|analytic",
            help="What an output of a binary layer is multiplied with: learnt for channels, rows and columns, and how "
            "these go together, or the mean size of the weights.",
        ),
    ] = "rank_one",
    estimator: Annotated[
        str, typer.Option(metavar="clipped|approx_sign|rsign", help="What stands for the gradient of a sign.")
    ] = "clipped",
    keep: Annotated[
        str,
        typer.Option(
            metavar="LAYERS", help="Which layers stay real: first, last, and names or patterns, with commas between."
        ),
    ] = "first,last",
    activation_epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Epochs of the first stage, with binary activations and real weights; 0 leaves it out. Default: as "
            "--epochs, which are those of the second stage.",
        ),
    ] = None,
    directory: Checkpoints = None,
    device: Device = "cpu",
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Make most layers of a network binary, +1 or -1 for weights and activations, and train it in two stages.

    FILE has one bit for each binary weight; `tamis compile` runs it. After a kill, the same command goes on from the
    last epoch. Under torchrun the processes share the work.
    """
    from tamis.cli.binarize import binarize

    how = {"scale": scale, "estimator": estimator}
    binarize(model, weights, data, test, keep, activation_epochs, directory, out, device, as_json, settings, **how)


@app.command()
def compile(
    model: Factory,
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="A .tamis file of `tamis binarize` for the model.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="A .pt2 file of torch.export to write, with packed weights."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a binary network as it runs, with packed weights and fused kernels, and check that it computes the same.

    What reads FILE must import tamis.kernels.binary first, where its operations are.
    """
    from tamis.cli.compile import compile

    compile(model, small, out, as_json)


@app.command()
def online(
    data: Annotated[
        str,
        typer.Option(
            metavar="DATA", help="The stream: images by a name or a path, as mnist:train, or series, or graph."
        ),
    ],
    space: Annotated[str, typer.Option(metavar="dense|conv1d|conv2d|graph|xnor", help="Which networks to learn with.")],
    rounds: Annotated[int, typer.Option(metavar="N", help="How many; with more, a run that is over goes on.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where to keep rounds and results.")] = Path(
        "out/online"
    ),
    batch: Annotated[int, typer.Option(metavar="N", help="Examples in a round.")] = 16,
    particles: Annotated[int, typer.Option(metavar="N", help="How many networks stand for the posterior.")] = 100,
    lam: Annotated[float, typer.Option(metavar="LAMBDA", help="How much a round counts; 1 or less.")] = 1.0,
    tau: Annotated[float, typer.Option(metavar="TAU", help="The scale of the weights' prior.")] = 0.3,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order of the examples and of all draws.")] = 0,
    layers: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Of the union of networks, as 1,2,3.")] = None,
    filters: Annotated[str | None, typer.Option(metavar="NUMBERS", help="In a layer, as 2,4.")] = None,
    sizes: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Of filters, as 3,5.")] = None,
    pool: Annotated[int, typer.Option(metavar="N", help="Take the mean of N x N pixels for one.")] = 1,
    subsample: Annotated[
        int,
        typer.Option(metavar="N", help="How many past rounds a move of particles sees; 0 for all, exact and slower."),
    ] = 32,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to compute networks.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Learn from a stream round by round, over networks of several architectures, beside a bound of what that costs.

    After Ctrl-C or a kill, the same command goes on from the last round, to the same result.
    """
    from tamis.cli.online import online

    stream = {"data": data, "pool": pool, "rounds": rounds, "batch": batch, "seed": seed}
    union = {"space": space, "layers": layers, "filters": filters, "sizes": sizes}
    online(out, device, as_json, **stream, **union, particles=particles, lam=lam, tau=tau, subsample=subsample)


@app.command()
@with_images
def certify(
    model: Model,
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
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
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
    certify(model, weights, shape, trust, small, data, training, device, out, as_json, **required, **asked)


@app.command()
@with_images
def verify(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .json file.")],
    small: Annotated[Path, typer.Argument(metavar="SMALL", help="The .tamis file that it is about.")],
    model: Model,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="The held-out data, as it was certified on.")] = None,
    training: Annotated[str | None, typer.Option(metavar="DATA", help="The training data, if it was used.")] = None,
    signed_by: Annotated[
        Path | None, typer.Option(metavar="KEY", help="The public key, in PEM form, that must have signed it.")
    ] = None,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    device: Computed = "cpu",
    as_json: Json = False,
) -> None:
    """Check a certificate: compute everything that it says again, and stop at the first thing that is not so.

    MODEL and --weights are the original, and DATA is what it was certified on. The exit code is 0 if all of it is true,
    2 if something is not, and 1 if something could not be checked for want of DATA, unless --signed-by vouches for it.
    """
    from tamis.cli.verify import verify

    verify(certificate, small, model, weights, shape, trust, data, training, signed_by, device, as_json)


@app.command()
def report(
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The .json file.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The .html file to write.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The original, as other commands take it: for layers, costs and latencies."),
    ] = None,
    small: Annotated[
        Path | None,
        typer.Option(metavar="SMALL", help="The .tamis file. Default: the one of its name beside the certificate."),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="How many inputs at once to measure the latency with.")] = 1,
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Make a page of a certificate, for people to read, print or send on: one .html file that needs nothing else."""
    from tamis.cli.report import report

    report(certificate, out, model, weights, shape, trust, small, batch, as_json)


@app.command()
@with_images
def compress(
    model: Model,
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
    weights: Weights = None,
    shape: Shape = None,
    trust: Trust = False,
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
    compress(model, weights, shape, trust, recipe, data, test, out, force, device, as_json, **budget)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this one.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of recipes, for editors.")] = False,
    as_json: Json = False,
) -> None:
    """List the recipes that ship, print one to begin your own with, or print the schema."""
    from tamis.cli.recipes import recipes

    recipes(name, schema, as_json)


class SweepCommands(ListedCommands):
    """`tamis sweep FILE` stands for `tamis sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and args[0] in ("-h", "--help", *self.commands)
        return super().parse_args(ctx, args if named or not args else ["run", *args])


sweep = typer.Typer(
    cls=SweepCommands,
    help="Make many small networks of one model, compare them, and certify the best: `tamis sweep SPEC -o DIR`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(sweep, name="sweep")
SweepSpec = Annotated[Path, typer.Argument(metavar="SPEC", help="A .yaml file that says what to try, and on what.")]
SweepFolder = Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="The folder to write to.")]
Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The database, as postgresql://user@host/name. Default: DIR/sweep.db, by SQLite."),
]


@sweep.command("run")
def sweep_run(
    spec: SweepSpec,
    out: SweepFolder,
    storage: Storage = None,
    max_accuracy_drop: MaxAccuracyDrop = None,
    max_disagreement: MaxDisagreement = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Make what SPEC asks for, together with all workers, and certify the best.

    The word `run` may be left out. DIR then has results.json, report.html, and a folder for each network made here.
    After a kill, the same command goes on. Where no network is within the limits of SPEC, the exit code is 1; where
    none is certified to be as good as --max-accuracy-drop and --max-disagreement require, it is 3.
    """
    from tamis.cli.sweep import run

    required = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    run(spec, out, storage, device, trust, as_json, **required)


@sweep.command("worker")
def sweep_worker(
    spec: SweepSpec,
    out: SweepFolder,
    storage: Storage = None,
    device: Device = "cpu",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Help with the sweep of SPEC, here or on another machine, until all networks are made."""
    from tamis.cli.sweep import worker

    worker(spec, out, storage, device, trust, as_json)


kronecker = typer.Typer(
    cls=ListedCommands,
    help="Products of Kronecker-sparse matrices in the place of dense ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(kronecker, name="kronecker")


@kronecker.command("suggest")
def kronecker_suggest(
    rows: Annotated[int, typer.Argument(metavar="M", help="Rows of the dense matrix: outputs of the layer.")],
    columns: Annotated[int, typer.Argument(metavar="N", help="Its columns: inputs of the layer.")],
    budget: Annotated[
        str, typer.Option(metavar="BUDGET", help="The most weights: a share (0.25), a percentage (25%) or a number.")
    ],
    target: Annotated[
        str, typer.Option(metavar="time|energy", help="Which heuristic products are ranked by.")
    ] = "time",
    factors: Annotated[int, typer.Option(metavar="L", help="The most factors of a product.")] = 2,
    as_json: Json = False,
) -> None:
    """Rank products of Kronecker-sparse factors that are dense, for a matrix of M rows and N columns."""
    from tamis.cli.kronecker_suggest import suggest

    suggest(rows, columns, budget, target, factors, as_json)


@kronecker.command("bench")
def kronecker_bench(
    patterns: Annotated[
        list[str],
        typer.Argument(metavar="PATTERN...", help="Patterns a,b,c,d, such as 1,192,48,2, one after the other."),
    ],
    batch: Annotated[int, typer.Option(metavar="B", help="Vectors to multiply.")] = 512,
    dtype: Annotated[str, typer.Option(metavar="float32|float16|bfloat16|float64")] = "float32",
    layout: Annotated[
        str, typer.Option(metavar="batch_first|batch_last", help="Vectors as rows, as torch has them, or as columns.")
    ] = "batch_first",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to multiply.")] = "cpu",
    tune: Annotated[
        bool, typer.Option("--tune", help="First measure what is fastest, and have it chosen from now on.")
    ] = False,
    energy: Annotated[bool, typer.Option("--energy", help="Measure joules, too: about a second for each.")] = False,
    as_json: Json = False,
) -> None:
    """Time every way to multiply by these Kronecker-sparse matrices, and say which one runs, and why."""
    from tamis.cli.kronecker_bench import bench

    bench(patterns, batch, dtype, layout, device, tune, energy, as_json)


@kronecker.command("replace")
def kronecker_replace(
    model: Factory,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="FILE", help="The file to write: a network (.tamis) or weights (.safetensors)."
        ),
    ],
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRODUCT",
            help="Patterns with / between, such as 1,192,48,2/2,48,192,1, for all layers of its size; may be repeated.",
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="Instead of --patterns: monarch:P, low_rank:R, butterfly, block_butterfly:T, kaleidoscope, or "
            "suggest:BUDGET.",
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option(metavar="LAYERS", help="Which layers stay: names or patterns, with commas between.")
    ] = "",
    begin: Annotated[
        str,
        typer.Option(metavar="factorized|scratch", help="Products nearest to the weights, or drawn anew for training."),
    ] = "factorized",
    convolutions: Annotated[bool, typer.Option("--convolutions", help="Replace convolutions, too.")] = False,
    refine: Annotated[int, typer.Option(metavar="N", help="Steps of L-BFGS after a factorization.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn.")] = 0,
    weights: Weights = None,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Replace linear layers by products of Kronecker-sparse factors, and say how far each is from what it was.

    Outputs change: train the network further. In Python, tamis.load(FILE, tamis.kronecker.replace(model, LAYERS,
    begin="scratch")) reads it, with LAYERS from its recipe.
    """
    from tamis.cli.kronecker_replace import replace

    how = {"begin": begin, "convolutions": convolutions, "refine": refine, "seed": seed}
    replace(model, weights, shape, patterns or [], family, keep, out, as_json, **how)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what tamis finds here: torch, its own extension, which kernels run and why, GPUs, the data folder."""
    from tamis.cli.doctor import doctor

    doctor(as_json)


def main() -> None:
    """The entry point of the `tamis` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")  # a "?" for what it has no letters for, as ≤, and not an error
    app(prog_name="tamis")
