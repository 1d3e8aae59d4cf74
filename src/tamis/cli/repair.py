"""`tamis repair`: refit a small network to the original one, layer by layer, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from tamis.artifact import load
from tamis.cli.data_argument import check_calibration, load_test
from tamis.cli.layer_report import report
from tamis.cli.model_argument import load_network
from tamis.cli.output_argument import prepare_output, replaced
from tamis.cli.unfinished import unfinished
from tamis.layerwise import repair as repair_network
from tamis.training import join_team, load_data


def repair(
    model: str,
    weights: Path | None,
    shape: str | None,
    trust: bool,
    small: Path,
    calibration: str,
    data: str | None,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """The command; arguments as on the command line, `options` as `tamis.repair` takes them."""
    prepare_output(out, ".tamis")
    team = join_team(torch.device("cpu"))
    with unfinished(out, team) as directory:
        with Console(stderr=True).status(Text(f"tracing {model}")):
            examples = load_data(calibration, labelled=False)
            loaded = load_network(model, weights, shape, trust, example=(examples.example,))
            before = load(small, loaded.network)
            check_calibration(examples, loaded.network, model)
            test = load_test(data, loaded.network, model)
        repaired = repair_network(loaded.network, before, examples, **options, directory=directory)
        in_place = replaced(out)
        if team.leads:
            repaired.save(out)
    if team.leads:
        networks = {"original": loaded.network, "before": before.network, "after": repaired.network}
        origin = {"model": model, "weights": loaded.weights, "small": str(small), "file": str(out)}
        report(repaired, networks, test, origin, in_place, as_json)
