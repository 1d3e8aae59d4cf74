"""A search over the weights of every layer: a change is kept if it lowers the bound, its errors being counted anew.

What to try comes from the gradient of the cross-entropy: weights that change by ±1, and pairs of which one becomes
zero and another one does not. What is tried is computed from the stage on that it belongs to: one response of one
cosine is added to the sums of one filter, and the rest of the network follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from experiments.short_codes_network import FLOOR, SHIFT, Shape, ShortNetwork, Stage, normalise, prepare, split_signs
from experiments.short_codes_search import chernoff, code_bits, sweep
from tamis.training import Data

WORTH = 4e-5  # of a bit, in nats of cross-entropy per image; only the order of what is tried depends on it
TRIED = 1600  # changes of the last stage in a round; of each stage before it, a quarter
PARTNERS = 8  # new weights that each weight of a stage may give way to
SWEEPS = 60  # of the read-out after each stage
TOGETHER = 12_500  # images of a part
AT_ONCE = 2_500  # images whose derivatives fit into memory


class Change(NamedTuple):
    """One weight by ±1."""

    row: int
    column: int
    step: int


def refine(shape: Shape, weights: Mapping[str, Tensor], train: Data, rounds: int) -> dict[str, Tensor]:
    """Return the weights after some rounds over all layers, the last one first; they are returned on the CPU.

    Args:
        shape: of the network.
        weights: its ternary weights by name; they stay as they are.
        train: the training set, on the device where to search.
        rounds: at most so many; fewer if one changes nothing.
    """
    search = Search(shape, weights, train)
    for _ in range(rounds):
        before = search.score
        for place in reversed(range(len(search.stages))):
            search.improve_readout()
            search.improve_stage(place)
        search.improve_readout()
        if search.score == before:
            break
    return {name: value.detach().cpu().clone() for name, value in search.net.named_parameters()}


class Search:
    """A network with what its training set looks like after the stem, in parts."""

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor], train: Data) -> None:
        self.net = ShortNetwork(shape).to(train.inputs.device).requires_grad_(False)
        self.net.load_state_dict({name: value.float() for name, value in weights.items()})
        self.stages, self.labels = self.net.each_stage, train.labels
        self.parts = [self._run_stem(images) for images in train.inputs.split(TOGETHER)]
        self.errors = self.count(self.iterate_inputs(len(self.stages)))
        self.score = self._score(self.errors)

    def improve_readout(self) -> None:
        weight = self.net.readout.weight
        features = torch.cat([self.net.readout.features(values) for values in self.iterate_inputs(len(self.stages))])
        features = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
        others = self._count_bits() - code_bits(weight)
        for _ in range(SWEEPS):
            if not sweep(weight, features, self.labels, others):
                break
        self.errors = int(((features @ weight.T).argmax(dim=1) != self.labels).sum())
        self.score = self._score(self.errors)

    def improve_stage(self, place: int) -> None:
        stage = self.stages[place]
        values = list(self.iterate_inputs(place))
        passed = [functional.avg_pool2d(part, stage.pool) if stage.kept else None for part in values]
        sums = [compute_sums(stage, part) for part in values]
        gradient = self._compute_gradient(place, values)
        tries = max(TRIED // 4 ** (len(self.stages) - 1 - place), 50)
        for changes in _list_changes(stage.weight, gradient, tries):
            if any(abs(float(stage.weight[change.row, change.column]) + change.step) > 1 for change in changes):
                continue  # another change came first
            self.change(stage, values, sums, changes)
            errors = self.count(self.resume(place, passed, sums))
            score = self._score(errors)
            if score < self.score:
                self.errors, self.score = errors, score
            else:
                self.change(stage, values, sums, [change._replace(step=-change.step) for change in changes])

    def change(self, stage: Stage, values: list[Tensor], sums: list[Tensor], changes: Sequence[Change]) -> None:
        for row, column, step in changes:
            stage.weight[row, column] += step
            for part, total in zip(values, sums, strict=True):
                total[:, row] += step * _compute_response(stage, part, column)

    def _run_stem(self, images: Tensor) -> Tensor:
        return torch.cat([self.net.stem(prepare(batch)) for batch in images.split(AT_ONCE)])

    def iterate_inputs(self, place: int) -> Iterator[Tensor]:
        """Yield the inputs of a stage, or, after the last stage, of the read-out."""
        for part in self.parts:
            values = part
            for stage in self.stages[:place]:
                values = stage(values)
            yield values

    def resume(self, place: int, passed: list[Tensor | None], sums: list[Tensor]) -> Iterator[Tensor]:
        """Yield the inputs of the read-out, from the sums of a stage on."""
        stage = self.stages[place]
        norms = (stage.weight.square().sum(dim=1) + FLOOR).rsqrt()[:, None, None]
        for handed, total in zip(passed, sums, strict=True):
            values = functional.avg_pool2d(split_signs(normalise(total * norms)), stage.pool)
            values = values if handed is None else torch.cat([handed, values], dim=1)
            for later in self.stages[place + 1 :]:
                values = later(values)
            yield values

    def count(self, reaching: Iterator[Tensor]) -> int:
        """Count training errors, from the inputs of the read-out."""
        answers = torch.cat([self.net.readout(values).argmax(dim=1) for values in reaching])
        return int((answers != self.labels).sum())

    def _compute_gradient(self, place: int, values: list[Tensor]) -> Tensor:
        """Compute the gradient of the mean cross-entropy, with outputs scaled by what makes it least, in a stage's
        weights.
        """
        stage = self.stages[place]
        labels = self.labels.split(TOGETHER)
        outputs = self.net.readout(next(self.iterate_inputs(len(self.stages))))
        heats = torch.logspace(-2, 1, 31).tolist()
        heat = min(heats, key=lambda heat: float(functional.cross_entropy(heat * outputs, labels[0])))
        weight = stage.weight
        gradient = torch.zeros_like(weight)
        weight.requires_grad_()
        for part, wanted in zip(values, labels, strict=True):
            for seen, answers in zip(part.split(AT_ONCE), wanted.split(AT_ONCE), strict=True):
                following = seen
                for later in self.stages[place:]:
                    following = later(following)
                loss = functional.cross_entropy(heat * self.net.readout(following), answers)
                gradient += torch.autograd.grad(loss, weight)[0] * len(answers) / len(self.labels)
        weight.requires_grad_(False)
        return gradient

    def _count_bits(self) -> float:
        return sum(code_bits(value) for value in self.net.parameters())

    def _score(self, errors: int) -> float:
        count = len(self.labels)
        return chernoff(errors / count, self._count_bits() * math.log(2) / count)


def compute_sums(stage: Stage, values: Tensor) -> Tensor:
    """Return what a stage's filters answer before they are divided by their norms."""
    weight = stage.weight
    terms = weight[:, :-1].reshape(len(weight), stage.channels, len(stage.bank))
    filters = torch.einsum("ock,khw->ochw", terms, stage.bank)
    padded = functional.pad(values, [stage.margin] * 4, mode="replicate") if stage.margin else values
    return functional.conv2d(padded, filters, SHIFT * weight[:, -1])


