"""Gram matrices of a convolution's patches are computed here without cutting out most of the patches.

A window that moves one row at a time sees the same rows again: with R[r] the patches that one row of the input gives
along all other axes, the block of G for the window's rows i and i' = i + lag is

    G[i, i'] = Σ_y R[y + i]ᵀ R[y + i'] = Σ_{r = i}^{i + H − 1} R[r]ᵀ R[r + lag]

(H output rows, dilation 1), which depends on i only through the rows at the border. So one product serves all i, and
a few rows are added for each: for a 3 × 3 kernel 3 products instead of 9, and 5 instead of 9 where the factors differ,
of patches that are cut out along one axis less. Nothing is ever subtracted: a sum of zeros is exactly zero.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tamis.layerwise.layer_matrices import ConvolutionLayout, extract_patches


class ConvRowBatch:
    """A batch of a convolution's inputs is rows R: (problems, input rows, samples × other outputs, features of a row).

    Args:
        layout: that of a layer for which `is_applicable`.
        inputs: the layer's inputs.
        dtype: the type to multiply in.
    """

    def __init__(self, layout: ConvolutionLayout, inputs: Tensor, dtype: torch.dtype) -> None:
        window, geometry = layout.shape[2:], layout.geometry
        x = inputs if layout.has_batch(inputs) else inputs[None]
        x = F.pad(x.to(dtype), geometry.padding) if any(geometry.padding) else x.to(dtype)
        # Along the first spatial axis a window of 1 cuts out single rows; along the others the kernel slides as it is.
        rows = extract_patches(x, (1, *window[1:]), geometry.stride, geometry.dilation)
        split = rows.unflatten(1, (layout.problems, -1))  # batch, problems, channels, rows, *outputs, *window
        rank = len(window)
        outputs, inside = range(4, 3 + rank), range(3 + rank, 3 + 2 * rank)
        # Input rows before samples: a sum over consecutive input rows is then one product of a slice, without a copy.
        ordered = split.permute(1, 3, 0, *outputs, 2, *inside)
        self.channels, self.inner = split.shape[2], math.prod(window[1:])
        self.rows = ordered.reshape(layout.problems, x.shape[2], -1, self.channels * self.inner)
        self.height, self.step = window[0], geometry.dilation[0]
        # The stride along this axis is 1 (`is_applicable`), so that every position of the window is an output.
        self.outputs = x.shape[2] - self.step * (self.height - 1)

    @property
    def count(self) -> int:
        """Return the number of patches."""
        return self.outputs * self.rows.shape[2]

    @staticmethod
    def is_applicable(layout: ConvolutionLayout, inputs: Tensor) -> bool:
        """Tell whether a window moves by single rows, and far enough that its rows see most input rows in common."""
        if layout.shape[2] == 1 or layout.geometry.stride[0] != 1:
            return False
        padded = inputs.shape[-len(layout.shape[2:])] + sum(layout.geometry.padding[-2:])
        # Otherwise the rows at the borders are more than those in the middle, and nothing is saved.
        return padded >= 2 * layout.geometry.dilation[0] * (layout.shape[2] - 1) + 1

    def sums(self) -> Tensor:
        """Compute the sum of the patches, (problems, features)."""
        each = self.rows.sum(2)  # problems, input rows, features of a row
        starts = range(0, self.step * self.height, self.step)
        total = torch.stack([each[:, start : start + self.outputs].sum(1) for start in starts], 1)
        # A kernel's features come channel by channel, and within one row by row of the window.
        return total.unflatten(2, (self.channels, self.inner)).transpose(1, 2).flatten(1)

    def gram(self, other: ConvRowBatch | None = None) -> Tensor:
        """Compute Σ of the products of the patches with those of another batch, or themselves: (problems, N, N)."""
        blocks: dict[tuple[int, int], Tensor] = {}
        for lag in range(self.height):
            ahead = self._compute_products(other or self, lag)
            # G is symmetric with itself, so the blocks below the diagonal are those above. With another batch they
            # are products of their own: R'[r]ᵀ R[r + lag], transposed.
            behind = ahead if other is None or lag == 0 else other._compute_products(self, lag)
            for i in range(self.height - lag):
                blocks[i, i + lag] = ahead[i]
                blocks[i + lag, i] = behind[i].mT if lag else ahead[i]
        square = torch.stack(
            [torch.stack([blocks[i, j] for j in range(self.height)], 2) for i in range(self.height)], 1
        )  # problems, i, features of a row, j, features of a row
        split = square.unflatten(4, (self.channels, self.inner)).unflatten(2, (self.channels, self.inner))
        ordered = split.permute(0, 2, 1, 3, 5, 4, 6)  # problems, channel, i, inner, channel', i', inner'
        return ordered.flatten(4, 6).flatten(1, 3)

    def _compute_products(self, other: ConvRowBatch, lag: int) -> list[Tensor]:
        """Compute, for each i, Σ over r = i … i + H − 1 of R[r]ᵀ R'[r + lag], in units of the dilation.

        The rows from the last i to the first i + H − 1 are common to all sums; each adds its own at the two borders.
        """
        last, shift = self.step * (self.height - 1 - lag), self.step * lag
        common = self._compute_product(other, last, self.outputs, shift)
        before = [self._compute_product(other, r, r + 1, shift) for r in range(last)]
        after = [self._compute_product(other, r, r + 1, shift) for r in range(self.outputs, self.outputs + last)]
        starts = [i * self.step for i in range(self.height - lag)]
        return [torch.stack([common, *before[start:], *after[:start]]).sum(0) for start in starts]

    def _compute_product(self, other: ConvRowBatch, first: int, last: int, shift: int) -> Tensor:
        left, right = self.rows[:, first:last], other.rows[:, first + shift : last + shift]
        return (left.flatten(1, 2).mT @ right.flatten(1, 2)).double()  # sums of products are taken in float64
