"""Cross-validation quantizes whole networks with each choice of levels and C_α, and compares them on held-out data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Compressed, compressed_of
from tamis.errors import InvalidInput
from tamis.graph import Network, compare_outputs
from tamis.layerwise import FEWEST_BATCHES, Calibration, read_calibration
from tamis.progress import Listener, reporting
from tamis.quantization.alphabet import Alphabet

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
    example: Tensor | tuple[Tensor, ...] | None = None,
    progress: Listener = True,
    **options: Any,
) -> tuple[Trial, ...]:
    """Quantize with each number of levels and each C_α, and see how well each does on calibration data left aside.

    The batches are dealt into five parts. In each round one of them is left aside, and the networks quantized on the
    others are compared with the original on it; figures are over all rounds.

    Args:
        net, calibration, example: as `tamis.quantize` takes them.
        levels, c_alpha: to choose from.
        rounds: how many of the five parts are left aside, one after the other.
        progress: True, False, or a function of a `Progress`, called after each network.
        options: whatever else `tamis.quantize` takes.

    Returns:
        A trial for each pair, in the order given.

    Example:
        >>> trials = cross_validate(net, images, levels=(3, 4), c_alpha=(2.0, 3.0), method="gpfq", per="layer")
        >>> best = min(trials, key=lambda trial: trial.error)
    """
    from tamis.quantization import quantize  # which searches by this

    if not (type(rounds) is int and 1 <= rounds <= FEWEST_BATCHES):
        raise InvalidInput(f"rounds={rounds!r} must be a whole number from 1 to {FEWEST_BATCHES}")
    original = compressed_of(net, example, "cross_validate")
    for name, given in (("levels", levels), ("c_alpha", c_alpha)):
        if not isinstance(given, Iterable):
            raise InvalidInput(f"cross_validate chooses among several: pass {name}=({given!r},), or more of them")
    batches = list(read_calibration(calibration, original.network))
    if len(batches) < 2:
        raise InvalidInput("cross_validate needs two batches of calibration data or more: one to leave aside")
    pairs = list(product(levels, c_alpha))
    figures = torch.zeros(len(pairs), 4, dtype=torch.float64)
    with reporting(progress, "cross-validation", rounds * len(pairs)) as report:
        for round_ in range(rounds):
            chosen_from, held_out = _dealt(batches, round_)
            for number, (count, multiple) in enumerate(pairs):
                small = quantize(original, chosen_from, count, c_alpha=multiple, progress=False, **options)
                figures[number] += _compared(original.network, small.network, held_out)
                error = _trial(count, multiple, figures[number]).error
                report(round_ * len(pairs) + number + 1, error=error)
    return tuple(_trial(*pair, each) for pair, each in zip(pairs, figures, strict=True))


def _dealt(batches: Sequence[Batch], part: int) -> tuple[list[Batch], list[Batch]]:
    """Split the batches into those outside one part and those in it."""
    # Dealt in turn, not cut into runs: data that comes sorted, by class say, is then spread over all parts. With fewer
    # batches than parts, later rounds use a part again.
    parts = min(FEWEST_BATCHES, len(batches))
    held_out = [batch for number, batch in enumerate(batches) if number % parts == part % parts]
    return [batch for number, batch in enumerate(batches) if number % parts != part % parts], held_out


def _compared(original: Network, small: Network, batches: Sequence[Batch]) -> Tensor:
    """Sum over batches the squared difference, the squares, the inputs that agree, and the inputs.

    Sums add up over rounds of different sizes, which ratios would not.
    """
    found = compare_outputs(original, small, batches)
    sums = [found.squared_change, found.squared_size, found.samples - found.different, found.samples]
    return torch.tensor(sums, dtype=torch.float64)


def _trial(levels: int | Alphabet, c_alpha: float | None, sums: Tensor) -> Trial:
    difference, whole, agree, count = sums.tolist()
    return Trial(levels, c_alpha, (difference / whole) ** 0.5 if whole else float(difference > 0), agree / count)
