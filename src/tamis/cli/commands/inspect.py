"""The options of `tamis inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.options import Json, ModelGroup
from tamis.cli.registration import command


@command
def inspect(
    model: ModelGroup,
    as_json: Json = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every row of a long table.")] = False,
) -> None:
    """Show a network's operations, their cost, and its path-norms."""
    from tamis.cli.inspect import inspect

    inspect(model, as_json, show_all)
