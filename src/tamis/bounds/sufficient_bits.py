"""A given accuracy needs so many bits a coordinate: by layers (thesis, Theorem 6.1.1), and by paths."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from tamis.bounds.arguments import check_number, check_positive
from tamis.bounds.bound import Bound, log_rounded_up, round_up
from tamis.bounds.coordinates import path_coordinates
from tamis.bounds.shape import fully_connected_widths
from tamis.errors import AssumptionViolated, InvalidInput, InvalidParameters
from tamis.graph import Network
from tamis.graph.ops import Capability, require
from tamis.paths import path_metric

MOST_SEARCHED = 24  # bits up to which the bound is evaluated itself; beyond, it is extrapolated (docs/bounds.md)
ROUNDING = 2.0**-20  # relative, of |θ| + δ in float64 at these many bits, with room to spare


def sufficient_bits(net: Network, epsilon: float, radius: float = 1.0) -> Bound:
    """Return bits a coordinate with which rounding moves no output by more than ε if no |x_u| exceeds the radius.

    Theorem 6.1.1, for a layered fully connected ReLU network of L ≥ 2 layers and width W: let k be the smallest integer
    with max(‖θ‖_∞, W, L) ≤ ε^−k, and m the smallest with m ≥ 2kL + k + 1 + log₂⌈radius⌉. Rounding to the nearest point
    of ηℤ ∩ [−ε^−k, ε^−k] with η = 2^(−m⌈log₂(1/ε)⌉) changes the outputs by at most ε in the sup-norm.

    Args:
        net: a layered fully connected ReLU network.
        epsilon: the accuracy, 0 < ε < 1/2.
        radius: how large the entries of an input may be.

    Returns:
        The number of bits that tell all those points apart, informative where it is below that of the parameters as
        they are. `terms`: k, m, and log₂ of the step η.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> sufficient_bits(net, epsilon=0.01).value, sufficient_bits_by_paths(net, epsilon=0.01).value
        (50.0, 8.0)

    Reference: gonon2024thesis.
    """
    check_number("radius", radius)
    if not 0 < epsilon < 0.5:
        raise AssumptionViolated(f"sufficient_bits needs 0 < epsilon < 1/2, got epsilon = {epsilon!r}")
    widths = fully_connected_widths(net, "sufficient_bits")
    layers = len(widths) - 1
    if layers < 2:
        raise AssumptionViolated(f"sufficient_bits needs two layers at least, this network has {layers}")
    net.check_finite()
    largest = max((float(net.params[name].abs().max()) for name in net.trainable), default=0.0)
    exact, size = Fraction(epsilon), Fraction(max(largest, *widths, layers))
    # In exact fractions: whether ε^−k reaches the size decides k, and a k that is one too small proves nothing.
    k = 0
    while exact**-k < size:
        k += 1
    m = 2 * k * layers + k + 1 + _log2_up(Fraction(max(1, math.ceil(radius))))
    exponent = m * _log2_up(1 / exact)
    # Multiples of η on both sides of zero, and zero.
    points = 2 * math.floor(exact**-k * 2**exponent) + 1
    bits = (points - 1).bit_length()
    return Bound(
        value=float(bits),
        log_value=log_rounded_up(bits),
        informative=bits < _find_stored_bits(net),
        source="gonon2024thesis, Theorem 6.1.1",
        assumptions=(f"no entry of an input is larger than {radius:g} in magnitude",),
        checked=("a layered fully connected ReLU network", "two layers at least", "0 < epsilon < 1/2"),
        terms={
            "epsilon": epsilon,
            "radius": radius,
            "k": float(k),
            "m": float(m),
            "log2_step": float(-exponent),
            "width": float(max(widths)),
            "layers": float(layers),
        },
    )


def sufficient_bits_by_paths(net: Network, epsilon: float, radius: float = 1.0) -> Bound:
    """Return bits a coordinate with which rounding moves outputs by at most ε in ℓ¹, for networks of the graph model.

    The thesis leaves this open after Theorem 6.1.1. Each parameter tensor is rounded, entry by entry, to the nearest of
    the 2^b − 1 multiples of η = A/(2^(b−1) − 1) in [−A, A], A its largest magnitude. No entry moves by more than
    δ = min(η/2, its magnitude), hence (docs/bounds.md)

        ‖R_θ(x) − R_Q(θ)(x)‖₁ ≤ ‖Φ(|θ| + δ)‖ − ‖Φ(|θ|)‖,   paths from inputs weighted by radius,

    which falls as b grows: the value is the smallest b at which it is at most ε. A batch-norm's parameters, and biases
    that it absorbs, are not rounded.

    Args:
        net: a network of homogeneous or 1-Lipschitz operations with f(0) = 0.
        epsilon: the accuracy, ε > 0.
        radius: how large the entries of an input may be.

    Returns:
        The number of bits, informative where it is below that of the parameters as they are. `terms`: the logarithm of
        the bound at that many bits, and how many coordinates are rounded.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> sufficient_bits_by_paths(net, epsilon=0.1, radius=2.64).value
        6.0

    Reference: gonon2024thesis.
    """
    check_positive("epsilon", epsilon)
    check_number("radius", radius)
    rounding = _Rounding(net, radius)
    log_epsilon = -round_up(-math.log(epsilon))  # rounded down: bits that are enough for a little less are enough
    bits, log_error = _find_fewest(rounding, log_epsilon)
    return Bound(
        value=float(bits),
        log_value=log_rounded_up(bits),
        informative=bits < _find_stored_bits(net),
        source="gonon2024thesis, section 6.1.1 by Theorem 3.4.1",
        assumptions=(f"no entry of an input is larger than {radius:g} in magnitude",),
        checked=(
            "every operation is 1-Lipschitz and zero at zero",
            "rounded parameters are factors of paths, not terms of a folded bias",
        ),
        terms={
            "epsilon": epsilon,
            "radius": radius,
            "log_error": log_error,
            "coordinates": float(sum(value.numel() for value in rounding.values.values())),
        },
    )


def _find_fewest(rounding: _Rounding, log_epsilon: float) -> tuple[int, float]:
    """Return the fewest bits at which the bound is at most ε, and the log of the bound there."""
    # Doubling first: each evaluation is a pass over the whole network, and few bits are usually enough.
    low, high = 1, 2  # too few, perhaps enough
    while (log_error := rounding.log_error(high)) > log_epsilon:
        if high == MOST_SEARCHED:
            return rounding.extrapolate(log_epsilon)
        # Invariant of both loops: `low` bits are too few.
        low, high = high, min(2 * high, MOST_SEARCHED)
    while high - low > 1:
        middle = (low + high) // 2
        if (at_middle := rounding.log_error(middle)) <= log_epsilon:
            high, log_error = middle, at_middle
        else:
            low = middle
    return high, log_error


class _Rounding:
    """A rounding bounds what rounding to b bits does, as a function of b."""

    def __init__(self, net: Network, radius: float) -> None:
        if not isinstance(net, Network):
            raise InvalidInput(
                f"sufficient_bits_by_paths needs a Network, got {type(net).__name__}: trace the model first"
            )
        require(net, Capability.LIPSCHITZ, "sufficient_bits_by_paths")
        net.check_finite()
        self.net = net.to(torch.float64)
        floats = {name: value for name, value in self.net.params.items() if value.is_floating_point()}
        self.values = {name: floats[name] for name in sorted(path_coordinates(net)) if floats[name].numel()}
        self.x = tuple(torch.full(s, radius, dtype=torch.float64, device=net.device) for s in net.input_shapes)

    def log_error(self, bits: int, capped: bool = True) -> float:
        """Return the log of ‖Φ(|θ| + δ)‖ − ‖Φ(|θ|)‖; one dominates the other, so the path-metric is exact."""
        # Rounding moves |θ| up or down by at most δ; of all such networks, that with |θ| + δ is farthest away
        # (docs/bounds.md).
        larger = {name: value + _moves(value, bits, capped).copysign(value) for name, value in self.values.items()}
        for name, value in larger.items():
            if not bool(value.isfinite().all()):
                raise InvalidParameters(
                    f"sufficient_bits_by_paths leaves float64's range: the largest of |{name}| is "
                    f"{float(self.values[name].abs().max()):.3g}, and rounding it to {bits} bits may move it beyond"
                )
        return float(torch.as_tensor(path_metric(self.net.with_params(larger), self.net, self.x, log=True)).max())

    def extrapolate(self, log_epsilon: float) -> tuple[int, float]:
        """Return bits beyond what float64 resolves: with δ = η/2 at all entries but zeros, the bound is convex in η.

        Each further bit halves η at least, and with it the bound, which is zero at η = 0.
        """
        largest = self.log_error(MOST_SEARCHED, capped=False)
        more = math.ceil(round_up((largest - log_epsilon) / math.log(2), 16))
        return MOST_SEARCHED + more, largest - more * math.log(2)


def _moves(value: Tensor, bits: int, capped: bool) -> Tensor:
    """Return how far each entry may move: η/2 and what float64 may round away of it; where capped, not beyond zero."""
    # With b bits there are 2^(b−1) − 1 steps from zero to the largest magnitude, which itself stays where it is.
    half_step = value.abs().max() / (2 ** (bits - 1) - 1) / 2 * (1 + ROUNDING)
    half_step = torch.nextafter(half_step, torch.full_like(half_step, math.inf))  # where it underflows
    return torch.minimum(half_step, value.abs()) if capped else half_step * (value != 0)


def _log2_up(number: Fraction) -> int:
    """Compute ⌈log₂ x⌉ of x ≥ 1 exactly: float64 has no room for how little x may be above a power of two."""
    return (math.ceil(number) - 1).bit_length()


def _find_stored_bits(net: Network) -> int:
    """Return the bits of a parameter as it is: those of the widest of their types."""
    return max((8 * net.params[name].element_size() for name in net.trainable), default=0)
