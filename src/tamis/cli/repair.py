"""`tamis repair`: refit a small network to the original one, layer by layer, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tamis.artifact import load
from tamis.cli.layer_report import report
from tamis.cli.opening import open_with_data
from tamis.cli.options import CalibrationChoice, ModelChoice, Output
from tamis.cli.output_argument import name_replaced, prepare_output
from tamis.cli.unfinished import open_parts_directory
from tamis.layerwise import repair as repair_network
from tamis.training import join_team


def repair(
    original: ModelChoice, small: Path, data: CalibrationChoice, choices: dict[str, Any], output: Output
) -> None:
    """Run the command; arguments as on the command line, `choices` the settings as `tamis.repair` takes them."""
    out = output.out
    prepare_output(out, ".tamis")
    team = join_team(torch.device("cpu"))
    with open_parts_directory(out, team) as directory:
        opened = open_with_data(original, data, team.device)
        before = load(small, opened.network)
        repaired = repair_network(opened.network, before, opened.calibration, **choices, directory=directory)
        in_place = name_replaced(out)
        if team.leads:
            repaired.save(out)
    if team.leads:
        networks = {"original": opened.network, "before": before.network, "after": repaired.network}
        origin = {"model": original.model, "weights": opened.weights, "small": str(small), "file": str(out)}
        report(repaired, networks, opened.test, origin, in_place, output.as_json)
