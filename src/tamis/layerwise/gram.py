"""Gram matrices of a layer's inputs, summed over batches, are all that least squares needs to know of the data.

With rows Y of the original network and Ỹ of the small one, D = Y − Ỹ, the sums are

    G = ỸᵀỸ,   E = ỸᵀD,   Σ Ỹ,   Σ D,   and the number of rows.

They take O(N²) memory whatever the number of samples. Products are taken in float32 and summed in float64; where a
product is small, or the data is in float64, it is taken in float64 as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tamis.layerwise.bias_correction import InputMeans
from tamis.layerwise.conv_gram import ConvRowBatch
from tamis.layerwise.layer_matrices import ConvolutionLayout, DenseLayout, MatrixLayout
from tamis.training import Team

LARGEST_CHUNK = 2**25  # bytes of rows in memory at a time
PANEL = 128  # features multiplied at a time where only half of a product is needed
FEW_FEATURES = 48  # problems with fewer features are multiplied together
SMALL_PRODUCT = 2**24  # multiplications, up to which float64 takes no time that one would notice


@dataclass(frozen=True)
class Gram:
    """A `Gram` holds the sums over some rows of data, for each problem of a layer.

    Attributes:
        inputs: G, (problems, features, features).
        drift: E, likewise; zero where both networks have the same inputs.
        input_sums, drift_sums: Σ Ỹ and Σ D, (problems, features).
        count: the number of rows.
        precision: the rounding error of the products, relative to what is multiplied.
    """

    inputs: Tensor
    drift: Tensor
    input_sums: Tensor
    drift_sums: Tensor
    count: int
    precision: float = torch.finfo(torch.float64).eps

    @classmethod
    def empty(cls, layout: MatrixLayout, device: torch.device) -> Gram:
        """Return the sums over no rows."""
        square = torch.zeros(layout.problems, layout.features, layout.features, dtype=torch.float64, device=device)
        row = square.new_zeros(layout.problems, layout.features)
        # Clones, since `add_batch` adds to each of the four in place.
        return cls(square, square.clone(), row, row.clone(), 0)

    def __add__(self, other: Gram) -> Gram:
        return Gram(
            self.inputs + other.inputs,
            self.drift + other.drift,
            self.input_sums + other.input_sums,
            self.drift_sums + other.drift_sums,
            self.count + other.count,
            # Sums are as coarse as their coarsest part: `centre` must not take its rounding for data.
            max(self.precision, other.precision),
        )

    def add_batch(self, layout: MatrixLayout, small: Tensor, drift: Tensor | None) -> Gram:
        """Add the rows of a batch, and return the sums with their new count; the tensors, which are large, change.

        Args:
            layout: that of the layer.
            small: inputs of the layer in the small network.
            drift: inputs in the original network minus those; None where they are the same.
        """
        count, precision, layout = self.count, self.precision, merge_problems(layout)
        for chunk, moved in _iterate_chunks(layout, small, drift):
            dtype = _choose_product_dtype(layout, chunk)
            rows = _lay_out(layout, chunk, dtype)
            # In place: G and E are the largest tensors of a layer, and a sum beside them would double their memory.
            # A product in float32 is rounded once; added up in float64, rounding does not grow with the batches.
            self.inputs.add_(self._split_problems(rows.gram()))
            self.input_sums.add_(rows.sums().reshape_as(self.input_sums))
            if moved is not None:
                drift_rows = _lay_out(layout, moved, dtype)
                self.drift.add_(self._split_problems(rows.gram(drift_rows)))  # type: ignore[arg-type]  # laid out alike
                self.drift_sums.add_(drift_rows.sums().reshape_as(self.drift_sums))
            count, precision = count + rows.count, max(precision, torch.finfo(dtype).eps)
        return replace(self, count=count, precision=precision)

    def _split_problems(self, product: Tensor) -> Tensor:
        """Take the products of each problem from those of merged ones: the blocks on their diagonals."""
        problems, features = self.input_sums.shape
        if product.shape[1] == features:
            return product
        together = problems // len(product)
        # Axes 1 and 3 say which of the merged problems a row and a column belong to: only where they agree is the
        # product one of a problem with itself.
        blocks = product.reshape(len(product), together, features, together, features)
        return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(problems, features, features)

    def sum_over(self, team: Team) -> Gram:
        """Sum over the data of all processes."""
        if team.size == 1:
            return self
        # As a float64, which counts exactly up to 2⁵³, because a sum over processes takes tensors of one kind.
        count = int(team.summed(torch.tensor(float(self.count), dtype=torch.float64, device=self.inputs.device)))
        inputs, drift = team.summed(self.inputs), team.summed(self.drift)
        # The products are as coarse as those of the coarsest process.
        _, coarse = team.extremes(int(self.precision > torch.finfo(torch.float64).eps))
        precision = torch.finfo(torch.float32 if coarse else torch.float64).eps
        return Gram(inputs, drift, team.summed(self.input_sums), team.summed(self.drift_sums), count, precision)

    def means(self) -> InputMeans:
        """Compute the means of the inputs in both networks."""
        small = self.input_sums / self.count
        return InputMeans(small + self.drift_sums / self.count, small)

    def centre(self) -> Gram:
        """Return the sums for the data minus its means, which is all that weights must fit where a bias adapts.

        Σ (ỹ − m)(ỹ − m)ᵀ = G − m (Σ Ỹ)ᵀ with m = Σ Ỹ / count, and likewise for E.
        """
        if self.count == 0:
            return self
        mean = self.input_sums / self.count
        inputs = self.inputs - mean[:, :, None] * self.input_sums[:, None, :]
        drift = self.drift - mean[:, :, None] * self.drift_sums[:, None, :]
        # The difference of two nearly equal sums: what it leaves of a feature that does not vary is rounding error,
        # which a fit would take for data. 256 roundings of G's diagonal are no less than that error.
        variance, size = (square.diagonal(dim1=1, dim2=2) for square in (inputs, self.inputs))
        varies = (variance > 256 * self.precision * size).double()
        # G loses both the rows and the columns of such features, E = ỸᵀD only the rows: its columns are of the drift,
        # which may vary where the small network's input does not.
        return replace(self, inputs=inputs * varies[:, :, None] * varies[:, None, :], drift=drift * varies[:, :, None])

    def reorder(self, places: Tensor) -> Gram:
        """Return the sums with their features in another order; `places` says where each feature comes from."""
        rows = places[:, :, None].expand_as(self.inputs)
        # A permutation P moves rows and columns alike: PᵀGP, and PᵀEP since both factors of E have these features.
        inputs, drift = (square.gather(1, rows).gather(2, rows.mT) for square in (self.inputs, self.drift))
        sums = (self.input_sums.gather(1, places), self.drift_sums.gather(1, places))
        return Gram(inputs, drift, *sums, self.count)

    def with_constant(self) -> Gram:
        """Return the sums for data with a last feature that is always 1: its weight is the bias (GPFQ, section 4)."""
        # The constant's products are known from the sums: ⟨1, Ỹ_t⟩ = Σ Ỹ_t and ⟨1, 1⟩ = count. No row is seen again.
        one = self.inputs.new_full((len(self.inputs), 1, 1), float(self.count))
        row = self.input_sums[:, None, :]
        inputs = torch.cat([torch.cat([self.inputs, row.mT], 2), torch.cat([row, one], 2)], 1)
        bottom = self.drift_sums[:, None, :]
        drift = torch.cat([self.drift, bottom], 1)
        drift = torch.cat([drift, drift.new_zeros(*drift.shape[:2], 1)], 2)  # the constant never drifts
        sums = torch.cat([self.input_sums, one[:, :, 0]], 1)
        return Gram(inputs, drift, sums, torch.cat([self.drift_sums, one.new_zeros(len(one), 1)], 1), self.count)


class RowBatch:
    """A batch of a layer's inputs is rows, (problems, samples, features)."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return self.rows.shape[1]

    def sums(self) -> Tensor:
        """Compute the sum of the rows, (problems, features)."""
        return self.rows.sum(1)

    def gram(self, other: RowBatch | None = None) -> Tensor:
        """Compute Σ of the products of the rows with those of another batch, or themselves: (problems, N, N)."""
        return symmetric_product(self.rows) if other is None else self.rows.mT @ other.rows


