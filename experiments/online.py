"""Learning online over a union of architectures: Algorithm 1 of Chee and Loustau on four streams, beside its bounds.

    python -m experiments online                                    minutes on one core
    python -m experiments online --full [--only growth] [--device cuda]

The text has theorems and no experiment, so that there is no printed figure to stand beside ours. Parts:

    digits, mnist    images, over convolutional networks of one to three layers; MNIST's are 7 × 7, means of 4 × 4
    series           windows of a synthetic time series, over one-dimensional convolutional networks
    graph            nodes of a synthetic graph, over graph-convolutional networks
    growth           the regret and its bounds as T grows, for one λ and for λ of order 1/√T
    moves            what it costs and what it loses that moves of particles see some past rounds only
    spread           which architecture is the likeliest in the end, by seed, with and without particles for all of them
    xnor             XNOR-Nets++ beside real-valued networks of as many layers and filters, on images of 4 × 4

What is compared: what the networks drawn for each round lose, the best particle in the end, a network trained offline
on all rounds, and Theorem 4.1: at the law where it is least, as the sampler estimates it, and at the prior shifted to
an expert, as Theorems 3.1 and 3.2 take it. Moves of particles see some past rounds only (`subsample`). λ, τ and the
unions were chosen after a dozen runs of a few hundred rounds on these streams, by their loss.

Stored figures are kept part by part.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from experiments.command_line import Parser
from experiments.pictures import draw_panels
from experiments.record import keep
from tamis.bayes import LEAST_BOUND, RunSettings, compute_curves, find_experts, run_online, summarise_run
from tamis.bayes.summary import OFFLINE
from tamis.progress import reporting
from tamis.reports import online_panels
from tamis.reports.figures import Panel

Figures = dict[str, Any]
DIGITS = RunSettings("digits", "conv2d", rounds=1000, batch=16, particles=60, lam=1.0, tau=0.3, subsample=32)
MNIST = replace(DIGITS, data="mnist:train", pool=4, rounds=400)
SERIES = RunSettings("series", "conv1d", rounds=600, batch=16, particles=60, lam=1.0, tau=0.3, subsample=32)
GRAPH = RunSettings("graph", "graph", rounds=1000, batch=8, particles=100, lam=1.0, tau=0.5, subsample=32)
FULL = {"digits": DIGITS, "mnist": MNIST, "series": SERIES, "graph": GRAPH}
SHORT = {
    "digits": replace(DIGITS, rounds=200, particles=40, subsample=16),
    "mnist": replace(MNIST, rounds=200, particles=40, subsample=16),
    "series": replace(SERIES, rounds=150, particles=40, subsample=16),
    "graph": replace(GRAPH, rounds=300, particles=60, subsample=16),
}


@dataclass(frozen=True)
class Growth:
    """Runs of different lengths.

    Attributes:
        asked: of all of them.
        rounds: T of each.
        seeds: how many runs of each length; figures are means over them.
        lam: λ of half of the rows.
        root: λ√T of the others.
    """

    asked: RunSettings
    rounds: tuple[int, ...]
    seeds: int
    lam: float
    root: float


@dataclass(frozen=True)
class Beside:
    """Runs on one stream: XNOR networks beside real-valued ones of as many layers and filters."""

    asked: RunSettings
    real: str


FULL_GROWTH = Growth(
    replace(GRAPH, particles=60, layers=(1, 2), filters=(4,)), (50, 100, 200, 400, 800), seeds=2, lam=1.0, root=10.0
)
SHORT_GROWTH = replace(FULL_GROWTH, asked=replace(FULL_GROWTH.asked, particles=40), rounds=(25, 50, 100, 200), seeds=1)
_XNOR = replace(DIGITS, rounds=300, layers=(3,), filters=(8,), sizes=(2,), pool=2)
FULL_XNOR = {
    "digits": Beside(_XNOR, "conv2d"),
    "series": Beside(replace(SERIES, rounds=200, layers=(3,), filters=(4,), sizes=(5,)), "conv1d"),
}
SHORT_XNOR = {"digits": Beside(replace(_XNOR, rounds=200, particles=40, subsample=16), "conv2d")}


@dataclass(frozen=True)
class Moves:
    """Runs whose moves see different numbers of past rounds, None for all; figures are means over seeds."""

    asked: RunSettings
    subsamples: tuple[int | None, ...]
    seeds: int


FULL_MOVES = Moves(replace(GRAPH, rounds=600), (None, 64, 32, 16), seeds=3)
SHORT_MOVES = Moves(replace(GRAPH, rounds=150, particles=40), (None, 32, 16), seeds=2)


@dataclass(frozen=True)
class Spread:
    """Runs that deal different parts of the particles evenly to all architectures, each with several seeds."""

    asked: RunSettings
    spreads: tuple[float, ...]
    seeds: int


FULL_SPREAD = {
    "graph": Spread(replace(GRAPH, rounds=400, particles=60), (0.0, 0.5), seeds=3),
    "digits": Spread(replace(DIGITS, rounds=200, particles=40), (0.0, 0.5), seeds=3),
}
SHORT_SPREAD = {"graph": Spread(replace(GRAPH, rounds=200, particles=40, subsample=16), (0.0, 0.5), seeds=2)}
PARTS = (*FULL, "growth", "moves", "spread", "xnor")


def run(part: str, full: bool, device: str) -> Figures:
    """Return the figures of one part."""
    if part == "growth":
        return run_growth(FULL_GROWTH if full else SHORT_GROWTH, device)
    if part == "moves":
        return run_moves(FULL_MOVES if full else SHORT_MOVES, device)
    if part == "spread":
        return run_spread(FULL_SPREAD if full else SHORT_SPREAD, device)
    if part == "xnor":
        return run_xnor(FULL_XNOR if full else SHORT_XNOR, device)
    return learn((FULL if full else SHORT)[part], device)


def learn(asked: RunSettings, device: str, name: str = "") -> Figures:
    """Return a run, its account, and its curves; seconds are of a processor."""
    began = time.process_time()
    with reporting(True, name or asked.data, asked.rounds) as report:
        done = run_online(
            asked, listen=lambda learner: report(learner.rounds, loss=learner.regret.losses[-1]), device=device
        )
    beside = find_experts(done)
    found = summarise_run(done, beside)
    return {**found, "curves": compute_curves(done, beside), "seconds": round(time.process_time() - began, 1)}


def run_growth(plan: Growth, device: str) -> Figures:
    """Return the regret against the network trained offline, and its bounds, by T and λ; means over seeds."""
    rows = []
    for rule in (FIXED, ROOT):
        for rounds in plan.rounds:
            lam = plan.lam if rule == FIXED else plan.root / math.sqrt(rounds)
            runs = [
                learn(
                    replace(plan.asked, rounds=rounds, lam=lam, seed=seed), device, f"T = {rounds}, {rule}, seed {seed}"
                )
                for seed in range(plan.seeds)
            ]
            row = {"lambda": rule, "rounds": rounds, "lam": lam, **_average([compute_regrets(each) for each in runs])}
            rows.append({**row, "architectures": [each["architecture trained offline"] for each in runs]})
    exponents = {
        rule: {name: fit_exponent([row for row in rows if row["lambda"] == rule], name) for name in REGRETS}
        for rule in (FIXED, ROOT)
    }
    return {"plan": asdict(plan), "rows": rows, "exponents": exponents}


FIXED, ROOT = "λ fixed", "λ ∝ 1/√T"
REGRETS = ("regret", "bound, least", "bound, shifted prior")


def compute_regrets(found: Mapping[str, Any]) -> dict[str, float]:
    """Return what the learner lost, and what bounds say of it, less what the network trained offline lost."""
    expert = found["loss of the network trained offline"]
    values = (found["expected loss"], found["bounds"][LEAST_BOUND]["value"], found["bounds"][OFFLINE]["value"])
    return {name: value - expert for name, value in zip(REGRETS, values, strict=True)}


def _average(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def fit_exponent(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the slope of log(value) by log(T), by least squares; None where a value is not above 0."""
    if not all(row[name] > 0 for row in rows) or len(rows) < 2:
        return None
    x, y = ([math.log(row[each]) for row in rows] for each in ("rounds", name))
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / math.fsum(
        (a - mean_x) ** 2 for a in x
    )


