"""Greedy path-following quantization: Figure 1, Table 1 and Theorem 2 of Lybrand and Saab (2021).

    python -m experiments gpfq                            minutes on two cores: few images, few epochs
    python -m experiments gpfq --full --device cuda       with --only figure-1, table-1 or decay for a part of it

Two networks are trained and quantized without retraining: by GPFQ, by rounding each weight to the nearest level (MSQ),
and by "optq", which `tamis.quantize` recommends and the paper does not have. Trainings lie in --directory and are not
repeated: a run that was broken off goes on, one that is finished is read. Stored figures are kept part by part.

Deviations from the paper:
    1. Figure 1: Adam's learning rate of 0.001 goes down to 0 along a cosine. Pixels are on the scale 0..1. The best C_α
       is chosen on the fifth of the training data that is set aside, not on the test data, and the test accuracy for
       every C_α is shown.
    2. Table 1: Adam for 120 epochs in batches of 128, from a learning rate of 0.001 down to 0 along a cosine, on a GPU
       in bfloat16 where that is safe; the paper's are 400 epochs at 1e-4 in batches of 64. Shifts are of up to 4
       pixels, over black borders.
    3. Biases and batch-norms are not quantized.
    4. The convolutional network has the printed layers. Its authors' published training script has a third pooling and
       dropout after the last convolutions, which the paper does not mention. What the paper leaves open is as in the
       script: batch-norm after ReLU, padding that keeps the size, dropout rates of 0.2, 0.3 and 0.5.

What is proved of Theorem 2 and what is measured stands in gpfq_decay.py.

Reference: lybrand2021gpfq.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import gpfq_decay
from experiments.command_line import Parser
from experiments.gpfq_accuracy import (
    FULL_CONVOLUTIONS,
    FULL_PERCEPTRON,
    PAPERS_METHODS,
    SHORT_CONVOLUTIONS,
    SHORT_PERCEPTRON,
    run_figure_1,
    run_table_1,
)
from experiments.gpfq_decay import GROWING_SAMPLES, GROWING_WIDTH, run_decay
from experiments.pictures import draw_panels
from experiments.record import keep
from tamis.reports.figures import Panel

Figures = Mapping[str, Any]
PARTS = ("figure-1", "table-1", "decay")
PAPER_ANALOG = 0.8922
PAPER_C_ALPHAS = (2, 3, 4, 5, 6)
PAPER_TABLE: dict[str, dict[int, tuple[float, ...]]] = {  # by the number of levels, for each C_α
    "GPFQ": {
        3: (0.7487, 0.7350, 0.6919, 0.5627, 0.3515),
        4: (0.7522, 0.8036, 0.7489, 0.6748, 0.5365),
        8: (0.7942, 0.8670, 0.8710, 0.8567, 0.8600),
        16: (0.8124, 0.8778, 0.8879, 0.8888, 0.8810),
    },
    "MSQ": {
        3: (0.1347, 0.1464, 0.0991, 0.1000, 0.1000),
        4: (0.2209, 0.2800, 0.1742, 0.1835, 0.1390),
        8: (0.4173, 0.3754, 0.5014, 0.5652, 0.5360),
        16: (0.4525, 0.7776, 0.8443, 0.8291, 0.7831),
    },
}


def run(part: str, full: bool, directory: Path, device: str) -> dict[str, Any]:
    """Return the figures of one part."""
    if part == "figure-1":
        return run_figure_1(FULL_PERCEPTRON if full else SHORT_PERCEPTRON, directory / "perceptron", device)
    if part == "table-1":
        return run_table_1(FULL_CONVOLUTIONS if full else SHORT_CONVOLUTIONS, directory / "convolutions", device)
    return run_decay(gpfq_decay.FULL if full else gpfq_decay.SHORT)


def quote_paper_accuracy(method: str, levels: int, c_alpha: int) -> float | None:
    """Return what Table 1 prints; None for what it does not have."""
    if levels not in PAPER_TABLE.get(method, {}) or c_alpha not in PAPER_C_ALPHAS:
        return None
    return PAPER_TABLE[method][levels][PAPER_C_ALPHAS.index(c_alpha)]


# -- what people see ---------------------------------------------------------------------------------------------------


def show_figure_1(figures: Figures) -> None:
    plan, points = figures["plan"], figures["by C_α"]
    print(f"\nFigure 1a: MNIST top-1 test accuracy with 3 levels, %; analog: {_format_per_cent(figures['analog'])}")
    print("The paper has a picture and no numbers: GPFQ is close to analog for several C_α, MSQ is not.")
    print(_format_line("C_α", map(str, plan["c_alphas"])))
    for name in points:
        print(_format_line(name, (_format_per_cent(point["test"]) for point in points[name])))
    best = ", ".join(f"{name} {c_alpha}" for name, c_alpha in figures["C_α best on validation"].items())
    print(f"\nFigure 1b: the same as layers are quantized one by one; C_α chosen on {plan['validation']}: {best}")
    by_layer = figures["by layers quantized"]
    print(_format_line("layers", map(str, range(len(next(iter(by_layer.values())))))))
    for name, accuracies in by_layer.items():
        print(_format_line(name, map(_format_per_cent, accuracies)))


def show_table_1(figures: Figures) -> None:
    analog = f"{_format_per_cent(figures['analog'])} ({_format_per_cent(PAPER_ANALOG)})"
    print(f"\nTable 1: CIFAR-10 top-1 test accuracy, %; analog: {analog}; in parentheses the paper's")
    print(_format_line("levels  C_α", PAPERS_METHODS, 16))
    for row in figures["rows"]:
        cells = (
            _format_beside(row[name], quote_paper_accuracy(name, row["levels"], row["C_α"])) for name in PAPERS_METHODS
        )
        print(_format_line(f"{row['levels']:>6}{row['C_α']:>5}", cells, 16))
    names = [name for name in figures["searched"][0] if name != "levels"]
    print(_format_line("\nlevels", names, 16) + "    C_α chosen on part of the calibration data")
    for row in figures["searched"]:
        print(_format_line(f"{row['levels']:>6}", (_format_per_cent(row[name]) for name in names), 16))


def show_decay(figures: Figures) -> None:
    print("\nTheorem 2: median ‖Xw − Xq‖/‖Xw‖ of a Gaussian layer with levels −1, 0, 1, and the shape of the bound,")
    print("log(N₀)√(m/N₀), scaled to the first error. Proved is a bound of this shape with unknown constants.")
    for series, proved in ((GROWING_WIDTH, "−1/2 but for the logarithm"), (GROWING_SAMPLES, "1/2")):
        print(f"\n{series}: slope {figures['slopes'][series]:.2f}; that of the bound: {proved}")
        print("".join(f"{title:>14}" for title in figures[series][0]))
        for point in figures[series]:
            cells = (f"{value:.4f}" if isinstance(value, float) else str(value) for value in point.values())
            print("".join(f"{cell:>14}" for cell in cells))


def _format_per_cent(accuracy: float) -> str:
    return f"{100 * accuracy:.1f}"


def _format_beside(ours: float, paper: float | None) -> str:
    return _format_per_cent(ours) + (f" ({_format_per_cent(paper)})" if paper is not None else "")


def _format_line(name: str, cells: Any, width: int = 8) -> str:
    return f"{name:16}" + "".join(f"{cell:>{width}}" for cell in cells)


# -- pictures ----------------------------------------------------------------------------------------------------------


def make_panels_of_figure_1(figures: Figures) -> list[Panel]:
    c_alphas, by_layer = figures["plan"]["c_alphas"], figures["by layers quantized"]
    curves = {name: [(p["C_α"], 100 * p["test"]) for p in points] for name, points in figures["by C_α"].items()}
    flat = {"analog": figures["analog"], **{name: by_layer[name][-1] for name in by_layer if name not in curves}}
    curves |= _draw_flat(flat, c_alphas)
    layers = {name: [(k, 100 * accuracy) for k, accuracy in enumerate(values)] for name, values in by_layer.items()}
    accuracy = "test top-1 accuracy, %"
    return [
        Panel(curves, "C_α", accuracy, "MNIST, 3 levels", dashed=tuple(flat), points=True),
        Panel(layers, "layers quantized", accuracy, "layer by layer", points=True),
    ]


def make_panels_of_table_1(figures: Figures) -> list[Panel]:
    panels = []
    for searched in figures["searched"]:
        levels = searched["levels"]
        rows = [row for row in figures["rows"] if row["levels"] == levels]
        curves = {name: [(row["C_α"], 100 * row[name]) for row in rows] for name in PAPERS_METHODS}
        paper = {
            f"{name}, the paper's": [(c, 100 * a) for c, a in zip(PAPER_C_ALPHAS, by_levels[levels], strict=True)]
            for name, by_levels in PAPER_TABLE.items()
        }
        flat = {"analog": figures["analog"], **{name: searched[name] for name in searched if name != "levels"}}
        lines = {**curves, **paper, **_draw_flat(flat, [row["C_α"] for row in rows])}
        title = f"CIFAR-10, {levels} levels"
        panels.append(Panel(lines, "C_α", "test top-1 accuracy, %", title, dashed=(*paper, *flat), points=True))
    return panels


def make_panels_of_decay(figures: Figures) -> list[Panel]:
    panels = []
    for series, size, other in ((GROWING_WIDTH, "N₀", "m"), (GROWING_SAMPLES, "m", "N₀")):
        points = figures[series]
        curves = {name: [(p[size], p[name]) for p in points] for name in ("GPFQ", "MSQ", "scaled bound")}
        curves["log(N₀)√(m/N₀), scaled"] = curves.pop("scaled bound")
        title = f"{other} = {points[0][other]}"
        dashed = ("log(N₀)√(m/N₀), scaled",)
        panels.append(Panel(curves, size, "median ‖Xw − Xq‖ / ‖Xw‖", title, dashed, logarithmic=True, points=True))
    return panels


def _draw_flat(accuracies: Mapping[str, float], along: Sequence[float]) -> dict[str, list[tuple[float, float]]]:
    """Return lines of one height, for what does not depend on C_α."""
    return {name: [(min(along), 100 * value), (max(along), 100 * value)] for name, value in accuracies.items()}


SHOWN: dict[str, Callable[[Figures], None]] = {
    "figure-1": show_figure_1,
    "table-1": show_table_1,
    "decay": show_decay,
}
DRAWN: dict[str, Callable[[Figures], list[Panel]]] = {
    "figure-1": make_panels_of_figure_1,
    "table-1": make_panels_of_table_1,
    "decay": make_panels_of_decay,
}


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("gpfq", __doc__, "the paper's networks on all of the data: for a GPU", PARTS)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--directory", type=Path, default=Path("out/gpfq"), help="of the trainings")
    arguments = parser.parse_args(options)
    mode = "full" if arguments.full else "short"
    found = {}
    for part in [arguments.only] if arguments.only else PARTS:
        found[part] = run(part, arguments.full, arguments.directory / mode, arguments.device)
        if arguments.results:
            target = arguments.results / ("gpfq" if arguments.full else "gpfq_short")
            keep(target.with_suffix(".json"), part, found[part], PARTS)
            draw_panels(DRAWN[part](found[part]), Path(f"{target}_{part.replace('-', '_')}.svg"))
    if not arguments.full:
        print("\nThis is the short mode: small networks or few images and epochs, not the paper's experiment.")
    for part, figures in found.items():
        SHOWN[part](figures)
