"""Gram matrices of a layer's inputs, summed over batches: all that least squares needs to know of the data.

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

from tamis.layerwise.bias_correction import Means
from tamis.layerwise.conv_gram import Lagged
from tamis.layerwise.layer_matrices import Convolution, Dense, Form
from tamis.training import Team

LARGEST_CHUNK = 2**25  # bytes of rows that exist at a time
PANEL = 128  # features that are multiplied at a time where half of a product is wanted
FEW_FEATURES = 48  # as many at least are multiplied together
SMALL_PRODUCT = 2**24  # multiplications, up to which float64 costs nothing that one would notice


@dataclass(frozen=True)
class Gram:
    """The sums over some rows of data, for each problem of a layer.

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
    def empty(cls, form: Form, device: torch.device) -> Gram:
        """Sums over nothing."""
        square = torch.zeros(form.problems, form.features, form.features, dtype=torch.float64, device=device)
        row = square.new_zeros(form.problems, form.features)
        return cls(square, square.clone(), row, row.clone(), 0)

    def __add__(self, other: Gram) -> Gram:
        return Gram(
            self.inputs + other.inputs,
            self.drift + other.drift,
            self.input_sums + other.input_sums,
            self.drift_sums + other.drift_sums,
            self.count + other.count,
            max(self.precision, other.precision),
        )

    def added(self, form: Form, small: Tensor, drift: Tensor | None) -> Gram:
        """With the rows of a batch; the sums themselves are changed in place, for they are large.

        Args:
            form: of the layer.
            small: inputs of the layer in the small network.
            drift: inputs in the original network minus those; None where they are the same.
        """
        count, precision, form = self.count, self.precision, merged(form)
        for chunk, moved in _chunks(form, small, drift):
            dtype = _product_dtype(form, chunk)
            rows = _laid_out(form, chunk, dtype)
            self.inputs.add_(self._split(rows.gram()))
            self.input_sums.add_(rows.sums().reshape_as(self.input_sums))
            if moved is not None:
                drift_rows = _laid_out(form, moved, dtype)
                self.drift.add_(self._split(rows.gram(drift_rows)))  # type: ignore[arg-type]  # laid out alike
                self.drift_sums.add_(drift_rows.sums().reshape_as(self.drift_sums))
            count, precision = count + rows.count, max(precision, torch.finfo(dtype).eps)
        return replace(self, count=count, precision=precision)

    def _split(self, product: Tensor) -> Tensor:
        """The blocks on the diagonal of products of merged problems: those of each problem."""
        problems, features = self.input_sums.shape
        if product.shape[1] == features:
            return product
        together = problems // len(product)
        blocks = product.reshape(len(product), together, features, together, features)
        return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(problems, features, features)

    def summed(self, team: Team) -> Gram:
        """Over the data of all processes."""
        if team.size == 1:
            return self
        count = int(team.summed(torch.tensor(float(self.count), dtype=torch.float64, device=self.inputs.device)))
        inputs, drift = team.summed(self.inputs), team.summed(self.drift)
        _, coarse = team.extremes(int(self.precision > torch.finfo(torch.float64).eps))
        precision = torch.finfo(torch.float32 if coarse else torch.float64).eps
        return Gram(inputs, drift, team.summed(self.input_sums), team.summed(self.drift_sums), count, precision)

    def means(self) -> Means:
        """Of the inputs in both networks."""
        small = self.input_sums / self.count
        return Means(small + self.drift_sums / self.count, small)

    def centred(self) -> Gram:
        """The same of the data minus its means: what is left to the weights where a bias can follow the means."""
        if self.count == 0:
            return self
        mean = self.input_sums / self.count
        inputs = self.inputs - mean[:, :, None] * self.input_sums[:, None, :]
        drift = self.drift - mean[:, :, None] * self.drift_sums[:, None, :]
        # What is left of a feature that does not vary is rounding error, and would be taken for data.
        variance, size = (square.diagonal(dim1=1, dim2=2) for square in (inputs, self.inputs))
        varies = (variance > 256 * self.precision * size).double()
        return replace(self, inputs=inputs * varies[:, :, None] * varies[:, None, :], drift=drift * varies[:, :, None])

    def in_order(self, places: Tensor) -> Gram:
        """The same with its features in another order: of each problem, where each feature comes from."""
        rows = places[:, :, None].expand_as(self.inputs)
        inputs, drift = (square.gather(1, rows).gather(2, rows.mT) for square in (self.inputs, self.drift))
        sums = (self.input_sums.gather(1, places), self.drift_sums.gather(1, places))
        return Gram(inputs, drift, *sums, self.count)

    def with_constant(self) -> Gram:
        """The same of the data with a last feature that is always 1, whose weight is the bias (GPFQ, section 4)."""
        one = self.inputs.new_full((len(self.inputs), 1, 1), float(self.count))
        row = self.input_sums[:, None, :]
        inputs = torch.cat([torch.cat([self.inputs, row.mT], 2), torch.cat([row, one], 2)], 1)
        bottom = self.drift_sums[:, None, :]
        drift = torch.cat([self.drift, bottom], 1)
        drift = torch.cat([drift, drift.new_zeros(*drift.shape[:2], 1)], 2)
        sums = torch.cat([self.input_sums, one[:, :, 0]], 1)
        return Gram(inputs, drift, sums, torch.cat([self.drift_sums, one.new_zeros(len(one), 1)], 1), self.count)


