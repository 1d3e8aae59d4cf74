"""The options of `tamis online`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.option_groups import make_settings_group
from tamis.cli.options import Json
from tamis.cli.registration import command
from tamis.settings import OnlineLearning

PAST_ROUNDS = 32  # that moves see, so that a round costs the same however many there were; in Python, runs are exact


@command
def online(
    choices: Annotated[dict[str, Any], make_settings_group(OnlineLearning, subsample=PAST_ROUNDS)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where to keep rounds and results.")] = Path(
        "out/online"
    ),
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to compute networks.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Learn from a stream round by round, over networks of several architectures, beside a bound of what that costs.

    After Ctrl-C or a kill, the same command goes on from the last round, to the same result.
    """
    from tamis.cli.online import online

    online(choices, out, device, as_json)
