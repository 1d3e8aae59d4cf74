"""The options of `tamis doctor`."""

from __future__ import annotations

from tamis.cli.options import Json
from tamis.cli.registration import command


@command
def doctor(as_json: Json = False) -> None:
    """Say what tamis finds here: torch, its own extension, which kernels run and why, GPUs, the data folder."""
    from tamis.cli.doctor import doctor

    doctor(as_json)
