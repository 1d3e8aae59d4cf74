"""`tamis quantize`: put weights on a few levels, layer by layer, save what comes out, and say what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tamis.artifact import Compressed
from tamis.cli.device_argument import join_team_exactly
from tamis.cli.layer_report import report
from tamis.cli.opening import open_with_data
from tamis.cli.options import ModelChoice
from tamis.cli.output_argument import prepare_output, replaced
from tamis.cli.setting_values import parse_amount
from tamis.cli.unfinished import unfinished
from tamis.graph import Network
from tamis.pruning import Amount
from tamis.pruning import prune as prune_network
from tamis.quantization import quantize as quantize_network


def quantize(
    original: ModelChoice,
    calibration: str,
    data: str | None,
    prune: Sequence[str],
    device: str,
    out: Path,
    as_json: bool,
    choices: dict[str, Any],
) -> None:
    """Run the command; arguments as on the command line, `choices` the settings as `tamis.quantize` takes them."""
    amount = parse_amount(prune, "--prune") if prune else None
    prepare_output(out, ".tamis")
    team = join_team_exactly(device)
    with unfinished(out, team) as directory:
        opened = open_with_data(original, calibration, data, team.device)
        given = opened.compressed or opened.network
        pruned = None if amount is None else _pruned(given, amount, choices)
        small = quantize_network(given, opened.calibration, **choices, pruned=pruned, directory=directory)
        in_place = replaced(out)
        if team.leads:
            small.save(out)
    if team.leads:
        networks = {"before": opened.network, "after": small.network}
        origin = {"model": original.model, "weights": opened.weights, "file": str(out)}
        report(small, networks, opened.test, origin, in_place, as_json)


def _pruned(given: Network | Compressed, amount: Amount, options: dict[str, Any]) -> Compressed:
    return prune_network(given, amount, "magnitude", include=options["include"], exclude=options["exclude"])