def run_moves(plan: Moves, device: str) -> Figures:
    """Return loss, error and time by how many past rounds a move sees."""
    rows = []
    for subsample in plan.subsamples:
        runs = [
            learn(replace(plan.asked, subsample=subsample, seed=seed), device, f"subsample {subsample}, seed {seed}")
            for seed in range(plan.seeds)
        ]
        names = ("expected loss", "loss of a uniform guess", "error of the averaged prediction", "seconds")
        rows.append({"subsample": subsample, **_average([{name: each[name] for name in names} for each in runs])})
    return {"plan": asdict(plan), "rows": rows}


def run_spread(plans: Mapping[str, Spread], device: str) -> Figures:
    """Return the posterior over architectures in the end, loss and error, by stream, spread and seed."""
    names = ("architectures", "expected loss", "error of the averaged prediction", "seconds")
    rows = []
    for stream, plan in plans.items():
        for part in plan.spreads:
            for seed in range(plan.seeds):
                asked = replace(plan.asked, spread=part, seed=seed)
                found = learn(asked, device, f"{stream}, spread {part}, seed {seed}")
                rows.append({"stream": stream, "spread": part, "seed": seed, **{name: found[name] for name in names}})
    return {"plans": {stream: asdict(plan) for stream, plan in plans.items()}, "rows": rows}


