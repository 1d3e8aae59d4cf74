"""`phi_pruning` bounds what pruning costs by a sum over single coordinates (thesis, (3.16) to (3.19))."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tamis.bounds.arguments import check_number
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product
from tamis.bounds.coordinates import path_coordinates
from tamis.bounds.lipschitz_parameters import log_both_outputs, log_reach
from tamis.errors import AssumptionViolated, InvalidInput, join_names
from tamis.graph import Network
from tamis.graph.ops import Capability, require
from tamis.paths import log_cost_above, path_metric


def phi_pruning(net: Network, masks: Mapping[str, Tensor], radius: float = 1.0) -> Bound:
    """Bound ‖R_θ(x) − R_{s⊙θ}(x)‖₁ by max(1, radius) · Σ_i Φ-Cost(θ, i) over the pruned i, if ‖x‖_∞ ≤ radius.

    The sum is what Φ-pruning makes small. The path-metric, max(1, radius) · ‖Φ(θ) − Φ(s⊙θ)‖₁, is never above it and
    stands beside it: a path through several pruned coordinates counts once there.

    Args:
        net: a network of homogeneous operations.
        masks: for each pruned parameter a boolean tensor of its shape, True where an entry is kept.
        radius: how large the entries of an input may be.

    Returns:
        The bound, informative where it is below both outputs by themselves. `terms`: how many coordinates are pruned,
        and the logarithms of the sum of costs, of the path-metric, and of the trivial bound.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> small = tamis.prune(net, 0.5, by="magnitude")
        >>> phi_pruning(net, small.masks).value > 0
        True

    Reference: gonon2024thesis.
    """
    check_number("radius", radius)
    pruned = _find_pruned_entries(net, masks)
    require(net, Capability.HOMOGENEOUS, "phi_pruning")
    # Removing the pruned coordinates one after another costs at most what each costs alone, since a path that is gone
    # is not counted again: (3.18). Theorem 3.4.1 then gives (3.19).
    log_cost = log_cost_above(net, pruned)
    other = net.with_params({name: net.params[name].masked_fill(entries, 0.0) for name, entries in pruned.items()})
    log_trivial = log_both_outputs(net, other, radius)
    assert log_trivial is not None  # the network is homogeneous
    log_value = log_of_product(log_cost, log_reach(radius))
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=log_value < log_trivial,
        source="gonon2024thesis, (3.19)",
        assumptions=(f"no entry of an input is larger than {radius:g} in magnitude",),
        checked=(
            "every operation is a neuron of a DAG ReLU network",
            "every path meets a parameter at most once",
            "pruned parameters are factors of paths, not terms of a folded bias",
        ),
        terms={
            "pruned": float(sum(int(entries.count_nonzero()) for entries in pruned.values())),
            "radius": radius,
            "log_cost": log_cost,
            "log_path_metric": float(path_metric(net, other, log=True)),
            "log_trivial": log_trivial,
        },
    )


def _find_pruned_entries(net: Network, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return where each parameter is pruned, under the name that the network knows it by."""
    if not isinstance(net, Network):
        raise InvalidInput(f"phi_pruning needs a Network, got {type(net).__name__}: trace the model first")
    coordinates = path_coordinates(net)
    pruned: dict[str, Tensor] = {}
    for name, mask in masks.items():
        known = net.aliases.get(name, name)
        if known not in net.trainable:
            raise InvalidInput(
                f"there is no trainable parameter '{name}' to prune; there are {join_names(net.trainable)}"
            )
        shape = tuple(net.params[known].shape)
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or tuple(mask.shape) != shape:
            got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            raise InvalidInput(f"the mask of '{name}' must be a boolean tensor of shape {shape}, got {got}")
        if known not in coordinates and not bool(mask.all()):
            raise AssumptionViolated(
                f"phi_pruning needs pruned parameters to be factors of paths, but '{name}' is a term of a weight that "
                "is computed from several parameters (a batch-norm's own, or a bias that it absorbs): leave it out of "
                "the masks, or use lipschitz_parameters, which has no such condition"
            )
        # A tied parameter may have masks under several names: what any of them removes is removed.
        pruned[known] = pruned.get(known, torch.zeros_like(mask)) | ~mask
    return pruned
