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


def as_written(model: str, weights: Path | None) -> str:
    """The model as one would write it on the command line, whatever its files are called.

    Example:
        >>> as_written("my.models:net", Path("my weights.safetensors"))
        "my.models:net --weights 'my weights.safetensors'"
    """
    return shlex.join([model, *([] if weights is None else ["--weights", str(weights)])])
