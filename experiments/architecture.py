"""Two-temperature architecture pruning: Figure 1, the transfer study and Table 1 of Colombo and Gao (2021).

    python -m experiments architecture                    minutes on two cores: a small network, few images and runs
    python -m experiments architecture --full --device cuda --workers 8
    python -m experiments architecture --full --device cuda --only cifar10-to-cifar100 --cifar100 FOLDER

Architectures are found on a large set by two-temperature search (AP), by iterative magnitude pruning (IMP), or drawn at
random; each is trained anew, from fresh weights, on few images of a new task. Table 1 does so after the connections of
each layer were reshuffled. Architectures lie in --directory: a run that was broken off does not search again for what
it had found. Figures are stored after each number of images.

Deviations from the paper:
    1. Its parent network is VGG19 for large images, of 144 million weights. Here it is a small VGG: six convolutions of
       32, 32, 64, 64, 128 and 128 channels with batch-norm, and a linear layer; 287,000 connections.
    2. Its tasks are CIFAR-10 and ten classes of CIFAR-100, which needs that data in an .npz file or a folder, and runs
       with --only. The other two: the first five classes of CIFAR-10 to its last five; Fashion-MNIST to MNIST.
    3. It does not say how anything was trained. What is done here stands in FULL, and with the stored figures.
    4. Three architectures are found for each method and sparsity, and five transfers take them in turn; each
       transfer draws its own weights and images. Random and reshuffled ones are drawn anew for each of the five.
    5. The paper tunes γ. Here it is `search`'s own, and the rate of the masks is chosen for each sparsity, on the
       source alone: that of 1, 3 and 10 whose architecture does best when it is trained anew on 500 images of it.
    6. The search stops with the masks, as the paper says (ERRATA 29). IMP has three rounds, trains each for as many
       epochs as a search may take, and prunes across layers.

What departs in Figure 1 is numbered in architecture_figure_1.py.

Reference: colombo2021architecture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import architecture_figure_1
from experiments.architecture_figure_1 import PRINTED, run_figure_1
from experiments.architecture_transfer import (
    MAGNITUDE,
    METHODS,
    OURS,
    RANDOM,
    RESHUFFLED,
    SPARSITIES,
    Study,
    Task,
    transfer_study,
)
from experiments.command_line import Parser
from experiments.pictures import draw_panels
from experiments.record import keep
from tamis.reports.figures import Panel
from tamis.training import Settings

Figures = Mapping[str, Any]
FIGURE_1, HALVES, FASHION, CIFAR100 = "figure-1", "cifar10-halves", "fashion-to-mnist", "cifar10-to-cifar100"
PARTS = (FIGURE_1, HALVES, FASHION, CIFAR100)
AT_HAND = (FIGURE_1, HALVES, FASHION)  # without data that one has to name
PAPER_TABLE = {  # Table 1: mean and standard deviation, for each of SPARSITIES
    OURS: (
        (0.378, 0.021),
        (0.343, 0.023),
        (0.429, 0.023),
        (0.448, 0.020),
        (0.497, 0.021),
        (0.301, 0.001),
        (0.100, 0.0),
    ),
    MAGNITUDE: ((0.300, 0.024), (0.332, 0.022), (0.342, 0.026), (0.376, 0.025), (0.1, 0.0), (0.1, 0.0), (0.1, 0.0)),
}
STANDARD_ERRORS = 2.0  # how many apart two methods must be to be called different
FEWEST_RUNS = 3  # from which a standard error is worth its name

FULL = Study(
    source=Task("cifar10:train", (0, 1, 2, 3, 4)),
    source_test=Task("cifar10:test", (0, 1, 2, 3, 4)),
    new=Task("cifar10:train", (5, 6, 7, 8, 9)),
    test=Task("cifar10:test", (5, 6, 7, 8, 9)),
    widths=(32, 64, 128),
    search=Settings(epochs=8, batch=250, learning_rate=0.1, amp=True),
    transfer=Settings(epochs=1, batch=50, learning_rate=0.05, weight_decay=5e-4, amp=True),
    epochs=((500, 40), (1000, 25), (100, 100), (50, 150), (5000, 10)),  # the longest last
)
SHORT = replace(
    FULL,
    source=Task("cifar10:train[:2000]", FULL.source.classes),
    new=Task("cifar10:train[:10000]", FULL.new.classes),
    test=Task("cifar10:test[:2000]", FULL.new.classes),
    widths=(8, 16, 32),
    search=replace(FULL.search, batch=25, epochs=8),
    epochs=((500, 6), (100, 20)),
    sparsities=(0.9, 0.95),
    rounds=2,
    mask_rates=(1.0,),
    searches=2,
    runs=2,
)


def make_study(part: str, full: bool, cifar100: str) -> Study:
    """Return what a part searches on and transfers to."""
    plan = FULL if full else SHORT
    if part == HALVES:
        return plan
    if part == FASHION:
        specs = ("fashion_mnist:train", "fashion_mnist:test", "mnist:train", "mnist:test")
        cuts = ("[:25000]", "", "", "") if full else ("[:1000]", "[:1000]", "[:10000]", "[:1000]")
        tasks = [Task(spec + cut) for spec, cut in zip(specs, cuts, strict=True)]
    else:
        ten = tuple(range(10))
        source = Task("cifar10:train" if full else "cifar10:train[:1000]")
        tasks = [source, Task("cifar10:test"), Task(f"{cifar100}:train", ten), Task(f"{cifar100}:test", ten)]
    source, source_test, new, test = tasks
    return replace(plan, source=source, source_test=source_test, new=new, test=test)


# -- what people see ---------------------------------------------------------------------------------------------------


def show_figure_1(figures: Figures) -> None:
    plan, found = figures["plan"], figures["by t_s"]
    print(f"\nFigure 1: 8×8 digits, 0 against 1, {figures['connections']} connections, t_l = {plan['t_l']:g}")
    print("The paper has a picture: lowest and fastest for t_s = t_l/100; t_l/1000 takes all connections.")
    print("\nthe objective at the end, mean over seeds, and |m|, by the rate of the masks")
    print(_format_line("t_s", plan["rates"], 16))
    for name, each in found.items():
        ends = zip(each["final objective by rate"].values(), each["|m| by rate"].values(), strict=True)
        print(_format_line(name, (f"{value:.4f} ({kept:.0f})" for value, kept in ends), 16))
    print("\nthe objective on the way, at the rate that ends lowest")
    some = range(0, plan["shown"] + 1, plan["shown"] // 4)
    print(_format_line("iteration", (next(iter(found.values()))["objective"][at][0] for at in some)))
    for name, each in found.items():
        print(_format_line(name, (f"{each['objective'][at][1]:.4f}" for at in some)))
    print("\nTheorem 2.1, on the masks alone: how far from the best the averaged iterate is, and what bounds it")
    print(_format_line("t_s", ("measured", "corrected bound", "as printed (does not hold)"), 28))
    for name, each in found.items():
        bound = each["bound"]
        cells = (bound["measured, averaged iterate"], bound["corrected, averaged iterate"], bound[PRINTED])
        print(_format_line(name, (f"{value:.3g}" for value in cells), 28))
    if not any(each["bound"]["informative"] for each in found.values()):
        print("No bound says more than that the objective lies between its extremes: C grows like (t_l t_s/16)².")


def show_transfer(figures: Figures) -> None:
    plan = figures["plan"]
    source, new = (f"{task['spec']} {_describe_classes(task)}" for task in (plan["source"], plan["new"]))
    print(f"\nTransfer from {source}to {new.strip()}: test accuracy, %, of {figures['connections']:,} connections")
    for size, by_method in sorted(figures["accuracy"].items(), key=lambda item: -int(item[0])):
        sparsities = [*by_method[OURS]]
        print(f"\n{size} images; dense: {_spread(figures['dense'][size])}")
        print(_format_line("sparsity", sparsities, 14))
        for method in METHODS:
            print(_format_line(method, (_spread(by_method[method][sparsity]) for sparsity in sparsities), 14))
        for other in (RANDOM, MAGNITUDE):
            print(_compare(by_method, other))
    if figures["reshuffled"]:
        print(
            "\nTable 1: each layer's connections reshuffled, 500 images; in parentheses the paper's, on its own tasks"
        )
        sparsities = [*figures["reshuffled"][OURS]]
        print(_format_line("sparsity", sparsities, 24))
        for method in RESHUFFLED:
            own = figures["reshuffled"][method]
            print(
                _format_line(
                    method, (_spread(own[each]) + _quote_paper(method, float(each)) for each in sparsities), 24
                )
            )


def _describe_classes(task: Figures) -> str:
    return f"(classes {', '.join(map(str, task['classes']))}) " if task["classes"] else ""


def _compare(by_method: Mapping[str, Mapping[str, Sequence[float]]], other: str) -> str:
    """Say where AP is better or worse than another by more than chance, run by run."""
    better: list[str] = []
    worse: list[str] = []
    for sparsity, own in by_method[OURS].items():
        gains = [a - b for a, b in zip(own, by_method[other][sparsity], strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) >= FEWEST_RUNS else math.inf
        if abs(statistics.mean(gains)) > STANDARD_ERRORS * error:
            (better if statistics.mean(gains) > 0 else worse).append(sparsity)
    found = f"better at {', '.join(better) or 'none'}; worse at {', '.join(worse) or 'none'}"
    return f"    {OURS} against {other}, by {STANDARD_ERRORS:g} standard errors: {found}"


def _quote_paper(method: str, sparsity: float) -> str:
    """Return what Table 1 prints."""
    mean, deviation = PAPER_TABLE[method][SPARSITIES.index(sparsity)]
    return f" ({100 * mean:.1f} ± {100 * deviation:.1f})"


def _spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation over runs, in per cent."""
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def _format_line(name: str, cells: Any, width: int = 10) -> str:
    return f"{name:12}" + "".join(f"{cell!s:>{width}}" for cell in cells)


