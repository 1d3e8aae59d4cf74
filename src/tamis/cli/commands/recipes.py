"""The options of `tamis recipes`."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.options import Json
from tamis.cli.registration import command


@command
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this one.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of recipes, for editors.")] = False,
    as_json: Json = False,
) -> None:
    """List the recipes that ship, print one to begin your own with, or print the schema."""
    from tamis.cli.recipes import recipes

    recipes(name, schema, as_json)
