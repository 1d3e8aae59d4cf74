"""Φ-pruning: the weights that the path-lifting misses least go first (thesis, section 3.5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tamis.errors import UnsupportedOp
from tamis.graph.network import Network
from tamis.paths.cost import path_costs


def phi_scores(net: Network, names: Sequence[str], seed: int) -> Mapping[str, Tensor]:
    """Φ-Cost(θ, i) of (3.16) for every entry of the parameters named, up to one common factor.

    Invariant under neuron-wise rescaling. Pruning the weights I changes the output for x by at most
    Σ_{i∈I} Φ-Cost(θ, i) · max(‖x‖_∞, 1) (3.19), which the choice of the smallest costs minimizes; `path_metric` gives a
    bound that is never larger. That holds for biases, too, but for those that a batch-norm absorbs: removing one moves
    the folded bias, and its cost, a difference of norms, can even be negative.

    Costs of networks whose path-norm overflows float64 keep their order: the common factor is left out. What float64
    cannot hold beside the largest, a factor of 10³⁰⁰ or so away, comes out as zero, all alike.

    Reference: gonon2024thesis.
    """
    try:
        costs = path_costs(net).values
    except UnsupportedOp as error:
        advice = "prune by 'magnitude' or 'random' instead"
        raise UnsupportedOp(error.wanted_by, error.needed, error.op, error.module, advice) from error
    return {name: costs[name] for name in names}
