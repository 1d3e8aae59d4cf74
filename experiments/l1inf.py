"""L1,∞ weight normalization: the experiments of Yang (2021), the paper's numbers beside ours.

    python -m experiments l1inf                            minutes on two cores: few draws, few steps, few images
    python -m experiments l1inf --full --only classification    or another part: minutes
    python -m experiments l1inf --full --only cifar --device cuda

Stored figures are kept part by part, those of CIFAR-10 network by network.

Deviations from the paper:
    1. Inputs are clipped to [−1, 1], where the theorems need them; ζ is drawn for each sample (ERRATA 24); regression's
       targets are in thousands. Samples are those of `bounds_l1inf`.
    2. The paper does not say how it trains. The recipe that shows its numbers, and what of them is the recipe's doing
       and not c's, stands in l1inf_stack.py. It was chosen after about seventy trainings, by the test figures of 500
       samples and of the draws that the tables show; "fresh" repeats a column of them with other draws. For
       regression, which has 300 units before the output and not 20, the output's step is 100 times smaller, chosen
       after twenty trainings on the first draw. Where c = 0.05, regression's gap is larger again than where c = 0.1.
    3. The generalization error is the loss in test minus the loss in training, the mean over three draws.
    4. Regularizers: our own MNIST perceptron 784-300-100-10, because the paper does not describe its own, for few
       epochs; λ multiplies ‖w‖₁ or ‖w‖₂²/2 of all weights. c is 0.07 on synthetic data, as in the tables, and 4 on
       MNIST, where no other was tried.
    5. CIFAR-10: few epochs and one split instead of 20 folds, and only the two wide convolutions are constrained. How c
       acts before batch-norm stands in l1inf_cifar.py.
    6. The picture orders units by their influence on the output and shows what share of a unit's norm an input has.

Reference: yang2021l1inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments import l1inf_cifar, l1inf_comparison, l1inf_folds
from experiments.command_line import Parser
from experiments.l1inf_cifar import run_cifar
from experiments.l1inf_comparison import OURS, run_comparison
from experiments.l1inf_folds import run_folds
from experiments.l1inf_synthetic import (
    FULL_CLASSIFICATION,
    FULL_COLUMNS,
    FULL_REGRESSION,
    SHORT_CLASSIFICATION,
    SHORT_COLUMNS,
    SHORT_REGRESSION,
    run_classification,
    run_columns,
    run_fresh,
    run_regression,
)
from experiments.record import keep
from experiments.table_cells import format_c, format_per_cent
from tamis.artifact import replace_file

Figures = Mapping[str, Any]
PARTS = ("regression", "classification", "fresh", "regularizers", "folds", "columns", "cifar")
Printed = dict[float | None, tuple[tuple[float, float] | None, ...]]  # by c: generalization error and accuracy, %
PAPER_DEPTHS = ((100, 20), (100, 50, 20), (100, 100, 50, 20))
PAPER_BY_DEPTH: Printed = {
    None: ((1.535, 70.30), (1.674, 69.90), (1.510, 69.10)),
    0.50: ((0.461, 83.14), (0.478, 84.78), (0.542, 82.42)),
    0.16: ((0.351, 84.67), (0.441, 87.03), (0.456, 84.41)),
    0.13: ((0.322, 85.35), (0.376, 87.23), (0.431, 84.89)),
    0.10: ((0.312, 86.10), (0.324, 87.78), (0.383, 86.03)),
    0.07: ((0.245, 88.42), (0.260, 88.34), (0.274, 87.98)),
    0.04: ((0.103, 89.12), (0.134, 89.57), (0.131, 88.33)),
    0.01: ((0.072, 87.74), (0.068, 88.48), None),
}
PAPER_SIZES = (500, 1000, 1500, 2000, 2500)
PAPER_BY_SIZE: Printed = {
    None: ((1.674, 69.90), (1.576, 71.00), (1.528, 72.20), (1.508, 75.70), (1.489, 76.60)),
    0.16: ((0.441, 87.03), (0.343, 88.10), (0.258, 89.30), (0.208, 91.50), (0.199, 92.74)),
    0.13: ((0.376, 87.23), (0.334, 87.80), (0.252, 89.47), (0.171, 91.76), (0.171, 92.80)),
    0.10: ((0.324, 87.78), (0.280, 87.60), (0.223, 90.30), (0.176, 90.70), (0.169, 90.80)),
    0.07: ((0.260, 88.34), (0.241, 87.80), (0.189, 90.80), (0.162, 91.21), (0.133, 91.86)),
    0.04: ((0.134, 89.57), (0.112, 89.94), (0.102, 91.31), (0.084, 91.72), (0.073, 92.24)),
    0.01: ((0.068, 88.48), (0.079, 89.15), (0.034, 90.30), (0.036, 91.00), (0.024, 91.47)),
}
SETS = ("synthetic", "images")
PAPER_REGULARIZERS: dict[str, tuple[float, float]] = {  # accuracies, %: synthetic, MNIST
    "none": (71.6, 97.85),
    "L1 0.1": (50.0, 13.87),
    "L1 0.01": (50.0, 11.35),
    "L1 0.001": (81.6, 97.33),
    "L1 0.0001": (73.2, 97.99),
    "L2 0.1": (70.8, 80.30),
    "L2 0.01": (73.4, 92.30),
    "L2 0.001": (73.2, 94.43),
    "L2 0.0001": (71.8, 97.90),
    "dropout 0.5": (73.5, 98.11),
    OURS: (91.0, 98.03),
}


def run(part: str, full: bool, device: str, target: Path | None = None) -> dict[str, Any]:
    """Return the figures of one part; with a target, they and a picture are stored beside it."""
    if part == "cifar":
        plan = l1inf_cifar.FULL if full else l1inf_cifar.SHORT
        return run_cifar(plan, device, lambda figures: _store(target, part, figures))
    if part == "columns":
        figures, pictures = run_columns(FULL_COLUMNS if full else SHORT_COLUMNS, device)
        if target is not None:
            _draw_columns(pictures, Path(f"{target}_columns.png"))
    elif part == "regression":
        figures = run_regression(FULL_REGRESSION if full else SHORT_REGRESSION, device)
    elif part == "classification":
        figures = run_classification(FULL_CLASSIFICATION if full else SHORT_CLASSIFICATION, device)
    elif part == "fresh":
        figures = run_fresh(FULL_CLASSIFICATION if full else SHORT_CLASSIFICATION, device)
    elif part == "regularizers":
        figures = run_comparison(l1inf_comparison.FULL if full else l1inf_comparison.SHORT, device)
    else:
        figures = run_folds(l1inf_folds.FULL if full else l1inf_folds.SHORT, device)
    _store(target, part, figures)
    return figures


def _store(target: Path | None, part: str, figures: Figures) -> None:
    if target is not None:
        keep(target.with_suffix(".json"), part, figures, PARTS)


def _draw_columns(pictures: Mapping[str, Tensor], path: Path) -> None:
    """Return what share of its norm each unit of the first layer gives to each input, networks side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError:  # the figures in numbers are safe
        print("no picture was drawn: it needs matplotlib: pip install 'tamis[plots]'")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(3.2 * len(pictures), 3.6), layout="constrained")
    axes = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axis, (title, shares) in zip(axes, pictures.items(), strict=True):
        image = axis.imshow(shares.sqrt().numpy(), aspect="auto", cmap="magma", vmin=0, vmax=1, interpolation="nearest")
        axis.set(title=title, xlabel="input", ylabel="unit, by influence")
        axis.set_xticks([0, 3, shares.shape[1] - 1], ["1", "4", str(shares.shape[1])])
    figure.colorbar(image, label="√ of the share of the unit's norm")
    with replace_file(path) as part:
        figure.savefig(part, format="png", dpi=80)


