"""The ℓ¹ path-metric says how far apart two parameter sets are, path by path (thesis, 3.4; ERRATA 18 and 19)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import (
    FixedValues,
    Layer,
    Network,
    Node,
    check_same_graph,
    choose_scales,
    fold_batch_norm,
    layer_weights,
    symmetries,
)
from tamis.graph.ops import Capability, require
from tamis.paths.norm import log_above, number
from tamis.paths.passes import Lookup, Operation, find_adding_nodes, gather, ones_input, walk
from tamis.paths.scaled import UNIT, Scaled, is_smaller, is_weight, powers_of_two
from tamis.paths.weights import SMALLEST, SMALLEST_NORMAL, Weights, stored_sources


def path_metric(
    net: Network, other: Network, x: Tensor | tuple[Tensor, ...] | None = None, log: bool = False
) -> float | Tensor:
    """Bound ‖Φ(θ) − Φ(θ')‖₁ from above, exactly when one network dominates the other; with x, ‖R_θ(x) − R_θ'(x)‖₁.

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
        >>> x = torch.tensor([[1.0, 2.0]])
        >>> net = tamis.trace(torch.nn.Linear(2, 1, bias=False), x)
        >>> net = net.with_params({"weight": torch.tensor([[3.0, -1.0]])})
        >>> small = net.with_params({"weight": torch.tensor([[3.0, 0.0]])})
        >>> round(tamis.path_metric(net, small), 9)
        1.0
        >>> tamis.path_metric(net, small, x)   # at least the ℓ¹ distance of the two outputs, for each x
        tensor([2.0000], dtype=torch.float64)

    Reference: gonon2024thesis.
    """
    _check(net, other)
    starts = _choose_starts(net, x)
    if net.batched and not len(starts[net.inputs[0]]):
        return torch.empty(0, dtype=torch.float64, device=starts[net.inputs[0]].device)
    bound = _take_smaller_bound(net, other, starts)
    if x is None or not net.batched:
        return bound.log_above(0) if log else bound.above(0)
    found = [bound.log_above(i) if log else bound.above(i) for i in range(len(bound.mantissas))]
    return torch.tensor(found, dtype=torch.float64, device=bound.mantissas.device)


@dataclass(frozen=True)
class _Totals:
    """Totals are a distance for each sample, mantissa · 2^exponent, and how many roundings each is off by at most."""

    mantissas: Tensor
    exponents: Tensor
    roundings: float
    exact: bool = False  # in real arithmetic

    def log_above(self, sample: int) -> float:
        """Return at least the logarithm of the distance in real arithmetic."""
        return log_above(float(self.mantissas[sample]), int(self.exponents[sample]), self.roundings)

    def above(self, sample: int) -> float:
        """Return at least the distance in real arithmetic."""
        raised = float(self.mantissas[sample]) * (1 + (self.roundings + 4) * UNIT * (1 + 2.0**-20))
        value = number(raised, int(self.exponents[sample]), "path_metric")
        # A subnormal number may have been rounded by as much as the smallest one.
        return value if value == 0 or value >= SMALLEST_NORMAL else value + SMALLEST

    def is_below(self, other: _Totals) -> Tensor:
        """Return where this is the smaller of two."""
        return is_smaller(self._normalize(), other._normalize())

    def _normalize(self) -> tuple[Tensor, Tensor]:
        """Return the totals with mantissas in [½, 1), whose exponents alone tell the larger of two."""
        # A total is a sum over outputs and has the exponent of the largest, so that its mantissa may well exceed 1.
        mantissas, shifts = torch.frexp(self.mantissas)
        lowest = torch.iinfo(self.exponents.dtype).min  # of 0, which has no exponent, and is below all others
        return mantissas, torch.where(mantissas == 0, lowest, self.exponents + shifts)


def _take_smaller_bound(net: Network, other: Network, starts: dict[str, Tensor]) -> _Totals:
    """Return the smaller of the bounds before and after aligning scales."""
    batch = len(starts[net.inputs[0]])
    folded = fold_batch_norm(net)
    weights, others = (Weights(each, batch) for each in (folded, fold_batch_norm(other)))
    # An exact distance is invariant under rescaling, so that aligning cannot improve it.
    bound = _compute_distance(folded, weights, others, starts)
    if bound.exact:
        return bound
    aligned = _compute_aligned_distance(folded, weights, other, starts)
    if aligned is None:
        return bound
    # Sample by sample: which of the two is sharper depends on the input.
    smaller = aligned.is_below(bound)
    mantissas = torch.where(smaller, aligned.mantissas, bound.mantissas)
    exponents = torch.where(smaller, aligned.exponents, bound.exponents)
    return _Totals(mantissas, exponents, max(aligned.roundings, bound.roundings))


def _check(net: Network, other: Network) -> None:
    check_same_graph(net, other, "path_metric")
    _check_indices(net, other)
    require(net, Capability.LIPSCHITZ, "path_metric")
    net.check_finite()
    other.check_finite()


def _check_indices(net: Network, other: Network) -> None:
    """Raise InvalidInput where tensors that say where data goes differ: they are no weights."""
    mine, theirs = FixedValues(net, dtype=torch.float64), FixedValues(other, dtype=torch.float64)
    tensors = {**net.params, **net.constants}
    for name in net.weights_of_data_nodes:
        if name in tensors and tensors[name].is_floating_point():
            continue
        value = mine[name]
        if not is_weight(value) and not torch.equal(value, theirs[name]):
            raise InvalidInput(f"path_metric compares weights of one graph, but the indices '{name}' differ")


def _choose_starts(net: Network, x: Tensor | tuple[Tensor, ...] | None) -> dict[str, Tensor]:
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
    """A relation says whether a sign of two networks' weights differs, and whether the other's are nowhere larger, or
    smaller.
    """

    flips: bool
    shrinks: bool
    grows: bool

    @property
    def dominated(self) -> bool:
        return not self.flips and (self.shrinks or self.grows)


def _relate(weights: Signed, others: Signed) -> _Relation:
    shrinks = grows = True
    # A single flipped sign decides: the way through θ'' is taken, and how the sizes compare no longer matters.
    for name, weight in weights.items():
        if not is_weight(weight):
            continue
        other = others[name]
        if bool(_find_flips(weight, other).any()):
            return _Relation(True, False, False)
        shrinks = shrinks and bool((other.abs() <= weight.abs()).all())
        grows = grows and bool((other.abs() >= weight.abs()).all())
    return _Relation(False, shrinks, grows)


def _find_flips(weight: Tensor, other: Tensor) -> Tensor:
    """Return where signs differ; a product of the weights themselves would underflow."""
    return weight.sign() * other.sign() < 0


class _Between(Mapping[str, Any]):
    """θ'' has the weights of one network, with those set to zero whose sign differs in the other."""

    def __init__(self, weights: Weights, others: Weights) -> None:
        self.net, self.weights, self.others = weights.net, weights, others

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, name: str) -> Any:
        return self._zero_flipped(name, self.weights[name])

    def above(self, name: str) -> Any:
        """Return at least the exact magnitudes."""
        return self._zero_flipped(name, self.weights.above(name))

    def allowance(self, name: str) -> Tensor | None:
        """Return at least |computed − exact|; None where they are the same."""
        allowance = self.weights.allowance(name)
        return None if allowance is None else self._zero_flipped(name, allowance)

    def bound_removed(self, name: str) -> Any:
        """Return at least the magnitudes of what was set to zero."""
        value = self.weights.above(name)
        # θ − θ'' is θ itself where a sign flips and exactly zero elsewhere: subtracting would bring both allowances in.
        return value.where(self.flips(name), 0.0) if is_weight(value) else value

    def flips(self, name: str) -> Tensor:
        """Return where signs differ."""
        return _find_flips(self.weights[name], self.others[name])

    def _zero_flipped(self, name: str, value: Any) -> Any:
        return value.masked_fill(self.flips(name), 0.0) if is_weight(value) else value


Signed = Weights | _Between


def _weight_difference(mine: Signed, theirs: Signed, name: str) -> Any:
    """Return at least |θ − θ'|, exactly; all zero where both are computed from equal parameters."""
    if isinstance(theirs, _Between) and theirs.weights is mine:
        return theirs.bound_removed(name)
    weight = mine[name]
    if not is_weight(weight):
        return weight
    # Rounding allowances of two equal computations would leave a distance between equal networks.
    if _have_same_sources(mine, theirs, name):
        return torch.zeros_like(weight)
    apart: Tensor = weight.sub_(theirs[name]).abs_()
    for each in (mine, theirs):
        allowance = each.allowance(name)
        if allowance is not None:
            apart.add_(allowance)
    return apart


def _have_same_sources(mine: Signed, theirs: Signed, name: str) -> bool:
    """Return whether a computed weight comes from parameters that are equal, so that it is equal but for rounding."""
    if name not in mine.net.node:
        return False  # a parameter itself: the difference says it
    tensors = [{**each.net.params, **each.net.constants} for each in (mine, theirs)]
    return all(torch.equal(tensors[0][source], tensors[1][source]) for source in stored_sources(mine.net, name))


def _compute_distance(net: Network, weights: Weights, others: Weights, starts: dict[str, Tensor]) -> _Totals:
    """Return the bound for each sample, through θ'' where signs differ."""
    relation = _relate(weights, others)
    if not relation.flips:
        return _sum_outputs(net, [_compute_distances(net, weights, others, relation, starts)], relation.dominated)
    # θ → θ'' only removes coordinates, and θ'' → θ' flips no sign: each leg is a case the recursion is sharp for, and
    # the triangle inequality adds them up.
    between = _Between(weights, others)
    there = _compute_distances(net, weights, between, _Relation(False, shrinks=True, grows=False), starts)
    rest = _compute_distances(net, between, others, _relate(between, others), starts)
    return _sum_outputs(net, [there, rest], exact=False)


def _compute_distances(
    net: Network, weights: Signed, others: Signed, relation: _Relation, starts: dict[str, Tensor]
) -> dict[str, Scaled]:
    """Run the recursion of `path_metric` on streams D, M', M. Where one network dominates, the smaller's is enough."""
    # The distance is symmetric, and the split with the dominated network's M' is the exact one: it becomes the second.
    if relation.grows and not relation.shrinks:
        weights, others = others, weights
    one_sided = relation.dominated
    adding = find_adding_nodes(net, weights, others)

    def step(node: Node, lookups: Sequence[Lookup]) -> list[Scaled]:
        distance, m_other, *m = lookups
        fixed = [name for name in node.references if name not in net.carries_data]
        apart = {name: _weight_difference(weights, others, name) for name in fixed}
        mine = Operation(net, node, {name: weights.above(name) for name in fixed})
        theirs = Operation(net, node, {name: others.above(name) for name in fixed})
        moved = Operation(net, node, apart)
        differs = any(is_weight(value) and bool(value.any()) for value in apart.values())
        adds = node.name in adding

        # wu − w'u' = w(u − u') + (w − w')u'. The other split, w'(u − u') + (w − w')u, is valid as well, and the smaller
        # of the two is taken neuron by neuron. A bias does not multiply a distance, hence no addition in the first
        # term.
        new_distance = mine.magnitude(distance, False)
        if differs:
            new_distance = new_distance + moved.change(m_other, adds)
        if differs and not one_sided:
            reverse = theirs.magnitude(distance, False) + moved.change(m[0], adds)
            new_distance = new_distance.minimum(reverse)
        new_m = [mine.magnitude(each, adds) for each in m]
        # The minimum, too, is a bound for each neuron, which is why it may be taken before the next layer reads it.
        return [new_distance, theirs.magnitude(m_other, adds), *new_m]

    nothing = {name: torch.zeros_like(value) for name, value in starts.items()}
    streams = [nothing, starts] if one_sided else [nothing, starts, starts]
    return walk(net, streams, step)[0]


def _sum_outputs(net: Network, legs: Sequence[Mapping[str, Scaled]], exact: bool) -> _Totals:
    """Return the sum over all output neurons, and over the legs of the way, for each sample."""
    each = [gather(net, outputs) for outputs in legs]
    mantissas, exponents = torch.cat([leg[0] for leg in each], 1), torch.cat([leg[1] for leg in each], 1)
    # Neurons have exponents of their own; in units of the largest one, those that vanish are below a rounding of the
    # sum.
    top = exponents.amax(1)
    # (samples, neurons of all outputs and legs): ‖·‖₁ over outputs, and the triangle inequality over legs, are one sum.
    total = (mantissas * powers_of_two(exponents - top[:, None])).sum(1)
    roundings = max(leg[2] for leg in each) + mantissas.shape[1]
    return _Totals(total, top.where(total > 0, 0), roundings, exact)


def _compute_aligned_distance(
    folded: Network, weights: Weights, other: Network, starts: dict[str, Tensor]
) -> _Totals | None:
    """Return the bound after scaling `other` to match `folded`, layer by layer, which does not change its function."""
    scales = symmetries(other.to(torch.float64))

    def match_scale(layer: Layer, weight: Tensor, bias: Tensor | None) -> Tensor:
        # The scale of a neuron is free, so the one that brings its weights closest to those of `net` is chosen. Any
        # scale gives a valid bound; this one makes two differently scaled copies of a network a distance of zero apart.
        want, want_bias = layer_weights(folded, layer, weights)
        unit = weight.abs().max().clamp(min=torch.finfo(torch.float64).tiny)  # so that no square overflows
        weight, bias = weight / unit, None if bias is None else bias / unit
        meeting = layer.sum_into_outputs((want * weight).abs())
        size = layer.sum_into_outputs(weight**2 * (want != 0))
        if bias is not None and want_bias is not None:
            meeting, size = meeting + (want_bias * bias).abs(), size + bias**2 * (want_bias != 0)
        # Least squares on magnitudes where both are non-zero: exactly 1 between a layer and a pruned copy of it.
        return torch.where(meeting > 0, meeting / size / unit, math.inf)

    chosen, _ = choose_scales(scales, match_scale)
    # Any scales will do. These are far from where their quotients would underflow.
    matched = scales.apply(chosen.clamp(2.0**-500, 2.0**500))
    if not _stays_normal(scales.net, matched):
        return None
    # Each time that a parameter is rescaled it is rounded: an inverse, a quotient and a product.
    times = Counter(rescaling.param for rescaling in scales.rescalings)
    rescaled = Weights(
        fold_batch_norm(matched), len(starts[folded.inputs[0]]), roundings=4.0 * max(times.values(), default=0)
    )
    return _compute_distance(folded, weights, rescaled, starts)


def _stays_normal(before: Network, after: Network) -> bool:
    """Return whether rescaling has moved no parameter out of float64's range of normal numbers."""
    for name, value in before.params.items():
        if value.is_floating_point():
            moved = after.params[name]
            lost = (value != 0) & (moved.abs() < SMALLEST_NORMAL) & (moved != value)
            if bool(lost.any()) or not bool(torch.isfinite(moved).all()):
                return False
    return True
