"""A setting of a method is a dataclass field with its help, and with all that a command needs to read it from text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

WIDTH = 100  # of the lines of generated docstrings
PLACE = "<settings>"  # where the settings go in a docstring

Documented = TypeVar("Documented", bound=Callable[..., Any])


def setting(
    help: str,
    default: Any = dataclasses.MISSING,
    *,
    typed: type = str,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a field of a settings object.

    Args:
        help: what it means, in whole sentences that hold in Python, on the command line and in a recipe alike.
        default: its default; a setting without one must be given.
        typed: what it is on the command line: str, int, float, bool for a flag, or list for an option to be repeated.
        metavar: what stands for the value in a command's help; choices stand for themselves.
        choices: the names that it may be.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Rounding:
        ...     digits: int = setting("How many digits stay.", 3, typed=int, metavar="N")
        >>> Rounding().digits, help_of(Rounding, "digits")
        (3, 'How many digits stay.')
    """
    metadata = {"help": help, "typed": typed, "metavar": metavar or "|".join(choices) or None, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def include_setting(do: str) -> Any:
    """Declare the field `include`, which every method that goes through layers has; `do` is what it does to them."""
    text = f"{do} only these parameters or modules: names or patterns, as layer1 or *.conv1.*."
    return setting(text, None, typed=list, metavar="PATTERN")


def exclude_setting(left: str = "as they are") -> Any:
    """Declare the field `exclude`, which goes with `include`; `left` says how the method leaves what it is told to."""
    return setting(f"Leave these parameters or modules {left}.", None, typed=list, metavar="PATTERN")


def help_of(settings: type, name: str) -> str:
    """Return the help of one setting."""
    return str(_find_field(settings, name).metadata["help"])


def default_of(settings: type, name: str) -> Any:
    """Return the default of one setting; `...` where it must be given."""
    default = _find_field(settings, name).default
    return ... if default is dataclasses.MISSING else default


def choices_of(settings: type, name: str) -> tuple[str, ...]:
    """Return the names that a setting may be; none where it is no choice among names."""
    return tuple(_find_field(settings, name).metadata["choices"])


def _find_field(settings: type, name: str) -> dataclasses.Field[Any]:
    return {field.name: field for field in dataclasses.fields(settings)}[name]


def documents(settings: type, *names: str) -> Callable[[Documented], Documented]:
    """Put the help of settings into the docstring of a call, in place of its line `<settings>`.

    Args:
        settings: the settings object.
        names: of the settings that the call has; all of them if none are named.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Rounding:
        ...     digits: int = setting("How many digits stay.", 3)
        >>> @documents(Rounding)
        ... def shorten(number, digits=3):
        ...     '''Shorten a number.
        ...
        ...     <settings>
        ...     '''
        >>> print(shorten.__doc__.splitlines()[2].strip())
        digits: How many digits stay.
    """

    def put_help_in(call: Documented) -> Documented:
        lines = (call.__doc__ or "").splitlines()
        place = next(number for number, line in enumerate(lines) if line.strip() == PLACE)
        indent = lines[place].partition(PLACE)[0]
        # Field order is the order of the keywords, which a contract test compares with the call's signature.
        chosen = names or [field.name for field in dataclasses.fields(settings)]
        entries = [_write_entry(_find_field(settings, name), indent) for name in chosen]
        call.__doc__ = "\n".join([*lines[:place], *entries, *lines[place + 1 :]])
        return call

    return put_help_in


def _write_entry(field: dataclasses.Field[Any], indent: str) -> str:
    text = f"{field.name}: {field.metadata['help']}"
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ")