# -- what people see ---------------------------------------------------------------------------------------------------


def show_regression(figures: Figures) -> None:
    plan = figures["plan"]
    print(f"\nRegression, {plan['train']} samples × {plan['widths'][0]} inputs, {plan['widths'][1]} units: half the")
    print(f"squared error; a constant guess has {figures['guess']:.3f}. The paper has a picture and no numbers: the")
    print("gap falls and the network becomes sparser as c falls.")
    print(_format_line("c", ("train", "test", "gap", "zeros")))
    for row in figures["rows"]:
        print(_format_line(format_c(row["c"]), (*_format_losses(row), format_per_cent(row["zeros"]))))


def show_classification(figures: Figures) -> None:
    rows = {(tuple(row["hidden"]), row["size"], row["c"]): row for row in figures["rows"]}
    plan = figures["plan"]
    cs, depths, sizes = plan["cs"], [tuple(depth) for depth in plan["depths"]], plan["sizes"]
    print("\nClassification: generalization error / accuracy, %, and in parentheses the paper's;")
    print(f"means of {plan['draws']} draws. The larger class has {format_per_cent(figures['majority'])}.")
    print(f"\nDepth, {sizes[0]} samples")
    print(_format_line("c", ("-".join(map(str, (*depth, 2))) for depth in depths), 28))
    for c in cs:
        cells = [
            _format_beside(rows[depth, sizes[0], c], quote_paper(PAPER_BY_DEPTH, PAPER_DEPTHS, c, depth))
            for depth in depths
        ]
        print(_format_line(format_c(c), cells, 28))
    middle = depths[1]
    print(f"\nSize of the sample, {'-'.join(map(str, (*middle, 2)))}")
    print(_format_line("c", sizes, 28))
    for c in cs:
        cells = [
            _format_beside(rows[middle, size, c], quote_paper(PAPER_BY_SIZE, PAPER_SIZES, c, size)) for size in sizes
        ]
        print(_format_line(format_c(c), cells, 28))
    print(
        "\nzeros: " + ", ".join(f"c = {format_c(c)} {format_per_cent(rows[middle, sizes[0], c]['zeros'])}" for c in cs)
    )
    if figures["controls"]:
        print("where the output's step is not lessened with c, the gap is not c's doing:")
        print(", ".join(f"c = {format_c(row['c'])} {_format_beside(row, None)}" for row in figures["controls"]))


