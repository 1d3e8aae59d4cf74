"""Error feedback rounds to levels feature by feature, and each rounding makes up for the errors before it.

The recursion itself, and where it is used, stands in tamis.quantization.feedback; here is its step-by-step part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tamis.kernels import dispatch

BLOCK = 64  # the most features that `choose_block` takes at once


@dataclass(frozen=True)
class Grid:
    """A grid holds each neuron's levels: its scale, (problems, neurons), times a common list, rounded to a dtype."""

    scales: Tensor
    levels: Tensor

    @cached_property
    def middles(self) -> Tensor:
        """Return the points halfway between each level and the next, in float64, before they are scaled."""
        return (self.levels[1:].double() + self.levels[:-1].double()) / 2

    def indices(self, z: Tensor) -> Tensor:
        """Return the indices of the nearest levels, the lower one halfway between two; axes are (…, neurons)."""
        scaled = (z / self.scales.double()).contiguous()  # torch warns of others
        # The index is the number of middles below z, so that a z on a middle gets the lower of its two levels.
        return torch.bucketize(scaled, self.middles, out_int32=True)

    def values(self, indices: Tensor) -> Tensor:
        """Return the levels of these indices, as they are stored, in float64."""
        # The product is rounded to the stored dtype first: the errors fed back must include that rounding.
        return (self.levels[indices] * self.scales).double()


@dataclass(frozen=True)
class FeedbackBlock:
    """A block holds what the recursion reads of a few features at once.

    Attributes:
        start, target: s and v, (problems, features, neurons), float64, at most `BLOCK` features.
        coupling: C, (problems, features, features); only the part below the diagonal counts.
        keep: of the shape of `start`, bool: false where a weight is pruned, and its index 0; None if none is.
    """

    start: Tensor
    target: Tensor
    coupling: Tensor
    keep: Tensor | None = None


def choose_block(block: FeedbackBlock, grid: Grid, indices: Tensor, errors: Tensor) -> None:
    """Compute z_t = s_t + Σ_{j<t} C_tj (v_j − q_j) for t = 0, 1, …, with q_t the level nearest to z_t, or 0 if pruned.

    On the CPU the extension does it, for every neuron by itself and with fused multiply-adds where the processor has
    them; otherwise torch, where the last bit of z may differ.

    Args:
        block: s, v, C and which weights are kept.
        grid: `scales` of shape (problems, neurons).
        indices, errors: of the shape of `block.start`, to be written: the indices of the levels q, int32, and v − q.
    """
    extension = dispatch.native()
    if extension is None or block.start.device.type != "cpu":
        _choose_with_torch(block, grid, indices, errors)
        return
    read = [block.start, block.target, block.coupling.contiguous(), grid.scales.double().contiguous()]
    read += [grid.levels.double().contiguous(), grid.middles]
    dtype = str(torch.result_type(grid.levels, grid.scales)).removeprefix("torch.")
    mask = None if block.keep is None else block.keep.numpy()
    extension.feedback(*(tensor.detach().numpy() for tensor in read), dtype, indices.numpy(), errors.numpy(), mask)


def _choose_with_torch(block: FeedbackBlock, grid: Grid, indices: Tensor, errors: Tensor) -> None:
    each, keep = Grid(grid.scales[:, None, :], grid.levels), block.keep
    z = block.start.clone()
    features = z.shape[1]
    for t in range(features):
        here, later = slice(t, t + 1), slice(t + 1, features)
        row = each.indices(z[:, here])
        values = each.values(row)
        if keep is not None:  # not a product with the mask: a level may be infinite
            row, values = row * keep[:, here], values.where(keep[:, here], 0.0)
        indices[:, here] = row
        errors[:, here] = error = block.target[:, here] - values
        # The error goes to all later features at once: one pass for each feature, and no look back.
        if t + 1 < features:
            z[:, later].baddbmm_(block.coupling[:, later, here], error)
