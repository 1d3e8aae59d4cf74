"""`tamis kronecker replace`: linear layers of a network by products of Kronecker-sparse factors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from tamis.artifact import Compressed, Masks, example_inputs, save_weights
from tamis.cli.display import make_console, make_fact_table, table
from tamis.cli.kronecker_patterns import Chooser, parse_chains, parse_family
from tamis.cli.model_argument import LoadedModule, open_network
from tamis.cli.options import ModelChoice, Output, Products
from tamis.cli.output_argument import prepare_output
from tamis.cli.train import load_trainable
from tamis.errors import InvalidInput
from tamis.graph import trace
from tamis.kronecker import KroneckerLayer, Pattern, nonzeros, patterns_of
from tamis.kronecker import replace as replace_layers


@dataclass(frozen=True)
class Replaced:
    """A replaced layer has its product, weights before and after, and ‖W − K₁…K_L‖/‖W‖, None where drawn anew."""

    name: str
    patterns: tuple[Pattern, ...]
    dense: int
    weights: int
    relative_error: float | None


def replace(original: ModelChoice, products: Products, choices: Mapping[str, Any], output: Output) -> None:
    """Run the command; arguments as on the command line, `choices` as `tamis.kronecker.replace` takes them."""
    out = output.out
    choose = _choose_products(products.patterns or [], products.family)
    prepare_output(out, ".tamis", ".safetensors")
    loaded = load_trainable("kronecker replace", original, choices["seed"])
    _refuse_what_would_be_lost(loaded, original.weights)
    made = replace_layers(loaded.module, choose, **choices)
    layers = _compare_layers(loaded.module, made, factorized=choices["begin"] == "factorized")
    how = {name: value for name, value in choices.items() if name != "keep"}  # the layers say which were replaced
    step = {"step": "kronecker", "layers": patterns_of(made), **how}
    _write(made, original, [*(loaded.compressed.recipe if loaded.compressed else ()), step], out)
    origin = {"model": original.model, "weights": loaded.weights, "file": str(out)}
    if output.as_json:
        print(json.dumps({**origin, **_write_plain(layers), "recipe": step, "bytes": out.stat().st_size}, indent=2))
        return
    screen = make_console()
    screen.print(make_fact_table(origin))
    screen.print()
    screen.print(_make_table(layers))
    screen.print()
    screen.print(f"saved {out}, {out.stat().st_size:,} bytes", soft_wrap=True)


def _choose_products(patterns: Sequence[str], family: str | None) -> Chooser:
    if bool(patterns) == (family is not None):
        raise InvalidInput("give the products with --patterns, or with --family, and not with both")
    return parse_chains(patterns) if family is None else parse_family(family)


def _refuse_what_would_be_lost(loaded: LoadedModule, weights: Path | None) -> None:
    small = loaded.compressed
    if small is not None and (small.masks or small.codes):
        raise InvalidInput(f"'{weights}' has pruned or quantized weights, which factors would not be")


def _compare_layers(before: nn.Module, after: nn.Module, factorized: bool) -> list[Replaced]:
    found: list[Replaced] = []
    for name, layer in after.named_modules():
        if not isinstance(layer, KroneckerLayer):
            continue
        weight = before.get_parameter(f"{name}.weight" if name else "weight").detach().flatten(1).double()
        with torch.no_grad():
            product = layer.dense_weight().double()
        off = float(torch.linalg.vector_norm(weight - product) / torch.linalg.vector_norm(weight).clamp(min=1e-300))
        error = off if factorized else None
        found.append(Replaced(name, layer.patterns, weight.numel(), nonzeros(layer.patterns), error))
    return found


def _write(made: nn.Module, original: ModelChoice, recipe: list[dict[str, Any]], out: Path) -> None:
    """Write the weights alone, or a `.tamis` file."""
    if out.suffix == ".safetensors":
        save_weights(made, out)
        return
    example = example_inputs(open_network(original).network, 2)
    Compressed(trace(made, example), Masks({}), recipe).save(out)


def _write_plain(layers: Sequence[Replaced]) -> dict[str, Any]:
    rows = [
        {
            "name": each.name,
            "patterns": [list(pattern.shape) for pattern in each.patterns],
            "dense_weights": each.dense,
            "weights": each.weights,
            "relative_error": each.relative_error,
        }
        for each in layers
    ]
    return {"layers": rows}


def _make_table(layers: Sequence[Replaced]) -> Table:
    rows = table()
    rows.add_column("layer", overflow="fold")
    rows.add_column("patterns, leftmost first", overflow="fold")
    for heading in ("weights", "of dense", "error"):
        rows.add_column(heading, justify="right")
    for each in layers:
        error = "drawn" if each.relative_error is None else f"{each.relative_error:.2%}"
        chain = "  ".join(map(str, each.patterns))
        rows.add_row(Text(each.name), Text(chain), f"{each.weights:,}", f"{each.weights / each.dense:.1%}", error)
    dense, weights = sum(each.dense for each in layers), sum(each.weights for each in layers)
    rows.add_section()
    rows.add_row("total", "", f"{weights:,}", f"{weights / dense:.1%}", "", style="bold")
    return rows
