"""Interval propagation gives every neuron an interval that holds its values on a whole box of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import down, up
from tamis.bounds.interval_affine import apply_linear, apply_magnitudes, interval_rule, rounding, size_of, widen_around
from tamis.bounds.interval_pointwise import find_function
from tamis.bounds.weight_intervals import WeightIntervals
from tamis.errors import InvalidInput
from tamis.graph import Network, Node, fold_batch_norm
from tamis.graph.ops import IntervalRule, describe
from tamis.paths import Weights


@dataclass(frozen=True)
class Interval:
    """An interval says low ≤ v ≤ high, entry by entry, in float64; an infinite end says nothing."""

    low: Tensor
    high: Tensor

    @property
    def centre(self) -> Tensor:
        """Return the middle, as far as float64 has it; of an infinite interval its finite end, or zero."""
        total = self.low + self.high
        if bool(total.isfinite().all()):
            return total / 2
        low = torch.where(self.low.isfinite(), self.low, torch.where(self.high.isfinite(), self.high, 0.0))
        high = torch.where(self.high.isfinite(), self.high, low)
        # Two large finite ends may have a sum that overflows; their halves have one that does not.
        return torch.where(total.isfinite(), total / 2, low / 2 + high / 2)

    @property
    def radius(self) -> Tensor:
        """Return the distance from the centre to the farther end; what this rounds is part of `rounding`."""
        centre = self.centre
        return torch.maximum(self.high - centre, centre - self.low)

    @property
    def size(self) -> Tensor:
        """Return the largest magnitude of a value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __and__(self, other: Interval) -> Interval:
        """Return the interval of what lies in both."""
        return Interval(torch.maximum(self.low, other.low), torch.minimum(self.high, other.high))

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high).widen()

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def widen(self) -> Interval:
        """Widen the interval by what one sum rounds: nothing where an end is zero."""
        return Interval(down(self.low), up(self.high))


def interval(net: Network, boxes: Mapping[str, Interval] | Interval) -> list[Interval]:
    """Compute an interval for every output neuron of a network, over all inputs of a box.

    Affine operations map a box's centre to the centre and its radius r to |W| r; functions of one neuron and maxima
    map end points to end points; operations that only move neurons run on both ends. The intervals hold what the
    network computes in exact arithmetic from its parameters as they are stored, at any scale: every affine operation
    widens its result by what float64 may round, n·u·(|W||x| + |b|) for sums of n terms, and by what may underflow. An
    end that leaves float64's range is infinite, and says nothing (docs/rounding.md).

    Args:
        net: a network.
        boxes: the box, or one for each input by name; a batch of boxes where the network has a batch dimension.

    Returns:
        One `Interval` for each output of the network.

    Raises:
        UnsupportedOp: an operation is neither affine, nor monotone, nor a maximum.

    Example:
        >>> net = tamis.trace(nn.Linear(2, 1, bias=False), torch.zeros(1, 2))
        >>> net = net.with_params({"weight": torch.tensor([[1.0, -2.0]])})
        >>> x = torch.zeros(1, 2, dtype=torch.float64)
        >>> round(interval(net, Interval(x - 0.01, x + 0.01))[0].high.item(), 6)
        0.03

    Reference: paulsen2020reludiff.
    """
    boxes = check_boxes(net, boxes)
    net.check_finite()
    # This also writes out a batch-norm that no layer precedes, so that no step below meets one.
    folded = fold_batch_norm(net)
    weights = Weights(folded, _count_samples(net, boxes))
    values: dict[str, Any] = dict(boxes)
    finished = dict(zip((node.name for node in folded.nodes), folded.finished_after, strict=True))
    for node in folded.data_nodes:
        fixed = [name for name in node.references if name not in folded.carries_data]
        values[node.name] = step(folded, node, values.__getitem__, WeightIntervals.of(weights, fixed))
        # What nobody reads any more is dropped, so that memory holds a cut through the graph and not all of it.
        for name in finished[node.name]:
            values.pop(name, None)
    return [values[name] for name in folded.output_names]


