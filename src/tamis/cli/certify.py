"""`tamis certify`: compare a `.tamis` file with the original network on data, and write down what can be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tamis.certificates import certify as certify_network
from tamis.cli.command_line import as_written, command_line
from tamis.cli.device_argument import join_team_exactly
from tamis.cli.display import console
from tamis.cli.model_argument import draws_weights, open_network, warn_of_drawn_weights
from tamis.cli.options import ModelChoice
from tamis.cli.output_argument import prepare_output, replaced
from tamis.cli.requirement_options import check_requirements, end_with
from tamis.training import load_data
from tamis.verification import first_input


def certify(
    original: ModelChoice,
    small: Path,
    data: str,
    training: str | None,
    device: str,
    out: Path,
    as_json: bool,
    max_accuracy_drop: str | None,
    max_disagreement: str | None,
    **options: Any,
) -> None:
    """Run the command; arguments as on the command line, `options` as `tamis.certify` takes them."""
    prepare_output(out, ".json")
    team = join_team_exactly(device)
    options |= check_requirements(max_accuracy_drop=max_accuracy_drop, max_disagreement=max_disagreement)
    with Console(stderr=True).status(Text(f"tracing {original.model}")):
        inputs = load_data(data, labelled=False)
        loaded = open_network(original, team.device, first_input(inputs))
        examples = None if training is None else load_data(training)
    options |= {"rebuilt": loaded.module, "training": examples}
    options |= {"just_initialised": draws_weights(original.model, original.weights)}
    if options["just_initialised"]:
        warn_of_drawn_weights(original.model)
    options |= {"called": as_written(original), "data_called": data, "command": command_line()}
    cert = certify_network(loaded.network, small, inputs, progress=True, **options)
    if team.leads:
        written = f"written to {out}{replaced(out)}"
        cert.save(out)
        if as_json:
            print(json.dumps(cert.content, indent=2, allow_nan=False))
        else:
            shown = console()
            shown.print(cert.as_text(shown.width), soft_wrap=True)
            shown.print(f"\n{written}; `tamis verify` checks it, and `tamis report` makes a page of it")
    end_with(cert.passed)
