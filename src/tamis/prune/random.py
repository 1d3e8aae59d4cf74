"""Random pruning: what any other criterion has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tamis.graph.network import Network


def random_scores(net: Network, names: Sequence[str], seed: int) -> Mapping[str, Tensor]:
    """Independent uniform scores; the same seed and names give the same ones on any device."""
    generator = torch.Generator().manual_seed(seed)
    # float64: among the 2⁵³ values it tells apart, ties are rare enough for networks of any size.
    return {
        name: torch.rand(net.params[name].shape, generator=generator, dtype=torch.float64).to(net.params[name].device)
        for name in sorted(names)
    }
