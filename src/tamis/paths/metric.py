"""How far apart two parameter sets are, path by path: the ℓ¹ path-metric (thesis, section 3.4; ERRATA 18 and 19)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph.fixed import FixedValues
from tamis.graph.fold import fold_batch_norm
from tamis.graph.network import Network, Node
from tamis.graph.ops import Capability, describe, require
from tamis.graph.rescale import choose_scales, layer_weights, symmetries
from tamis.graph.same import check_one_graph
from tamis.graph.symmetry import Layer
from tamis.paths.norm import exponential
from tamis.paths.scaled import Lookup, adding_nodes, gather, is_weight, magnitude, ones_input, walk

Weights = Mapping[str, Any]


@dataclass(frozen=True)
class _Logs:
    """For each sample: the log of a distance, and of the path-norms it was computed from; and whether it is exact."""

    distance: Tensor
    size: Tensor
    exact: bool


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
    with those coordinates set to zero, and the two distances add up. Each of them is never above ERRATA 18's
    ‖Φ(max(|θ|,|θ'|))‖₁ − ‖Φ(min(|θ|,|θ'|))‖₁ for equal signs (docs/path_lifting.md has the proof).

    Since both networks may be scaled differently, the bound is also computed after aligning the scales of `other` with
    those of `net`, neuron by neuron, and the smaller one is returned.

    Args:
        net: a network, of homogeneous or 1-Lipschitz operations with f(0) = 0.
        other: the same graph with other parameters.
        x: an input with a batch dimension (or a tuple, for several inputs). The same passes run on |x| instead of ones
            (ERRATA 19), which is sharper than max(‖x‖_∞, 1) times the metric.
        log: return the natural logarithm.

    Returns:
        A number; with x, a float64 tensor with one number for each entry of the batch, if the network has one.

    Example:
        >>> tamis.path_metric(net, small.network, x)   # at least the ℓ¹ distance of the two outputs, for each x

    Reference: gonon2024thesis.
    """
    _check(net, other)
    starts = _starts(net, x)
    if x is None or not net.batched:
        return float(_exponential(_log_metric(net, other, starts), log)[0])
    first = starts[net.inputs[0]]
    logs = torch.empty(len(first), dtype=torch.float64, device=first.device)
    for samples in _of_like_size(starts):
        logs[samples] = _log_metric(net, other, {name: start[samples] for name, start in starts.items()})
    return _exponential(logs, log)


def _log_metric(net: Network, other: Network, starts: dict[str, Tensor]) -> Tensor:
    """The log of the bound for each sample."""
    batch = len(starts[net.inputs[0]])
    folded = fold_batch_norm(net)
    weights, others = (FixedValues(each, batch, torch.float64) for each in (folded, fold_batch_norm(other)))
    bound = _distance(folded, weights, others, starts)
    if bound.exact:
        return bound.distance
    aligned = _aligned_distance(folded, weights, other, starts)
    # An aligned bound that overflowed is NaN, and not smaller.
    return torch.where(aligned < bound.distance, aligned, bound.distance)


def _of_like_size(starts: dict[str, Tensor]) -> list[Tensor]:
    """Samples in groups of like magnitude, because those of a batch share one exponent."""
    if not len(next(iter(starts.values()))):
        return []
    largest = torch.stack([value.reshape(len(value), -1).amax(1) for value in starts.values()]).amax(0)
    exponents = torch.frexp(largest).exponent // 256
    return [(exponents == each).nonzero().flatten() for each in exponents.unique()]


def _check(net: Network, other: Network) -> None:
    check_one_graph(net, other, "path_metric")
    _check_indices(net, other)
    require(net, Capability.LIPSCHITZ, "path_metric")
    net.check_finite()
    other.check_finite()


def _check_indices(net: Network, other: Network) -> None:
    """Tensors that are not weights but say where data goes must be equal."""
    mine, theirs = FixedValues(net, dtype=torch.float64), FixedValues(other, dtype=torch.float64)
    tensors = {**net.params, **net.constants}
    for name in net.weights_of_data_nodes:
        if name in tensors and tensors[name].is_floating_point():
            continue
        value = mine[name]
        if not is_weight(value) and not torch.equal(value, theirs[name]):
            raise InvalidInput(f"path_metric compares weights of one graph, but the indices '{name}' differ")


def _starts(net: Network, x: Tensor | tuple[Tensor, ...] | None) -> dict[str, Tensor]:
    if x is None:
        return ones_input(net)
    inputs = x if isinstance(x, tuple) else (x,)
    net.check_inputs(inputs)
    for name, value in zip(net.inputs, inputs, strict=True):
        wrong = int((~torch.isfinite(value)).sum())
        if wrong:
            raise InvalidInput(f"path_metric needs a finite input, '{name}' has {wrong} entries that are not")
    return {name: value.detach().double().abs() for name, value in zip(net.inputs, inputs, strict=True)}


@dataclass(frozen=True)
class _Relation:
    """How weights compare: whether a sign differs, and whether the other network's are nowhere larger, or smaller."""

    flips: bool
    shrinks: bool
    grows: bool

    @property
    def dominated(self) -> bool:
        return not self.flips and (self.shrinks or self.grows)


def _relation(weights: Weights, others: Weights) -> _Relation:
    shrinks = grows = True
    for name, weight in weights.items():
        if not is_weight(weight):
            continue
        other = others[name]
        if bool((weight * other < 0).any()):
            return _Relation(True, False, False)
        shrinks = shrinks and bool((other.abs() <= weight.abs()).all())
        grows = grows and bool((other.abs() >= weight.abs()).all())
    return _Relation(False, shrinks, grows)