def check_boxes(net: Network, boxes: Mapping[str, Interval] | Interval) -> Mapping[str, Interval]:
    """Return boxes by the names of inputs; raise InvalidInput unless they are the network's and hold numbers with
    low ≤ high.

    A network with an output that does not depend on an input raises it, too.
    """
    boxes = {net.inputs[0]: boxes} if isinstance(boxes, Interval) else boxes
    for name in net.output_names:
        if name not in net.carries_data:
            raise InvalidInput(f"a box needs every output to depend on an input: '{name}' does not")
    if set(boxes) != set(net.inputs):
        raise InvalidInput(f"the network has the inputs {list(net.inputs)}, got boxes for {sorted(boxes)}")
    net.check_inputs(tuple(boxes[name].low for name in net.inputs))
    for name, box in boxes.items():
        if box.low.shape != box.high.shape or box.low.dtype != torch.float64 or box.high.dtype != torch.float64:
            raise InvalidInput(
                f"the box of '{name}' needs two float64 tensors of one shape, got {box.low.dtype} "
                f"{tuple(box.low.shape)} and {box.high.dtype} {tuple(box.high.shape)}"
            )
        # An end may be infinite on its own side. NaN fails every comparison, and so is counted as wrong.
        wrong = int((~((box.low <= box.high) & (box.low < torch.inf) & (box.high > -torch.inf))).sum())
        if wrong:
            raise InvalidInput(f"the box of '{name}' has {wrong} entries that are not numbers with low ≤ high")
    return boxes


def step(net: Network, node: Node, data: Callable[[str], Any], weights: WeightIntervals) -> Any:
    """Compute one node's interval, or a list of them where it has several results."""
    rule = interval_rule(net, node, "interval")
    if rule is IntervalRule.AFFINE:
        return affine(net, node, data, weights)[0]
    if rule is IntervalRule.POINTWISE:
        x = data(node.arguments["self"].name)
        return Interval(*find_function(node).extremes(x.low, x.high))
    return run_ends(net, node, data, weights)


def affine(
    net: Network, node: Node, data: Callable[[str], Interval], weights: WeightIntervals
) -> tuple[Interval, Tensor]:
    """Map the centre to the centre and the radius by |W|, widened by what is lost.

    The second result is |W||x| + |b|, the size that the loss is relative to.
    """
    # The bias belongs to the centre alone: the radius is passed with `one` = 0.
    centre = apply_linear(net, node, lambda name: data(name).centre, weights.values)
    # |W(x − m)| ≤ |W| r for all |x − m| ≤ r, and equality is reached at a corner: for one affine map the interval is
    # exact.
    radius = apply_magnitudes(net, node, lambda name: data(name).radius, weights.values, 0.0)
    # Rounding is relative to the terms of the sums, not to their result, in which they may cancel.
    size = size_of(net, node, lambda name: data(name).centre.abs() + data(name).radius, weights, 1.0)
    return Interval(*widen_around(centre, radius + rounding(net, node, weights.values) * size)), size


def run_ends(net: Network, node: Node, data: Callable[[str], Any], weights: WeightIntervals) -> Any:
    """Run an operation that never decreases in any argument on both ends."""
    if describe(node).picks_result:
        return data(node.args[0].name)[node.args[1]]
    fixed = [name for name in node.references if name not in net.carries_data]
    # Fixed entries, such as what a concatenation appends, may be computed weights with errors: each end takes its own.
    low, high = ({name: weights.end(name, sign) for name in fixed} for sign in (-1, 1))
    return join_ends(
        apply_linear(net, node, lambda name: data(name).low, low),
        apply_linear(net, node, lambda name: data(name).high, high),
    )


def join_ends(low: Any, high: Any) -> Any:
    """Join ends to intervals; of several results those that are numbers, not indices."""
    if isinstance(low, (list, tuple)):
        return [join_ends(a, b) for a, b in zip(low, high, strict=True)]
    # Indices of a maximum on low ends are not those on high ends; nobody may read them as an interval.
    return Interval(low, high) if isinstance(low, Tensor) and low.is_floating_point() else None


def _count_samples(net: Network, boxes: Mapping[str, Interval]) -> int:
    return len(boxes[net.inputs[0]].low) if net.batched else 1
