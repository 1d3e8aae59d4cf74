"""What a layer sees of the data, collected batch by batch: Gram matrices or, where that is better, rows."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.layerwise.bias_correction import Means
from tamis.layerwise.gram import Gram
from tamis.layerwise.layer_matrices import Dense
from tamis.layerwise.layers import Layer
from tamis.training import Team

MANY_FEATURES = 1024  # below, Gram matrices are small whatever the number of rows


@dataclass(frozen=True)
class Sums:
    """The Gram matrices of a layer's inputs: of the data to choose its weight from, and of the data held out."""

    layer: Layer
    chosen_from: Gram
    held_out: Gram | None

    def sums(self) -> Sums:
        """Itself."""
        return self

    def checked(self) -> Sums:
        """Itself, if its numbers are finite."""
        grams = [gram for gram in (self.chosen_from, self.held_out) if gram is not None]
        if not all(math.isfinite(float(gram.inputs.sum() + gram.drift.sum())) for gram in grams):
            raise InvalidInput(
                f"the inputs of '{self.layer.weight}' are not finite numbers on the calibration data, or too large to "
                "be squared; look at the scale of the calibration data and at the layers before it"
            )
        return self

    @cached_property
    def all(self) -> Gram:
        """Of both."""
        return self.chosen_from if self.held_out is None else self.chosen_from + self.held_out


@dataclass(frozen=True)
class Samples:
    """Rows of the original network and of the small one, Y and Ỹ: (problems, samples, features)."""

    original: Tensor
    small: Tensor

    def means(self) -> Means:
        """Of the rows in both networks."""
        original, small = (rows.mean(1, dtype=torch.float64) for rows in (self.original, self.small))
        return Means(original, small)

    def centred(self) -> Samples:
        """The same minus their means."""
        means = self.means()
        original = (self.original - means.original[:, None]).to(self.original.dtype)
        if self.original is self.small:
            return Samples(original, original)
        return Samples(original, (self.small - means.small[:, None]).to(self.small.dtype))

    def __add__(self, other: Samples) -> Samples:
        original = torch.cat([self.original, other.original], 1)
        if self.original is self.small and other.original is other.small:
            return Samples(original, original)
        return Samples(original, torch.cat([self.small, other.small], 1))


@dataclass(frozen=True)
class Rows:
    """The rows of a layer's inputs: of the data to choose its weight from, and of the data held out."""

    layer: Layer
    chosen_from: Samples
    held_out: Samples | None

    @cached_property
    def all(self) -> Samples:
        """Of both."""
        return self.chosen_from if self.held_out is None else self.chosen_from + self.held_out

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(part.small.shape[1] for part in (self.chosen_from, self.held_out) if part is not None)

    def sums(self) -> Sums:
        """Their Gram matrices."""
        held_out = None if self.held_out is None else self._gram(self.held_out)
        return Sums(self.layer, self._gram(self.chosen_from), held_out).checked()

    def _gram(self, samples: Samples) -> Gram:
        drift = None if samples.original is samples.small else samples.original[0] - samples.small[0]
        return Gram.empty(self.layer.form, samples.small.device).added(_plain(self.layer), samples.small[0], drift)


def _plain(layer: Layer) -> Dense:
    """The form of rows that are laid out already."""
    return Dense.of((layer.form.neurons, layer.form.features), transposed=False)


class Collector:
    """Takes in the inputs of a layer batch by batch.

    Args:
        layer: the layer.
        folds: how many parts of the data are kept apart, 1 or 2.
        room: bytes that rows may take before Gram matrices are summed instead; 0 for Gram matrices at once.
        team: the processes that share the batches.
    """

    def __init__(self, layer: Layer, folds: int, room: int, team: Team) -> None:
        self._layer, self._folds, self._room, self._team = layer, folds, room, team
        self._rows: list[tuple[int, Tensor, Tensor]] | None = [] if room else None
        self._grams: list[Gram] | None = None

    def add(self, fold: int, original: Tensor, small: Tensor) -> None:
        """The inputs of a batch, in both networks."""
        if self._rows is None:
            return self._sum(fold, original, small)
        self._rows.append((fold, original, small))
        self._room -= small.nbytes + (0 if original is small else original.nbytes)
        if self._room < 0:
            gathered, self._rows = self._rows, None
            for each in gathered:
                self._sum(*each)

    def result(self) -> Sums | Rows:
        """What came of all batches, those of the other processes included."""
        if self._rows is not None:
            chosen_from, held_out = (self._joined(fold) for fold in (0, 1))
            assert chosen_from is not None
            return Rows(self._layer, chosen_from, held_out)
        grams = [gram.summed(self._team) for gram in self._grams or self._empty()]
        held_out_gram = grams[1] if self._folds == 2 and grams[1].count else None
        return Sums(self._layer, grams[0], held_out_gram).checked()

    def _sum(self, fold: int, original: Tensor, small: Tensor) -> None:
        self._grams = self._grams or self._empty()
        drift = None if original is small else original - small
        self._grams[fold] = self._grams[fold].added(self._layer.form, small, drift)

    def _empty(self) -> list[Gram]:
        form, name = self._layer.form, self._layer.weight
        needed = 2 * self._folds * 8 * form.problems * form.features**2
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if self._team.device.type == "cpu" and needed > there:
            raise InvalidInput(
                f"'{name}' has {form.features:,} features, whose Gram matrices take {needed / 2**30:.0f} GiB of the "
                f"{there / 2**30:.0f} that there are: quantize it by method='gpfq' on a few thousand samples, which "
                f"goes along the data instead, or pass exclude='{name}'"
            )
        return [Gram.empty(self._layer.form, self._team.device) for _ in range(self._folds)]

    def _joined(self, fold: int) -> Samples | None:
        pairs = [(original, small) for at, original, small in self._rows or () if at == fold]
        if not pairs:
            return None
        form = self._layer.form
        original = torch.cat([form.rows(each) for each, _ in pairs], 1)
        if all(each is small for each, small in pairs):
            return Samples(original, original)
        return Samples(original, torch.cat([form.rows(small) for _, small in pairs], 1))
