"""Φ-pruning: the weights that the path-lifting misses least go first (thesis, section 3.5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tamis.graph.network import Network
from tamis.paths.cost import path_costs


def phi_scores(net: Network, names: Sequence[str], seed: int) -> Mapping[str, Tensor]:
    """Φ-Cost(θ, i) of (3.16) for every entry of the parameters named, up to one common factor.

    Invariant under neuron-wise rescaling. Pruning the entries I changes the output for x by at most
    Σ_{i∈I} Φ-Cost(θ, i) · max(‖x‖_∞, 1) (3.19), which the choice of the smallest costs minimizes; `path_metric` gives a
    bound that is never larger. Costs of networks whose path-norm overflows float64 keep their order: the common factor
    is left out. Only costs below about 10⁻³⁰⁰ of the largest come out as zero, all alike.

    Reference: gonon2024thesis.
    """
    costs = path_costs(net).values
    return {name: costs[name] for name in names}
