"""The path-norm bounds how fast a network's output can change with its input (thesis, Theorem 3.3.1)."""

from __future__ import annotations

from tamis.bounds.bound import Bound, exp_rounded_up
from tamis.graph import Network
from tamis.paths import log_norm_above


def lipschitz_input(net: Network, r: float = 1.0) -> Bound:
    """Return a Lipschitz constant of the network: ‖R_θ(x) − R_θ(x')‖_r ≤ value · ‖x − x'‖_∞ for all inputs x and x'.

    The value is ‖Φ^I(θ)‖_{1,r}, over the paths that start at an input neuron (printed: ‖Φ(θ)‖_{1,r}, over all paths;
    those that start at a bias cancel in the difference, see docs/bounds.md).

    Args:
        net: a network of homogeneous operations.
        r: exponent over the outputs, 0 < r ≤ ∞.

    Returns:
        The bound. No other is known beforehand, so it is informative. `terms`: the logarithms of the norms over the
        paths from inputs and over all paths.

    Example:
        >>> net = tamis.trace(nn.Linear(2, 2), torch.zeros(1, 2))
        >>> net = net.with_params({"weight": torch.tensor([[1.0, 2.0], [3.0, -4.0]])})
        >>> round(lipschitz_input(net, r=float("inf")).value, 9)  # how much an output moves, at most, per unit of ‖x‖_∞
        7.0

    Reference: gonon2024thesis.
    """
    # Theorem 3.3.1 compares Φ path by path; a path from a bias has the same factor for x and x' and drops out.
    log_value = log_norm_above(net, 1, r, part="input")
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=True,
        source="gonon2024thesis, Theorem 3.3.1",
        checked=("every operation is a neuron of a DAG ReLU network",),
        terms={"r": r, "log_input_path_norm": log_value, "log_path_norm": log_norm_above(net, 1, r)},
    )
