"""The product of layers' norms bounds the path-norm of any graph (thesis, Definition 3.3.1 and Theorem 3.3.2)."""

from __future__ import annotations

from tamis.bounds.bound import Bound, exp_rounded_up
from tamis.graph import Network
from tamis.paths import log_product_above, path_norm

CLOSE = 1e-9  # in the logarithm: rounding of two forward passes


def layer_product(net: Network, q: float = 1.0, r: float = 1.0) -> Bound:
    """Bound ‖Φ(θ)‖_{q,r} by Π_{q,r}(θ), used before path-norms; with q = 1 it is a Lipschitz constant, too.

    Unlike the path-norm it depends on how the parameters are scaled; it equals the path-norm where they are normalized.

    Args:
        net: a network of homogeneous operations.
        q: exponent over the weights of a neuron, 0 < q < ∞.
        r: exponent over the outputs, 0 < r ≤ ∞.

    Returns:
        The bound, informative only where it is as small as the path-norm that it bounds. `terms`: the logarithm of
        that path-norm.

    Example:
        >>> from tamis.bounds import lipschitz_input
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> layer_product(net).log10 > lipschitz_input(net).log10  # by the orders of magnitude that the path-norm gains
        True

    Reference: gonon2024thesis.
    """
    log_value = log_product_above(net, q, r)
    # Not rounded up: it is only compared with, and a bound is informative where both agree but for rounding.
    log_norm = path_norm(net, q, r, log=True)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=log_value <= log_norm + CLOSE,
        source="gonon2024thesis, Theorem 3.3.2",
        checked=("every operation is a neuron of a DAG ReLU network",),
        terms={"q": q, "r": r, "log_path_norm": log_norm},
    )
