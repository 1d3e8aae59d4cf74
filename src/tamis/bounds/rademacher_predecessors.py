"""These bounds of the Rademacher complexity came before the thesis' (Table 4.1), for architectures of their own.

The table gives them up to universal constants, and so do these functions, with the constant 1: they are for
comparison, and none of them is ever informative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.bounds.rademacher_arguments import BALL, SAMPLES, UP_TO_CONSTANTS, resolve_sigma
from tamis.bounds.shape import GraphShape, fully_connected_widths, read_shape
from tamis.errors import AssumptionViolated
from tamis.graph import Network
from tamis.paths import path_norm, product_norm

PRODUCT = "the bound on the product of layers' norms was fixed before the samples were seen"


def kakade(net: Network, sigma: float) -> Bound:
    """Bound the complexity of linear regression (one layer, no bias, one output) by r σ √ln(d_in).

    Args:
        net: the network, whose path-norm is r.
        sigma: σ, such as `sigma_of_box(n, radius)`.

    Reference: kakade2008complexity.
    """
    shape = _read_layered_shape(net, "kakade", layers=1)
    return _make_bound("kakade2008complexity, (5)", shape, sigma, path_norm(net, log=True), math.log(shape.d_in))


def e_ma_wu(net: Network, sigma: float) -> Bound:
    """Bound that of two fully connected layers, no bias, one output, by r σ √ln(d_in); arguments as for `kakade`.

    Reference: e2022barron.
    """
    shape = _read_layered_shape(net, "e_ma_wu", layers=2)
    return _make_bound("e2022barron, Theorem 6", shape, sigma, path_norm(net, log=True), math.log(shape.d_in))


def neyshabur(net: Network, sigma: float) -> Bound:
    """Bound that of any graph of ReLU neurons, no bias, one output, by r σ 2^D √ln(d_in); arguments as for `kakade`.

    Reference: neyshabur2015norm.
    """
    shape = read_shape(net)
    _require_plain(shape, "neyshabur")
    if shape.pool_layers:
        raise AssumptionViolated(
            f"neyshabur needs a graph of ReLU neurons: this one has {shape.pool_layers} pooling layer(s)"
        )
    # 2^D in the logarithm, where it cannot overflow.
    log_norm = path_norm(net, log=True) + shape.depth * math.log(2)
    return _make_bound("neyshabur2015norm, Corollary 7", shape, sigma, log_norm, math.log(shape.d_in))


def golowich(net: Network, sigma: float) -> Bound:
    """Bound that of fully connected layers, no bias, one output, by R σ √(D + ln(d_in)), R = Π ‖M_ℓ‖_{1,∞}.

    Arguments as for `kakade`.

    Reference: golowich2018size.
    """
    shape = _read_layered_shape(net, "golowich")
    log_product = product_norm(net, log=True)
    squared = shape.depth + math.log(shape.d_in)
    return _make_bound("golowich2018size, Theorem 3.2", shape, sigma, log_product, squared, ball=PRODUCT)


def barron_klusowski(net: Network, sigma: float) -> Bound:
    """Bound that of fully connected layers, no bias, one output, by r σ √(D + ln(d_in)); arguments as for `kakade`.

    Reference: barron2019complexity.
    """
    shape = _read_layered_shape(net, "barron_klusowski")
    squared = shape.depth + math.log(shape.d_in)
    return _make_bound("barron2019complexity, Corollary 2", shape, sigma, path_norm(net, log=True), squared)


PREDECESSORS: Mapping[str, Callable[[Network, float], Bound]] = {
    "kakade": kakade,
    "e_ma_wu": e_ma_wu,
    "neyshabur": neyshabur,
    "golowich": golowich,
    "barron_klusowski": barron_klusowski,
}


def rademacher_predecessors(net: Network, sigma: float) -> dict[str, Bound]:
    """Return those rows of Table 4.1 whose conditions the network's graph satisfies, by name.

    Args:
        net: a network of homogeneous operations.
        sigma: σ, such as `sigma_of_box(n, radius)`.

    Example:
        >>> layers = nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False)
        >>> net = tamis.trace(nn.Sequential(*layers), torch.zeros(1, 2))
        >>> list(rademacher_predecessors(net, sigma=100.0))
        ['e_ma_wu', 'neyshabur', 'golowich', 'barron_klusowski']

    Reference: gonon2024thesis.
    """
    resolve_sigma(sigma)
    rows: dict[str, Bound] = {}
    for name, row in PREDECESSORS.items():
        try:
            rows[name] = row(net, sigma)
        # Not an error here: the table is of those rows that speak of this architecture at all.
        except AssumptionViolated:
            continue
    return rows


def _read_layered_shape(net: Network, wanted_by: str, layers: int | None = None) -> GraphShape:
    """Return the shape of a fully connected network without biases and with one output, and with so many layers."""
    widths = fully_connected_widths(net, wanted_by)
    shape = read_shape(net)
    _require_plain(shape, wanted_by)
    if layers is not None and len(widths) - 1 != layers:
        raise AssumptionViolated(f"{wanted_by} needs {layers} layer(s), this network has {len(widths) - 1}")
    return shape


def _require_plain(shape: GraphShape, wanted_by: str) -> None:
    if shape.biases:
        raise AssumptionViolated(f"{wanted_by} needs a network without biases, this one adds some")
    if shape.d_out != 1:
        raise AssumptionViolated(f"{wanted_by} needs one output, this network has {shape.d_out}")
    if shape.d_in < 2:
        raise AssumptionViolated(f"{wanted_by} has ln(d_in) in it and needs two inputs, this network has {shape.d_in}")


def _make_bound(
    source: str, shape: GraphShape, sigma: float, log_norm: float, squared: float, ball: str = BALL
) -> Bound:
    """Make a bound of σ √squared times a norm."""
    sigma = resolve_sigma(sigma)
    log_value = log_of_product(log_norm, log_rounded_up(sigma), math.log(squared) / 2)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        # With an unknown constant nothing can be compared with what is trivially true.
        informative=False,
        source=source,
        assumptions=(UP_TO_CONSTANTS, SAMPLES, ball),
        checked=("no biases", "one output", "the architecture of its row in Table 4.1"),
        terms={
            "log_norm": log_norm,
            "sigma": sigma,
            "depth": float(shape.depth),
            "d_in": float(shape.d_in),
            "d_out": float(shape.d_out),
        },
    )
