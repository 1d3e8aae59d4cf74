"""`tamis recipes`: the recipes that ship with tamis, and the schema of recipes."""

from __future__ import annotations

import json

from rich.text import Text

from tamis.cli.display import make_console, table
from tamis.errors import InvalidInput
from tamis.recipes import Entry, entry_named, list_shipped


def recipes(name: str | None, schema: bool, as_json: bool) -> None:
    """Run the command; arguments as on the command line."""
    if schema:
        if name is not None:
            raise InvalidInput(f"--schema is that of all recipes: leave out '{name}'")
        from tamis.recipes import json_schema

        print(json.dumps(json_schema(), indent=2))
    elif name is not None:
        entry = entry_named(name)
        text = entry.path.read_text(encoding="utf-8").rstrip("\n")
        print(json.dumps(_describe(entry), indent=2) if as_json else text)
    elif as_json:
        print(json.dumps([_describe(entry) for entry in list_shipped()], indent=2))
    else:
        rows = table()
        rows.add_column("recipe")
        rows.add_column("what it does", overflow="fold")
        for entry in list_shipped():
            rows.add_row(Text(entry.name), Text(entry.headline))
        make_console().print(rows)


def _describe(entry: Entry) -> dict[str, object]:
    """Describe a recipe with everything that it says, also what it leaves to defaults."""
    from tamis.recipes import read_recipe

    return {"name": entry.name, "what it does": entry.comment, "recipe": read_recipe(entry.path).as_plain_data()}
