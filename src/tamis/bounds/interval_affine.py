"""Affine operations under intervals: their linear part, on magnitudes, transposed; and which operations they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.interval_pointwise import EPS, pointwise_of
from tamis.errors import UnsupportedOp
from tamis.graph.network import Network, Node, Ref, references_in
from tamis.graph.ops import (
    Call,
    Capability,
    capability,
    conv,
    describe,
    linear,
    merge,
    order,
    pointwise,
    pool,
    rearrange,
    upsample,
)
from tamis.paths.scaled import is_weight

Lookup = Callable[[str], Any]
Weights = Mapping[str, Any]


class Kind(Enum):
    """How an operation treats intervals."""

    AFFINE = "affine"
    MOVING = "moving"
    """Each result is a copy of one argument's entry, or fixed: views, slices, padding, concatenation."""
    SELECTING = "selecting"
    """Each result is an order statistic of several entries: pooling by maximum, sorting."""
    POINTWISE = "pointwise"


FAMILIES: dict[type, Kind] = {
    linear.Linear: Kind.AFFINE,
    linear.MatMul: Kind.AFFINE,
    linear.AddMM: Kind.AFFINE,
    linear.Einsum: Kind.AFFINE,
    conv.Conv: Kind.AFFINE,
    conv.ConvTranspose: Kind.AFFINE,
    merge.Add: Kind.AFFINE,
    merge.Multiply: Kind.AFFINE,
    merge.Divide: Kind.AFFINE,
    pool.AvgPool: Kind.AFFINE,
    pool.AdaptiveAvgPool: Kind.AFFINE,
    pool.Reduce: Kind.AFFINE,
    upsample.Upsample: Kind.AFFINE,
    pointwise.Negate: Kind.AFFINE,
    merge.Join: Kind.MOVING,
    rearrange.Rearrange: Kind.MOVING,
    rearrange.Pad: Kind.MOVING,
    rearrange.Pick: Kind.MOVING,
    merge.Maximum: Kind.SELECTING,
    pool.MaxPool: Kind.SELECTING,
    pool.AdaptiveMaxPool: Kind.SELECTING,
    order.Order: Kind.SELECTING,
}


def kind_of(net: Network, node: Node, wanted_by: str) -> Kind:
    """How a node treats intervals; UnsupportedOp where nobody knows."""
    if pointwise_of(node) is not None:
        return Kind.POINTWISE
    kind = FAMILIES.get(type(describe(node)))
    # Padding with any number, and the maximum with a fixed tensor, are no trouble here.
    lenient = isinstance(describe(node), (rearrange.Pad, merge.Maximum))
    if kind is None or (not lenient and capability(net, node) is not Capability.HOMOGENEOUS):
        needed = "affine operations, monotone ones and maxima"
        raise UnsupportedOp(wanted_by, needed, node.op.removesuffix(".default"), node.module)
    return kind


def applied(net: Network, node: Node, data: Lookup, weights: Weights, bias: bool = True) -> Any:
    """The operation on signed data; without `bias` its linear part, everything fixed that it adds set to zero."""
    call = _call(net, node, data, weights)
    if bias:
        return call.run()
    return call.run(**{name: _without_fixed(net, node.arguments[name], data, weights) for name in _added(node)})


def magnified(net: Network, node: Node, data: Lookup, weights: Weights, one: float) -> Tensor:
    """The operation with magnitudes |θ| of its weights on non-negative data, `one` times what it adds included."""
    absolute = {name: value.abs() if is_weight(value) else value for name, value in fixed_of(net, node, weights)}
    result: Tensor = describe(node).magnitude(_call(net, node, data, absolute), 1, one)
    return result


def transposed(
    net: Network, node: Node, weights: Weights, shapes: Mapping[str, torch.Size], cotangents: Any
) -> dict[str, Tensor]:
    """The transpose of the linear part, applied to a result's coefficients: those of the data that the node reads.

    Args:
        shapes: shapes of that data.
        cotangents: a tensor like the result, or for several results a list of tensors and None.
    """
    names = [name for name in node.references if name in net.carries_data]
    example = next(each for each in _listed(cotangents) if each is not None)
    with torch.enable_grad():
        leaves = {name: example.new_zeros(shapes[name]).requires_grad_() for name in names}
        results = _listed(applied(net, node, leaves.__getitem__, weights))
        pairs = [(r, c) for r, c in zip(results, _listed(cotangents), strict=False) if c is not None]
        grads = torch.autograd.grad(
            [r for r, _ in pairs], [leaves[name] for name in names], [c for _, c in pairs], allow_unused=True
        )
    return {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}


def fixed_of(net: Network, node: Node, weights: Weights) -> list[tuple[str, Any]]:
    """What a node reads that does not depend on the input."""
    return [(name, weights[name]) for name in node.references if name not in net.carries_data]


def multiplies(net: Network, node: Node) -> bool:
    """Whether a fixed tensor multiplies data in a node, rather than being added to it."""
    met = (node.arguments.get(argument) for argument in describe(node).multipliers)
    return any(name not in net.carries_data for name in references_in(tuple(met)))


def adds(node: Node) -> bool:
    """Whether something fixed may be added to data in a node."""
    return any(node.arguments.get(name) is not None for name in _added(node))


def rounding(net: Network, node: Node, weights: Weights) -> float:
    """What an affine operation may lose to rounding, relative to its value on magnitudes.

    A sum of n products in any order is off by at most n·u/(1 − n·u), u = ε/2, of the sum of their magnitudes.
    """
    return EPS / 2 * (_terms(net, node, weights) + 32)


def _terms(net: Network, node: Node, weights: Weights) -> int:
    """At most how many terms an output of an affine operation has."""
    op = describe(node)
    if isinstance(op, conv.Conv):
        axis = op.channel_axes[0]  # of outputs
        shape = weights[node.arguments["weight"].name].shape
        return math.prod(shape) // shape[axis]
    if isinstance(op, linear.Linear):
        return int(weights[node.arguments["weight"].name].shape[-1])
    return sum(math.prod(net.shape_of(name)) for name in node.references if name in net.carries_data)


def _call(net: Network, node: Node, data: Lookup, weights: Weights) -> Call:
    def lookup(name: str) -> Any:
        return data(name) if name in net.carries_data else weights[name]

    return Call(node, lookup, net.carries_data)


def _added(node: Node) -> tuple[str, ...]:
    """Arguments that are added where they are fixed; what padding fills in is one."""
    op = describe(node)
    return (*op.addends, *(("value",) if isinstance(op, rearrange.Pad) else ()))


def _without_fixed(net: Network, value: Any, data: Lookup, weights: Weights) -> Any:
    """An argument with zeros in the place of fixed tensors and numbers."""
    if isinstance(value, (list, tuple)):
        return [_without_fixed(net, item, data, weights) for item in value]
    if isinstance(value, Ref):
        return data(value.name) if value.name in net.carries_data else torch.zeros_like(weights[value.name])
    return None if value is None else 0


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
