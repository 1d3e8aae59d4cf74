"""A connection report says how many connections an architecture keeps, layer by layer, as a table or as JSON."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from tamis.architecture import Architecture
from tamis.cli.display import table


def count_connections(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Count the connections of each layer, and those of them that are kept, by the name of its weight."""
    return {name: (mask.numel(), int(mask.count_nonzero())) for name, mask in architecture.masks.items()}


def as_plain_data(architecture: Architecture) -> dict[str, Any]:
    """Return the counts as JSON takes them."""
    layers = count_connections(architecture).items()
    return {
        "layers": [{"name": name, **_list_counts(*counted)} for name, counted in layers],
        "total": _list_counts(*_count_total(architecture)),
        "sparsity": architecture.sparsity,
    }


def make_connection_table(architecture: Architecture) -> Table:
    """Make a table with a row for each layer, and one for all of them."""
    rows = table()
    rows.add_column("layer", overflow="fold")
    for heading in ("connections", "kept", "density"):
        rows.add_column(heading, justify="right")
    for name, counted in count_connections(architecture).items():
        rows.add_row(Text(name), *_format_columns(*counted))
    rows.add_section()
    rows.add_row("total", *_format_columns(*_count_total(architecture)), style="bold")
    return rows


def _count_total(architecture: Architecture) -> tuple[int, int]:
    masks = architecture.masks
    return masks.total, masks.total - masks.pruned


def _list_counts(has: int, keeps: int) -> dict[str, float]:
    return {"connections": has, "kept": keeps, "density": keeps / max(has, 1)}


def _format_columns(has: int, keeps: int) -> tuple[str, str, str]:
    return f"{has:,}", f"{keeps:,}", f"{keeps / max(has, 1):.1%}"
