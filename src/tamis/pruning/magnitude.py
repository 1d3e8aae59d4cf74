"""Magnitude pruning removes the weights nearest to zero first."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.graph import Network
from tamis.pruning.selection import Sweep, Visitor


def magnitude_scores(net: Network, names: Sequence[str], seed: int) -> Sweep:
    """Score every entry of the parameters named by |θ_i|.

    The scores are not invariant under rescaling: the same function with rescaled weights is pruned elsewhere (thesis,
    section 3.5.2).
    """

    def sweep(visit: Visitor) -> None:
        for name in names:
            # Computed anew in each sweep: cheaper than keeping a copy of all weights between sweeps.
            visit(name, net.params[name].abs())

    return sweep
