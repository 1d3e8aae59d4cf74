"""Linear bounds of the difference of two networks are carried backward from its outputs to the box of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tamis.bounds.box_backward import Backward, find_batch_axes
from tamis.bounds.interval import Interval, check_boxes
from tamis.bounds.interval_pointwise import find_function
from tamis.bounds.joint_interval import Joint, Pair, Sizes, find_hull_slopes, joint_interval, pass_through
from tamis.graph import Network, Node

TIGHTENING = 4_000_000  # intermediate bounds are tightened while neurons × neurons before them stay below this


def linear_relaxation(net: Network, other: Network, boxes: Mapping[str, Interval] | Interval) -> list[Interval]:
    """Compute an interval of R_θ'(x) − R_θ(x) for every output neuron, over a box of inputs x, from linear bounds.

    An output difference is carried backward as Σ_v a_v z_v + Σ_v c_v d_v + constant, over neurons z_v of `net` and
    differences d_v = z'_v − z_v. Affine operations are passed exactly: from d_out = W' d + (W' − W) z + (b' − b)

        c_in = W'ᵀ c,    a_in = Wᵀ a + (W' − W)ᵀ c,    constant += a·b + c·(b' − b).

    Functions of one neuron are replaced by lines above or below them, as the sign of the coefficient asks: f(z) by
    lines in z, f(z') − f(z) by lines in d, or in z and d where that is tighter. Maxima are replaced by their joint
    intervals. At the inputs d = 0, and a·x is largest at a corner of the box. What both networks share cancels in the
    coefficients, which no interval can do; networks that are equal give exactly zero. The intervals that lines
    need come from `joint_interval`; in small networks they are tightened neuron by neuron in the same way.

    Args:
        net: a network.
        other: the same graph with other parameters.
        boxes: the box, or one for each input by name; a batch of boxes where the network has a batch dimension.

    Returns:
        One `Interval` for each output of the network, never wider than that of `joint_interval`; an end that leaves
        float64's range is infinite, and says nothing.

    Raises:
        UnsupportedOp: an operation is neither affine, nor monotone, nor a maximum.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> x = torch.zeros(1, 2, dtype=torch.float64)
        >>> linear_relaxation(net, net, Interval(x - 0.01, x + 0.01))[0].size.amax().item()
        0.0

    Reference: zhang2018crown.
    """
    boxes = check_boxes(net, boxes)
    if not net.batched:
        return _relax_one_box(net, other, boxes)
    count = len(boxes[net.inputs[0]].low)
    if not count:
        return joint_interval(net, other, boxes)
    # One box at a time: rows of the batch axis are taken by the functions that are carried backward.
    each = [
        _relax_one_box(
            net, other, {name: Interval(box.low[i : i + 1], box.high[i : i + 1]) for name, box in boxes.items()}
        )
        for i in range(count)
    ]
    return [
        Interval(torch.cat([one.low for one in parts]), torch.cat([one.high for one in parts]))
        for parts in zip(*each, strict=True)
    ]


def _relax_one_box(net: Network, other: Network, boxes: Mapping[str, Interval]) -> list[Interval]:
    pair = Pair.of(net, other)
    axes = find_batch_axes(pair, boxes) if net.batched else None

    values: dict[str, Any] = {}
    sizes: dict[str, Sizes] = {}
    backward = Backward(pair, values, sizes, axes)
    # `values` fills up while the pass runs, so that `backward` finds all that came before a function in it.
    pass_through(pair, boxes, values, sizes, lambda node, x: _tighten(node, x, backward))
    # Both intervals hold, so their intersection does: that is why this is never wider than `joint_interval`.
    return [values[name].apart & backward.apart(name) for name in pair.net.output_names]


def _tighten(node: Node, x: Joint, backward: Backward) -> Joint:
    """Narrow what a function of one neuron reads by backward passes, for the neurons where its slope is not known."""
    name = node.arguments["self"].name
    smallest, largest = find_hull_slopes(find_function(node), x)
    open_neurons = (smallest != largest).flatten().nonzero().flatten()
    # Where the smallest slope is the largest one, the function is a line already and narrower intervals gain nothing.
    # The others cost one row each, over all neurons before them.
    before = sum(each.mine.low.numel() for each in backward.values.values() if isinstance(each, Joint))
    if name in backward.pair.net.inputs or not 0 < len(open_neurons) * before <= TIGHTENING:
        return x
    narrower = Joint(
        backward.mine(name, open_neurons),
        backward.reverse.mine(name, open_neurons),
        backward.apart(name, open_neurons),
    )
    return Joint(x.mine & narrower.mine, x.other & narrower.other, x.apart & narrower.apart).intersect()
