"""--resize, --mean and --std for every command that takes data: they become a part of the names of its datasets."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tamis.cli.option_groups import list_parameters, with_groups
from tamis.errors import InvalidInput

DATA = ("calibration", "data", "test", "training")  # what commands call their datasets
WRITTEN = {
    "resize": (r"[0-9]+(x[0-9]+)?", "a size in pixels, as 224, or HEIGHTxWIDTH, as 48x64"),
    "mean": (r"[-+.0-9eE]+(,[-+.0-9eE]+)*", "numbers with commas between, as 0.485,0.456,0.406"),
    "std": (r"[-+.0-9eE]+(,[-+.0-9eE]+)*", "numbers with commas between, as 0.229,0.224,0.225"),
}


def write_settings(
    resize: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bring the images of folders to this size, as 224 or 48x64.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Subtract these from pixels on the scale 0..1, one per channel."),
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Divide by these, after --mean.")] = None,
) -> str:
    """Return the text that these options add to the name of a dataset."""
    given = {name: text for name, text in (("resize", resize), ("mean", mean), ("std", std)) if text is not None}
    for name, text in given.items():
        pattern, wanted = WRITTEN[name]
        if re.fullmatch(pattern, text) is None:
            raise InvalidInput(f"--{name} must be {wanted}; got '{text}'")
    if ("mean" in given) != ("std" in given):
        raise InvalidInput("--mean and --std go together")
    return "".join(f"@{name}={text}" for name, text in given.items())


def with_images(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives them as a part of the names of its datasets.

    Example:
        >>> @with_images
        ... def quantize(data: Annotated[str, typer.Option()]) -> None:
        ...     print(data)
        >>> quantize(data="photos/", resize="224", mean=None, std=None)
        photos/@resize=224
    """
    command = with_groups(
        command
    )  # first: datasets may be in groups, and are known by their own names only outside them
    shared, own = list_parameters(write_settings), list_parameters(command)

    @functools.wraps(command)
    def with_them(**options: Any) -> None:
        ending = write_settings(**{name: options.pop(name) for name in shared})
        named = [name for name in DATA if options.get(name) is not None]
        if ending and not named:
            wanted = " or ".join(f"--{name}" for name in DATA if name in own)
            raise InvalidInput(f"--resize, --mean and --std say how to read {wanted}, which is not given")
        command(**{**options, **{name: options[name] + ending for name in named}})

    signature = {**own, **shared}
    with_them.__signature__ = inspect.Signature([*signature.values()])  # type: ignore[attr-defined]
    with_them.__annotations__ = {name: each.annotation for name, each in signature.items()}
    return with_them
