"""Messages of the library about arguments become messages about options: `levels=1` is `--levels 1` in a command."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

# Arguments whose options are called otherwise.
RENAMED = {"example": "shape", "inputs": "data", "file": "small", "c": "l1inf", "directory": "out"}
FAILED = " failed: "  # what follows was said by the user's own code
LIST = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,\[\]()]+)")
# A text in quotes is the user's own, such as a path, and stays; a value after an equals sign may be quoted, too.
QUOTED = r"(?<![\w'-])'[^']*'|(?<![\w-])\"[^\"]*\""
VALUE = r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)|-?[0-9.][0-9.e+-]*(?<![.,])|-?[A-Za-z_][\w.]*|"
ARGUMENT = re.compile(rf"{QUOTED}|(?<![\w.'/-])([a-z][a-z_0-9]*) ?=(?!=) ?({VALUE})(?![\w'/]|\.\w)")
SUBJECT = re.compile(rf"{QUOTED}|(^|[:;] )([a-z][a-z_0-9]*)(?= (?:must|needs|cannot|should|goes|go|takes|names)\b)")
BUDGET = re.compile(r"^recipe: budget\.(\w+): it\b")  # of a recipe that is in no file: what was asked for beside one
CALL = re.compile(rf"{QUOTED}|(?<![\w.`])tamis\.([a-z]+)(?![\w.(:`-])")
JOINED = re.compile(rf"{QUOTED}|(?<![\w.'/:@-])[a-z]+(?:_[a-z0-9]+)+(?![\w.'/(=])")


def find_options(command: Any) -> dict[str, str]:
    """Return the options of a click command, or of all commands of a group, by the names of their arguments."""
    below = [find_options(each) for each in getattr(command, "commands", {}).values()]
    own = {each.name: _choose_usual(each) for each in command.params if each.param_type_name == "option"}
    return {name: option for options in (*below, own) for name, option in options.items()}


def _choose_usual(option: Any) -> str:
    """Return an option as help and documentation name it: -o FILE, which no message gives a value, others in full."""
    return f"-o {option.metavar}" if "-o" in option.opts else max(option.opts, key=len)


def rewrite_in_options(message: str, options: Mapping[str, str], commands: Container[str] = ()) -> str:
    """Rewrite a message with options in place of arguments, and commands in place of calls.

    What is the user's own stays as it is: texts in quotes, and what the user's code said when it failed.

    Example:
        >>> rewrite_in_options("levels=1 must be 2 or more", {"levels": "--levels"})
        '--levels 1 must be 2 or more'
    """
    known = {name: options[said] for name, said in RENAMED.items() if said in options} | dict(options)

    def argument(found: re.Match[str]) -> str:
        option = known.get(found[1]) if found[1] else None
        return found[0] if option is None else _write_with_value(option, found[2])

    def subject(found: re.Match[str]) -> str:
        return found[0] if found[2] is None else found[1] + known.get(found[2], found[2])

    message, failed, own = message.partition(FAILED)
    message = BUDGET.sub(lambda found: known.get(found[1], found[1]), message)
    message = CALL.sub(lambda found: f"`tamis {found[1]}`" if found[1] in commands else found[0], message)
    message = ARGUMENT.sub(argument, message)
    message = SUBJECT.sub(subject, message)
    return JOINED.sub(lambda found: known.get(found[0], found[0]), message) + failed + own


def _write_with_value(option: str, value: str) -> str:
    """Write an option as it is typed, from the value that Python prints for it."""
    if value in ("None", "False"):
        return f"no {option}"
    if value in ("True", ""):
        return option
    if value[0] in "[(":
        return " ".join(f"{option} {next(filter(None, each.groups()), '')}" for each in LIST.finditer(value[1:-1]))
    plain = value[1:-1] if value[0] in "'\"" else value
    return f"{option} {plain}" if plain and " " not in plain else f"{option} '{plain}'"
