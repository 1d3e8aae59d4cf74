"""A command of `tamis` is made of a function here, and groups list their commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from tamis.cli.option_groups import with_groups


class ListedCommands(TyperGroup):
    """This group lists its commands in whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the whole first sentence of each, wrapped, where click would cut it to one line."""
        with formatter.section("Commands"):
            formatter.write_dl([*self.sentences().items()])

    def sentences(self) -> dict[str, str]:
        """Return the first sentence of each command's help, by its name."""
        listed = {name: command.help or "" for name, command in self.commands.items()}
        return {name: text.partition("\n\n")[0].replace("\n", " ") for name, text in listed.items()}


def command(function: Callable[..., None]) -> Any:
    """Make a command of a function, whose docstring is its help and whose parameters are its arguments and options.

    Example:
        >>> from tamis.cli.options import Json, ModelGroup
        >>> @command
        ... def inspect(model: ModelGroup, as_json: Json = False) -> None:
        ...     \"\"\"Show a network's operations, their cost, and its path-norms.\"\"\"
        >>> inspect.help
        "Show a network's operations, their cost, and its path-norms."
    """
    alone = make_group(add_completion=False)
    alone.command(function.__name__)(with_groups(function))
    return get_command(alone)


def make_group(**settings: Any) -> typer.Typer:
    """Make a group of commands; its help does without rich, which would take time to import."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **settings)
