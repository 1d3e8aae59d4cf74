"""Figures are drawn by matplotlib (`pip install tamis[plots]`) and written whole to an .svg, .png or .pdf file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import replace_file
from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.paths import path_costs
from tamis.pruning import candidates, rank_correlation

MOST_POINTS = 20_000  # of a scatter plot; more would only be darker
INK = "#1f3b57"
Curves = Mapping[str, Sequence[tuple[float, float]]]


def magnitude_against_cost(networks: Mapping[str, Network], path: str | Path) -> dict[str, float]:
    """Plot every weight's magnitude against its Φ-cost, one panel for each network (thesis, Figure 3.8).

    Args:
        networks: by the titles of their panels.
        path: the file to write.

    Returns:
        Spearman's rank correlation of the two for each network, which stands in its panel as well.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
        >>> found = magnitude_against_cost({"as drawn": net, "rescaled": tamis.rescale(net)}, "scatter.svg")
        >>> found["as drawn"] > found["rescaled"]
        True

    Reference: gonon2024thesis.
    """
    if not networks:
        raise InvalidInput("there is nothing to draw: no networks were given")
    figure, axes = _make_panels(len(networks))
    correlations = {}
    for axis, (title, net) in zip(axes, networks.items(), strict=True):
        names = candidates(net).names
        costs = path_costs(net)
        magnitudes = {name: net.params[name].abs() for name in names}
        # Of all weights, though only some of them are drawn.
        correlations[title] = rank_correlation(magnitudes, costs.values)
        x, y = choose_points(magnitudes, costs.values, MOST_POINTS)
        # In logarithms, with the scale added: Φ-costs of deep networks are beyond the range of floats.
        log_costs = (y.log() + costs.log_scale) / math.log(10)
        # As pixels within the drawing: thousands of dots in vectors are slow to show.
        axis.scatter(x.log10(), log_costs, s=1, alpha=0.3, linewidths=0, color=INK, rasterized=True)
        axis.set(title=title, xlabel="log₁₀ magnitude", ylabel="log₁₀ Φ-cost")
        axis.annotate(f"rank correlation {correlations[title]:.2f}", (0.03, 0.94), xycoords="axes fraction")
    _write(figure, path)
    return correlations


def training_curves(curves: Curves, path: str | Path, dashed: Sequence[str] = ()) -> None:
    """Plot accuracy against the epoch, a line for each name (thesis, Figure 3.7).

    Args:
        curves: pairs of an epoch and an accuracy (a fraction) by name.
        path: the file to write.
        dashed: names of the lines to draw dashed.
    """
    per_cent = {name: [(epoch, 100 * accuracy) for epoch, accuracy in curve] for name, curve in curves.items()}
    line_panels([Panel(per_cent, "epoch", "test top-1 accuracy, %", dashed=dashed)], path)


@dataclass(frozen=True)
class Panel:
    """A panel is a part of a figure with lines.

    Attributes:
        curves: points, x and y, by name.
        xlabel, ylabel, title: as they are written.
        dashed: names of the lines to draw dashed.
        logarithmic: both axes.
        points: whether a dot marks every point.
    """

    curves: Curves
    xlabel: str
    ylabel: str
    title: str = ""
    dashed: Sequence[str] = ()
    logarithmic: bool = False
    points: bool = False


def line_panels(panels: Sequence[Panel], path: str | Path) -> None:
    """Plot lines in one panel or in several, side by side.

    Args:
        panels: from left to right.
        path: the file to write.

    Example:
        >>> line_panels([Panel({"GPFQ": [(64, 0.33), (256, 0.18)]}, "N₀", "error", logarithmic=True)], "decay.svg")
    """
    if not panels:
        raise InvalidInput("there is nothing to draw: no panels were given")
    # Before matplotlib is asked for, so that the message is about the data also where it is not installed.
    for panel in panels:
        if not panel.curves or not all(panel.curves.values()):
            raise InvalidInput(f"there is nothing to draw: every curve needs a point, got {dict(panel.curves)!r:.80}")
    figure, axes = _make_panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for name, curve in panel.curves.items():
            x, y = zip(*curve, strict=True)
            style = ("." if panel.points else "") + ("--" if name in panel.dashed else "-")
            axis.plot(x, y, style, label=name, lw=1.2)
        axis.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title)
        if panel.logarithmic:
            axis.set(xscale="log", yscale="log")
        elif all(float(x).is_integer() for curve in panel.curves.values() for x, _ in curve):
            axis.xaxis.get_major_locator().set_params(integer=True)  # there is no epoch 2.5
        axis.legend(frameon=False, fontsize="small")
    _write(figure, path)


def choose_points(magnitudes: Mapping[str, Tensor], costs: Mapping[str, Tensor], most: int) -> tuple[Tensor, Tensor]:
    """Choose evenly among the weights whose magnitude and cost are above zero; return both for at most `most`."""
    x = torch.cat([magnitudes[name].double().flatten() for name in magnitudes])
    y = torch.cat([costs[name].flatten() for name in magnitudes])
    # Zeros have no logarithm.
    positive = ((x > 0) & (y > 0)).nonzero().flatten()
    # Every so-manyth and not the first ones, which would all be of the first layers.
    chosen = positive[:: max(math.ceil(len(positive) / most), 1)]
    return x[chosen].cpu(), y[chosen].cpu()


def _make_panels(count: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput("figures need matplotlib: pip install 'tamis[plots]'") from error
    figure = Figure(figsize=(5.2 * count, 3.8), layout="constrained")  # without pyplot: no window, no global state
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2, linewidth=0.5)
    return figure, axes


def _write(figure: Any, path: str | Path) -> None:
    from matplotlib import rc_context

    kind = Path(path).suffix.removeprefix(".").lower()
    kinds = figure.canvas.get_supported_filetypes()
    if kind not in kinds:
        raise InvalidInput(f"a figure is a file such as .svg, .png or .pdf, got '{path}'")
    # Without the day and with fixed identifiers, the same figure is the same file.
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
    with replace_file(path) as part, rc_context({"svg.hashsalt": "tamis"}):
        figure.savefig(part, format=kind, dpi=150, metadata=metadata)
