"""The inputs of a layer are collected batch by batch, as Gram matrices or, where that is less work, as rows."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.layerwise.bias_correction import InputMeans
from tamis.layerwise.gram import Gram
from tamis.layerwise.layer_matrices import DenseLayout
from tamis.layerwise.layers import Layer
from tamis.training import Team

MANY_FEATURES = 1024  # below, Gram matrices are small whatever the number of rows


@dataclass(frozen=True)
class LayerGrams:
    """These Gram matrices of a layer's inputs are of the data to choose its weight from and of the data held out."""

    layer: Layer
    chosen_from: Gram
    held_out: Gram | None

    def grams(self) -> LayerGrams:
        """Return the Gram matrices as they are: `LayerRows` computes them here."""
        return self

    def __post_init__(self) -> None:
        grams = [gram for gram in (self.chosen_from, self.held_out) if gram is not None]
        # One sum shows every NaN and infinity: finite products whose sum overflows would be of no use either.
        if not all(math.isfinite(float(gram.inputs.sum() + gram.drift.sum())) for gram in grams):
            raise InvalidInput(
                f"the inputs of '{self.layer.weight}' are not finite numbers on the calibration data, or too large to "
                "be squared; look at the scale of the calibration data and at the layers before it"
            )

    @cached_property
    def all(self) -> Gram:
        """Return the Gram matrices of all data, the held-out part included."""
        return self.chosen_from if self.held_out is None else self.chosen_from + self.held_out


@dataclass(frozen=True)
class PairedRows:
    """Paired rows are those of the original network and of the small one, Y and Ỹ: (problems, samples, features).

    Both are one tensor where the networks do not differ yet, which saves memory and work.
    """

    original: Tensor
    small: Tensor

    def means(self) -> InputMeans:
        """Compute the mean row in each network."""
        original, small = (rows.mean(1, dtype=torch.float64) for rows in (self.original, self.small))
        return InputMeans(original, small)

    def centre(self) -> PairedRows:
        """Subtract the mean row of each network."""
        means = self.means()
        original = (self.original - means.original[:, None]).to(self.original.dtype)
        if self.original is self.small:
            return PairedRows(original, original)
        return PairedRows(original, (self.small - means.small[:, None]).to(self.small.dtype))

    def __add__(self, other: PairedRows) -> PairedRows:
        original = torch.cat([self.original, other.original], 1)
        if self.original is self.small and other.original is other.small:
            return PairedRows(original, original)
        return PairedRows(original, torch.cat([self.small, other.small], 1))


@dataclass(frozen=True)
class LayerRows:
    """These rows of a layer's inputs are of the data to choose its weight from and of the data held out."""

    layer: Layer
    chosen_from: PairedRows
    held_out: PairedRows | None

    @cached_property
    def all(self) -> PairedRows:
        """Return the rows of all data, the held-out part included."""
        return self.chosen_from if self.held_out is None else self.chosen_from + self.held_out

    @property
    def count(self) -> int:
        """Return the number of rows, the held-out ones included."""
        return sum(part.small.shape[1] for part in (self.chosen_from, self.held_out) if part is not None)

    def grams(self) -> LayerGrams:
        """Compute the Gram matrices of the rows."""
        held_out = None if self.held_out is None else self._compute_gram(self.held_out)
        return LayerGrams(self.layer, self._compute_gram(self.chosen_from), held_out)

    def _compute_gram(self, samples: PairedRows) -> Gram:
        drift = None if samples.original is samples.small else samples.original[0] - samples.small[0]
        # The rows are laid out already: to sum them is to sum the inputs of a linear layer.
        layout = self.layer.layout
        dense = DenseLayout.of((layout.neurons, layout.features), transposed=False)
        return Gram.empty(layout, samples.small.device).add_batch(dense, samples.small[0], drift)


class Collector:
    """A collector collects the inputs of a layer batch by batch.

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
        """Take in the inputs of a batch, in both networks, for one of the folds."""
        if self._rows is None:
            return self._sum(fold, original, small)
        self._rows.append((fold, original, small))
        self._room -= small.nbytes + (0 if original is small else original.nbytes)
        if self._room < 0:
            # There are too many rows to keep: sum those that came, and every later batch as it comes.
            batches, self._rows = self._rows, None
            for batch in batches:
                self._sum(*batch)

    def result(self) -> LayerGrams | LayerRows:
        """Return what all batches gave, those of the other processes included."""
        if self._rows is not None:
            chosen_from, held_out = (self._join_rows(fold) for fold in (0, 1))
            assert chosen_from is not None
            return LayerRows(self._layer, chosen_from, held_out)
        grams = [gram.sum_over(self._team) for gram in self._grams or self._make_empty()]
        # Asked after the sum over processes: with few batches, a process of its own may have none that is held out.
        held_out_gram = grams[1] if self._folds == 2 and grams[1].count else None
        return LayerGrams(self._layer, grams[0], held_out_gram)

    def _sum(self, fold: int, original: Tensor, small: Tensor) -> None:
        self._grams = self._grams or self._make_empty()
        # Differences before products: YᵀỸ − ỸᵀỸ would lose the digits of a small drift in two large matrices.
        drift = None if original is small else original - small
        self._grams[fold] = self._grams[fold].add_batch(self._layer.layout, small, drift)

    def _make_empty(self) -> list[Gram]:
        layout, name = self._layer.layout, self._layer.weight
        needed = 2 * self._folds * 8 * layout.problems * layout.features**2  # G and E of each fold, in float64
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if self._team.device.type == "cpu" and needed > memory:
            raise InvalidInput(
                f"the Gram matrices of '{name}', with {layout.features:,} features, take {needed / 2**30:.0f} GiB, and "
                f"this machine has {memory / 2**30:.0f}: quantize it by method='gpfq' on a few thousand samples, which "
                f"needs no Gram matrices, or pass exclude='{name}'"
            )
        return [Gram.empty(self._layer.layout, self._team.device) for _ in range(self._folds)]

    def _join_rows(self, fold: int) -> PairedRows | None:
        pairs = [(original, small) for at, original, small in self._rows or () if at == fold]
        if not pairs:
            return None
        layout = self._layer.layout
        original = torch.cat([layout.to_rows(each) for each, _ in pairs], 1)
        if all(each is small for each, small in pairs):
            return PairedRows(original, original)
        return PairedRows(original, torch.cat([layout.to_rows(small) for _, small in pairs], 1))