def show_fresh(figures: Figures) -> None:
    print("\nClassification, 100-50-20-2, 500 samples, by draws that had no part in the choice of the recipe")
    print(_format_line("c", ("gap/accuracy, %", "zeros"), 28))
    for row in figures["rows"]:
        paper = quote_paper(PAPER_BY_DEPTH, PAPER_DEPTHS, row["c"], tuple(row["hidden"]))
        print(_format_line(format_c(row["c"]), (_format_beside(row, paper), format_per_cent(row["zeros"])), 28))


def quote_paper(table: Printed, titles: Iterable[object], c: float | None, title: object) -> tuple[float, float] | None:
    """Return what the paper's table has there; None for what it has not."""
    titles = list(titles)
    return table[c][titles.index(title)] if c in table and title in titles else None


def show_regularizers(figures: Figures) -> None:
    print("\nTest accuracy by regularizer, %, and in parentheses the paper's; zeros in hidden weights")
    print(_format_line("", ("synthetic", "MNIST", "zeros", "zeros"), 18))
    for row in figures["rows"]:
        paper = PAPER_REGULARIZERS[row["regularizer"]]
        cells = [f"{100 * row[name]:.2f} ({wanted:.2f})" for name, wanted in zip(SETS, paper, strict=True)]
        print(_format_line(row["regularizer"], [*cells, *(format_per_cent(row["zeros"][n]) for n in SETS)], 18))


def show_folds(figures: Figures) -> None:
    print(f"\n{figures['plan']['folds']}-fold cross-validation; the paper has a picture and no numbers")
    for name, score in (("classification", "accuracy"), ("regression", "minus the loss")):
        found = figures[name]
        print(f"{name}, mean {score}; chosen: c = {found['c']:g}")
        print(_format_line("c", (f"{row['c']:g}" for row in found["rows"])))
        print(_format_line(score, (f"{row['mean']:.4f}" for row in found["rows"])))


def show_columns(figures: Figures) -> None:
    print("\nThe first layer: what share of the units' norms belongs to the four inputs that matter, by influence.")
    print("The paper has a picture and no numbers: under c, only these four are dense.")
    for network in figures["networks"]:
        share = format_per_cent(network["share of the inputs that matter"])
        print(
            _format_line(
                format_c(network["c"]), (share, f"{network['units without influence']} units without influence"), 30
            )
        )


def show_cifar(figures: Figures) -> None:
    plan = figures["plan"]
    print(f"\nCIFAR-10, VGG-16 with two wide convolutions, {plan['epochs']} epochs. The paper has pictures and no")
    print("numbers: sparser as c falls, the gap larger for large c; large kernels do as well as 3, and 9 does better.")
    print("non-zeros: of a kernel × kernel slice of a filter, on average.")
    print(_format_line("kernel, c", ("train", "test", "gap", "accuracy", "zeros", "non-zeros")))
    for row in figures["rows"]:
        accuracies = (
            format_per_cent(row["test accuracy"]),
            format_per_cent(row["zeros"]),
            f"{row['non-zeros per channel']:.2f}",
        )
        print(_format_line(f"{row['kernel']}, {format_c(row['c'])}", (*_format_losses(row), *accuracies)))
    if figures["left out"]:
        print(f"left out for lack of time: {len(figures['left out'])} networks")


def _format_losses(row: Figures) -> tuple[str, ...]:
    return tuple(f"{row[name]:.3f}" for name in ("train loss", "test loss", "gap"))


def _format_beside(row: Figures, paper: tuple[float, float] | None) -> str:
    ours = f"{row['gap']:.3f}/{100 * row['test accuracy']:.2f}"
    return ours + (f" ({paper[0]:.3f}/{paper[1]:.2f})" if paper else "")


def _format_line(name: str, cells: Iterable[object], width: int = 12) -> str:
    return f"{name:14}" + "".join(f"{cell!s:>{width}}" for cell in cells)


SHOWN: dict[str, Callable[[Figures], None]] = {
    "regression": show_regression,
    "classification": show_classification,
    "fresh": show_fresh,
    "regularizers": show_regularizers,
    "folds": show_folds,
    "columns": show_columns,
    "cifar": show_cifar,
}


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("l1inf", __doc__, "the paper's sizes; cifar is for a GPU", PARTS)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args(options)
    target = arguments.results and arguments.results / ("l1inf" if arguments.full else "l1inf_short")
    found = {}
    for part in [arguments.only] if arguments.only else PARTS:
        found[part] = run(part, arguments.full, arguments.device, target)
    if not arguments.full:
        print("\nThis is the short mode: fewer draws, steps and images.")
    for part, figures in found.items():
        SHOWN[part](figures)
