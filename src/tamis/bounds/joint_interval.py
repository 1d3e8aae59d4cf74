"""Differential intervals pass the neurons of two networks and their differences through the graph together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import multiply_down, multiply_up, rounding_of
from tamis.bounds.interval import Interval, affine, check_boxes, join_ends, run_ends
from tamis.bounds.interval_affine import (
    apply_linear,
    apply_magnitudes,
    interval_rule,
    multiplies,
    rounding,
    size_of,
    widen_around,
)
from tamis.bounds.interval_pointwise import PiecewiseLinear, Pointwise, find_function
from tamis.bounds.weight_intervals import WeightIntervals
from tamis.errors import InvalidInput
from tamis.graph import FixedValues, Network, Node, check_same_graph, fold_batch_norm, is_shape_arithmetic
from tamis.graph.ops import Call, IntervalRule, describe
from tamis.paths import Weights, is_weight, stored_sources


@dataclass(frozen=True)
class Joint:
    """A joint interval holds a neuron's value z in one network, z' in the other, and d = z' − z."""

    mine: Interval
    other: Interval
    apart: Interval

    def swap(self) -> Joint:
        """Return the same with the networks in each other's place."""
        return Joint(self.other, self.mine, -self.apart)

    def intersect(self) -> Joint:
        """Cut each of the three intervals to what the two others allow."""
        # d is cut first, since its interval then cuts the two others. Each of these sums is rounded outward.
        apart = self.apart & (self.other - self.mine)
        return Joint(self.mine & (self.other - apart), self.other & (self.mine + apart), apart)


@dataclass(frozen=True)
class Sizes:
    """These are the operations on magnitudes (`size_of`), which rounding is relative to at an affine node.

    They are |W||z| + |b| in either network, |W'||d| + |W' − W||z| + |b' − b|, and the same with the networks swapped.
    """

    mine: Tensor
    other: Tensor
    apart: Tensor
    reverse: Tensor

    def swap(self) -> Sizes:
        return Sizes(self.other, self.mine, self.reverse, self.apart)


@dataclass(frozen=True)
class Pair:
    """A pair is two networks of one graph, batch-norms folded, and the weights that their data meets.

    `between` holds W' − W; what both share is not in it.
    """

    net: Network
    net_other: Network
    mine: WeightIntervals
    other: WeightIntervals
    between: WeightIntervals

    @property
    def inexact(self) -> set[str]:
        """Return the weights that float64 does not have exactly, in one network or the other."""
        return {*self.mine.errors, *self.other.errors}

    @classmethod
    def of(cls, net: Network, other: Network, batch: int = 1) -> Pair:
        """Pair two networks of one graph, with sizes and expanded weights for one batch size."""
        check_pair(net, other)
        return cls._pair_folded(fold_batch_norm(net), fold_batch_norm(other), batch)

    @classmethod
    def _pair_folded(cls, net: Network, other: Network, batch: int) -> Pair:
        mine, theirs = (
            WeightIntervals.of(weights, weights) for weights in (Weights(net, batch), Weights(other, batch))
        )
        between: dict[str, Tensor] = {}
        for name, value in mine.values.items():
            # Weights that float64 computes to be equal may differ: only what they are computed from tells.
            if not isinstance(value, Tensor) or _are_stored_alike(net, other, name):
                continue
            if not is_weight(value):
                raise InvalidInput(f"the two networks must differ in their weights only, the indices '{name}' differ")
            between[name] = theirs.values[name] - value
        inexact = [name for name in between if name in mine.errors or name in theirs.errors]
        errors = {name: mine.error(name) + theirs.error(name) for name in inexact}
        return cls(net, other, mine, theirs, WeightIntervals(between, errors))

    def for_batch(self, batch: int) -> Pair:
        """Return the same networks for another batch size."""
        if any(_is_sized(self.net, name) for name in self.net.weights_of_data_nodes):
            return self._pair_folded(self.net, self.net_other, batch)
        # No weight depends on sizes, so the weights are kept; only the sizes themselves are those of the new batch.
        sizes = FixedValues(self.net, batch)
        mine, other = (
            WeightIntervals({n: v if isinstance(v, Tensor) else sizes[n] for n, v in each.values.items()}, each.errors)
            for each in (self.mine, self.other)
        )
        return Pair(self.net, self.net_other, mine, other, self.between)

    def swap(self) -> Pair:
        """Return the same with the networks in each other's place."""
        # W − W' is rounded to exactly minus what W' − W is, so the errors stay the same.
        between = WeightIntervals({name: -value for name, value in self.between.values.items()}, self.between.errors)
        return Pair(self.net_other, self.net, self.other, self.mine, between)

    def changes(self, node: Node) -> WeightIntervals | None:
        """Return W' − W for what a node reads, zero where it is shared; None where all of it is."""
        fixed = [name for name in node.references if name not in self.net.carries_data]
        between = self.between.values
        if not any(name in between for name in fixed):
            return None
        values = {name: self.mine.values[name] for name in fixed}
        values = {n: between.get(n, torch.zeros_like(v)) if is_weight(v) else v for n, v in values.items()}
        return WeightIntervals(
            values, {name: self.between.errors[name] for name in fixed if name in self.between.errors}
        )


