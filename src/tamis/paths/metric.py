"""How far apart two parameter sets are, path by path: the ℓ¹ path-metric (thesis, section 3.4; ERRATA 18 and 19)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph.fixed import FixedValues
from tamis.graph.fold import fold_batch_norm
from tamis.graph.network import Network, Node
from tamis.graph.ops import Capability, describe, require
from tamis.graph.rescale import choose_scales, layer_weights, normalize, symmetries
from tamis.graph.symmetry import Layer
from tamis.paths.norm import exponential
from tamis.paths.scaled import Lookup, adding_nodes, gather, is_weight, magnitude, ones_input, walk

Weights = Mapping[str, Any]


def path_metric(
    net: Network, other: Network, x: Tensor | tuple[Tensor, ...] | None = None, log: bool = False
) -> float | Tensor:
    """An upper bound of ‖Φ(θ) − Φ(θ')‖₁, exact when one network dominates the other; with x, of ‖R_θ(x) − R_θ'(x)‖₁.

    θ dominates θ' if no coordinate of θ' has another sign or a larger magnitude: pruning and rounding towards
    zero give dominated networks. The bound needs no such condition, and quantizers that flip signs are covered.

    For each neuron v, D_v ≥ ‖Φ^{→v}(θ) − Φ^{→v}(θ')‖₁ follows from the neurons u that feed it, as the smaller of

        Σ_u |w_uv| D_u + |w_uv − w'_uv| M'_u + |b_v − b'_v|   and   Σ_u |w'_uv| D_u + |w_uv − w'_uv| M_u + |b_v − b'_v|,

    with M, M' the path-norms ‖Φ^{→u}(θ)‖₁ and ‖Φ^{→u}(θ')‖₁. All terms are positive: two networks that are almost the
    same give an almost zero that is right to many digits. Where signs differ, the way leads through θ'', which is θ
    with those coordinates set to zero, and the two distances add up. The result is never above ERRATA 18's
    ‖Φ(max(|θ|,|θ'|))‖₁ − ‖Φ(min(|θ|,|θ'|))‖₁ (docs/path_lifting.md has the proof).

    Since both networks may be scaled differently, the bound is also computed after aligning the scales of `other` with
    those of `net`, neuron by neuron, and the smaller one is returned.

    Args:
        net: a network, of homogeneous or 1-Lipschitz operations with f(0) = 0.
        other: the same graph with other parameters.
        x: an input with a batch dimension (or a tuple, for several inputs). The same passes run on |x| instead of ones
            (ERRATA 19), which is sharper than max(‖x‖_∞, 1) times the metric.
        log: return the natural logarithm.

    Returns:
        A number; with x, a float64 tensor with one number for each entry of the batch.

    Example:
        >>> tamis.path_metric(net, small.network, x)   # at least the ℓ¹ distance of the two outputs, for each x

    Reference: gonon2024thesis.
    """
    _check(net, other)
    starts = _starts(net, x)
    first, second, batch = fold_batch_norm(net), fold_batch_norm(other), len(starts[net.inputs[0]])
    weights, others = _effective(first, batch), _effective(second, batch)
    logs = _log_distance(first, weights, others, starts)
    if not _dominated(weights, others):
        logs = torch.minimum(logs, _aligned_log_distance(net, other, starts))
    if x is not None and net.batched:
        return logs if log else torch.stack([_exponential(value) for value in logs])
    return float(logs[0]) if log else float(_exponential(logs[0]))


def _check(net: Network, other: Network) -> None:
    for name, value in (("first", net), ("second", other)):
        if not isinstance(value, Network):
            raise InvalidInput(f"path_metric needs two Networks, the {name} is {type(value).__name__}")
    mine, theirs = ([(node.op, node.references) for node in each.nodes] for each in (net, other))
    if mine != theirs or {n: v.shape for n, v in net.params.items()} != {n: v.shape for n, v in other.params.items()}:
        raise InvalidInput(
            f"path_metric compares parameters of one and the same graph, got {net!r} and {other!r}; "
            "make the second with net.with_params(...)"
        )
    require(net, Capability.LIPSCHITZ, "path_metric")
    net.check_finite()
    other.check_finite()


def _starts(net: Network, x: Tensor | tuple[Tensor, ...] | None) -> dict[str, Tensor]:
    if x is None:
        return ones_input(net)
    inputs = x if isinstance(x, tuple) else (x,)
    net._check_inputs(inputs)
    if not all(bool(torch.isfinite(value).all()) for value in inputs):
        raise InvalidInput("path_metric needs a finite input, x has entries that are not")
    return {name: value.double().abs() for name, value in zip(net.inputs, inputs, strict=True)}


def _effective(net: Network, batch: int) -> dict[str, Any]:
    return dict(FixedValues(net, batch, torch.float64))


def _dominated(weights: Weights, others: Weights) -> bool:
    """Whether all weights keep their signs and one side is nowhere larger."""
    pairs = [
        (weights[n], others[n]) for n in weights if isinstance(weights[n], Tensor) and weights[n].is_floating_point()
    ]
    if any(bool((w * o < 0).any()) for w, o in pairs):
        return False
    shrinks = all(bool((o.abs() <= w.abs()).all()) for w, o in pairs)
    return shrinks or all(bool((o.abs() >= w.abs()).all()) for w, o in pairs)


def _log_distance(net: Network, weights: Weights, others: Weights, starts: dict[str, Tensor]) -> Tensor:
    """log of the bound for each sample, through θ'' where signs differ."""
    between = {n: _without_flips(w, others[n]) for n, w in weights.items()}
    if all(between[n] is w for n, w in weights.items()):
        return _log_same_signs(net, weights, others, starts)
    there = _log_same_signs(net, weights, between, starts)
    return torch.logaddexp(there, _log_same_signs(net, between, others, starts))


def _without_flips(weight: Any, other: Any) -> Any:
    """θ with the coordinates set to zero whose sign differs; the very same object where none does."""
    if not is_weight(weight):
        return weight
    flipped = weight * other < 0
    return weight.masked_fill(flipped, 0.0) if bool(flipped.any()) else weight


def _log_same_signs(net: Network, weights: Weights, others: Weights, starts: dict[str, Tensor]) -> Tensor:
    mine, theirs = _map(torch.abs, weights), _map(torch.abs, others)
    apart = {n: (w - others[n]).abs() if is_weight(w) else w for n, w in weights.items()}
    differs = {n: is_weight(w) and bool(w.any()) for n, w in apart.items()}
    one_sided = _dominated(weights, others)

    def step(node: Node, lookups: Sequence[Lookup], one: float) -> list[Any]:
        distance, m, m_other = lookups
        new_m = magnitude(net, node, m, mine, 1, one)
        new_other = magnitude(net, node, m_other, theirs, 1, one)
        new_distance = magnitude(net, node, distance, mine, 1, 0.0)
        if any(differs.get(name, False) for name in node.references):
            multiplies = _multiplies(net, node)
            new_distance = new_distance + _change(net, node, m_other, apart, one, multiplies)
            if not one_sided:
                reverse = magnitude(net, node, distance, theirs, 1, 0.0)
                new_distance = torch.minimum(new_distance, reverse + _change(net, node, m, apart, one, multiplies))
        return [new_distance, new_m, new_other]

    nothing = {name: torch.zeros_like(value) for name, value in starts.items()}
    outputs = walk(net, [nothing, starts, starts], step, adding_nodes(net, weights, others))
    total, exponent = gather(outputs, 0, net.batched)
    return total.sum(1).log() + exponent * math.log(2)


def _change(net: Network, node: Node, data: Lookup, apart: Weights, one: float, multiplies: bool) -> Any:
    """|θ − θ'| applied to the magnitudes at hand; a node that only adds its parameters lets no data through here."""
    through = data if multiplies else (lambda name: torch.zeros_like(data(name)))
    return magnitude(net, node, through, apart, 1, one)


def _multiplies(net: Network, node: Node) -> bool:
    names = describe(node).multipliers
    return any(node.arguments.get(name) is not None for name in names)


def _aligned_log_distance(net: Network, other: Network, starts: dict[str, Tensor]) -> Tensor:
    """The bound after normalizing `net` and scaling `other` to match it, layer by layer; neither function changes."""
    unit = normalize(net.to(torch.float64))
    scales = symmetries(other.to(torch.float64))
    folded = fold_batch_norm(unit)
    batch = len(starts[net.inputs[0]])
    wanted = _effective(folded, batch)

    def matching(layer: Layer, weight: Tensor, bias: Tensor | None) -> Tensor:
        want, want_bias = layer_weights(folded, layer, wanted)
        meeting = layer.sum_into_outputs((want * weight).abs())
        size = layer.sum_into_outputs(weight**2 * (want != 0))
        if bias is not None and want_bias is not None:
            meeting, size = meeting + (want_bias * bias).abs(), size + bias**2 * (want_bias != 0)
        # Least squares on magnitudes where both are non-zero: exactly 1 between a layer and a pruned copy of it.
        return torch.where(meeting > 0, meeting / size, math.inf)

    chosen, _ = choose_scales(scales.net, scales, matching)
    matched = fold_batch_norm(scales.apply(chosen))
    return _log_distance(folded, wanted, _effective(matched, batch), starts)


def _map(function: Any, weights: Weights) -> dict[str, Any]:
    return {name: function(value) if is_weight(value) else value for name, value in weights.items()}


def _exponential(value: Tensor) -> Tensor:
    return torch.tensor(exponential(float(value), "path_metric"), dtype=torch.float64)
