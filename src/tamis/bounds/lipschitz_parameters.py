"""The path-metric bounds how far two networks' outputs can be apart (thesis, Theorem 3.4.1; ERRATA 18 and 19)."""

from __future__ import annotations

import math

import numpy as np

from tamis.bounds.arguments import check_number
from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.graph.ops import Capability, capability
from tamis.paths import path_metric, path_norm


def lipschitz_parameters(net: Network, other: Network, radius: float = 1.0, trivial: float | None = None) -> Bound:
    """Bound ‖R_θ(x) − R_θ'(x)‖₁ by max(1, radius) · ‖Φ(θ) − Φ(θ')‖₁ for every input with ‖x‖_∞ ≤ radius.

    `path_metric` stands for the distance of the path-liftings: it is that distance where one network dominates the
    other, above it otherwise, and needs no condition on signs (printed: for equal signs and one output; see ERRATA 18).

    Args:
        net: a network, of homogeneous or 1-Lipschitz operations with f(0) = 0.
        other: the same graph with other parameters.
        radius: how large the entries of an input may be.
        trivial: what is known without this theorem. By default both outputs by themselves: max(1, radius) times the
            sum of the path-norms; nothing, where the network is not homogeneous.

    Returns:
        The bound, informative where it is below `trivial`. `terms`: the logarithms of path-metric and trivial bound.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> small = tamis.prune(net, 0.5)
        >>> lipschitz_parameters(net, small.network, radius=2.64).informative
        True

    Reference: gonon2024thesis.
    """
    check_number("radius", radius)
    if trivial is not None and not trivial >= 0:
        raise InvalidInput(f"lipschitz_parameters needs a trivial bound ≥ 0, got {trivial!r}")
    log_metric = float(path_metric(net, other, log=True))
    # A path that starts at an input is weighted by |x_u| ≤ radius, one that starts at a bias by 1: hence max(1,
    # radius).
    log_value = log_of_product(log_metric, log_reach(radius))
    log_trivial = log_both_outputs(net, other, radius) if trivial is None else log_rounded_up(trivial)
    known = {} if log_trivial is None else {"log_trivial": log_trivial}
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=log_trivial is not None and log_value < log_trivial,
        source="gonon2024thesis, Theorem 3.4.1",
        assumptions=(f"no entry of an input is larger than {radius:g} in magnitude",),
        checked=("both networks have one and the same graph", "every operation is 1-Lipschitz and zero at zero"),
        terms={"radius": radius, "log_path_metric": log_metric, **known},
    )


def log_reach(radius: float) -> float:
    """Compute log max(1, radius), rounded up."""
    return math.nextafter(math.log(radius), math.inf) if radius > 1 else 0.0


def log_both_outputs(net: Network, other: Network, radius: float) -> float | None:
    """Return the log of max(1, radius) · (‖Φ(θ)‖₁ + ‖Φ(θ')‖₁), or None where path-norms are not defined."""
    if any(capability(net, node) < Capability.HOMOGENEOUS for node in net.data_nodes):
        return None
    # The ℓ¹-norm of one output vector is at most max(1, radius) times its path-norm; with it, two outputs are at most
    # the sum apart. Not rounded up, since it decides what is informative and bounds nothing.
    both = np.logaddexp(path_norm(net, log=True), path_norm(other, log=True))
    return float(both) + log_reach(radius)
