"""`tamis quantize`: put weights on a few levels, layer by layer, save what comes out, and say what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tamis.artifact import Compressed
from tamis.cli.device_argument import join_team_exactly
from tamis.cli.layer_report import report
from tamis.cli.opening import open_with_data
from tamis.cli.options import CalibrationChoice, ModelChoice, Output
from tamis.cli.output_argument import name_replaced, prepare_output
from tamis.cli.setting_values import parse_amount
from tamis.cli.unfinished import open_parts_directory
from tamis.graph import Network
from tamis.pruning import Amount
from tamis.pruning import prune as prune_network
from tamis.quantization import quantize as quantize_network


def quantize(
    original: ModelChoice, data: CalibrationChoice, prune: Sequence[str], choices: dict[str, Any], output: Output
) -> None:
    """Run the command; arguments as on the command line, `choices` the settings as `tamis.quantize` takes them."""
    out = output.out
    amount = parse_amount(prune, "--prune") if prune else None
    prepare_output(out, ".tamis")
    team = join_team_exactly(output.device)
    with open_parts_directory(out, team) as directory:
        opened = open_with_data(original, data, team.device)
        given = opened.compressed or opened.network
        pruned = None if amount is None else _prune_by_magnitude(given, amount, choices)
        small = quantize_network(given, opened.calibration, **choices, pruned=pruned, directory=directory)
        in_place = name_replaced(out)
        if team.leads:
            small.save(out)
    if team.leads:
        networks = {"before": opened.network, "after": small.network}
        origin = {"model": original.model, "weights": opened.weights, "file": str(out)}
        report(small, networks, opened.test, origin, in_place, output.as_json)


def _prune_by_magnitude(given: Network | Compressed, amount: Amount, choices: dict[str, Any]) -> Compressed:
    return prune_network(given, amount, "magnitude", include=choices["include"], exclude=choices["exclude"])
