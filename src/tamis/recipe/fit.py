"""The search for what fits a budget: few networks are made whole, chosen by what all choices of layers would cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tamis.artifact.atomic import replacing
from tamis.artifact.compressed import Compressed, load
from tamis.bounds.disagreement import disagreement
from tamis.errors import InvalidInput
from tamis.graph.network import Network
from tamis.layerwise.layers import find_layers
from tamis.layerwise.transform import device_of, transformed
from tamis.layerwise.walk import ACTIVATION_BUDGET, Walk
from tamis.recipe.choices import Choice, Mixed, Option, allocations, kept, options_by_layer, outputs
from tamis.recipe.state import DELTA, Context, State
from tamis.train.data import Data
from tamis.train.distributed import join_team

MOST_CORRECTIONS = 4  # of the guess of how large a file will be
DOUBT = 0.2  # how often the test data may differ on more than the held-out data makes us expect
EVALUATED = 500  # samples at once


@dataclass(frozen=True)
class Trial:
    """A network that was made, its bytes, and on how many held-out inputs it answers differently."""

    path: Path
    bytes: int
    different: int


class Trials:
    """The networks of a search; what was made once is read from its file, so that a kill loses none of them."""

    def __init__(self, state: State, context: Context) -> None:
        self._state, self._context = state, context
        probed = options_by_layer(
            state.reference, state.small, context.data.calibration, context.directory / "probe", context.progress
        )
        self.allocations = allocations(probed)
        self._answers = _answers(state.reference, context.data.held_out)

    def __len__(self) -> int:
        return len(self.allocations)

    def predicted(self, place: int) -> int:
        """The bytes of the weights of an allocation."""
        return sum(option.bytes for option in self.allocations[place].values())

    def largest(self, target: int) -> int:
        """The last allocation whose weights have at most so many bytes, or the first where none have."""
        return max((place for place in range(len(self)) if self.predicted(place) <= target), default=0)

    def at(self, place: int) -> Trial:
        """Make a network as an allocation says."""
        path = self._context.directory / f"trial_{place:04d}.tamis"
        figures = path.with_suffix(".json")
        if not figures.exists():
            made = self._made(self.allocations[place], path.with_suffix(""))
            made.save(path)
            answers = _answers(made.network, self._context.data.held_out)
            found = {"bytes": made.nbytes, "different": int((answers != self._answers).sum())}
            with replacing(figures) as part:
                part.write_text(json.dumps(found))
        found = json.loads(figures.read_text())
        return Trial(path, found["bytes"], found["different"])

    def read(self, trial: Trial) -> Compressed:
        """The network of a trial."""
        return load(trial.path, self._state.small.network)

    def _made(self, allocation: Mapping[str, Option], directory: Path) -> Compressed:
        choices = {name: option.choice for name, option in allocation.items() if option.choice.levels}
        small, reference = _pruned(self._state, choices), self._state.reference
        if not choices:
            return small
        layers = find_layers(reference, list(choices), None, "joint", done="quantized")
        levels = {name: choice.levels for name, choice in choices.items()}
        step = {"step": "quantize", "method": "optq", "per": "channel", "levels": levels}
        step |= {"calibration": self._context.data.calibration.name}
        team = join_team(device_of(reference.params))
        calibration = self._context.data.calibration
        walk = Walk(reference, small.params, calibration, True, ACTIVATION_BUDGET, team)
        treatment = Mixed(reference, small.masks, choices)
        return transformed(walk, layers, treatment, small, step, directory, self._context.progress)


def fit_bytes(state: State, context: Context, target: int) -> Compressed:
    """The network that answers most like the reference on the held-out data, among files of at most so many bytes.

    How large a file will be is guessed from the bytes of its layers, and the guess is corrected by what the first
    networks that are made come out to be.

    Raises:
        InvalidInput: no choice of layers is small enough.
    """
    trials = Trials(state, context)
    made: dict[int, Trial] = {}
    place = trials.largest(target)
    for _ in range(MOST_CORRECTIONS):
        made[place] = trials.at(place)
        beyond = made[place].bytes - trials.predicted(place)
        place = trials.largest(target - beyond)
        if place in made:
            break
    fitting = [trial for trial in [*made.values(), trials.at(0)] if trial.bytes <= target]
    if not fitting:
        raise InvalidInput(
            f"no file of {target:,} bytes was found: the smallest has {trials.at(0).bytes:,}; raise the target, or "
            "begin with a smaller network"
        )
    return trials.read(min(fitting, key=lambda trial: (trial.different, trial.bytes)))


def fit_disagreement(state: State, context: Context, most: float) -> Compressed:
    """The smallest file for which the held-out data promises a certificate of no more than `most` different answers.

    The allocations are bisected: of the networks that are made on the way, a larger file differs on fewer inputs, up to
    chance.

    Raises:
        InvalidInput: there is too little data to say so of any network.
    """
    held_out, test = len(context.data.held_out), len(context.data.test)
    share = DELTA / (4 if context.data.test_has_labels else 2)  # what a certificate has for this claim
    if (least := promised(0, held_out, test, share)) > most:
        raise InvalidInput(
            f"{held_out:,} held-out and {test:,} test samples are too few for a disagreement of at most {most:.2%}: "
            f"even without a single different answer the bound to expect is {least:.2%}; allow more, or name more data"
        )
    trials = Trials(state, context)
    low, high = 0, len(trials) - 1  # the last one leaves the weights as they are
    while low < high:
        middle = (low + high) // 2
        if promised(trials.at(middle).different, held_out, test, share) <= most:
            high = middle
        else:
            low = middle + 1
    return trials.read(trials.at(high))


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


def _answers(net: Network, data: Data) -> Tensor:
    """The class with the highest score, for each input."""
    with torch.no_grad():
        parts = [outputs(net, data.batch(some)[0]).argmax(1) for some in torch.arange(len(data)).split(EVALUATED)]
    return torch.cat(parts)
