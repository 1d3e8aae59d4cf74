"""Φ-pruning removes the weights whose loss changes the path-lifting least (thesis, section 3.5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.errors import UnsupportedOp
from tamis.graph import Network
from tamis.paths import each_path_cost
from tamis.pruning.selection import Sweep, Visitor


def phi_scores(net: Network, names: Sequence[str], seed: int) -> Sweep:
    """Score every entry of the parameters named by Φ-Cost(θ, i) of (3.16), up to one common factor.

    The scores are invariant under neuron-wise rescaling. Pruning the weights I changes the output for x by at most
    Σ_{i∈I} Φ-Cost(θ, i) · max(‖x‖_∞, 1) (3.19), which the choice of the smallest costs minimizes; `path_metric` gives a
    bound that is never larger. That holds for biases, too, but for those that a batch-norm absorbs: removing one moves
    the folded bias, and its cost, a difference of norms, can even be negative.

    Costs of networks whose path-norm overflows float64 keep their order: the common factor is left out. What float64
    cannot hold beside the largest, a factor of 10³⁰⁰ or so away, comes out as zero, all alike.

    A sweep is a forward and a backward pass; costs are shown as the latter finds them, and need not be kept.

    Reference: gonon2024thesis.
    """
    # Costs come for all parameters in one backward pass; those that are not asked for are passed over.
    wanted = frozenset(names)

    def sweep(visit: Visitor) -> None:
        try:
            each_path_cost(net, lambda name, cost: visit(name, cost) if name in wanted else None)
        except UnsupportedOp as error:
            advice = "prune by 'magnitude' or 'random' instead"
            raise UnsupportedOp(error.wanted_by, error.needed, error.op, error.module, advice) from error

    return sweep
