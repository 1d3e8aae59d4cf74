"""What the measurements say, ours beside those of chapter 5 of the thesis: Tables 5.3 to 5.5, figures 5.8 and 5.9."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from experiments.kronecker_peers import BMM_PEER as BMM
from experiments.kronecker_peers import CHOSEN, PEERS, Row, from_line
from experiments.kronecker_peers import DENSE_PEER as DENSE
from experiments.kronecker_peers import EINSUM_PEER as EINSUM
from experiments.kronecker_vit import DENSE as FULLY_CONNECTED
from experiments.kronecker_vit import PRINTED as PRINTED_VIT
from experiments.kronecker_vit import TRAINING
from tamis.kernels import NOT_MEASURED
from tamis.kronecker import BATCH_FIRST, Pattern
from tamis.kronecker.backends import BATCH_LAST, LAYOUTS
from tamis.reports.figures import Panel

Figures = Mapping[str, Any]
VIT, ENERGY, MULTIPLY = PARTS = ("vit", "energy", "multiply")
KERNEL = "kernel"  # the fastest of ours
RIGHT = 1e-2  # of the largest output: what a kernel may be off; TF32 and float16 are well below, mistakes are not
BEST, OF_BMM, OF_KERNEL = "best of kernel, bmm, einsum < dense", "bmm < einsum, dense", "kernel < bmm, einsum, dense"
# By dtype: share in %, and the median factor where it is faster. Of Table D.2, on float16, our copy has one share.
PRINTED: dict[str, dict[str, tuple[float, float | None]]] = {
    "float32": {
        BEST: (99.67, 6.57),
        OF_BMM: (92.66, 1.37),
        OF_KERNEL: (88.10, 1.39),
        f"{OF_KERNEL}, {BATCH_FIRST}": (20.0, 1.28),
        f"{OF_KERNEL}, {BATCH_LAST}": (88.1, 1.39),
    },
    "float16": {BEST: (87.0, None)},
}
FIRST, MEDIAN, THIRD = "first quartile", "median", "third quartile"


# -- what rows say -----------------------------------------------------------------------------------------------------


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Return shares and factors as Tables 5.3 and 5.4 have them, for each dtype, and what is known of errors."""
    by_dtype: dict[str, Any] = {}
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        layouts = {layout: _select_times(rows, dtype, (layout,)) for layout in LAYOUTS}
        whole = _select_times(rows, dtype, LAYOUTS)
        own = [row for row in rows if row["dtype"] == dtype]
        by_dtype[dtype] = {
            "patterns": len(whole),
            "table 5.3": {
                BEST: _compare(whole, (KERNEL, BMM, EINSUM), (DENSE,)),
                OF_BMM: _compare(whole, (BMM,), (EINSUM, DENSE)),
                OF_KERNEL: _compare(whole, (KERNEL,), PEERS),
            },
            "table 5.4": {layout: _compare(times, (KERNEL,), PEERS) for layout, times in layouts.items()},
            "chosen": {layout: _summarise_choice(own, layout) for layout in LAYOUTS},
            "largest error of a kernel": max((row["error"] for row in own if row["error"] is not None), default=None),
            "wrong": [str(row["pattern"]) for row in own if row["error"] is not None and not row["error"] <= RIGHT],
        }
    return {"by dtype": by_dtype}


