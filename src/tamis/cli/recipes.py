"""`tamis recipes`: the recipes that ship with tamis, and the schema of recipes."""

from __future__ import annotations

import json

from rich.text import Text

from tamis.cli.display import console, table
from tamis.recipe.catalogue import recipe_path, shipped


def recipes(name: str | None, schema: bool) -> None:
    """The command; arguments as on the command line."""
    if schema:
        from tamis.recipe.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
    elif name is not None:
        print(recipe_path(name).read_text(encoding="utf-8"), end="")
    else:
        rows = table()
        rows.add_column("recipe")
        rows.add_column("what it does", overflow="fold")
        for entry in shipped():
            rows.add_row(Text(entry.name), Text(entry.headline))
        console().print(rows)
