"""Commands as text: the one that the user typed, for certificates to repeat, and parts of others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

from tamis.cli.options import ModelChoice

_ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())


def remember_arguments(arguments: Sequence[str]) -> None:
    """Remember the arguments that follow `tamis`."""
    _ARGUMENTS.set(tuple(arguments))


def write_command_line(secret: str = "", shown: str = "") -> str:
    """Return the command, to be typed again, with `secret`, such as an address with a password, shown as `shown`."""
    arguments = [text.replace(secret, shown) if secret else text for text in _ARGUMENTS.get()]
    return shlex.join(["tamis", *arguments])


def quote_as_written(original: ModelChoice) -> str:
    """Return the model as one would write it on the command line, with all options that it needs to be read.

    Example:
        >>> from pathlib import Path
        >>> quote_as_written(ModelChoice("my.models:net", Path("my weights.safetensors"), "3,32,32"))
        "my.models:net --weights 'my weights.safetensors' --shape 3,32,32"
    """
    options = {"--weights": original.weights, "--shape": original.shape}
    words = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return shlex.join([original.model, *words, *(["--trust"] if original.trust else [])])