def symmetric_product(rows: Tensor) -> Tensor:
    """Compute RᵀR from little more than half of its entries, since it is symmetric."""
    product = lower_product(rows, rows)
    # Blocks on the diagonal are whole already: only what lies right of them is mirrored.
    for here in split_panels(product.shape[2]):
        product[:, : here.start, here] = product[:, here, : here.start].mT
    return product


def lower_product(left: Tensor, right: Tensor) -> Tensor:
    """Compute LᵀR on and below the diagonal; the entries above it are undefined."""
    features = left.shape[2]
    product = left.new_zeros(len(left), features, features)
    for here in split_panels(features):
        product[:, here, : here.stop] = left[:, :, here].mT @ right[:, :, : here.stop]
    return product


def split_panels(features: int) -> Iterator[slice]:
    """Yield slices of the features, each the rows to multiply at once where half of a product is needed."""
    for first in range(0, features, PANEL):
        yield slice(first, min(first + PANEL, features))


def merge_problems(layout: MatrixLayout) -> MatrixLayout:
    """Merge the problems of a convolution until each has enough features to be multiplied efficiently.

    The products between merged problems are computed and thrown away (`Gram._split_problems`), which is still faster
    than many tiny products.
    """
    if isinstance(layout, DenseLayout) or layout.features >= FEW_FEATURES:
        return layout
    # The largest divisor: problems that are left over would need a product of their own size.
    counts = range(min(layout.problems, FEW_FEATURES // layout.features), 0, -1)
    together = next(count for count in counts if layout.problems % count == 0)
    return replace(layout, problems=layout.problems // together, features=layout.features * together)


def _choose_product_dtype(layout: MatrixLayout, inputs: Tensor) -> torch.dtype:
    """Choose float32 to multiply in, unless float64 costs nothing or float32 would lose what varies."""
    small = inputs.numel() * layout.overlap * layout.features <= SMALL_PRODUCT
    exact = small or inputs.dtype is torch.float64 or _is_far_from_zero(layout, inputs)
    return torch.float64 if exact else torch.float32


def _lay_out(layout: MatrixLayout, inputs: Tensor, dtype: torch.dtype) -> RowBatch | ConvRowBatch:
    """Lay out inputs as rows or, where that is less work, as single input rows of a convolution."""
    if isinstance(layout, ConvolutionLayout) and ConvRowBatch.is_applicable(layout, inputs):
        return ConvRowBatch(layout, inputs, dtype)
    return RowBatch(layout.to_rows(inputs.to(dtype)))


def _is_far_from_zero(layout: MatrixLayout, inputs: Tensor) -> bool:
    """Tell whether a channel's mean exceeds its deviation so far that centring would leave rounding errors."""
    channel = inputs.dim() - 1 if isinstance(layout, DenseLayout) else int(layout.has_batch(inputs))
    others = [axis for axis in range(inputs.dim()) if axis != channel]
    # Centring subtracts sums of about mean² from sums of about mean² + std²: with |mean| > 8 std, six of float32's 24
    # bits and more go, and squares of small deviations with them.
    std, mean = torch.std_mean(inputs, others, correction=0)
    return bool((mean.abs() > 8 * std).any())


def _iterate_chunks(
    layout: MatrixLayout, small: Tensor, drift: Tensor | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Split a batch into pieces whose rows, which can take many times its memory, are not too many."""
    if not layout.has_batch(small):
        yield small, drift
        return
    size = max(1, LARGEST_CHUNK // max(layout.to_rows(small[:1]).nbytes, 1))
    for start in range(0, len(small), size):
        yield small[start : start + size], None if drift is None else drift[start : start + size]
