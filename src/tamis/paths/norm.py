"""One forward pass gives mixed path-norms (thesis, Definition 3.1.1, Theorem 3.1.1) and Π_{q,r} (Definition 3.3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import Network, Node, fold_batch_norm
from tamis.graph.ops import Capability, require
from tamis.paths.passes import Lookup, Operation, find_adding_nodes, gather, ones_input, walk
from tamis.paths.scaled import NOTHING, UNIT, Scaled, map_tensors, powers_of_two
from tamis.paths.weights import Above, Magnitudes

Part = Literal["all", "input", "hidden"]
Weights = Mapping[str, Any]
LARGEST_EXPONENT = 2.0**52  # beyond, float64 has no fractions of an exponent left
MOST_EXACT_ROOT = 500  # m^(1/q) of a mantissa m is computed as it is up to this 1/q


@dataclass(frozen=True)
class PathNorms:
    """Path-norms are ‖Φ^{→v}(θ)‖_q = mantissa · 2^exponent for each output neuron v, in the order of flattened outputs.

    Attributes:
        mantissas: in [1/2, 1), or 0.
        exponents: whole numbers.
        roundings: each norm is off by at most so many units of 2^-53, relatively.
    """

    mantissas: Tensor
    exponents: Tensor
    roundings: float

    @property
    def log_scale(self) -> float:
        """Return the logarithm of what `values` are in units of: 0 where float64 holds all norms."""
        return self._unit * math.log(2)

    @property
    def values(self) -> Tensor:
        """Return the norms in units of exp(`log_scale`); what is positive but too small for float64 there is
        2^-1022.
        """
        return self.mantissas * powers_of_two(self.exponents - self._unit)

    @property
    def _unit(self) -> int:
        positive = self.exponents[self.mantissas > 0]
        if not positive.numel():
            return 0
        low, high = int(positive.min()), int(positive.max())
        return 0 if low > -1000 and high < 1000 else high

    def mixed(self, r: float, log: bool = False) -> float:
        """Return the ℓ^r-norm over output neurons, or its natural logarithm."""
        mantissa, exponent = self._mix_outputs(r)
        if log:
            return math.log(mantissa) + exponent * math.log(2) if mantissa > 0 else -math.inf
        return number(mantissa, exponent, "the norm")

    def log_above(self, r: float) -> float:
        """Return at least the logarithm of the exact ℓ^r-norm."""
        mantissa, exponent = self._mix_outputs(r)
        # A power of two with a fractional exponent is off by as much as the exponent is large, so that the spread
        # counts as roundings; r-th powers and roots multiply relative errors by r and by 1/r.
        spread = float((self.exponents.clamp(min=-(2**20)).max() - self.exponents.clamp(min=-(2**20))).max())
        sums = (len(self.mantissas) + spread + 32) / min(r, 1)
        return log_above(mantissa, exponent, self.roundings + sums)

    def _mix_outputs(self, r: float) -> tuple[float, int]:
        # All relative to the largest norm: ratios are at most 1, and those that underflow do not matter beside it,
        # unless r is small, which is treated apart.
        top = int(self.exponents.max())
        if top <= NOTHING:
            return 0.0, 0
        ratios = self.mantissas * powers_of_two(self.exponents - top)
        largest = float(ratios.max())
        if r == 1:
            return _normalize(float(ratios.sum()), top)
        if math.isinf(r):
            return largest, top
        # Σ (v / largest)^r, exponents apart from mantissas, because a small r brings back what is far below.
        # As one power of two, because for a large r either factor alone leaves float64's range.
        terms = torch.exp2(r * ((self.mantissas / largest).log2() + (self.exponents - top).double()))
        power = math.log2(float(terms.sum())) / r
        if not math.isfinite(power):
            raise InvalidInput(f"r = {r} is too small: even the logarithm of the norm is beyond float64")
        return _normalize(largest * 2 ** (power - math.floor(power)), top + math.floor(power))


def path_norm(
    net: Network, q: float = 1, r: float = 1, log: bool = False, fold: bool = True, part: Part = "all"
) -> float:
    """Compute the mixed path-norm ‖Φ(θ)‖_{q,r} (thesis, Definition 3.1.1), from one forward pass in float64.

    By Theorem 3.1.1, ‖Φ(θ)‖_{q,r} = ‖ |R̃_{|θ|^q}(1)|^{1/q} ‖_r, where R̃ has its k-max-pooling neurons replaced
    by sums. Each neuron has an exponent of its own, so that nothing overflows or vanishes at any depth.

    Args:
        net: a network of homogeneous operations.
        q: exponent over the paths that end at one output neuron, 0 < q < ∞.
        r: exponent over output neurons, 0 < r ≤ ∞.
        log: return the natural logarithm, which is finite wherever the norm is positive.
        fold: fold batch-norm into the layer before it (never larger); False keeps it as neurons of its own, as in the
            thesis.
        part: "all" paths, only those from an "input" neuron (Φ^I), or only those that start at a "hidden" neuron's
            bias (Φ^H).

    Example:
        >>> net = tamis.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
        >>> net = net.with_params({"weight": torch.tensor([[3.0, -1.0]]), "bias": torch.tensor([2.0])})
        >>> tamis.path_norm(net)   # |w₁| + |w₂| + |b|
        6.0

    Reference: gonon2024thesis.
    """
    _check_exponent("r", r, inclusive=True)
    return path_norms(net, q, fold, part).mixed(r, log)


def path_norms(net: Network, q: float = 1, fold: bool = True, part: Part = "all") -> PathNorms:
    """Compute the path-norm of each output neuron; arguments as for `path_norm`."""
    return _compute_path_norms(net, q, fold, part, Magnitudes)


def log_norm_above(net: Network, q: float = 1, r: float = 1, part: Part = "all") -> float:
    """Return at least the logarithm of the exact path-norm, all rounding paid for; arguments as for `path_norm`."""
    _check_exponent("r", r, inclusive=True)
    return _compute_path_norms(net, q, True, part, Above).log_above(r)


def log_product_above(net: Network, q: float = 1, r: float = 1) -> float:
    """Return at least the logarithm of the exact Π_{q,r}; arguments as for `product_norm`."""
    _check_exponent("r", r, inclusive=True)
    return _compute_product_norms(net, q, True, Above).log_above(r)


def _compute_path_norms(
    net: Network, q: float, fold: bool, part: Part, weights_of: Callable[[Network], Weights]
) -> PathNorms:
    if part not in ("all", "input", "hidden"):
        raise InvalidInput(f"part must be 'all', 'input' or 'hidden', got {part!r}")
    folded = _prepare(net, q, fold, "path_norm")
    weights, start = weights_of(folded), ones_input(folded)
    adding = frozenset() if part == "input" else find_adding_nodes(folded, weights)
    # Φ is linear in where paths start: zeros at the inputs leave the paths from biases, and no biases those from
    # inputs.
    if part == "hidden":
        start = {name: torch.zeros_like(value) for name, value in start.items()}

    def step(node: Node, lookups: Sequence[Lookup]) -> list[Scaled]:
        # |θ|^q along a path multiplies to |Φ_p|^q, and sums over paths: the q-th root is taken at the very end.
        return [Operation(folded, node, weights, q).magnitude(lookups[0], node.name in adding)]

    return _take_roots(folded, walk(folded, [start], step)[0], q)


def product_norm(net: Network, q: float = 1, r: float = 1, log: bool = False, fold: bool = True) -> float:
    """Compute Π_{q,r}(θ) (thesis, Definition 3.3.1), the product of layers' norms, extended to any DAG.

    Π_{q,r} = ‖(max_{p ends at v} Π(θ,p,q))_v‖_r. It is never below the path-norm, and equals it where the parameters
    are q-normalized (Theorem 3.3.2). Computed from the recursion of its proof (appendix B.2):
    P_v^q = |b_v|^q + ‖θ^{→v}‖_q^q · max_{u→v} P_u^q.

    Arguments as for `path_norm`. Unlike a path-norm it depends on how the parameters are scaled. Edges whose weight is
    zero are edges all the same: their sources count in the maximum.
    """
    _check_exponent("r", r, inclusive=True)
    return _compute_product_norms(net, q, fold, Magnitudes).mixed(r, log)


def _compute_product_norms(net: Network, q: float, fold: bool, weights_of: Callable[[Network], Weights]) -> PathNorms:
    folded = _prepare(net, q, fold, "product_norm")
    weights = weights_of(folded)
    adding = find_adding_nodes(folded, weights)

    def step(node: Node, lookups: Sequence[Lookup]) -> list[Scaled]:
        def full(value: float) -> Lookup:
            return lambda name: _fill_like(lookups[0](name), value)

        # The recursion needs the norm of a neuron's weights, and no operation offers it: it is taken from `magnitude`.
        # ‖θ^{→v}‖_q^q is what the operation gives on ones without its bias, and its bias alone is what it gives on
        # zeros.
        operation = Operation(folded, node, weights, q)
        incoming = operation.magnitude(full(1.0), False) * operation.reach(lookups[0])
        return [incoming + operation.magnitude(full(0.0), True)] if node.name in adding else [incoming]

    return _take_roots(folded, walk(folded, [ones_input(folded)], step)[0], q)


def number(mantissa: float, exponent: int, what: str) -> float:
    """Compute mantissa · 2^exponent, never 0 where it is positive; an error says what to do where float64 ends."""
    try:
        return max(math.ldexp(mantissa, exponent), math.ulp(0.0)) if mantissa > 0 else 0.0
    except OverflowError:
        log_value = math.log(mantissa) + exponent * math.log(2)
        raise OverflowError(
            f"{what} is e^{log_value:.6g} = 10^{log_value / math.log(10):.6g}, beyond float64: pass log=True"
        ) from None


def log_above(mantissa: float, exponent: int, roundings: float) -> float:
    """Return at least the logarithm of the exact number, which is mantissa · 2^exponent up to so many roundings."""
    if mantissa == 0:
        return -math.inf
    # Two logarithms, a product and two sums, each rounded relatively to what it gives. The factor 1 + 2^-20 pays for
    # terms of second order: (1 + u)^n exceeds 1 + n u by about (n u)²/2.
    own = 8 * (1 + abs(math.log(mantissa)) + abs(exponent))
    return math.log(mantissa) + exponent * math.log(2) + (roundings + own) * UNIT * (1 + 2.0**-20)


def _prepare(net: Network, q: float, fold: bool, wanted_by: str) -> Network:
    """Check the arguments, and return the network without batch-norm nodes."""
    if not isinstance(net, Network):
        raise InvalidInput(f"{wanted_by} needs a Network, got {type(net).__name__}: trace the model first")
    _check_exponent("q", q, inclusive=False)
    require(net, Capability.HOMOGENEOUS, wanted_by)
    net.check_finite()
    return fold_batch_norm(net, fold)


def _check_exponent(name: str, value: float, inclusive: bool) -> None:
    if not (0 < value < math.inf or (inclusive and value == math.inf)):
        raise InvalidInput(f"{name} must be in (0, ∞{']' if inclusive else ')'}, got {name} = {value}")


def _take_roots(net: Network, outputs: Mapping[str, Scaled], q: float) -> PathNorms:
    """Return the q-th roots of the sums at the output neurons."""
    mantissas, exponents, roundings = gather(net, outputs)
    mantissas, exponents = mantissas[0], exponents[0]
    if q == 1:
        return PathNorms(mantissas, exponents, roundings)
    positive = mantissas > 0
    # (m · 2^e)^(1/q) = m^(1/q) · 2^(e/q): the whole part of e/q goes into the new exponent, only its fraction through
    # exp2. For a tiny q even m^(1/q) leaves float64, and the mantissa joins the exponent as a logarithm.
    power = exponents.double() / q
    if 1 / q > MOST_EXACT_ROOT:
        power, mantissas = power + mantissas.log2() / q, torch.ones_like(mantissas)
    if bool((power.where(positive, 0.0).abs() >= LARGEST_EXPONENT).any()):
        raise InvalidInput(f"q = {q} is too small: the exponent of the norm is beyond 2^52")
    whole = torch.floor(power.where(positive, 0.0)).long()
    roots, own = torch.frexp(mantissas ** (1 / q) * torch.exp2(power.where(positive, 0.0) - whole))
    # A q-th root divides relative errors by q. exp2 of a fraction is off by as much as e/q was rounded.
    roundings = roundings / q + 8 * (1 + float(power.where(positive, 0.0).abs().max()))
    return PathNorms(roots.where(positive, 0.0), (own + whole).where(positive, NOTHING), roundings)


def _normalize(value: float, exponent: int) -> tuple[float, int]:
    mantissa, own = math.frexp(value)
    return mantissa, own + exponent


def _fill_like(scaled: Scaled, number: float) -> Scaled:
    return Scaled(((map_tensors(lambda leaf: torch.full_like(leaf, number), scaled.parts[0][0]), 0),))
