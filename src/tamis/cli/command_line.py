"""Commands as text: the one that the user typed, for certificates to repeat, and parts of others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path

_ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())


def remember_arguments(arguments: Sequence[str]) -> None:
    """Note what follows `tamis`."""
    _ARGUMENTS.set(tuple(arguments))


def command_line(secret: str = "", shown: str = "") -> str:
    """The command, to be typed again; `secret` in it, such as an address with a password, is replaced by `shown`."""
    arguments = [text.replace(secret, shown) if secret else text for text in _ARGUMENTS.get()]
    return shlex.join(["tamis", *arguments])


def as_written(model: str, weights: Path | None, shape: str | None, trust: bool) -> str:
    """The model as one would write it on the command line, with all options that it needs to be read.

    Example:
        >>> as_written("my.models:net", Path("my weights.safetensors"), "3,32,32", trust=False)
        "my.models:net --weights 'my weights.safetensors' --shape 3,32,32"
    """
    options = {"--weights": weights, "--shape": shape}
    words = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return shlex.join([model, *words, *(["--trust"] if trust else [])])