def _is_sized(net: Network, name: str) -> bool:
    """Return whether a fixed value depends on sizes, and so perhaps on that of the batch."""
    node = net.node.get(name)
    return node is not None and (
        is_shape_arithmetic(node.target) or any(_is_sized(net, each) for each in node.references)
    )


def _are_stored_alike(net: Network, other: Network, name: str) -> bool:
    """Return whether two networks compute a fixed value from the same stored numbers."""
    stored, theirs = ({**each.params, **each.constants} for each in (net, other))
    return all(torch.equal(stored[each], theirs[each]) for each in stored_sources(net, name))


Data = Callable[[str], Any]
Tighten = Callable[[Node, Joint], Joint]


def joint_interval(net: Network, other: Network, boxes: Mapping[str, Interval] | Interval) -> list[Interval]:
    """Compute an interval of R_θ'(x) − R_θ(x) for every output neuron, over all inputs x of a box.

    Each neuron has intervals of z, z' and d = z' − z. An affine operation gives

        d_out = W' d + (W' − W) z + (b' − b) = W d + (W' − W) z' + (b' − b),

    so that what both networks share cancels; a function f whose slopes on z and z' lie in [m, M] gives d_out between
    the smallest and the largest of m d and M d. All are cut to what follows from z and z' alone, and for rising
    piecewise linear f to the exact range. Networks that are equal give exactly zero; an end that leaves float64's range
    is infinite, and says nothing.

    Args:
        net: a network.
        other: the same graph with other parameters.
        boxes: the box, or one for each input by name; a batch of boxes where the network has a batch dimension.

    Returns:
        One `Interval` for each output of the network.

    Raises:
        UnsupportedOp: an operation is neither affine, nor monotone, nor a maximum.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> x = torch.zeros(1, 2, dtype=torch.float64)
        >>> joint_interval(net, net, Interval(x - 0.01, x + 0.01))[0].size.amax().item()
        0.0

    Reference: paulsen2020reludiff.
    """
    boxes = check_boxes(net, boxes)
    pair = Pair.of(net, other, len(boxes[net.inputs[0]].low) if net.batched else 1)
    values: dict[str, Any] = {}
    pass_through(pair, boxes, values, {})
    return [values[name].apart for name in pair.net.output_names]


def pass_through(
    pair: Pair,
    boxes: Mapping[str, Interval],
    values: dict[str, Any],
    sizes: dict[str, Sizes],
    tighten: Tighten | None = None,
) -> None:
    """Put the joint intervals of all names into `values`, and what rounding is relative to into `sizes`.

    `tighten` may narrow what a function of one neuron reads, given all that came before it. Without it, what nobody
    needs any more is taken out again.
    """
    net = pair.net
    for name in net.inputs:
        nothing = torch.zeros_like(boxes[name].low)
        values[name] = Joint(boxes[name], boxes[name], Interval(nothing, nothing))
    finished = dict(zip((node.name for node in net.nodes), net.finished_after, strict=True))
    for node in net.data_nodes:
        rule = interval_rule(net, node, "joint_interval")
        if rule is IntervalRule.AFFINE:
            values[node.name], sizes[node.name] = _pass_affine(pair, node, values.__getitem__)
        elif rule is IntervalRule.POINTWISE:
            read = node.arguments["self"].name
            # Written back, so that other readers of the same neurons have the narrower interval, too.
            if tighten:
                values[read] = tighten(node, values[read])
            values[node.name] = _apply_pointwise(node, values[read])
        else:
            values[node.name] = (_pass_moves if rule is IntervalRule.MOVING else _pass_selection)(
                pair, node, values.__getitem__
            )
        for name in () if tighten else finished[node.name]:
            values.pop(name, None)
            sizes.pop(name, None)


