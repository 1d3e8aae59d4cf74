"""--max-accuracy-drop and --max-disagreement: what a certificate must say, and how a command ends where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from tamis.cli.options import REQUIREMENTS
from tamis.verification import parse_rate

FAILED = 3  # the exit code: all was done and written, and the certified bounds are larger than required


def check_requirements(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the rates that were given, and return them by argument as they are written, for messages to repeat."""
    required = {name: given[name] for name in REQUIREMENTS if given.get(name) is not None}
    for name, text in required.items():
        parse_rate(text, f"--{name.replace('_', '-')}")
    return required


def end_with(passed: bool | None) -> None:
    """End the command with its exit code, where what was required does not hold."""
    if passed is False:
        raise typer.Exit(FAILED)
