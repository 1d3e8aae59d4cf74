"""Mixed path-norms in one forward pass (thesis, Definition 3.1.1 and Theorem 3.1.1), and Π_{q,r} (Definition 3.3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph.fold import fold_batch_norm
from tamis.graph.network import Network, Node
from tamis.graph.ops import Call, Capability, describe, require
from tamis.paths.scaled import Lookup, Powers, adding_nodes, gather, magnitude, magnitude_step, ones_input, walk

Part = Literal["all", "input", "hidden"]
LARGEST_LOG = 709.78  # of a float64


@dataclass(frozen=True)
class PathNorms:
    """‖Φ^{→v}(θ)‖_q for every output neuron v: `values` · exp(`log_scale`), in the order of the flattened outputs."""

    values: Tensor
    log_scale: float

    def mixed(self, r: float, log: bool = False) -> float:
        """The ℓ^r-norm over output neurons, or its natural logarithm."""
        largest, log_scale = float(self.values.max()), self.log_scale
        if r == 1:
            value = float(self.values.sum())
        elif math.isinf(r) or largest == 0:
            value = largest
        else:
            value, ratios = largest, float(((self.values / largest) ** r).sum())
            if max(math.log(largest), 0) + math.log(ratios) / r < LARGEST_LOG:
                value *= ratios ** (1 / r)
            else:
                log_scale += math.log(ratios) / r
        if log:
            return math.log(value) + log_scale if value > 0 else -math.inf
        return value if log_scale == 0 or value == 0 else exponential(math.log(value) + log_scale, "the norm")


def path_norm(
    net: Network, q: float = 1, r: float = 1, log: bool = False, fold: bool = True, part: Part = "all"
) -> float:
    """The mixed path-norm ‖Φ(θ)‖_{q,r} (thesis, Definition 3.1.1), from one forward pass in float64.

    By Theorem 3.1.1, ‖Φ(θ)‖_{q,r} = ‖ |R̃_{|θ|^q}(1)|^{1/q} ‖_r, where R̃ has its k-max-pooling neurons replaced
    by sums. A running exponent keeps any depth from overflowing.

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
        >>> tamis.path_norm(tamis.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2)))   # |w₁| + |w₂| + |b|

    Reference: gonon2024thesis.
    """
    _check_exponent("r", r, inclusive=True)
    return path_norms(net, q, fold, part).mixed(r, log)


def path_norms(net: Network, q: float = 1, fold: bool = True, part: Part = "all") -> PathNorms:
    """The path-norm of each output neuron; arguments as for `path_norm`."""
    if part not in ("all", "input", "hidden"):
        raise InvalidInput(f"part must be 'all', 'input' or 'hidden', got {part!r}")
    folded, weights = _prepared(net, q, fold, "path_norm")
    start = ones_input(folded)
    adding = frozenset() if part == "input" else adding_nodes(folded, weights)
    if part == "hidden":
        start = {name: torch.zeros_like(value) for name, value in start.items()}
    return _per_output(folded, walk(folded, [start], magnitude_step(folded, weights, q), adding), q)


def product_norm(net: Network, q: float = 1, r: float = 1, log: bool = False, fold: bool = True) -> float:
    """Π_{q,r}(θ) (thesis, Definition 3.3.1): the product of layers' norms, extended to any DAG.

    Π_{q,r} = ‖(max_{p ends at v} Π(θ,p,q))_v‖_r. It is never below the path-norm, and equals it where the parameters
    are q-normalized (Theorem 3.3.2). Computed from the recursion of its proof (appendix B.2):
    P_v^q = |b_v|^q + ‖θ^{→v}‖_q^q · max_{u→v} P_u^q.

    Arguments as for `path_norm`. Unlike a path-norm it depends on how the parameters are scaled. Edges whose weight is
    zero are edges all the same: their sources count in the maximum.
    """
    _check_exponent("r", r, inclusive=True)
    folded, powers = _prepared(net, q, fold, "product_norm")
    carries, weights = folded.carries_data, dict(powers)

    def step(node: Node, lookups: Sequence[Lookup], one: float) -> list[Any]:
        def with_data(value: Any) -> Lookup:
            return lambda name: _like(lookups[0](name), value)

        bias = magnitude(folded, node, with_data(0.0), weights, q, one)
        incoming = magnitude(folded, node, with_data(1.0), weights, q, 0.0)
        lookup = lambda name: lookups[0](name) if name in carries else weights[name]  # noqa: E731
        return [_combine(bias, incoming, describe(node).reach(Call(node, lookup, carries)))]

    outputs = walk(folded, [ones_input(folded)], step, adding_nodes(folded, weights))
    return _per_output(folded, outputs, q).mixed(r, log)


def exponential(log_value: float, what: str) -> float:
    """exp, or an error that says how to get the logarithm where float64 does not reach."""
    if log_value > LARGEST_LOG:
        raise OverflowError(
            f"{what} is e^{log_value:.6g} = 10^{log_value / math.log(10):.6g}, beyond float64: pass log=True"
        )
    return math.exp(log_value)


def _prepared(net: Network, q: float, fold: bool, wanted_by: str) -> tuple[Network, Powers]:
    """Checks, the network without batch-norm nodes, and |θ|^q in float64."""
    if not isinstance(net, Network):
        raise InvalidInput(f"{wanted_by} needs a Network, got {type(net).__name__}: trace the model first")
    _check_exponent("q", q, inclusive=False)
    require(net, Capability.HOMOGENEOUS, wanted_by)
    net.check_finite()
    folded = fold_batch_norm(net, fold)
    return folded, Powers(folded, q, wanted_by)


def _check_exponent(name: str, value: float, inclusive: bool) -> None:
    if not (0 < value < math.inf or (inclusive and value == math.inf)):
        raise InvalidInput(f"{name} must be in (0, ∞{']' if inclusive else ')'}, got {name} = {value}")


def _per_output(net: Network, outputs: dict[str, tuple[list[Any], int]], q: float) -> PathNorms:
    total, exponent = gather(net, outputs, 0)
    sums, log_scale = total[0], exponent * math.log(2) / q
    largest = float(sums.max())
    if largest > 0 and abs(math.log(largest)) / q >= LARGEST_LOG:  # for a small q its root leaves float64
        sums, log_scale = sums / largest, log_scale + math.log(largest) / q
    return PathNorms(sums ** (1 / q), log_scale)


def _like(value: Any, number: float) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_like(item, number) for item in value)
    return None if value is None else torch.full_like(value, number)


def _combine(bias: Any, incoming: Any, reach: Any) -> Any:
    """b + n · m, for one result or several."""
    if isinstance(bias, (tuple, list)):
        return type(bias)(_combine(*parts) for parts in zip(bias, incoming, reach, strict=True))
    return None if bias is None else bias + incoming * reach
