"""Cross-validation quantizes whole networks with each choice of levels and C_α, and compares them on held-out data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from torch import Tensor, nn

from tamis.artifact import Compressed
from tamis.errors import InvalidInput
from tamis.graph import Network, compare_outputs, lasting
from tamis.layerwise import (
    ACTIVATION_BUDGET,
    FEWEST_BATCHES,
    Calibration,
    CalibrationRun,
    check_budget,
    describe_calibration,
    read_calibration,
)
from tamis.progress import Listener, reporting
from tamis.quantization.alphabet import Alphabet
from tamis.quantization.network_quantization import Source, quantize_network
from tamis.quantization.plan import Plan
from tamis.settings import Quantization

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Trial:
    """A trial is a choice of levels and C_α (None: chosen layer by layer), with its figures on held-out data.

    Attributes:
        error: the relative error of the network's outputs, ‖R(x) − R'(x)‖ / ‖R(x)‖ over all x.
        agreement: on how many of the inputs the largest output is the same one.
    """

    levels: int | Alphabet
    c_alpha: float | None
    error: float
    agreement: float


def cross_validate(
    net: Network | Compressed | nn.Module,
    calibration: Calibration,
    levels: Iterable[int | Alphabet] = (3, 4, 8, 16),
    c_alpha: Iterable[float | None] = (None,),
    *,
    rounds: int = 1,
    progress: Listener = True,
    **options: Any,
) -> tuple[Trial, ...]:
    """Quantize with each number of levels and each C_α, and see how well each does on calibration data left aside.

    The batches are dealt into five parts. In each round one of them is left aside, and the networks quantized on the
    others are compared with the original on it; figures are over all rounds.

    Args:
        net, calibration: as `tamis.quantize` takes them.
        levels, c_alpha: to choose from.
        rounds: how many of the five parts are left aside, one after the other.
        progress: True, False, or a function of a `Progress`, called after each network.
        options: whatever else `tamis.quantize` takes, but for a directory.

    Returns:
        A trial for each pair, in the order given.

    Example:
        >>> net, images = tamis.trace(torch.nn.Linear(4, 3), torch.zeros(1, 4)), list(torch.randn(6, 10, 4))
        >>> trials = cross_validate(net, images, levels=(3, 16), c_alpha=(2.0, 3.0), method="gpfq", progress=False)
        >>> len(trials), min(trials, key=lambda trial: trial.error).levels
        (4, 16)
    """
    if not (type(rounds) is int and 1 <= rounds <= FEWEST_BATCHES):
        raise InvalidInput(f"rounds={rounds!r} must be a whole number from 1 to {FEWEST_BATCHES}")
    source = Source.of(net, options.pop("pruned", None), options.pop("example", None), "cross_validate")
    budget = options.pop("activation_budget", ACTIVATION_BUDGET)
    check_budget(budget)
    for name, given in (("levels", levels), ("c_alpha", c_alpha)):
        if not isinstance(given, Iterable):
            raise InvalidInput(f"cross_validate chooses among several: pass {name}=({given!r},), or more of them")
    options |= {name: lasting(options[name]) for name in ("include", "exclude") if name in options}
    # Listed once, since `levels` may be a generator; trials come back in this order.
    pairs = list(product(levels, c_alpha))
    # All plans are made before any network is quantized: a wrong setting is refused at once, not after an hour.
    plans = [Plan.of(Quantization(levels=count, c_alpha=multiple, **options)) for count, multiple in pairs]
    found = compare_plans(source, plans, CalibrationRun(calibration, budget, None, progress), rounds)
    return tuple(Trial(*pair, each.error, each.agreement) for pair, each in zip(pairs, found, strict=True))


@dataclass(frozen=True)
class Comparison:
    """A comparison sums over inputs how far a quantized network is from the original one.

    Sums add up over rounds of different sizes, which ratios would not.
    """

    squared_change: float = 0.0
    squared_size: float = 0.0
    agreeing: int = 0
    inputs: int = 0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.squared_change + other.squared_change,
            self.squared_size + other.squared_size,
            self.agreeing + other.agreeing,
            self.inputs + other.inputs,
        )

    @property
    def error(self) -> float:
        """Return the relative error of the outputs; of outputs that should all be zero, whether any is not."""
        # A ratio of sums, not a mean of ratios: samples with small outputs would otherwise count as much as all others.
        if not self.squared_size:
            return float(self.squared_change > 0)
        return (self.squared_change / self.squared_size) ** 0.5

    @property
    def agreement(self) -> float:
        """Return on which share of the inputs the largest output is the same one."""
        return self.agreeing / self.inputs


def compare_plans(source: Source, plans: Sequence[Plan], run: CalibrationRun, rounds: int = 1) -> list[Comparison]:
    """Quantize a network by each plan on some of the data, and compare what comes out with it on the rest.

    Args:
        source: the network.
        plans: to choose from.
        run: the data, and whom progress is told; finished layers are not recorded.
        rounds: how many of the five parts of the data are left aside, one after the other.
    """
    # In memory: every round goes through them again, and a loader that shuffles would deal other parts each time.
    batches, name = list(read_calibration(run.calibration, source.original)), describe_calibration(run.calibration)
    if len(batches) < 2:
        raise InvalidInput("cross_validate needs two batches of calibration data or more: one to leave aside")
    totals = [Comparison()] * len(plans)
    with reporting(run.progress, "cross-validation", rounds * len(plans)) as report:
        # Plans inside of rounds: every plan meets the same held-out part, so that their figures can be compared.
        for round_ in range(rounds):
            chosen_from, held_out = _deal_batches(batches, round_)
            trial = replace(run, calibration=chosen_from, directory=None, progress=False)
            for number, plan in enumerate(plans):
                small = quantize_network(source, plan, trial, name)
                totals[number] += _compare_networks(source.original, small.network, held_out)
                report(round_ * len(plans) + number + 1, error=totals[number].error)
    return totals


def _deal_batches(batches: Sequence[Batch], part: int) -> tuple[list[Batch], list[Batch]]:
    """Split the batches into those outside one part and those in it."""
    # Dealt in turn, not cut into runs: data that comes sorted, by class say, is then spread over all parts. With fewer
    # batches than parts, later rounds use a part again.
    parts = min(FEWEST_BATCHES, len(batches))
    held_out = [batch for number, batch in enumerate(batches) if number % parts == part % parts]
    return [batch for number, batch in enumerate(batches) if number % parts != part % parts], held_out


def _compare_networks(original: Network, small: Network, batches: Sequence[Batch]) -> Comparison:
    found = compare_outputs(original, small, batches)
    return Comparison(
        float(found.squared_change), float(found.squared_size), found.samples - found.different, found.samples
    )
