"""Bounds on generalization, in numbers: Tables 4.1, 7.1 and 7.2 of the thesis, and the theorems of Yang.

    python -m experiments bounds                            minutes on two cores
    python -m experiments bounds --full                     with --only table-4.1, table-7.1, table-7.2 or l1inf for
                                                             a part of it

Table 7.1 is read off graphs alone. Table 7.2 needs published networks, whose folder --models names, and CIFAR-10.
Stored figures are kept part by part. A bound that says nothing is shown as one: vacuous.

Deviations from the thesis:
    1. Table 7.2: the published CIFAR-10 ResNets instead of ImageNet's, in float64 with a running exponent instead of
       float32, with batch-norm folded; pruned once by magnitude over all layers and not retrained. The thesis prunes
       and retrains 19 times, and such networks have small path-norms and are accurate.
    2. The margin bound takes γ from a grid and pays for the choice (`tamis.bounds.margin`).

Those from Yang stand in bounds_l1inf.py.

Reference: gonon2024thesis, yang2021l1inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import bounds_l1inf, bounds_predecessors
from experiments.bounds_l1inf import run_l1inf
from experiments.bounds_predecessors import run_table_4_1
from experiments.bounds_resnets import (
    EXPONENTS,
    FULL_IMAGENET,
    FULL_PATH_NORMS,
    SHORT_IMAGENET,
    SHORT_PATH_NORMS,
    run_table_7_1,
    run_table_7_2,
)
from experiments.command_line import Parser
from experiments.pictures import draw_panels
from experiments.record import keep
from experiments.table_cells import format_c, format_per_cent
from tamis.reports.figures import Panel

Figures = Mapping[str, Any]
PARTS = ("table-4.1", "table-7.1", "table-7.2", "l1inf")
FOLDER = Path(__file__).parents[2] / "shared" / "models"
PAPER_CONSTANTS: dict[str, dict[str, float]] = {  # Table 7.1
    "general": {"resnet18": 0.088, "resnet34": 0.11, "resnet50": 0.14, "resnet101": 0.19, "resnet152": 0.23},
    "sharpened": {"resnet18": 0.060, "resnet34": 0.072, "resnet50": 0.082, "resnet101": 0.11, "resnet152": 0.13},
}
PAPER_PATH_NORMS: dict[str, tuple[float | None, float, float]] = {  # Table 7.2, for q = 1, 2, 4; None: overflow
    "ResNet-18": (1.3e30, 2.5e2, 7.2e-6),
    "ResNet-34": (None, 1.1e2, 4.9e-6),
    "ResNet-50": (None, 2.0e8, 6.7e-4),
    "ResNet-101": (None, 2.9e9, 3.0e-4),
    "ResNet-152": (None, 8.9e10, 1.5e-4),
}
PAPER_ACCURACY: dict[float | None, tuple[float, float]] = {  # of 100-50-20-2: gap of the cross-entropy, test accuracy
    None: (1.674, 0.6990),
    0.5: (0.478, 0.8478),
    0.16: (0.441, 0.8703),
}


def run(part: str, full: bool, folder: Path) -> dict[str, Any]:
    """Return the figures of one part."""
    if part == "table-4.1":
        return run_table_4_1(bounds_predecessors.FULL if full else bounds_predecessors.SHORT)
    if part == "table-7.1":
        return run_table_7_1(FULL_IMAGENET if full else SHORT_IMAGENET)
    if part == "table-7.2":
        return run_table_7_2(FULL_PATH_NORMS if full else SHORT_PATH_NORMS, folder)
    return run_l1inf(bounds_l1inf.FULL if full else bounds_l1inf.SHORT)


# -- what people see ---------------------------------------------------------------------------------------------------


def show_table_4_1(figures: Figures) -> None:
    rows = figures["rows"]
    print("\nTable 4.1: bounds of R/(n‖Φ‖₁), fully connected networks without biases that tell even digits from odd")
    print(
        f"ones, n = {rows[0]['n']:,}. 1 is trivial. Only peeling and covering have their constants; others hold up to"
    )
    print("a universal constant, which is taken as 1.")
    print(_format_line("depth", (row["depth"] for row in rows)))
    print(_format_line("‖Φ‖₁", (_format_power(row["log10 ‖Φ‖₁"]) for row in rows)))
    print(_format_line("Π", (_format_power(row["log10 Π"]) for row in rows)))
    for name in dict.fromkeys(name for row in rows for name in row["R/(n‖Φ‖₁)"]):
        print(_format_line(name, (_format_significant(row["R/(n‖Φ‖₁)"].get(name)) for row in rows)))


def show_table_7_1(figures: Figures) -> None:
    plan, rows = figures["plan"], figures["rows"]
    print(
        f"\nTable 7.1: what is multiplied by L‖Φ‖₁, B = {plan['radius']}, n = {plan['n']:,}; in parentheses the thesis"
    )
    print(_format_line("", (row["model"] for row in rows), 16))
    print(_format_line("D", (row["shape"]["depth"] for row in rows), 16))
    for name, title in (("general", "4BC/√n"), ("sharpened", "sharpened")):
        cells = (f"{row[name]:.4f} ({PAPER_CONSTANTS[name][row['model']]:#.2g})" for row in rows)
        print(_format_line(title, cells, 16))


def show_table_7_2(figures: Figures) -> None:
    plan, rows = figures["plan"], figures["rows"]
    print("\nTable 7.2: path-norms of networks for CIFAR-10, pruned by magnitude and not retrained")
    names = [f"‖Φ‖_{q}" for q in EXPONENTS]
    print(_format_line("", [*names, "Π", "train error", "test error"], 12))
    for row in rows:
        norms = (_format_power(row["log10 ‖Φ‖_q"][str(q)]) for q in EXPONENTS)
        errors = (format_per_cent(row[name]["error"]) for name in ("train", "test"))
        print(_format_line(_describe_network(row), [*norms, _format_power(row["log10 Π"]), *errors], 12))
    print("for comparison, ImageNet, in float32 (thesis):")
    for name, printed in PAPER_PATH_NORMS.items():
        print(
            _format_line(
                name, ("overflow" if norm is None else _format_power(math.log10(norm)) for norm in printed), 12
            )
        )
    print(f"\nBounds of the cross-entropy's gap, n = {plan['n']:,}; beside them the gap as measured")
    names = list(rows[0]["gap"])
    print(_format_line("", [*names, "measured"], 20))
    for row in rows:
        measured = row["test"]["cross-entropy"] - row["train"]["cross-entropy"]
        print(
            _format_line(
                _describe_network(row), [*(_format_gap(row["gap"][name]) for name in names), f"{measured:.3f}"], 20
            )
        )
    print("Covering excludes padding, which these networks have: for comparison.")
    if set(names) == {"peeling", "covering", "peeling, by Π"}:
        print("The bounds before the thesis' (table-4.1) cover none of these networks: biases, and several outputs.")
    print(f"\nMargin bound of the error rate with probability {1 - plan['delta']:g}, on {plan['train']}")
    print(_format_line("", ("bound", "γ", "margin-loss", "largest margin"), 18))
    for row in rows:
        margin = row["margin"]
        value = _format_verdict(f"{margin['value']:.2f}", margin["informative"])
        cells = (
            value,
            _format_power(margin["log10 γ"]),
            f"{margin['margin_loss']:.3f}",
            f"{margin['largest margin']:.1f}",
        )
        print(_format_line(_describe_network(row), cells, 18))


def show_l1inf(figures: Figures) -> None:
    for name, loss, theorem, lemma in (
        ("classification", "cross-entropy", "Theorem 7", "Lemma 6"),
        ("regression", "half squared error", "Theorem 5", "Lemma 4"),
    ):
        print(
            f"\nL1,∞, {name}: {loss} in training and test, its gap, and bounds with δ = {figures['plan']['delta']:g}."
        )
        print(
            "Weights are scaled back to c, not projected. c = ∞: for the c that was read off the network, no guarantee."
        )
        titles = ["train", "test", "gap (paper)", "Theorem 1", theorem, lemma, "of use from n"]
        print(_format_line("n, c", titles + ["accuracy (paper)"] * (name == "classification"), 20))
        for row in figures[name]:
            print(_format_line(f"{row['n']:,}, {format_c(row['c'])}", _format_l1inf_cells(row, theorem, lemma), 20))
    print(
        "\nvacuous: above the largest loss that is possible. useless: below it, but above what a constant guess loses."
    )
    print("of use from n: how many samples would bring the theorem's bound below that, all else being equal.")


def _format_l1inf_cells(row: Figures, theorem: str, lemma: str) -> list[str]:
    losses, stated = row["loss"], row["bounds"]
    paper = PAPER_ACCURACY.get(row["c"]) if "accuracy" in row and row["n"] == 500 else None
    gap = f"{losses['test'] - losses['train']:.3f}" + (f" ({paper[0]:.3f})" if paper else "")
    cells = [f"{losses['train']:.3f}", f"{losses['test']:.3f}", gap]
    cells.append(_format_significant(stated["Theorem 1"]["value"]))
    for name, guess in ((theorem, row["guess"]["loss"]), (lemma, row["guess"]["Lipschitz loss"])):
        value, informative = stated[name]["value"], stated[name]["informative"]
        useless = " useless" if informative and value > guess else ""
        cells.append(_format_verdict(_format_significant(value), informative) + useless)
    cells.append(_format_power(row["log10 samples for a bound below a guess"]))
    if "accuracy" in row:
        ours = format_per_cent(row["accuracy"]["test"])
        cells.append(ours + (f" ({format_per_cent(paper[1])})" if paper else ""))
    return cells


def _describe_network(row: Figures) -> str:
    return f"{row['model']} {row['pruned']:.0%}"


def _format_gap(stated: Figures) -> str:
    return _format_verdict(_format_power(stated["log10"]), stated["informative"])


def _format_verdict(text: str, informative: bool) -> str:
    return text if informative else f"{text} vacuous"


def _format_power(log10: float) -> str:
    return f"10^{log10:.1f}"


def _format_significant(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _format_line(name: str, cells: Iterable[object], width: int = 12) -> str:
    return f"{name:18}" + "".join(f"{cell!s:>{width}}" for cell in cells)


# -- a picture ---------------------------------------------------------------------------------------------------------


def make_panels_of_table_7_2(figures: Figures) -> list[Panel]:
    panels = []
    for model in figures["plan"]["models"]:
        rows = [row for row in figures["rows"] if row["model"] == model]
        curves = {f"‖Φ‖_{q}": [(100 * row["pruned"], row["log10 ‖Φ‖_q"][str(q)]) for row in rows] for q in EXPONENTS}
        curves["Π"] = [(100 * row["pruned"], row["log10 Π"]) for row in rows]
        curves["gap, by peeling"] = [(100 * row["pruned"], row["gap"]["peeling"]["log10"]) for row in rows]
        panels.append(Panel(curves, "pruned, %", "log₁₀", model, dashed=("gap, by peeling",), points=True))
    return panels


SHOWN: dict[str, Callable[[Figures], None]] = {
    "table-4.1": show_table_4_1,
    "table-7.1": show_table_7_1,
    "table-7.2": show_table_7_2,
    "l1inf": show_l1inf,
}
DRAWN: dict[str, Callable[[Figures], list[Panel]]] = {"table-7.2": make_panels_of_table_7_2}


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("bounds", __doc__, "all networks, more images and samples: several minutes", PARTS)
    parser.add_argument("--models", type=Path, default=FOLDER, help="folder of the published CIFAR-10 networks")
    arguments = parser.parse_args(options)
    found = {}
    for part in [arguments.only] if arguments.only else PARTS:
        found[part] = run(part, arguments.full, arguments.models)
        if arguments.results:
            target = arguments.results / ("bounds" if arguments.full else "bounds_short")
            keep(target.with_suffix(".json"), part, found[part], PARTS)
            if part in DRAWN:
                name = part.replace("-", "_").replace(".", "_")
                draw_panels(DRAWN[part](found[part]), Path(f"{target}_{name}.svg"))
    if not arguments.full:
        print("\nThis is the short mode: fewer networks, images and samples.")
    for part, figures in found.items():
        SHOWN[part](figures)
