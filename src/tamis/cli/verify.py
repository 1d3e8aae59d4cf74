"""`tamis verify`: make every claim of a certificate again, and end with an error at the first that fails."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from tamis.cli.device_argument import join_team_exactly
from tamis.cli.display import make_console
from tamis.cli.model_argument import open_network
from tamis.cli.options import CertifiedDataChoice, ModelChoice
from tamis.training import load_data
from tamis.verification import Certificate, Verification, check_signer, first_input
from tamis.verification import verify as verify_certificate


def check(
    certificate: Path,
    small: Path,
    original: ModelChoice,
    data: CertifiedDataChoice,
    signed_by: Path | None,
    device: str,
) -> Verification:
    """Verify a certificate; arguments as on the command line."""
    where = join_team_exactly(device).device
    with Console(stderr=True).status(Text(f"verifying {certificate}")):
        stated = Certificate.load(certificate)
        # First, as long as nothing of the current folder can be imported: MODEL may be there, and so may a file that
        # calls itself cryptography.
        check_signer(stated.content, signed_by)
        inputs = None if data.data is None else load_data(data.data, labelled=False)
        loaded = open_network(original, where, first_input(inputs))
        examples = None if data.training is None else load_data(data.training)
        return verify_certificate(
            stated,
            small,
            loaded.network,
            inputs,
            rebuilt=loaded.module,
            training=examples,
            signed_by=signed_by,
        )


def end_with(found: Verification, as_json: bool) -> None:
    """Print what was found, and end the command with exit code 1 where something could not be checked."""
    if as_json:
        print(json.dumps({"ok": found.ok, **asdict(found)}, indent=2))
    else:
        make_console().print(f"{found}\n{'verified' if found.ok else 'NOT verified: pass the data that is missing'}")
    if not found.ok:
        raise typer.Exit(1)
