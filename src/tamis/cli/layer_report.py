"""A layer report ends a command that works layer by layer: a row for each layer, bytes, and accuracies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tamis.artifact import NOTHING, Compressed, errors_of, sentences, weights_of
from tamis.cli.data_argument import accuracy
from tamis.cli.display import make_console, make_fact_table, table
from tamis.graph import Network
from tamis.training import Data


@dataclass(frozen=True)
class Layer:
    """A layer is one parameter, with its levels if it is quantized and its error if the last step chose it anew."""

    name: str
    weights: int
    levels: int | None
    zeros: int
    error: float | None


@dataclass(frozen=True)
class Accuracies:
    """These are the accuracies of several named networks on the same data."""

    data: str
    examples: int
    values: dict[str, float]

    @classmethod
    def of(cls, networks: Mapping[str, Network], data: Data | None) -> Accuracies | None:
        """Measure the networks; return None without data."""
        if data is None:
            return None
        return cls(data.name, len(data), {name: accuracy(net, data) for name, net in networks.items()})


@dataclass(frozen=True)
class LayerReport:
    """A layer report holds everything that `tamis quantize` and `tamis repair` show."""

    small: Compressed
    accuracies: Accuracies | None

    @property
    def layers(self) -> tuple[Layer, ...]:
        small, errors = self.small, errors_of(self.small.recipe[-1:])
        chosen = [name for name in small.params if name in small.masks or name in small.codes or name in errors]
        return tuple(
            Layer(
                name,
                small.params[name].numel(),
                len(small.codes[name].levels) if name in small.codes else None,
                int((small.params[name] == 0).sum()),
                errors.get(name),
            )
            for name in chosen
        )

    @property
    def float_bytes(self) -> int:
        return sum(value.nbytes for value in self.small.params.values())

    @property
    def quantized(self) -> int:
        """The number of weights that are on levels."""
        return weights_of(self.small.codes)

    @property
    def bits(self) -> float:
        """The average number of bits of a quantized weight."""
        return sum(code.indices.numel() * code.bits for code in self.small.codes.values()) / max(self.quantized, 1)


def report(
    small: Compressed,
    networks: Mapping[str, Network],
    test: Data | None,
    origin: dict[str, str],
    in_place: str,
    as_json: bool,
) -> None:
    """Measure the networks on test data, if there is any, and print everything.

    Args:
        small: what the last step made.
        networks: by what they are, such as "before" and "after".
        test: what to measure them on.
        origin: what the user named.
        in_place: what is said to people of the file beside its name.
        as_json: for machines, not for people.
    """
    with Console(stderr=True).status("measuring accuracies"):
        found = LayerReport(small, Accuracies.of(networks, test))
    if as_json:
        print(json.dumps({**origin, **as_plain_data(found)}, indent=2, allow_nan=False))
    else:
        show(found, {**origin, "file": origin["file"] + in_place}, make_console())


# -- for machines ------------------------------------------------------------------------------------------------------


def as_plain_data(found: LayerReport) -> dict[str, Any]:
    """Return a report as JSON takes it; null stands for levels and errors that do not exist."""
    layers, accuracies = found.layers, found.accuracies
    return {
        "recipe": list(found.small.recipe),
        "layers": [asdict(layer) for layer in layers],
        "total": {"weights": sum(each.weights for each in layers), "zeros": sum(each.zeros for each in layers)},
        "quantized": {"weights": found.quantized, "bits": found.bits},
        "stayed_float": [asdict(each) for each in found.small.untouched],
        "bytes": found.small.nbytes,
        "float_bytes": found.float_bytes,
        "accuracy": None if accuracies is None else {"data": accuracies.data, **accuracies.values},
    }


# -- for people --------------------------------------------------------------------------------------------------------


def show(found: LayerReport, origin: dict[str, str], out: Console) -> None:
    """Print a report: layers, totals, bytes, accuracies."""
    out.print(_make_layer_table(found.layers))
    out.print()
    small, lines = found.small, dict(origin)
    if found.quantized:
        lines["quantized"] = f"{found.quantized:,} weights, to {found.bits:.2f} bits on average"
    if small.masks:
        lines["pruned"] = f"{small.masks.pruned:,} of {small.masks.total:,} weights"
    if small.untouched:
        lines["stayed float"] = "\n".join(sentences(small.untouched))
    ratio = f"{small.nbytes / found.float_bytes:.1%}"
    lines["bytes"] = f"{small.nbytes:,} on disk, {ratio} of the {found.float_bytes:,} of its floats"
    if found.accuracies is not None:
        said = ", ".join(f"{value:.1%} {name}" for name, value in found.accuracies.values.items())
        lines["accuracy"] = f"{said}, on {found.accuracies.data}, {found.accuracies.examples:,} examples"
    out.print(make_fact_table(lines))


def _make_layer_table(layers: tuple[Layer, ...]) -> Table:
    rows = table()
    rows.add_column("parameter", overflow="fold")
    for heading in ("weights", "levels", "zeros", "relative error"):
        rows.add_column(heading, justify="right")
    for layer in layers:
        error = NOTHING if layer.error is None else f"{layer.error:.3g}"
        levels = NOTHING if layer.levels is None else f"{layer.levels:,}"
        rows.add_row(Text(layer.name), f"{layer.weights:,}", levels, _share(layer.zeros, layer.weights), error)
    weights, zeros = (sum(numbers) for numbers in zip(*((each.weights, each.zeros) for each in layers), strict=True))
    rows.add_section()
    rows.add_row("total", f"{weights:,}", "", _share(zeros, weights), "", style="bold")
    return rows


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}"