def _select_times(rows: Sequence[Row], dtype: str, layouts: Sequence[str]) -> dict[Pattern, dict[str, float]]:
    """Return milliseconds of each way, the faster of these layouts; patterns that were measured in all of them."""
    found: dict[Pattern, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["dtype"] == dtype and row["layout"] in layouts:
            found.setdefault(row["pattern"], {})[row["layout"]] = _list_with_kernel(row["ms"])
    whole = {pattern: each for pattern, each in found.items() if len(each) == len(layouts)}
    return {
        pattern: {name: min(ms.get(name, math.inf) for ms in each.values()) for name in (*PEERS, KERNEL)}
        for pattern, each in whole.items()
    }


def _list_with_kernel(ms: Mapping[str, float]) -> dict[str, float]:
    """Return times with the fastest of our kernels as one."""
    return {**ms, KERNEL: min((value for name, value in ms.items() if _is_kernel(name)), default=math.inf)}


def _is_kernel(name: str) -> bool:
    return name not in PEERS and name != CHOSEN


def _compare(
    times: Mapping[Pattern, Mapping[str, float]], ours: Sequence[str], others: Sequence[str]
) -> dict[str, Any]:
    """Return how often ours is faster than all others, by which factor then, and by which over all patterns."""
    factors = [min(ms[name] for name in others) / min(ms[name] for name in ours) for ms in times.values()]
    factors = factors if any(factors) else []  # of what never ran there is nothing to say
    faster = [factor for factor in factors if factor > 1]
    return {
        "share": len(faster) / len(factors) if factors else None,
        "median factor where faster": statistics.median(faster) if faster else None,
        "median factor": statistics.median(factors) if factors else None,
    }


def _summarise_choice(rows: Sequence[Row], layout: str) -> dict[str, Any]:
    """Return what `multiply` chooses, and how much longer it takes than the fastest way that was measured."""
    own = [row for row in rows if row["layout"] == layout]
    ratios = [row["ms"].get(CHOSEN, row["ms"].get(row["chosen"], math.inf)) / min(row["ms"].values()) for row in own]
    names = [row["chosen"] for row in own]
    return {
        "backends": {name: names.count(name) for name in sorted(set(names))},
        "within 5 % of the fastest": sum(ratio <= 1.05 for ratio in ratios) / len(ratios) if ratios else None,
        "worst": max(ratios, default=None),
    }


# -- what people see ---------------------------------------------------------------------------------------------------


def show_multiply(figures: Figures) -> None:
    print(
        "\nTables 5.3 and 5.4: share of patterns where one is faster, %, and the median factor there; batch of", end=""
    )
    print(f" {figures['plan']['batch']}")
    for dtype, found in figures["by dtype"].items():
        print(f"\n{dtype}, {found['patterns']} of {figures['patterns']} patterns in both layouts")
        print(_format_line("", ("ours", "the text's, A100", "over all patterns"), 24))
        rows = {**found["table 5.3"]}
        rows |= {f"{OF_KERNEL}, {layout}": each for layout, each in found["table 5.4"].items()}
        for name, row in rows.items():
            share, factor = PRINTED.get(dtype, {}).get(name, (None, None))
            paper = "—" if share is None else f"{share:.2f} ({_format_factor(factor)})"
            print(_format_line(name, (_share(row), paper, _format_factor(row["median factor"])), 24))
        for layout, choice in found["chosen"].items():
            names = ", ".join(f"{name} {count}" for name, count in choice["backends"].items())
            within = "—" if choice["worst"] is None else f"{100 * choice['within 5 % of the fastest']:.0f} %"
            worst = "" if choice["worst"] is None else f", at worst {choice['worst']:.2f} times its time"
            print(f"multiply chooses, {layout}: {names or 'nothing'}; within 5 % of the fastest in {within}{worst}")
        if found["largest error of a kernel"] is not None:
            print(f"largest error of a kernel, of the largest output: {found['largest error of a kernel']:.1e}")
        if found["wrong"]:
            print(f"WRONG results, without a time: {', '.join(found['wrong'][:8])}")


def show_vit(figures: Figures) -> None:
    plan = figures["plan"]
    blocks = f", {plan['depth']} blocks" if plan["depth"] else ""
    print(f"\nTable 5.5: time over that of the fully-connected part; {plan['images']} images{blocks}; the text's in")
    print("parentheses, in float32 on an A100")
    for dtype, rows in figures["by dtype"].items():
        names = [name for name in rows[0]["ms"] if name != FULLY_CONNECTED]
        print(_format_line(f"\n{dtype}", ("dense, ms", *names), 16))
        for row in rows:
            printed = PRINTED_VIT.get(row["part"], {}) if dtype == "float32" else {}
            base = row["ms"][FULLY_CONNECTED]
            cells = [f"{base:.3f}"]
            for name in names:
                paper = printed.get(name if name in (BMM, CHOSEN) else KERNEL)
                cells.append(f"{row['ms'][name] / base:.2f}" + (f" ({paper:.2f})" if paper else ""))
            note = "" if row["part"] != TRAINING or dtype == "float32" else ", autocast"
            print(_format_line(row["part"] + note, cells, 16))


def show_energy(figures: Figures) -> None:
    if not figures["rows"]:
        print(f"\nEnergy: {NOT_MEASURED} ({figures['reason']})")
        return
    print(f"\nEnergy by d(b + c)/(bc), joules; {figures['reason']}. The text's, on a V100: the kernel takes less in")
    print("72 % of the patterns, and 0.85 times as much as the least of the others in the median.")
    names = list(dict.fromkeys(name for row in figures["rows"] for name in row["joules"]))
    print(_format_line("", ("d(b+c)/bc", *names, "kernel/others"), 16))
    ratios = compute_energy_ratios(figures)
    for row, (x, ratio) in zip(figures["rows"], ratios, strict=True):
        pattern = Pattern(*row["pattern"])
        joules = [f"{row['joules'][name]:.4g}" if name in row["joules"] else "—" for name in names]
        cells = [f"{x:.4f}", *joules, f"{ratio:.2f}" if math.isfinite(ratio) else "—"]
        print(_format_line(str(pattern), cells, 16))
    known = [ratio for _, ratio in ratios if math.isfinite(ratio)]
    if known:
        less = sum(ratio < 1 for ratio in known) / len(known)
        print(f"less in {100 * less:.0f} % of {len(known)} patterns; in the median {statistics.median(known):.2f} ×")


def compute_energy_ratios(figures: Figures) -> list[tuple[float, float]]:
    """Return for each pattern d(b + c)/(bc), and the kernel's joules over the least of the others'; else nan."""
    found = []
    for row in figures["rows"]:
        own = min((joules for name, joules in row["joules"].items() if _is_kernel(name)), default=math.nan)
        others = min((joules for name, joules in row["joules"].items() if not _is_kernel(name)), default=math.nan)
        found.append((Pattern(*row["pattern"]).energy_ratio, own / others))
    return found


def _share(row: Figures) -> str:
    if row["share"] is None:
        return "—"
    return f"{100 * row['share']:.2f} ({_format_factor(row['median factor where faster'])})"


def _format_factor(factor: float | None) -> str:
    return "—" if factor is None or not math.isfinite(factor) or factor == 0 else f"×{factor:.2f}"


def _format_line(name: str, cells: Any, width: int) -> str:
    return f"{name:50}" + "".join(f"{cell!s:>{width}}" for cell in cells)


SHOWN: dict[str, Callable[[Figures], None]] = {VIT: show_vit, ENERGY: show_energy, MULTIPLY: show_multiply}


# -- pictures ----------------------------------------------------------------------------------------------------------


def make_panels(part: str, figures: Figures) -> list[Panel]:
    """Make figure 5.8 for each dtype, how much faster the kernel is by (b + c)/(bc); figure 5.9, energy by d(b +
    c)/(bc).
    """
    if part == ENERGY:
        points = sorted((x, y) for x, y in compute_energy_ratios(figures) if math.isfinite(y))
        curve = {"kernel over the least of the others": points}
        return [Panel(curve, "d(b + c)/(bc)", "energy", points=True, logarithmic=True)] if points else []
    rows = [from_line(line) for line in figures["rows"]] if part == MULTIPLY else []
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        factors: list[tuple[float, float]] = []
        for pattern, ms in _select_times(rows, dtype, LAYOUTS).items():
            if math.isfinite(ms[KERNEL]):
                factors.append((pattern.time_ratio, min(ms[BMM], ms[EINSUM]) / ms[KERNEL]))
        curves = compute_quartiles(factors)
        if curves[MEDIAN]:
            xlabel, ylabel = "(b + c)/(bc)", "times faster than bmm and einsum"
            found.append(Panel(curves, xlabel, ylabel, dtype, (FIRST, THIRD), logarithmic=True, points=True))
    return found


def compute_quartiles(points: Sequence[tuple[float, float]]) -> dict[str, list[tuple[float, float]]]:
    """Return quartiles of y for each x."""
    curves: dict[str, list[tuple[float, float]]] = {FIRST: [], MEDIAN: [], THIRD: []}
    for x, group in groupby(sorted(points), key=lambda point: point[0]):
        values = torch.tensor([y for _, y in group], dtype=torch.float64)
        for name, share in zip(curves, (0.25, 0.5, 0.75), strict=True):
            curves[name].append((x, float(values.quantile(share))))
    return curves
