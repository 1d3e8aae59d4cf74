"""`tamis prune`: set the weights that matter least to zero, save what is left, and say what that cost."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tamis.artifact import NOTHING, Compressed, errors_of, sentences
from tamis.cli.display import from_logarithm, make_console, make_fact_table, table
from tamis.cli.model_argument import open_network
from tamis.cli.opening import open_with_data
from tamis.cli.options import CalibrationChoice, ModelChoice
from tamis.cli.output_argument import name_replaced, prepare_output
from tamis.cli.unfinished import open_parts_directory
from tamis.errors import UnsupportedOp
from tamis.graph import Network
from tamis.paths import path_metric
from tamis.pruning import prune as prune_network
from tamis.training import join_team

BOUND = "‖R(x) − R'(x)‖₁ ≤ {} · max(‖x‖∞, 1)"


@dataclass(frozen=True)
class Layer:
    """A layer says what is left of one parameter, or of all of them together; its error, where data was used."""

    name: str
    weights: int
    left: int
    error: float | None = None

    @property
    def pruned(self) -> float:
        """The fraction of weights that are pruned."""
        return 1 - self.left / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class Pruning:
    """A pruning holds everything that `tamis prune` shows; `bound` is a natural logarithm, None where none holds."""

    small: Compressed
    layers: tuple[Layer, ...]
    float_bytes: int
    bound: float | None
    refusal: UnsupportedOp | None

    @property
    def total(self) -> Layer:
        return Layer("total", sum(each.weights for each in self.layers), sum(each.left for each in self.layers))


def prune(original: ModelChoice, calibration: str | None, out: Path, as_json: bool, choices: dict[str, Any]) -> None:
    """Run the command; arguments as on the command line, `choices` the settings as `tamis.prune` takes them."""
    prepare_output(out, ".tamis")
    team = join_team(torch.device("cpu"))
    # Without data there are no layers to wait for.
    with nullcontext() if calibration is None else open_parts_directory(out, team) as directory:
        if calibration is None:
            with Console(stderr=True).status(Text(f"tracing {original.model}")) as status:
                loaded = open_network(original)
                status.update(Text(f"pruning {original.model}"))
                small = prune_network(loaded.compressed or loaded.network, **choices)
        else:
            loaded = opened = open_with_data(original, CalibrationChoice(calibration))
            given = loaded.compressed or loaded.network
            small = prune_network(given, **choices, calibration=opened.calibration, directory=directory)
        if not team.leads:
            return
        with Console(stderr=True).status(Text(f"bounding what that changes in {original.model}")):
            found = pruning(loaded.network, small)
        in_place = name_replaced(out)
        small.save(out)
    origin = {"model": original.model, "weights": loaded.weights}
    if as_json:
        print(json.dumps({**origin, "file": str(out), **as_plain_data(found)}, indent=2, allow_nan=False))
    else:
        show(found, {**origin, "file": f"{out}{in_place}"}, make_console())


# -- finding out -------------------------------------------------------------------------------------------------------


def pruning(before: Network, small: Compressed) -> Pruning:
    """Find what pruning left of a network, and bound how far it can have moved its outputs."""
    masks = {name: small.masks[name] for name in before.params if name in small.masks}  # in the order of the module
    errors = errors_of(small.recipe[-1:])
    layers = tuple(
        Layer(name, mask.numel(), int(mask.count_nonzero()), errors.get(name)) for name, mask in masks.items()
    )
    float_bytes = sum(value.nbytes for value in before.params.values())
    try:
        return Pruning(small, layers, float_bytes, float(path_metric(before, small.network, log=True)), None)
    except UnsupportedOp as refusal:
        return Pruning(small, layers, float_bytes, None, refusal)


# -- for machines ------------------------------------------------------------------------------------------------------


def as_plain_data(found: Pruning) -> dict[str, Any]:
    """Return a pruning as JSON takes it: logarithms are natural, null is log 0 or a value beyond float64."""
    bound, refusal, total = found.bound, found.refusal, found.total
    return {
        "recipe": list(found.small.recipe),
        "layers": [{**asdict(layer), "pruned": layer.pruned} for layer in found.layers],
        "total": {"weights": total.weights, "left": total.left, "pruned": total.pruned},
        "stayed_float": [asdict(each) for each in found.small.untouched],
        "bytes": found.small.nbytes,
        "float_bytes": found.float_bytes,
        "bound": None if bound is None else _bound_as_plain_data(bound),
        "refusal": {"message": str(refusal), "op": refusal.op, "module": refusal.module} if refusal else None,
    }


def _bound_as_plain_data(log: float) -> dict[str, float | None]:
    return {"value": math.exp(log) if log < 709 else None, "log": log if math.isfinite(log) else None}


# -- for people --------------------------------------------------------------------------------------------------------


def show(found: Pruning, origin: dict[str, str], out: Console) -> None:
    """Print a pruning: layers, totals, bound."""
    out.print(_make_layer_table(found))
    out.print()
    ratio = f"{found.small.nbytes / found.float_bytes:.1%}"
    lines = {
        **origin,
        "pruned": f"{found.total.weights - found.total.left:,} of {found.total.weights:,} weights",
        "stayed float": "\n".join(sentences(found.small.untouched)) or "nothing",
        "bytes": f"{found.small.nbytes:,} on disk, {ratio} of the {found.float_bytes:,} of its floats",
    }
    if found.bound is not None:
        lines["bound"] = BOUND.format(from_logarithm(found.bound))
    out.print(make_fact_table(lines))
    if found.refusal is not None:
        out.print(Text.assemble(("No bound: ", "yellow"), str(found.refusal)), soft_wrap=True)


def _make_layer_table(found: Pruning) -> Table:
    rows = table()
    rows.add_column("parameter", overflow="fold")
    with_errors = any(layer.error is not None for layer in found.layers)
    for heading in ("weights", "left", "pruned", *["relative error"] * with_errors):
        rows.add_column(heading, justify="right")
    for layer in found.layers:
        rows.add_row(*_format_row(layer), *[NOTHING if layer.error is None else f"{layer.error:.3g}"] * with_errors)
    rows.add_section()
    rows.add_row(*_format_row(found.total), style="bold")
    return rows


def _format_row(layer: Layer) -> tuple[Text, str, str, str]:
    return Text(layer.name), f"{layer.weights:,}", f"{layer.left:,}", f"{layer.pruned:.1%}"