class _Between(Mapping[str, Any]):
    """θ'': the weights of one network with those set to zero whose sign differs in the other."""

    def __init__(self, weights: Weights, others: Weights) -> None:
        self.weights, self.others = weights, others

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, name: str) -> Any:
        weight = self.weights[name]
        return weight.masked_fill(weight * self.others[name] < 0, 0.0) if is_weight(weight) else weight


def _distance(net: Network, weights: Weights, others: Weights, starts: dict[str, Tensor]) -> _Logs:
    """The bound for each sample, through θ'' where signs differ."""
    relation = _relation(weights, others)
    if not relation.flips:
        return _distance_same_signs(net, weights, others, relation, starts)
    between = _Between(weights, others)
    there = _distance_same_signs(net, weights, between, _Relation(False, shrinks=True, grows=False), starts)
    rest = _distance_same_signs(net, between, others, _relation(between, others), starts)
    both = torch.logaddexp(there.distance, rest.distance), torch.logaddexp(there.size, rest.size)
    return _Logs(*both, exact=False)


def _distance_same_signs(
    net: Network, weights: Weights, others: Weights, relation: _Relation, starts: dict[str, Tensor]
) -> _Logs:
    """The recursion of `path_metric` on streams D, M', M. Where one network dominates, the smaller one's is enough."""
    if relation.grows and not relation.shrinks:
        weights, others = others, weights
    one_sided = relation.dominated

    def step(node: Node, lookups: Sequence[Lookup], one: float) -> list[Any]:
        distance, m_other, *m = lookups
        fixed = [name for name in node.references if name not in net.carries_data]
        mine, theirs = ({name: values[name] for name in fixed} for values in (weights, others))
        apart = {name: (w - theirs[name]).abs_() if is_weight(w) else w for name, w in mine.items()}
        differs = any(is_weight(value) and bool(value.any()) for value in apart.values())
        mine, theirs = _magnitudes(mine), _magnitudes(theirs)

        new_distance = magnitude(net, node, distance, mine, 1, 0.0)
        if differs:
            new_distance = new_distance + _change(net, node, m_other, apart, one)
        if differs and not one_sided:
            reverse = magnitude(net, node, distance, theirs, 1, 0.0) + _change(net, node, m[0], apart, one)
            new_distance = torch.minimum(new_distance, reverse)
        new_m = [magnitude(net, node, each, mine, 1, one) for each in m]
        return [new_distance, magnitude(net, node, m_other, theirs, 1, one), *new_m]

    nothing = {name: torch.zeros_like(value) for name, value in starts.items()}
    streams = [nothing, starts] if one_sided else [nothing, starts, starts]
    outputs = walk(net, streams, step, adding_nodes(net, weights, others))
    logs = [_log_total(net, outputs, stream) for stream in range(len(streams))]
    return _Logs(logs[0], torch.stack(logs).logsumexp(0), exact=one_sided)


def _log_total(net: Network, outputs: Mapping[str, tuple[list[Any], int]], stream: int) -> Tensor:
    total, exponent = gather(net, outputs, stream)
    return total.sum(1).log() + exponent * math.log(2)


def _change(net: Network, node: Node, data: Lookup, apart: Weights, one: float) -> Any:
    """|θ − θ'| applied to the magnitudes at hand; a node that only adds its parameters lets no data through here."""
    multiplies = any(node.arguments.get(name) is not None for name in describe(node).multipliers)
    through = data if multiplies else (lambda name: torch.zeros_like(data(name)))
    return magnitude(net, node, through, apart, 1, one)


def _magnitudes(weights: Weights) -> dict[str, Any]:
    return {name: value.abs_() if is_weight(value) else value for name, value in weights.items()}


def _aligned_distance(folded: Network, weights: Weights, other: Network, starts: dict[str, Tensor]) -> Tensor:
    """The bound after scaling `other` to match `folded`, layer by layer, which does not change its function."""
    scales = symmetries(other.to(torch.float64))

    def matching(layer: Layer, weight: Tensor, bias: Tensor | None) -> Tensor:
        want, want_bias = layer_weights(folded, layer, weights)
        unit = weight.abs().max().clamp(min=torch.finfo(torch.float64).tiny)  # so that no square overflows
        weight, bias = weight / unit, None if bias is None else bias / unit
        meeting = layer.sum_into_outputs((want * weight).abs())
        size = layer.sum_into_outputs(weight**2 * (want != 0))
        if bias is not None and want_bias is not None:
            meeting, size = meeting + (want_bias * bias).abs(), size + bias**2 * (want_bias != 0)
        # Least squares on magnitudes where both are non-zero: exactly 1 between a layer and a pruned copy of it.
        return torch.where(meeting > 0, meeting / size / unit, math.inf)

    chosen, _ = choose_scales(scales, matching)
    matched = fold_batch_norm(scales.apply(chosen))
    batch = len(starts[folded.inputs[0]])
    bound = _distance(folded, weights, FixedValues(matched, batch, torch.float64), starts)
    # Each rescaled weight is rounded, by a few units in its last place: that much of the path-norms is added.
    slack = math.log(8 * len(folded.nodes) * torch.finfo(torch.float64).eps)
    return torch.logaddexp(bound.distance, bound.size + slack)


def _exponential(logs: Tensor, log: bool) -> Tensor:
    """The numbers themselves, unless their logarithms were asked for."""
    if not log and logs.numel():
        exponential(float(logs.max()), "path_metric")  # says so if float64 does not reach
    return logs if log else logs.exp()
