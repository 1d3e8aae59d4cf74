"""A maximum with the same winner on a whole box only hands one neuron on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.joint_interval import Joint
from tamis.graph import Network, Node
from tamis.graph.ops import Call, describe


@dataclass(frozen=True)
class Winners:
    """`Winners` say where a maximum's winner is known: in the first network, and one winner in both."""

    mine: Tensor
    both: Tensor


def find_winners(net: Network, node: Node, values: Mapping[str, Any]) -> Winners | None:
    """Find the results that one neuron always wins: its lowest value is no less than the highest of all others.

    The answer is None for cases that are left out: another operation, one with something fixed, overlapping windows.
    """
    if any(name not in net.carries_data for name in node.references):
        return None
    x: dict[str, Joint] = {name: values[name] for name in node.references}
    if describe(node).ranks(Call(node, lambda name: x[name].mine.low, tuple(x))) != [("largest", 1)]:
        return None
    # Gradients tell winners apart only where each neuron feeds one result: the gradient of the sum counts these.
    counts = _compute_gradient(node, {name: each.mine.low for name, each in x.items()}, summed=True)
    if any(bool((count > 1).any()) for count in counts.values()):
        return None
    decided, won = [], []
    # Only the neuron that is largest at the low ends can reach the highest of all others with its lowest value.
    for part in ("mine", "other"):
        low, high = ({name: getattr(getattr(each, part), end) for name, each in x.items()} for end in ("low", "high"))
        winner = {name: each == 1 for name, each in _compute_gradient(node, low).items()}
        # Without its winner, the highest that a result can be is that of the others.
        others = {name: each.masked_fill(winner[name], -torch.inf) for name, each in high.items()}
        decided.append(_run(node, low) >= _run(node, others))
        won.append(winner)
    # Known in both networks is not enough for d: it must be the same neuron that wins.
    shared = {name: (won[0][name] & won[1][name]).double() for name in x}
    return Winners(decided[0], decided[0] & decided[1] & (_run(node, shared, summed=True) == 1))


def hand_on(node: Node, values: Mapping[str, Any], shapes: Mapping[str, torch.Size], rows: Tensor) -> dict[str, Tensor]:
    """Turn coefficients of a maximum's results into those of its winners at the low ends of the first network."""
    return _compute_gradient(node, {name: values[name].mine.low.expand(shapes[name]) for name in node.references}, rows)


def _run(node: Node, data: Mapping[str, Tensor], summed: bool = False) -> Tensor:
    """Run the maximum, or the sum over the same entries."""
    call = Call(node, data.__getitem__, tuple(data))
    result = describe(node).magnitude(call, 1, 0.0) if summed else call.run()
    # A maximum along an axis gives its indices as well.
    first: Tensor = result[0] if isinstance(result, (list, tuple)) else result
    return first


def _compute_gradient(
    node: Node, data: Mapping[str, Tensor], rows: Tensor | None = None, summed: bool = False
) -> dict[str, Tensor]:
    # The gradient of a maximum is 1 at its winner and 0 elsewhere: autograd knows every layout of windows and axes,
    # padding and dilation included, so none of them needs a rule here.
    with torch.enable_grad():
        leaves = {name: each.clone().requires_grad_() for name, each in data.items()}
        result = _run(node, leaves, summed)
        grads = torch.autograd.grad(result, list(leaves.values()), torch.ones_like(result) if rows is None else rows)
    return dict(zip(leaves, grads, strict=True))
