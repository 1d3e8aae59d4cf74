"""All commands show numbers, tables and consoles to people in the ways that are defined here."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

EXACTLY = Context(prec=400)  # as many digits as the largest float has, and those behind the point
PIPED_WIDTH = 100  # rich takes 80 columns where there is no terminal, and would cut tables


def make_console() -> Console:
    """Make a console for standard output."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(highlight=False, markup=False, width=width)


def table() -> Table:
    """Make a table without columns yet, in the style of all commands."""
    return Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)


def make_fact_table(lines: Mapping[str, str | Text]) -> Table:
    """Make a table of two columns: names, and a text for each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in lines.items():
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    return grid


def from_logarithm(value: float) -> str:
    """Format e^value, plain between 10^-4 and 10^6, otherwise as a power of ten, rounded up so that a bound stays one.

    Example:
        >>> from_logarithm(math.log(1234.56)), from_logarithm(100.0)
        ('1,234.6', '10^43.43')
    """
    if value == -math.inf:
        return "0"
    power = value / math.log(10)
    if not -4 <= power <= 6:
        return f"10^{round_up(power, 2)}"
    digits = max(1, 4 - math.floor(power))
    return f"{round_up(math.exp(value), digits):,}"


def round_up(value: float, digits: int) -> Decimal:
    """Return the least number with so many digits behind the point that is not below this one, which is taken exactly.

    Example:
        >>> round_up(3.491, 2), round_up(3.5, 2)
        (Decimal('3.50'), Decimal('3.50'))
    """
    return Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING, EXACTLY)


def with_unit(count: int) -> str:
    """Format a count as three digits and a letter.

    Example:
        >>> with_unit(1_816_557_056), with_unit(640)
        ('1.82 G', '640')
    """
    size, unit = next(((s, u) for s, u in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if count >= s), (1, ""))
    if size == 1:
        return str(count)
    value = count / size
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
