"""`tamis certify`: compare a `.tamis` file with the original network on data, and write down what can be said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tamis.certificates import certify as certify_network
from tamis.cli.command_line import quote_as_written, write_command_line
from tamis.cli.device_argument import join_team_exactly
from tamis.cli.display import make_console
from tamis.cli.model_argument import draws_weights, open_network, warn_of_drawn_weights
from tamis.cli.options import CertifiedDataChoice, ModelChoice, Output
from tamis.cli.output_argument import name_replaced, prepare_output
from tamis.cli.requirement_options import check_requirements, end_with
from tamis.training import load_data
from tamis.verification import first_input


def certify(
    original: ModelChoice,
    small: Path,
    data: CertifiedDataChoice,
    choices: Mapping[str, Any],
    sign: Path | None,
    output: Output,
) -> None:
    """Run the command; arguments as on the command line, `choices` the settings as `tamis.certify` takes them."""
    assert data.data is not None  # the command cannot be typed without it, as that of verify can
    out = output.out
    prepare_output(out, ".json")
    team = join_team_exactly(output.device)
    check_requirements(choices)
    with Console(stderr=True).status(Text(f"tracing {original.model}")):
        inputs = load_data(data.data, labelled=False)
        loaded = open_network(original, team.device, first_input(inputs))
        examples = None if data.training is None else load_data(data.training)
    drawn = draws_weights(original.model, original.weights)
    if drawn:
        warn_of_drawn_weights(original.model)
    cert = certify_network(
        loaded.network,
        small,
        inputs,
        **choices,
        rebuilt=loaded.module,
        training=examples,
        sign=sign,
        called=quote_as_written(original),
        data_called=data.data,
        command=write_command_line(),
        just_initialised=drawn,
        progress=True,
    )
    if team.leads:
        written = f"written to {out}{name_replaced(out)}"
        cert.save(out)
        if output.as_json:
            print(json.dumps(cert.content, indent=2, allow_nan=False))
        else:
            shown = make_console()
            shown.print(cert.as_text(shown.width), soft_wrap=True)
            shown.print(f"\n{written}; `tamis verify` checks it, and `tamis report` makes a page of it")
    end_with(cert.passed)