def _compute_response(stage: Stage, values: Tensor, column: int) -> Tensor | float:
    """Return what one weight, if it is 1, adds to the sums of its filter."""
    channel, wave = divmod(column, len(stage.bank))
    if channel == stage.channels:
        return SHIFT
    own = values[:, channel : channel + 1]
    padded = functional.pad(own, [stage.margin] * 4, mode="replicate") if stage.margin else own
    return functional.conv2d(padded, stage.bank[wave][None, None])[:, 0]


def _list_changes(weight: Tensor, gradient: Tensor, most: int) -> list[list[Change]]:
    """Return changes of one weight, or of one that goes and one that comes, in the order of what the gradient says of
    them.
    """
    entries, nonzeros = weight.numel(), max(int(weight.count_nonzero()), 1)
    bits = math.log2(entries / nonzeros) + 1
    single: list[tuple[float, Change]] = []
    for step in (-1, 1):
        moved = weight + step
        expected = gradient * step + WORTH * bits * (moved.abs() - weight.abs())
        expected = expected.masked_fill(moved.abs() > 1, math.inf).flatten()
        for place in expected.argsort()[:most].tolist():
            row, column = divmod(place, weight.shape[1])
            single.append((float(expected[place]), Change(row, column, step)))
    single = sorted(entry for entry in single if entry[0] < math.inf)
    at = weight.tolist()
    going = [entry for entry in single if at[entry[1].row][entry[1].column] != 0]
    coming = [entry for entry in single if at[entry[1].row][entry[1].column] == 0][:PARTNERS]
    pairs = sorted((a + b, first, second) for a, first in going for b, second in coming)
    alone = [[change] for _, change in single[: most // 2]]
    return alone + [[first, second] for _, first, second in pairs[: most - len(alone)]]
