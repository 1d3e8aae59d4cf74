"""A trial is a network that a budget's search has made; its file and its figures survive a kill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tamis.artifact import Compressed, load, read_json_object, replace_file
from tamis.graph import Network, SeenSamples, compare_outputs
from tamis.layerwise import CalibrationRun, find_layers, transform_layers
from tamis.recipes.allocation import UNCHANGED, Choice, Option, describe_options, list_allocations
from tamis.recipes.layer_options import MixedQuantizer, keep_largest
from tamis.recipes.plan import announce
from tamis.recipes.starting_points import Start, make_start_context
from tamis.recipes.state import Context, State
from tamis.training import Data

EVALUATED = 500  # samples at once


@dataclass(frozen=True)
class Trial:
    """A trial is a network that was made and compared with the original on the held-out data.

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
    """Trials are the networks that are made of one start; a network that was made before is read from its file.

    Args:
        start: the network to begin with.
        options: of its layers.
        context: what the search has.
    """

    def __init__(self, start: Start, options: Mapping[str, Sequence[Option]], context: Context) -> None:
        self.name = start.name
        self._state, self._context, self._place = start.state, make_start_context(context, start), start.place
        self.allocations = list_allocations(options)
        # As floats, each layer has the bytes that it has in the file of the start: the rest of that file is fixed.
        as_floats = sum(each.bytes for layer in options.values() for each in layer if each.choice == UNCHANGED)
        self.fixed_bytes = start.state.small.nbytes - as_floats  # in a file: biases, names, what no choice changes
        self.done: dict[int, Trial] = {}
        # Allocations were found by the one and are chosen on the other: no certificate may use either.
        looked_at = (context.data.calibration.sample_digests, context.data.searched.sample_digests)
        self._searched = SeenSamples.of(np.concatenate(looked_at), "search")

    def __len__(self) -> int:
        return len(self.allocations)

    def predict_bytes(self, place: int) -> int:
        """Return the bytes of the weights of an allocation."""
        return sum(option.bytes for option in self.allocations[place].values())

    def measure_overhead(self, place: int) -> int:
        """Return how many bytes the file of an allocation has beside those that were predicted."""
        return self.make(place).bytes - self.predict_bytes(place)

    def find_largest_within(self, target: int) -> int:
        """Return the last allocation whose weights have at most so many bytes, or the first where none have."""
        # Sizes grow along the allocations, so that the last that fits is the largest.
        return max((place for place in range(len(self)) if self.predict_bytes(place) <= target), default=0)

    def make(self, place: int) -> Trial:
        """Make a network as an allocation says, or read it where it was made before."""
        if place not in self.done:
            # By its place in the list, which the same measurements give again after a kill.
            path = self._context.directory / f"trial_{place:04d}.tamis"
            figures = path.with_suffix(".json")
            if not figures.exists():
                self._make(place, path, figures)
            record = read_json_object(figures, "delete it to have it made again")
            self.done[place] = Trial(self.name, describe_options(self.allocations[place].values()), path, **record)
        return self.done[place]

    def read(self, trial: Trial) -> Compressed:
        """Load the network of a trial."""
        return load(trial.path, self._state.small.network)

    def _make(self, place: int, path: Path, figures: Path) -> None:
        announce(self._context.progress, f"start {self._place}, {self.name}: about {self.predict_bytes(place):,} bytes")
        small = self._build(self.allocations[place], path.with_suffix("")).with_seen(self._searched)
        small.save(path)
        # Figures follow the file: where they exist, both are whole, and the trial is not made again.
        different, moved = compare_on(self._context.data.searched, self._context.original, small.network)
        with replace_file(figures) as part:
            part.write_text(json.dumps({"bytes": small.nbytes, "different": different, "moved": moved}))

    def _build(self, allocation: Mapping[str, Option], directory: Path) -> Compressed:
        choices = {name: option.choice for name, option in allocation.items() if option.choice.levels}
        # Pruned first, so that levels are fitted to what is left.
        small, reference = _prune(self._state, choices), self._state.reference
        if not choices:
            return small  # all layers stay floats, and there is nothing to fit
        # Not the outcomes of probing, where each layer saw the inputs of the unquantized network: here every layer is
        # fitted to what the quantized layers before it hand on, as in `tamis.quantize`.
        layers = find_layers(reference, list(choices), None, "joint", done="quantized")
        levels = {name: choice.levels for name, choice in choices.items()}
        step = {"step": "quantize", "method": "optq", "per": "channel", "levels": levels}
        step |= {"calibration": self._context.data.calibration.name}
        context, treatment = self._context, MixedQuantizer(reference, small.masks, choices)
        run = CalibrationRun(context.data.calibration, directory=directory, progress=context.progress, hold_out=True)
        return transform_layers(reference, small, layers, treatment, step, run)


def _prune(state: State, choices: Mapping[str, Choice]) -> Compressed:
    """Prune what the choices say."""
    small, amounts = state.small, {name: choice.amount for name, choice in choices.items() if choice.amount}
    if not amounts:
        return small
    masks = {
        name: keep_largest(state.reference.params[name], small.masks.get(name), amount)
        for name, amount in amounts.items()
    }
    return small.pruned(masks, {"step": "prune", "by": "magnitude", "amount": amounts})


def compare_on(data: Data, original: Network, small: Network) -> tuple[int, float]:
    """Return how many inputs get another class, and the mean squared change of the outputs."""
    # Some at a time, since the outputs of two networks for all inputs may not fit into memory.
    places = torch.arange(len(data)).split(EVALUATED)
    comparison = compare_outputs(original, small, ((data.batch(some)[0],) for some in places))
    return comparison.different, comparison.squared_change / len(data)
