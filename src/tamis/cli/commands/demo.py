"""The options of `tamis demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import Json
from tamis.cli.registration import command


@command
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to save the network.")] = Path("out/demo"),
    as_json: Json = False,
) -> None:
    """Train a small network in seconds, look at it, prune it, quantize it, and certify what that cost."""
    from tamis.cli.demo import demo

    demo(out, as_json)
