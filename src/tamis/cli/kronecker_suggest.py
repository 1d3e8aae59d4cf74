"""`tamis kronecker suggest`: which products of Kronecker-sparse factors to put in the place of a dense matrix."""

from __future__ import annotations

import json

from rich.table import Table
from rich.text import Text

from tamis.cli.display import make_console, table
from tamis.cli.kronecker_patterns import parse_budget
from tamis.kronecker import Suggestion
from tamis.kronecker import suggest as suggest_chains

RATIOS = {"time": "(b+c)/bc", "energy": "d(b+c)/bc"}


def suggest(rows: int, columns: int, budget: str, target: str, factors: int, as_json: bool) -> None:
    """Run the command; arguments as on the command line."""
    found = suggest_chains(rows, columns, parse_budget(budget), target, factors)
    if as_json:
        chains = [
            {"patterns": [list(p.shape) for p in each.patterns], "weights": each.weights, "ratio": each.ratio}
            for each in found
        ]
        asked = {"rows": rows, "columns": columns, "budget": budget, "target": target, "factors": factors}
        print(json.dumps({**asked, "suggestions": chains}, indent=2))
        return
    screen = make_console()
    screen.print(_make_table(found, rows * columns, target))
    screen.print()
    screen.print(
        f"Products with {RATIOS[target]} large in each factor are those for which a kernel that moves few numbers is "
        "expected to gain most; `tamis kronecker bench` measures.",
        soft_wrap=True,
    )


def _make_table(found: list[Suggestion], dense: int, target: str) -> Table:
    rows = table()
    rows.add_column("", justify="right")
    rows.add_column("patterns, leftmost first")
    for heading in ("weights", "of dense", f"least {RATIOS[target]}"):
        rows.add_column(heading, justify="right")
    for place, each in enumerate(found, start=1):
        chain = "  ".join(map(str, each.patterns))
        share = f"{each.weights / dense:.1%}"
        rows.add_row(str(place), Text(chain), f"{each.weights:,}", share, f"{each.ratio:.4g}")
    return rows
