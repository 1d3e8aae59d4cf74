"""GPFQ and OPTQ share one recursion, which rounds each weight after adding the errors of the weights before it.

    z_t = s_t + Σ_{j<t} C_tj (v_j − q_j),      q_t = the level nearest to z_t, or 0 for a pruned weight,

for every neuron of a layer at once. What differs between the methods is the start s, the target v and the coupling C
(gpfq.py, optq.py); nearest rounding has C = 0. Within a block of features the recursion is done step by step; what a
block passes on to all later ones is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.kernels import BLOCK, FeedbackBlock, Grid, choose_block
from tamis.training import Team


@dataclass(frozen=True)
class Recursion:
    """A recursion is given by its start s, target v and coupling C.

    s and v are (problems, neurons, features); C is (problems, features, features), or None for 0. Only the part of C
    below the diagonal counts.
    """

    start: Tensor
    target: Tensor
    coupling: Tensor | None

    def repeat_neurons(self, times: int) -> Recursion:
        """Repeat every neuron so many times, to try several scales at once."""
        start, target = (value.repeat(1, times, 1) for value in (self.start, self.target))
        return Recursion(start, target, self.coupling)


def choose_levels(recursion: Recursion, grid: Grid, keep: Tensor | None = None, team: Team | None = None) -> Tensor:
    """Run the recursion, and return the indices of the levels that it chooses, (problems, neurons, features).

    Args:
        recursion: in float64.
        grid: `scales` of shape (problems, neurons).
        keep: false where a weight is pruned: its value is 0 whatever the levels, and its index 0; None if none is.
        team: the processes that share the neurons, all with the same arguments; each gets all indices.
    """
    if team is not None and team.size > 1:
        return _choose_together(recursion, grid, keep, team)
    if recursion.coupling is None:
        nearest = Grid(grid.scales[:, :, None], grid.levels).indices(recursion.start)
        # Index 0 for what is pruned, by multiplication with False.
        return nearest if keep is None else nearest * keep
    coupling = recursion.coupling
    start, target = recursion.start.mT, recursion.target.mT  # features first: a step is a row
    indices = torch.empty(start.shape, dtype=torch.int32, device=start.device)
    errors = torch.empty(start.shape, dtype=start.dtype, device=start.device)  # v − q
    features = start.shape[1]
    for first in range(0, features, BLOCK):
        here = slice(first, min(first + BLOCK, features))
        z = start[:, here]
        # Every block before this one is final, so all its errors come in by one product, which runs at the speed of the
        # machine; only the recursion inside the block has to go feature by feature.
        if first:
            z = torch.baddbmm(z, coupling[:, here, :first], errors[:, :first])
        mask = None if keep is None else keep.mT[:, here]
        block = FeedbackBlock(z, target[:, here], coupling[:, here, here], mask)
        choose_block(block, grid, indices[:, here], errors[:, here])
    return indices.mT


def _choose_together(recursion: Recursion, grid: Grid, keep: Tensor | None, team: Team) -> Tensor:
    def part(value: Tensor) -> Tensor:
        return value.tensor_split(team.size, dim=1)[team.rank]

    own = Recursion(part(recursion.start), part(recursion.target), recursion.coupling)
    # Neurons do not depend on each other: each process fills its own, the others stay 0, and an integer sum joins them.
    indices = torch.zeros(recursion.start.shape, dtype=torch.int32, device=recursion.start.device)
    part(indices).copy_(choose_levels(own, Grid(part(grid.scales), grid.levels), None if keep is None else part(keep)))
    return team.summed(indices)