# -- pictures ----------------------------------------------------------------------------------------------------------


def make_panels(part: str, figures: Figures) -> list[Panel]:
    """Return the objective against iterations, or accuracy against sparsity for each number of images."""
    if part == FIGURE_1:
        curves = {
            f"t_s = {name}, |m| = {statistics.mean(each['|m|']):.0f}": [(x, y) for x, y in each["objective"][1:]]
            for name, each in figures["by t_s"].items()
        }
        return [Panel(curves, "iteration", "objective", "0 against 1")]
    return [
        Panel(
            {m: [(float(s), 100 * statistics.mean(runs)) for s, runs in by_method[m].items()] for m in METHODS},
            "sparsity",
            "test top-1 accuracy, %",
            f"{size} images",
            points=True,
        )
        for size, by_method in sorted(figures["accuracy"].items(), key=lambda item: -int(item[0]))
    ]


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser(
        "architecture",
        __doc__,
        "all sparsities and numbers of images: for a GPU",
        PARTS,
        only=f"one part instead of {', '.join(AT_HAND)}",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cifar100", default="cifar100", help=f"a name or folder of data, for {CIFAR100}")
    parser.add_argument("--workers", type=int, default=1, help="searches at a time")
    parser.add_argument("--directory", type=Path, default=Path("out/architecture"), help="of the architectures")
    arguments = parser.parse_args(options)
    if arguments.workers < 1:
        parser.error("--workers must be at least 1")
    mode = "full" if arguments.full else "short"
    target = arguments.results and arguments.results / ("architecture" if arguments.full else "architecture_short")
    for part in [arguments.only] if arguments.only else AT_HAND:

        def note(figures: Figures, part: str = part) -> None:
            if target:
                keep(target.with_suffix(".json"), part, figures, PARTS)

        if part == FIGURE_1:
            found = run_figure_1(architecture_figure_1.FULL if arguments.full else architecture_figure_1.SHORT)
            note(found)
            show_figure_1(found)
        else:
            study, place = make_study(part, arguments.full, arguments.cifar100), arguments.directory / mode / part
            found = transfer_study(study, place, arguments.device, arguments.workers, note)
            show_transfer(found)
        if target:
            draw_panels(make_panels(part, found), Path(f"{target}_{part.replace('-', '_')}.svg"))
    if not arguments.full:
        print("\nThis is the short mode: a small network, few images and runs, not the paper's experiment.")
