"""`tamis inspect`: what a network is made of, what it costs, and its path-norms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tamis.cli.display import from_logarithm, make_console, make_fact_table, table, with_unit
from tamis.cli.model_argument import open_network
from tamis.cli.options import ModelChoice
from tamis.errors import UnsupportedOp
from tamis.graph import Network, Operation, operations_of
from tamis.graph.ops import Capability
from tamis.paths import Part, path_norm

# q, r, and whether batch-norm is folded.
NORMS: tuple[tuple[float, float, bool], ...] = ((1, 1, True), (2, 2, True), (1, math.inf, True), (1, 1, False))
PARTS: tuple[Part, ...] = get_args(Part)
COLOURS = {Capability.HOMOGENEOUS: "green", Capability.LIPSCHITZ: "yellow", Capability.OPAQUE: "red"}
ROWS_AT_START, ROWS_AT_END = 24, 14


@dataclass(frozen=True)
class MixedNorm:
    """A mixed norm holds the natural logarithms of ‖Φ‖_{q,r} of all paths, those from inputs and those from biases."""

    q: float
    r: float
    fold: bool
    logs: dict[Part, float]


@dataclass(frozen=True)
class Inspection:
    """An inspection holds everything that `tamis inspect` shows."""

    network: Network
    operations: tuple[Operation, ...]
    norms: tuple[MixedNorm, ...]
    refusal: UnsupportedOp | None

    @property
    def parameters(self) -> int:
        return sum(self.network.params[name].numel() for name in self.network.trainable)

    @property
    def buffers(self) -> int:
        return sum(value.numel() for name, value in self.network.params.items() if name not in self.network.trainable)

    @property
    def macs(self) -> int:
        return sum(operation.macs or 0 for operation in self.operations)

    @property
    def not_counted(self) -> list[str]:
        """The operations whose multiply-accumulates are not known."""
        return list(dict.fromkeys(operation.op for operation in self.operations if operation.macs is None))

    @property
    def weakest(self) -> Operation | None:
        """The first operation that admits least; None where nothing does (an input handed on as it is)."""
        return min(self.operations, key=lambda operation: operation.capability, default=None)

    @property
    def capability(self) -> Capability:
        return self.weakest.capability if self.weakest else Capability.HOMOGENEOUS


def inspect(original: ModelChoice, as_json: bool, show_all: bool) -> None:
    """Run the command; arguments as on the command line."""
    with Console(stderr=True).status(Text(f"tracing {original.model}")) as status:
        loaded = open_network(original)
        status.update(Text(f"computing the path-norms of {original.model}"))
        found = inspect_network(loaded.network)
    origin = {"model": original.model, "weights": loaded.weights}
    if as_json:
        print(json.dumps({**origin, **as_plain_data(found)}, indent=2, allow_nan=False))
    else:
        show(found, origin, make_console(), show_all)


# -- finding out -------------------------------------------------------------------------------------------------------


def inspect_network(net: Network) -> Inspection:
    """Inspect a network; where it has no path-norms, keep the refusal."""
    operations = operations_of(net)
    try:
        return Inspection(net, operations, tuple(_compute_mixed_norms(net)), None)
    except UnsupportedOp as refusal:
        return Inspection(net, operations, (), refusal)


def _compute_mixed_norms(net: Network) -> Iterator[MixedNorm]:
    for q, r, fold in NORMS:
        yield MixedNorm(q, r, fold, {part: path_norm(net, q, r, log=True, fold=fold, part=part) for part in PARTS})


# -- for machines ------------------------------------------------------------------------------------------------------


def as_plain_data(found: Inspection) -> dict[str, Any]:
    """Return an inspection as JSON takes it: logarithms are natural, null is log 0 or a value beyond float64."""
    net, weakest, refusal = found.network, found.weakest, found.refusal
    limited = weakest is not None and weakest.capability < Capability.HOMOGENEOUS
    return {
        "inputs": [{"name": n, "shape": s} for n, s in zip(net.inputs, net.input_shapes, strict=True)],
        "outputs": [{"name": name, "shape": _find_shape(net, name)} for name in net.output_names],
        "batched": net.batched,
        "parameters": found.parameters,
        "buffers": found.buffers,
        "macs": found.macs,
        "macs_not_counted": found.not_counted,
        "nodes": len(found.operations),
        "capability": found.capability.name.lower(),
        "limited_by": {"op": weakest.op, "module": weakest.module} if weakest and limited else None,
        "operations": [{**asdict(o), "capability": o.capability.name.lower()} for o in found.operations],
        "path_norms": None if refusal else [_write_norm(norm) for norm in found.norms],
        "refusal": {"message": str(refusal), "op": refusal.op, "module": refusal.module} if refusal else None,
    }


def _write_norm(norm: MixedNorm) -> dict[str, Any]:
    r = "inf" if math.isinf(norm.r) else norm.r
    logs = {part: value if math.isfinite(value) else None for part, value in norm.logs.items()}
    values = {part: math.exp(value) if value < 709 else None for part, value in norm.logs.items()}
    return {"q": norm.q, "r": r, "fold": norm.fold, "value": values, "log": logs}


def _find_shape(net: Network, name: str) -> tuple[int, ...] | None:
    if name in net.node:
        return net.node[name].shape
    return dict(zip(net.inputs, net.input_shapes, strict=True)).get(name)


# -- for people --------------------------------------------------------------------------------------------------------


def show(found: Inspection, origin: dict[str, str], out: Console, show_all: bool = False) -> None:
    """Print an inspection: header, operations, path-norms."""
    out.print(_make_header(found, origin))
    out.print()
    out.print(_make_operation_table(found, show_all))
    out.print()
    if found.refusal is None:
        out.print(_make_norm_table(found))
    else:
        out.print(Text.assemble(("No path-norms: ", "yellow"), str(found.refusal)), soft_wrap=True)


def _make_header(found: Inspection, origin: dict[str, str]) -> Table:
    net = found.network
    shapes = [_find_shape(net, name) for name in net.output_names]
    fixed = "" if net.batched else ", of this size only: all of it is one sample"
    opaque = " (opaque operations not counted)" if found.not_counted else ""
    lines: dict[str, str | Text] = {
        **origin,
        "input": ", ".join(net.shape_text(shape) for shape in net.input_shapes) + fixed,
        "output": ", ".join("several tensors" if shape is None else net.shape_text(shape) for shape in shapes),
        "parameters": f"{found.parameters:,}",
        "buffers": f"{found.buffers:,}",
        "MACs": f"{with_unit(found.macs)} per sample{opaque}",
        "operations": f"{len(found.operations):,}",
        "capability": _write_capability_line(found),
    }
    return make_fact_table(lines)


def _write_capability_line(found: Inspection) -> Text:
    line = Text(found.capability.name.lower(), COLOURS[found.capability])
    if found.weakest and found.capability < Capability.HOMOGENEOUS:
        where = found.weakest.module or "the top level of the model"
        line.append(f", limited first by {_shorten(found.weakest.op)} at {where}", "default")
    return line


def _make_operation_table(found: Inspection, show_all: bool) -> Table:
    rows = table()
    for heading in ("module", "operation", "output"):
        rows.add_column(heading, overflow="fold")
    rows.add_column("parameters", justify="right")
    rows.add_column("MACs", justify="right")
    rows.add_column("capability")
    for row in _elide(found.operations, show_all):
        if isinstance(row, int):
            rows.add_row(Text(f"… {row} more", "dim"), Text("--all shows them", "dim"))
            continue
        rows.add_row(
            Text(row.module) if row.module else Text("(top level)", "dim"),
            Text(_shorten(row.op)),
            Text(_format_sizes(row.shape, found.network.batched)),
            f"{row.parameter_count:,}" if row.parameter_count else "",
            with_unit(row.macs) if row.macs else "",
            Text(row.capability.name.lower(), COLOURS[row.capability]),
        )
    return rows


def _elide(rows: tuple[Operation, ...], show_all: bool) -> Iterator[Operation | int]:
    """Yield the rows to show and, in place of those left out, their number."""
    hidden = len(rows) - ROWS_AT_START - ROWS_AT_END
    if show_all or hidden <= 2:
        yield from rows
        return
    yield from rows[:ROWS_AT_START]
    yield hidden
    yield from rows[-ROWS_AT_END:]


def _make_norm_table(found: Inspection) -> Table:
    rows = table()
    rows.add_column("path-norm")
    for heading in ("all paths", "from inputs", "from biases"):
        rows.add_column(heading, justify="right")
    has_batch_norm = any(operation.op == "aten.batch_norm.default" for operation in found.operations)
    for norm in found.norms:
        if not has_batch_norm and not norm.fold:
            continue  # there is nothing to fold, and the row would say the same again
        name = f"q = {norm.q:g}, r = {'∞' if math.isinf(norm.r) else f'{norm.r:g}'}"
        name += "" if norm.fold else ", batch-norm not folded"
        rows.add_row(name, *(from_logarithm(norm.logs[part]) for part in PARTS))
    return rows


def _shorten(op: str) -> str:
    """Shorten the name of an operation: 'conv2d' for 'aten.conv2d.default'."""
    return op.split(".")[1] if "." in op else op


def _format_sizes(shape: tuple[int, ...] | None, batched: bool) -> str:
    """Format a shape without its batch dimension."""
    if shape is None:
        return "several"
    led_by_batch = batched and shape[:1] == (1,)  # a permutation may have moved it
    return " × ".join(str(size) for size in shape[led_by_batch:]) or "number"
