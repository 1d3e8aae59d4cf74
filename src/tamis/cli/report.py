"""`tamis report`: one page about a certificate."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tamis.cli.display import make_console
from tamis.cli.model_argument import open_network
from tamis.cli.options import ModelChoice, Output
from tamis.cli.output_argument import prepare_output
from tamis.reports import report as write_report


def report(certificate: Path, original: ModelChoice | None, small: Path | None, batch: int, output: Output) -> None:
    """Run the command; arguments as on the command line."""
    out = output.out
    prepare_output(out, ".html")
    with Console(stderr=True).status(Text(f"reporting on {certificate}")):
        loaded = None if original is None else open_network(original)
        net, module = (None, None) if loaded is None else (loaded.network, loaded.module)
        write_report(certificate, out, original=net, rebuilt=module, file=small, batch=batch)
    written = {"report": str(out), "bytes": out.stat().st_size}
    make_console().print(
        json.dumps(written) if output.as_json else f"{out}, {written['bytes']:,} bytes: open it in a browser"
    )