def _pass_affine(pair: Pair, node: Node, data: Data) -> tuple[Joint, Sizes]:
    mine, mine_size = affine(pair.net, node, lambda name: data(name).mine, pair.mine)
    other, other_size = affine(pair.net, node, lambda name: data(name).other, pair.other)
    apart, apart_size = _compute_difference(pair, node, data)
    # The two forms of d_out are equal, but their intervals are not: the first uses z and W', the second z' and W.
    reverse, reverse_size = _compute_difference(pair.swap(), node, lambda name: data(name).swap())
    sizes = Sizes(mine_size, other_size, apart_size, reverse_size)
    return Joint(mine, other, apart & -reverse).intersect(), sizes


def _compute_difference(pair: Pair, node: Node, data: Data) -> tuple[Interval, Tensor]:
    """Compute W' d + (W' − W) z + (b' − b), and its value on magnitudes."""
    # b' − b comes with the changes alone: W' d takes the linear part, without the bias.
    net, other, changes = pair.net, pair.other, pair.changes(node)
    centre = apply_linear(net, node, lambda name: data(name).apart.centre, other.values, bias=False)
    radius = apply_magnitudes(net, node, lambda name: data(name).apart.radius, other.values, 0.0)
    size = size_of(net, node, lambda name: _reach(data(name).apart), other, 0.0)
    if changes is not None:
        # A node that only adds its parameters does not pass z on to their difference.
        through = (lambda z: z) if multiplies(net, node) else torch.zeros_like
        centre = centre + apply_linear(net, node, lambda name: through(data(name).mine.centre), changes.values)
        radius = radius + apply_magnitudes(net, node, lambda name: through(data(name).mine.radius), changes.values, 0.0)
        size = size + size_of(net, node, lambda name: through(_reach(data(name).mine)), changes, 1.0)
    # Twice, since W' − W is rounded itself and two sums are added.
    return Interval(*widen_around(centre, radius + 2 * rounding(net, node, other.values) * size)), size


def _reach(x: Interval) -> Tensor:
    """Return how far from zero an interval goes, as its centre and radius have it."""
    return x.centre.abs() + x.radius


def _pass_moves(pair: Pair, node: Node, data: Data) -> Any:
    net, changes = pair.net, pair.changes(node)
    if describe(node).picks_result:
        return data(node.args[0].name)[node.args[1]]
    mine = run_ends(net, node, lambda name: data(name).mine, pair.mine)
    other = run_ends(net, node, lambda name: data(name).other, pair.other)
    if changes is not None:
        return _join(mine, other, run_ends(net, node, lambda name: data(name).apart, changes))
    # Fixed entries that both networks share are zero in the difference, as is what padding fills in.
    low = apply_linear(net, node, lambda name: data(name).apart.low, pair.mine.values, bias=False)
    high = apply_linear(net, node, lambda name: data(name).apart.high, pair.mine.values, bias=False)
    return _join(mine, other, join_ends(low, high))


def _join(mine: Any, other: Any, apart: Any) -> Any:
    if isinstance(mine, list):
        return [_join(*each) for each in zip(mine, other, apart, strict=True)]
    # Moving rounds nothing, but with fixed entries that differ their W' − W was rounded once.
    return None if mine is None else Joint(mine, other, apart.widen())


