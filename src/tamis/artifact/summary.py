"""A summary says in a table and a few sentences what became of the parameters of a compressed network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from torch import Tensor

from tamis.artifact.codes import Codes
from tamis.artifact.float_layers import Untouched, sentences
from tamis.artifact.masks import Masks

NOTHING = "–"
WIDTH = 100  # of a line


def write_summary(
    params: Mapping[str, Tensor],
    masks: Masks,
    codes: Mapping[str, Codes],
    recipe: Sequence[Mapping[str, Any]],
    nbytes: int,
    left: Sequence[Untouched] = (),
) -> str:
    """Write a row for each pruned or quantized parameter, the totals, and what stayed float.

    Columns that would be empty are left out. The error is what the last step of the recipe says of the layer, under
    "layers", the parameter's name and "error".
    """
    names = [name for name in params if name in masks or name in codes]
    columns = {
        "parameter": {name: name for name in names},
        "weights": {name: f"{params[name].numel():,}" for name in names},
        "left": {name: f"{int(mask.count_nonzero()):,}" for name, mask in masks.items()},
        "levels": {name: f"{len(code.levels):,}" for name, code in codes.items()},
        "bits": {name: f"{code.bits:.2f}" for name, code in codes.items()},
        "zeros": {name: f"{_count_zeros(params[name]) / max(params[name].numel(), 1):.1%}" for name in names},
        "error": {name: f"{error:.3g}" for name, error in errors_of(recipe[-1:]).items() if name in names},
    }
    lines = sentences(left) if names else []
    stayed = [part for line in lines for part in wrap(f"stayed float: {line}", WIDTH, subsequent_indent="  ")]
    return "\n".join(
        [*_write_table(columns, names), *_write_totals(params, masks, codes), *stayed, _size(params, nbytes)]
    )


def find_weights(codes: Mapping[str, Codes]) -> int:
    """Count the entries that are quantized."""
    return sum(code.indices.numel() for code in codes.values())


def errors_of(recipe: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the error of each layer, as the last of these steps that speaks of it says.

    A recipe may come from a file and say anything: only numbers are taken.

    Example:
        >>> errors_of([{"step": "quantize", "layers": {"fc.weight": {"error": 0.02}, "fc.bias": "unknown"}}])
        {'fc.weight': 0.02}
    """
    found: dict[str, float] = {}
    for step in recipe:
        layers = step.get("layers")
        for name, said in layers.items() if isinstance(layers, Mapping) else ():
            error = said.get("error") if isinstance(said, Mapping) else None
            if isinstance(error, float):
                found[name] = error
    return found


def _write_table(columns: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> list[str]:
    shown = {title: cells for title, cells in columns.items() if cells}
    widths = {title: max(len(title), *map(len, cells.values())) for title, cells in shown.items()}
    rows = [{title: title for title in shown}] if names else []
    rows += [{title: cells.get(name, NOTHING) for title, cells in shown.items()} for name in names]
    return [
        "  ".join(f"{cell:{'<' if title == 'parameter' else '>'}{widths[title]}}" for title, cell in row.items())
        for row in rows
    ]


def _write_totals(params: Mapping[str, Tensor], masks: Masks, codes: Mapping[str, Codes]) -> list[str]:
    lines = []
    if masks or not codes:
        lines.append(
            f"{masks.pruned:,} of {masks.total:,} weights pruned ({masks.sparsity:.2%}) in {len(masks)} parameters"
        )
    if codes:
        weights = max(find_weights(codes), 1)
        bits = sum(code.indices.numel() * code.bits for code in codes.values()) / weights
        zeros = sum(_count_zeros(params[name]) for name in codes) / weights
        lines.append(
            f"{find_weights(codes):,} weights quantized to {bits:.2f} bits on average, {zeros:.1%} of them zero, in "
            f"{len(codes)} parameters"
        )
    return lines


def _size(params: Mapping[str, Tensor], nbytes: int) -> str:
    dense = sum(value.numel() * value.element_size() for value in params.values())
    return f"{nbytes:,} bytes in a file, {nbytes / max(dense, 1):.3f} of the {dense:,} of all parameters"


def _count_zeros(value: Tensor) -> int:
    return value.numel() - int(value.count_nonzero())
