"""`tamis compile`: a binary network of a `.tamis` file as it runs: packed signs, fused kernels, the same outputs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from tamis.artifact import Compressed, example_inputs, write_program
from tamis.binary import binary_layers, packed_layers
from tamis.binary import compile as compile_module
from tamis.cli.display import make_console, make_fact_table, table
from tamis.cli.model_argument import load_module
from tamis.cli.output_argument import prepare_output
from tamis.errors import InvalidInput, TamisError
from tamis.graph import silence_torch
from tamis.kernels import binary_kernel

BATCH = 4  # inputs that the two are compared on
TOLERANCE = (
    1e-5  # relative to the largest output; where sums of floats follow, batches may be added up in another order
)


@dataclass(frozen=True)
class Layer:
    """A layer is one binary layer: its memory, and whether numbers or bits go in and out."""

    name: str
    weights: int
    float_bytes: int
    bytes: int
    input: str
    output: str


def compile(model: str, small: Path, out: Path | None, as_json: bool) -> None:
    """Run the command; arguments as on the command line."""
    if out is not None:
        prepare_output(out, ".pt2")
    with Console(stderr=True).status(Text(f"compiling {model}")):
        compressed, module = restore(model, small)
        compiled = compile_module(module)
        inputs = example_inputs(compressed.network, BATCH)
        difference = compute_largest_difference(module, compiled, inputs)
        if out is not None:
            _export(compiled, inputs, compressed.network.batched, out)
    kernel, reason = binary_kernel()
    layers = _list_layers(module, compiled)
    sizes = {"file": small.stat().st_size, "floats": _count_bytes(module), "compiled": _count_bytes(compiled)}
    if as_json:
        figures = {"kernel": {"name": kernel, "reason": reason}, "largest_difference": difference, "bytes": sizes}
        named = {"model": model, "small": str(small), "file": None if out is None else str(out)}
        print(json.dumps({**named, "layers": [asdict(layer) for layer in layers], **figures}, indent=2))
        return
    screen = make_console()
    screen.print(_make_table(layers))
    screen.print()
    memory = f"{sizes['compiled']:,} bytes, {sizes['floats'] / sizes['compiled']:.1f} times fewer than in floats"
    equal = "bit for bit" if difference == 0 else f"to {difference:.1g} of the largest output"
    lines = {"kernel": f"{kernel}: {reason}", "memory": f"{memory} ({sizes['floats']:,})"}
    lines["outputs"] = f"equal those of the trained layers {equal}, on {BATCH} random inputs"
    screen.print(make_fact_table(lines))
    if out is not None:
        screen.print(f"saved {out}, {out.stat().st_size:,} bytes", soft_wrap=True)


def restore(model: str, small: Path) -> tuple[Compressed, nn.Module]:
    """Read a `.tamis` file, and build the binary module that it is for, with its weights, in evaluation mode.

    The module is what the factory makes, with the layers made binary that `tamis binarize` made binary; one that has
    binary layers already is taken as it is.
    """
    if model.endswith(".pt2"):
        raise InvalidInput(f"compile needs package.module:factory; '{model}' is a program")
    loaded = load_module(model, small)
    if loaded.compressed is None:
        raise InvalidInput(f"compile needs a .tamis file, got '{small}'")
    try:
        binary_layers(loaded.module)
    except InvalidInput:
        raise InvalidInput(f"'{small}' is not of `tamis binarize`, and {model}() has no binary layers") from None
    return loaded.compressed, loaded.module.eval()


def compute_largest_difference(module: nn.Module, compiled: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Compute the largest difference of outputs, relative to the largest output; raise TamisError beyond rounding."""
    with torch.no_grad():
        pairs = zip(*(pytree.tree_leaves(each(*inputs)) for each in (module, compiled)), strict=True)
        differences = [
            float((own - other).abs().max()) / max(float(own.abs().max()), torch.finfo(own.dtype).tiny)
            for own, other in pairs
            if isinstance(own, Tensor) and own.is_floating_point()
        ]
    largest = max(differences, default=0.0)
    if not largest <= TOLERANCE:
        raise TamisError(f"the compiled network differs by {largest:.1e} of the largest output: this is a bug of tamis")
    return largest


def _export(compiled: nn.Module, inputs: tuple[Tensor, ...], batched: bool, out: Path) -> None:
    dynamic = tuple({0: Dim.AUTO} for _ in inputs) if batched else None
    with silence_torch(), torch.no_grad():
        try:
            program = torch.export.export(compiled, inputs, dynamic_shapes=dynamic)
        except Exception as error:  # whatever torch.export cannot follow
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise TamisError(
                f"'{out}' was not written: torch.export cannot follow the network ({reason:.300})"
            ) from error
    write_program(program, out)


def _list_layers(module: nn.Module, compiled: nn.Module) -> list[Layer]:
    before = binary_layers(module)
    return [
        Layer(
            name,
            before[name].weight.numel(),
            _count_bytes(before[name]),
            _count_bytes(layer)
            - (0 if layer.norm is None else _count_bytes(layer.norm)),  # which was no part of it before
            "bits" if layer.reads_bits else "floats",
            "bits" if layer.gives_bits else "floats",
        )
        for name, layer in packed_layers(compiled).items()
    ]


def _count_bytes(module: nn.Module) -> int:
    return sum(value.nbytes for value in [*module.parameters(), *module.buffers()])


def _make_table(layers: list[Layer]) -> Table:
    rows = table()
    rows.add_column("binary layer", overflow="fold")
    for heading in ("weights", "bytes", "of floats"):
        rows.add_column(heading, justify="right")
    for heading in ("input", "output"):
        rows.add_column(heading)
    for layer in layers:
        share = f"1/{layer.float_bytes / layer.bytes:.1f}"
        rows.add_row(Text(layer.name), f"{layer.weights:,}", f"{layer.bytes:,}", share, layer.input, layer.output)
    weights, floats, packed = (
        sum(getattr(each, name) for each in layers) for name in ("weights", "float_bytes", "bytes")
    )
    rows.add_section()
    weights = sum(layer.weights for layer in layers)
    rows.add_row("total", f"{weights:,}", f"{packed:,}", f"1/{floats / packed:.1f}", "", "", style="bold")
    return rows