def run_xnor(plans: Mapping[str, Beside], device: str) -> Figures:
    """Run XNOR networks beside real-valued ones, on each stream."""
    rows = {}
    for stream, plan in plans.items():
        for space in ("xnor", plan.real):
            found = learn(replace(plan.asked, space=space), device, f"{stream}, {space}")
            rows[f"{stream}, {space}"] = drop_curves(found)
    return {"rows": rows}


# -- what people see ---------------------------------------------------------------------------------------------------


def show_run(figures: Mapping[str, Any]) -> None:
    """Print a stream's account."""
    asked, rounds = figures["asked"], figures["asked"]["rounds"]
    print(f"\n{asked['data']}, {asked['space']}: {rounds} rounds of {asked['batch']}, {asked['particles']} particles")
    print(f"{'loss over all rounds, nats':54}{'sum':>10}{'a round':>10}")
    lines = {
        "networks drawn": figures["loss"],
        "averaged over particles": figures["expected loss"],
        "best particle": figures["loss of the best particle"],
        f"trained offline, {figures['architecture trained offline']}": figures["loss of the network trained offline"],
        "uniform guess": figures["loss of a uniform guess"],
        **{f"bound, {name}": bound["value"] for name, bound in figures["bounds"].items()},
    }
    for name, value in lines.items():
        print(f"{name:54}{value:10.1f}{value / rounds:10.3f}")
    likeliest = list(figures["architectures"].items())[:3]
    print("architectures: " + "; ".join(f"{name} {share:.1%}" for name, share in likeliest))
    sparsity = figures["sparsity"]
    print(f"error of the averaged prediction, last fifth: {figures['error of the averaged prediction']:.1%};", end=" ")
    print(f"{sparsity['share']:.1%} of {sparsity['weights']:.0f} weights above τ")


