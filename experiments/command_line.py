"""The options that all experiments have, read from the command line; a mistake is answered in one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Reads the options of one experiment; those that are its own are added to --full, --only and --results.

    Args:
        name: of the experiment.
        description: what --help prints of it.
        full: what --full does.
        parts: what --only may name; without parts there is no --only.
        only: what --only does.
    """

    def __init__(
        self,
        name: str,
        description: str | None,
        full: str,
        parts: Sequence[str] = (),
        only: str = "one part instead of all",
    ) -> None:
        super().__init__(
            prog=f"python -m experiments {name}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--full", action="store_true", help=full)
        if parts:
            self.add_argument("--only", choices=parts, help=only)
        self.add_argument("--results", type=Path, help="where to store the figures, such as experiments/results")

    def error(self, message: str) -> NoReturn:
        """End the program without the usage, which would hide a message that names what can be chosen."""
        self.exit(2, f"error: {message}\n")
