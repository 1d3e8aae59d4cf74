"""Cells of the printed tables are written alike in all experiments."""

from __future__ import annotations


def format_c(c: float | None) -> str:
    """Write the c of a constraint; None is that of no constraint."""
    return "∞" if c is None else f"{c:g}"


def format_per_cent(fraction: float) -> str:
    """Write a fraction in per cent, with one digit behind the point."""
    return f"{100 * fraction:.1f}%"