def show_growth(figures: Mapping[str, Any]) -> None:
    plan = figures["plan"]
    print(f"\nRegret against the network trained offline, as T grows: {plan['asked']['data']}, {plan['seeds']} seeds")
    print(f"{'':12}{'T':>6}{'λ':>8}" + "".join(f"{name:>22}" for name in REGRETS))
    for row in figures["rows"]:
        cells = "".join(f"{row[name]:22.1f}" for name in REGRETS)
        print(f"{row['lambda']:12}{row['rounds']:6}{row['lam']:8.3f}{cells}")
    for rule, slopes in figures["exponents"].items():
        cells = "".join(f"{'–' if slope is None else f'{slope:.2f}':>22}" for slope in slopes.values())
        print(f"{rule + ', exponent':26}{cells}")


def show_moves(figures: Mapping[str, Any]) -> None:
    plan = figures["plan"]
    print(f"\nMoves that see some past rounds: {plan['asked']['data']}, {plan['asked']['rounds']} rounds", end=", ")
    print(f"{plan['seeds']} seeds\n{'past rounds':14}{'loss':>10}{'error, last fifth':>20}{'seconds':>10}")
    for row in figures["rows"]:
        cells = f"{row['expected loss']:10.1f}{row['error of the averaged prediction']:20.1%}{row['seconds']:10.1f}"
        print(f"{'all' if row['subsample'] is None else row['subsample']!s:14}{cells}")


def show_spread(figures: Mapping[str, Any]) -> None:
    print(f"\nArchitectures by seed\n{'':10}{'spread':>8}{'seed':>6}{'loss':>10}{'error':>8}  likeliest architecture")
    for row in figures["rows"]:
        name, share = next(iter(row["architectures"].items()))
        cells = f"{row['expected loss']:10.1f}{row['error of the averaged prediction']:8.1%}  {name} {share:.1%}"
        print(f"{row['stream']:10}{row['spread']:8}{row['seed']:6}{cells}")


def show_xnor(figures: Mapping[str, Any]) -> None:
    for found in figures["rows"].values():
        show_run(found)


def make_growth_panels(figures: Mapping[str, Any]) -> list[Panel]:
    return [
        Panel(
            {name: [(row["rounds"], row[name]) for row in rows if row[name] > 0] or [(1, 1.0)] for name in REGRETS},
            "T",
            "regret, nats",
            rule,
            dashed=REGRETS[1:],
            logarithmic=True,
            points=True,
        )
        for rule in figures["exponents"]
        for rows in [[row for row in figures["rows"] if row["lambda"] == rule]]
    ]


SHOWN: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "growth": show_growth,
    "moves": show_moves,
    "spread": show_spread,
    "xnor": show_xnor,
}
DRAWN: dict[str, Callable[[Mapping[str, Any]], list[Panel]]] = {
    "digits": lambda figures: online_panels(figures["curves"], "digits"),
    "growth": make_growth_panels,
}


def select_stored(target: Path, part: str, figures: Figures) -> None:
    """Keep a part's figures, and draw those that the documentation shows; curves are in the picture alone."""
    keep(target.with_suffix(".json"), part, drop_curves(figures), PARTS)
    if part in DRAWN:
        draw_panels(DRAWN[part](figures), Path(f"{target}_{part}.svg"))


def drop_curves(figures: Figures) -> Figures:
    """Return figures without what is known of single rounds."""
    return {name: value for name, value in figures.items() if name != "curves"}


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("online", __doc__, "more rounds, particles and seeds", PARTS)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args(options)
    torch.set_num_threads(1)  # networks this small lose by more
    found = {}
    for part in [arguments.only] if arguments.only else PARTS:
        found[part] = run(part, arguments.full, arguments.device)
        if arguments.results:
            select_stored(arguments.results / ("online" if arguments.full else "online_short"), part, found[part])
    if not arguments.full:
        print("\nThis is the short mode: few rounds and particles.")
    for part, figures in found.items():
        SHOWN.get(part, show_run)(figures)