def _pass_selection(pair: Pair, node: Node, data: Data) -> Any:
    """Pass order statistics, which differ by no more than the largest and no less than the smallest difference."""
    net = pair.net
    everything = net.carries_data | set(node.references)

    def value(name: str) -> Joint:
        if name in net.carries_data:
            joint: Joint = data(name)
            return joint
        # What is fixed takes part in the selection as well, so it needs a joint interval, too.
        mine, other = (Interval(each.end(name, -1), each.end(name, 1)) for each in (pair.mine, pair.other))
        nothing = torch.zeros_like(mine.low)
        return Joint(mine, other, other - mine if name in pair.between.values else Interval(nothing, nothing))

    def run(part: Callable[[Joint], Tensor], reach: bool) -> Tensor:
        call = Call(node, lambda name: part(value(name)), everything)
        # `reach` of these operations is a maximum over what they select from, whatever the signs.
        result = describe(node).reach(call) if reach else call.run()
        first: Tensor = result[0] if isinstance(result, (list, tuple)) else result
        return first

    mine = Interval(run(lambda j: j.mine.low, False), run(lambda j: j.mine.high, False))
    other = Interval(run(lambda j: j.other.low, False), run(lambda j: j.other.high, False))
    # `reach` has no minimum: the smallest difference is minus the largest of the negatives.
    apart = Interval(-run(lambda j: -j.apart.low, True), run(lambda j: j.apart.high, True))
    joint = Joint(mine, other, apart).intersect()
    return joint if node.shape is not None else [joint, None]


def _apply_pointwise(node: Node, x: Joint) -> Joint:
    function = find_function(node)
    mine, other = (Interval(*function.extremes(each.low, each.high)) for each in (x.mine, x.other))
    apart = bound_by_slopes(function, x)
    if isinstance(function, PiecewiseLinear) and function.rises:
        # The slopes hold for any z, z' of the hull; the exact range also uses that each lies in its own interval.
        apart = apart & _compute_exact_range(function, x)
    return Joint(mine, other, apart).intersect()


def find_hull_slopes(function: Pointwise, x: Joint) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest slope on all values of both networks."""
    return function.slopes(torch.minimum(x.mine.low, x.other.low), torch.maximum(x.mine.high, x.other.high))


def bound_by_slopes(function: Pointwise, x: Joint) -> Interval:
    """Bound f(z') − f(z) = s d with a slope s between the smallest and the largest."""
    # A product of two intervals has its extremes at their corners.
    factors = [(slope, end) for slope in find_hull_slopes(function, x) for end in (x.apart.low, x.apart.high)]
    low, high = ([product(*each) for each in factors] for product in (multiply_down, multiply_up))
    return Interval(reduce(torch.minimum, low), reduce(torch.maximum, high))


def _compute_exact_range(function: PiecewiseLinear, x: Joint) -> Interval:
    """Compute the range of f(z') − f(z) for rising f, given the intervals of z, z' and d.

    For one z the largest is f(min(z + high d, high z')) − f(z), which is piecewise linear in z: its maximum lies at
    an end of the possible z or where one of the two changes slope. The smallest is the largest of −d with the networks
    in each other's place.
    """

    def largest(x: Joint) -> Tensor:
        # Possible z are those with a z' = z + d in its own interval.
        most = x.apart.high
        low = torch.maximum(x.mine.low, x.other.low - most)
        high = torch.minimum(x.mine.high, x.other.high - x.apart.low)
        kinks = [torch.full_like(low, kink) for kink in function.kinks]
        turns = [low, high, x.other.high - most, *kinks, *(kink - most for kink in kinks)]
        places = [torch.minimum(torch.maximum(turn, low), high) for turn in turns]
        gaps = [function.run(torch.minimum(z + most, x.other.high)) - function.run(z) for z in places]
        # The two values of f cancel, so what they round is relative to their own size and not to the gap.
        size = x.mine.size + x.other.size + x.apart.size
        found = reduce(torch.maximum, gaps) + 2 * rounding_of(max(1.0, *function.pieces) * size)
        return torch.where(found.isfinite(), found, torch.inf)

    return Interval(-largest(x.swap()), largest(x))


def check_pair(net: Network, other: Network) -> None:
    """Raise InvalidInput where two networks are not one graph with two sets of finite parameters."""
    check_same_graph(net, other, "a bound over a box")
    net.check_finite()
    other.check_finite()
