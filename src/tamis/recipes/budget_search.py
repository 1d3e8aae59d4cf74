"""The search for what fits a budget: few networks are made whole, chosen by what all choices of layers would cost."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import torch

from tamis.artifact import Compressed, load, read_json_object, replace_file
from tamis.bounds import disagreement
from tamis.errors import InvalidInput
from tamis.graph import Network, SeenSamples, compare_outputs
from tamis.layerwise import CalibrationRun, find_layers, transform_layers
from tamis.recipes.allocation import WHOLE, Choice, Mixed, Option, allocations, kept
from tamis.recipes.plan import announce
from tamis.recipes.starting_points import Start, begin, of_start, probed
from tamis.recipes.state import DELTA, Context, State
from tamis.recipes.steps.base import Step
from tamis.training import Data
from tamis.verification import format_rate, format_share, share_of_disagreement

MOST_CORRECTIONS = 4  # of the guess of how large a file will be
DOUBT = 0.2  # how often the test data may differ on more than the held-out data makes us expect
EVALUATED = 500  # samples at once


@dataclass(frozen=True)
class Trial:
    """A network that was made, compared with the original on the held-out data.

    Attributes:
        start: what it was made of.
        layers: what its layers became, in words.
        path: its file.
        bytes: of the file.
        different: on how many inputs it answers differently.
        moved: the mean squared change of the outputs.
    """

    start: str
    layers: str
    path: Path
    bytes: int
    different: int
    moved: float


class Trials:
    """The networks that are made of one start; what was made once is read from its file, so that a kill loses none.

    Args:
        start: the network to begin with.
        options: of its layers.
        context: what the search has.
    """

    def __init__(self, start: Start, options: Mapping[str, Sequence[Option]], context: Context) -> None:
        self.name = start.name
        self._state, self._context, self._place = start.state, of_start(context, start), start.place
        self.allocations = allocations(options)
        whole = sum(each.bytes for layer in options.values() for each in layer if each.choice == WHOLE)
        self.beside = start.state.small.nbytes - whole  # in a file: biases, names, what no choice changes
        self.made: dict[int, Trial] = {}
        # What allocations were found by, and what they are chosen on.
        looked_at = (context.data.calibration.sample_digests, context.data.searched.sample_digests)
        self._searched = SeenSamples.of(np.concatenate(looked_at), "search")

    def __len__(self) -> int:
        return len(self.allocations)

    def predicted(self, place: int) -> int:
        """The bytes of the weights of an allocation."""
        return sum(option.bytes for option in self.allocations[place].values())

    def beyond(self, place: int) -> int:
        """How many bytes the file of an allocation has beside those that were predicted."""
        return self.at(place).bytes - self.predicted(place)

    def largest(self, target: int) -> int:
        """The last allocation whose weights have at most so many bytes, or the first where none have."""
        return max((place for place in range(len(self)) if self.predicted(place) <= target), default=0)

    def at(self, place: int) -> Trial:
        """Make a network as an allocation says."""
        if place not in self.made:
            path = self._context.directory / f"trial_{place:04d}.tamis"
            figures = path.with_suffix(".json")
            if not figures.exists():
                self._try(place, path, figures)
            found = read_json_object(figures, "delete it to have it made again")
            self.made[place] = Trial(self.name, in_words(self.allocations[place].values()), path, **found)
        return self.made[place]

    def read(self, trial: Trial) -> Compressed:
        """The network of a trial."""
        return load(trial.path, self._state.small.network)

    def _try(self, place: int, path: Path, figures: Path) -> None:
        announce(self._context.progress, f"start {self._place}, {self.name}: about {self.predicted(place):,} bytes")
        made = self._made(self.allocations[place], path.with_suffix("")).having_seen(self._searched)
        made.save(path)
        different, moved = compared(self._context.original, made.network, self._context.data.searched)
        with replace_file(figures) as part:
            part.write_text(json.dumps({"bytes": made.nbytes, "different": different, "moved": moved}))

    def _made(self, allocation: Mapping[str, Option], directory: Path) -> Compressed:
        choices = {name: option.choice for name, option in allocation.items() if option.choice.levels}
        small, reference = _pruned(self._state, choices), self._state.reference
        if not choices:
            return small
        layers = find_layers(reference, list(choices), None, "joint", done="quantized")
        levels = {name: choice.levels for name, choice in choices.items()}
        step = {"step": "quantize", "method": "optq", "per": "channel", "levels": levels}
        step |= {"calibration": self._context.data.calibration.name}
        context = self._context
        run = CalibrationRun(context.data.calibration, directory=directory, progress=context.progress, hold_out=True)
        return transform_layers(reference, small, layers, Mixed(reference, small.masks, choices), step, run)


def trials_of(starts: Sequence[Sequence[Step]], state: State, context: Context) -> list[Trials]:
    """Every start, with what could be made of it."""
    begun = begin(starts, state, context)
    return [Trials(start, options, context) for start, options in zip(begun, probed(begun, context), strict=True)]


def fit_bytes(starts: Sequence[Sequence[Step]], state: State, context: Context, target: int) -> Compressed:
    """The network that answers most like the original on the held-out data, among files of at most so many bytes.

    Numbers of different answers that chance may have set apart, by a standard deviation at most, count as equal: of
    those networks, it is the one whose outputs moved least, which few inputs already tell well.

    How large a file will be is guessed from the bytes of its layers, and the guess is corrected by what the first
    networks that are made come out to be.

    Args:
        starts: chains of steps, each of which is tried first.
        state: the network that they begin with.
        context: data, folder and progress.
        target: how many bytes.

    Raises:
        InvalidInput: no choice of layers is small enough.
    """
    everything = trials_of(starts, state, context)
    for trials in everything:
        _towards(target, trials)
    fitting = [pair for pair in _all_of(everything) if pair[1].bytes <= target]
    if not fitting:
        smallest = min((trial for _, trial in _all_of(everything)), key=lambda trial: trial.bytes)
        raise InvalidInput(
            f"no file of {target:,} bytes was found: the smallest has {smallest.bytes:,}{_begun(smallest, starts)}; "
            "raise the target, or begin with a smaller network"
        )
    least = min(trial.different for _, trial in fitting)
    alike = [pair for pair in fitting if pair[1].different <= least + math.sqrt(least)]
    return _taken(min(alike, key=lambda pair: (pair[1].moved, pair[1].bytes)), everything, context)


def _towards(target: int, trials: Trials) -> None:
    """Make the largest network that fits, or the smallest where none does."""
    place = trials.largest(target - trials.beside)
    for _ in range(MOST_CORRECTIONS):
        place = trials.largest(target - trials.beyond(place))
        if place in trials.made:
            break
    if not any(trial.bytes <= target for trial in trials.made.values()):
        trials.at(0)


def fit_disagreement(starts: Sequence[Sequence[Step]], state: State, context: Context, most: float) -> Compressed:
    """The smallest file for which the held-out data promises a certificate of no more than `most` different answers.

    The allocations of each start are bisected: of the networks that are made on the way, a larger file differs on fewer
    inputs, up to chance. A start that keeps no promise with what is just below the smallest file so far is given up.

    Args:
        starts: chains of steps, each of which is tried first.
        state: the network that they begin with.
        context: data, folder and progress.
        most: which part of the answers may differ.

    Raises:
        InvalidInput: there is too little data to say so of any network, or none is good enough.
    """
    held_out, test, said = len(context.data.searched), len(context.data.test), format_share(Decimal(repr(most)))
    share = share_of_disagreement(DELTA, context.data.test_has_labels)
    if (least := promised(0, held_out, test, share)) > most:
        raise InvalidInput(
            f"{held_out:,} held-out and {test:,} test samples are too few for a disagreement of at most {said}: "
            f"even without a single different answer the bound to expect is {format_rate(least)}; allow more, or name "
            "more data"
        )

    def good(trial: Trial) -> bool:
        return promised(trial.different, held_out, test, share) <= most

    everything = trials_of(starts, state, context)
    best: tuple[Trials, Trial] | None = None
    weights = 0  # of the best one, without what every file has beside them
    for trials in everything:
        high = len(trials) - 1 if best is None else trials.largest(weights)
        found = _smallest(trials, high, good)
        if found is not None and (best is None or trials.at(found).bytes < best[1].bytes):
            best, weights = (trials, trials.at(found)), trials.predicted(found)
    if best is None:
        _, closest = min(_all_of(everything), key=lambda pair: (pair[1].different, pair[1].bytes))
        bound = promised(closest.different, held_out, test, share)
        raise InvalidInput(
            f"no file was found with a disagreement of at most {said}: the closest, of {closest.bytes:,} bytes"
            f"{_begun(closest, starts)}, has a bound to expect of {format_rate(bound)}; allow more, or begin otherwise"
        )
    return _taken(best, everything, context)


def _smallest(trials: Trials, high: int, good: Callable[[Trial], bool]) -> int | None:
    """The first allocation that is good enough, up to `high`; None if that is not."""
    if not good(trials.at(high)):
        return None
    low = 0
    while low < high:
        middle = (low + high) // 2
        if good(trials.at(middle)):
            high = middle
        else:
            low = middle + 1
    return high


def in_words(options: Iterable[Option]) -> str:
    """What layers become, how many of them each, from the fewest levels on.

    Example:
        >>> in_words([Option(Choice(3), 40, 0.1), Option(WHOLE, 900, 0.0), Option(Choice(3), 50, 0.2)])
        '3 levels ×2, floats'
    """
    counts = Counter(option.choice for option in options)
    ordered = sorted(counts, key=lambda choice: (choice.levels or math.inf, -choice.amount))
    return ", ".join(
        ("floats" if not choice.levels else f"{choice.levels} levels")
        + (f" after {choice.amount:.0%} pruned" if choice.amount else "")
        + (f" ×{counts[choice]}" if counts[choice] > 1 else "")
        for choice in ordered
    )


def _all_of(everything: Sequence[Trials]) -> list[tuple[Trials, Trial]]:
    return [(trials, trial) for trials in everything for trial in trials.made.values()]


def _begun(trial: Trial, starts: Sequence[Sequence[Step]]) -> str:
    """Which start a trial is of, where there are several."""
    return f" ({trial.start})" if len(starts) > 1 else ""


def _taken(chosen: tuple[Trials, Trial], everything: Sequence[Trials], context: Context) -> Compressed:
    """The network of a trial; all trials are noted, for the report."""
    tried = [
        {
            "start": trial.start,
            "layers": trial.layers,
            "bytes": trial.bytes,
            "different": trial.different,
            "moved": trial.moved if math.isfinite(trial.moved) else None,
            "chosen": trial is chosen[1],
        }
        for _, trial in _all_of(everything)
    ]
    with replace_file(context.notes) as part:
        part.write_text(json.dumps({"held_out": len(context.data.searched), "tried": tried}))
    return chosen[0].read(chosen[1])


def promised(different: int, held_out: int, test: int, delta: float) -> float:
    """The bound that a certificate will probably state: with this much doubt, or less, the test data differs on more.

    Args:
        different: on how many held-out inputs the answers differ.
        held_out, test: how many inputs there are.
        delta: the claim's part of δ.

    Example:
        >>> promised(0, 5000, 5000, 0.0125) < promised(50, 5000, 5000, 0.0125) < 0.02
        True
    """
    rate = disagreement(different, held_out, DOUBT).value
    return disagreement(min(test, math.ceil(rate * test)), test, delta).value


def _pruned(state: State, choices: Mapping[str, Choice]) -> Compressed:
    """The network with what the choices prune."""
    small, amounts = state.small, {name: choice.amount for name, choice in choices.items() if choice.amount}
    if not amounts:
        return small
    masks = {
        name: kept(state.reference.params[name], small.masks.get(name), amount) for name, amount in amounts.items()
    }
    return small.pruned(masks, {"step": "prune", "by": "magnitude", "amount": amounts})


def compared(original: Network, small: Network, data: Data) -> tuple[int, float]:
    """On how many inputs the class with the highest score differs, and the mean squared change of the outputs."""
    places = torch.arange(len(data)).split(EVALUATED)
    found = compare_outputs(original, small, ((data.batch(some)[0],) for some in places))
    return found.different, found.squared_change / len(data)
