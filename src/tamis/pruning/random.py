"""Random pruning is the baseline that any other criterion has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tamis.graph import Network
from tamis.pruning.selection import Sweep, Visitor


def random_scores(net: Network, names: Sequence[str], seed: int) -> Sweep:
    """Score weights by independent uniform numbers; the same seed and names give the same ones in every sweep.

    They are the same on any device, too, because they are drawn on the CPU.
    """

    def sweep(visit: Visitor) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name in sorted(names):  # the order of the draws must not depend on that of the names
            param = net.params[name]
            # float64: among the 2⁵³ values it tells apart, ties are rare enough for networks of any size.
            visit(name, torch.rand(param.shape, generator=generator, dtype=torch.float64).to(param.device))

    return sweep