class Rows:
    """A batch of inputs of a layer as rows, (problems, samples, features)."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.rows.shape[1]

    def sums(self) -> Tensor:
        """Σ of the rows, (problems, features)."""
        return self.rows.sum(1)

    def gram(self, other: Rows | None = None) -> Tensor:
        """Σ of the products of rows with those of another batch, or with themselves: (problems, N, N)."""
        return symmetric_product(self.rows) if other is None else self.rows.mT @ other.rows


def symmetric_product(rows: Tensor) -> Tensor:
    """RᵀR, of which little more than half is computed."""
    product = lower_product(rows, rows)
    for here in panels(product.shape[2]):
        product[:, : here.start, here] = product[:, here, : here.start].mT
    return product


def lower_product(left: Tensor, right: Tensor) -> Tensor:
    """LᵀR on and below the diagonal; what stands above it is not to be read."""
    features = left.shape[2]
    product = left.new_zeros(len(left), features, features)
    for here in panels(features):
        product[:, here, : here.stop] = left[:, :, here].mT @ right[:, :, : here.stop]
    return product


def panels(features: int) -> Iterator[slice]:
    """Features, a few at a time: of products of which half is wanted, these are the rows to take together."""
    for first in range(0, features, PANEL):
        yield slice(first, min(first + PANEL, features))


def merged(form: Form) -> Form:
    """Problems of a convolution put together until they have enough features to be multiplied efficiently."""
    if isinstance(form, Dense) or form.features >= FEW_FEATURES:
        return form
    counts = range(min(form.problems, FEW_FEATURES // form.features), 0, -1)
    together = next(count for count in counts if form.problems % count == 0)
    return replace(form, problems=form.problems // together, features=form.features * together)


def _product_dtype(form: Form, inputs: Tensor) -> torch.dtype:
    """What to multiply in: float32, but where float64 costs nothing, or where less would lose what varies."""
    small = inputs.numel() * form.overlap * form.features <= SMALL_PRODUCT
    exact = small or inputs.dtype is torch.float64 or _is_far_from_zero(form, inputs)
    return torch.float64 if exact else torch.float32


def _laid_out(form: Form, inputs: Tensor, dtype: torch.dtype) -> Rows | Lagged:
    """Rows or, where that is less work, lagged rows."""
    if isinstance(form, Convolution) and Lagged.applies(form, inputs):
        return Lagged(form, inputs, dtype)
    return Rows(form.rows(inputs.to(dtype)))


def _is_far_from_zero(form: Form, inputs: Tensor) -> bool:
    """Whether the mean of a channel is so much more than what varies that centring would leave rounding errors."""
    channel = inputs.dim() - 1 if isinstance(form, Dense) else int(form.has_batch(inputs))
    others = [axis for axis in range(inputs.dim()) if axis != channel]
    std, mean = torch.std_mean(inputs, others, correction=0)
    return bool((mean.abs() > 8 * std).any())


def _chunks(form: Form, small: Tensor, drift: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Pieces of a batch whose rows, which can take many times its memory, are not too many."""
    if not form.has_batch(small):
        yield small, drift
        return
    size = max(1, LARGEST_CHUNK // max(form.rows(small[:1]).nbytes, 1))
    for start in range(0, len(small), size):
        yield small[start : start + size], None if drift is None else drift[start : start + size]
