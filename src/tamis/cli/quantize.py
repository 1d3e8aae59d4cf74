"""`tamis quantize`: put weights on a few levels, layer by layer, save what comes out, and say what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tamis.artifact import Compressed
from tamis.cli.data_argument import check_calibration, load_test
from tamis.cli.device_argument import join_team_exactly
from tamis.cli.layer_report import report
from tamis.cli.model_argument import load_network
from tamis.cli.output_argument import prepare_output, replaced
from tamis.cli.prune import parse_amount
from tamis.cli.unfinished import unfinished
from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.pruning import Amount
from tamis.pruning import prune as prune_network
from tamis.quantization import quantize as quantize_network
from tamis.training import load_data


def quantize(
    model: str,
    weights: Path | None,
    shape: str | None,
    trust: bool,
    calibration: str,
    data: str | None,
    levels: str | None,
    c_alpha: str | None,
    prune: Sequence[str],
    device: str,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """The command; arguments as on the command line, `options` as `tamis.quantize` takes them."""
    options["levels"] = None if levels is None else parse_levels(levels)
    options["c_alpha"] = None if c_alpha is None else parse_c_alpha(c_alpha)
    amount = parse_amount(prune, "--prune") if prune else None
    prepare_output(out, ".tamis")
    team = join_team_exactly(device)
    with unfinished(out, team) as directory:
        with Console(stderr=True).status(Text(f"tracing {model}")):
            examples = load_data(calibration, labelled=False)
            loaded = load_network(model, weights, shape, trust, team.device, (examples.example,))
            check_calibration(examples, loaded.network, model)
            test = load_test(data, loaded.network, model)
        given = loaded.compressed or loaded.network
        pruned = None if amount is None else _pruned(given, amount, options)
        small = quantize_network(given, examples, **options, pruned=pruned, directory=directory)
        in_place = replaced(out)
        if team.leads:
            small.save(out)
    if team.leads:
        networks = {"before": loaded.network, "after": small.network}
        origin = {"model": model, "weights": loaded.weights, "file": str(out)}
        report(small, networks, test, origin, in_place, as_json)


def _pruned(given: Network | Compressed, amount: Amount, options: dict[str, Any]) -> Compressed:
    return prune_network(given, amount, "magnitude", include=options["include"], exclude=options["exclude"])


# -- arguments ---------------------------------------------------------------------------------------------------------


def parse_levels(text: str) -> int | list[float]:
    """How many levels, or which.

    Example:
        >>> parse_levels("3"), parse_levels("-0.5,0,0.5")
        (3, [-0.5, 0.0, 0.5])
    """
    if text.strip().isdecimal():
        return int(text)
    return _numbers(text, "--levels must be how many levels (3), or a sorted list of them (-0.5,0,0.5)")


def parse_c_alpha(text: str) -> float | list[float]:
    """C_α, or several to choose from.

    Example:
        >>> parse_c_alpha("2.5"), parse_c_alpha("1,2,3")
        (2.5, [1.0, 2.0, 3.0])
    """
    numbers = _numbers(text, "--c-alpha must be a positive number (2.5), or several to choose from (1,2,3)")
    return numbers if len(numbers) > 1 else numbers[0]


def _numbers(text: str, wanted: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{wanted}; got '{text}'") from None
