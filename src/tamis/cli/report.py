"""`tamis report`: one page about a certificate."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tamis.cli.display import console
from tamis.cli.model_argument import load_network
from tamis.cli.output_argument import prepare_output
from tamis.errors import InvalidInput
from tamis.reports import report as write_report


def report(
    certificate: Path,
    out: Path,
    model: str | None,
    weights: Path | None,
    shape: str | None,
    trust: bool,
    small: Path | None,
    batch: int,
    as_json: bool,
) -> None:
    """Run the command; arguments as on the command line."""
    prepare_output(out, ".html")
    if model is None and (weights is not None or shape is not None):
        raise InvalidInput("--weights and --shape are those of the original: name it with --model")
    with Console(stderr=True).status(Text(f"reporting on {certificate}")):
        loaded = None if model is None else load_network(model, weights, shape, trust)
        net, module = (None, None) if loaded is None else (loaded.network, loaded.module)
        write_report(certificate, out, original=net, rebuilt=module, file=small, batch=batch)
    written = {"report": str(out), "bytes": out.stat().st_size}
    console().print(json.dumps(written) if as_json else f"{out}, {written['bytes']:,} bytes: open it in a browser")
