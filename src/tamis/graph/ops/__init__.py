"""One file per family of operations; `describe` finds the family of a node, `Op` (opaque) where nobody described it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tamis.errors import InvalidInput, UnsupportedOp
from tamis.graph.network import Network, Node
from tamis.graph.ops import conv, linear, merge, norm, order, pointwise, pool, rearrange, upsample
from tamis.graph.ops.base import Call as Call
from tamis.graph.ops.base import Capability as Capability
from tamis.graph.ops.base import Op as Op
from tamis.graph.ops.conv import Conv as Conv
from tamis.graph.ops.conv import ConvTranspose as ConvTranspose
from tamis.graph.ops.conv import spaced as spaced
from tamis.graph.ops.linear import AddMM as AddMM
from tamis.graph.ops.linear import Einsum as Einsum
from tamis.graph.ops.linear import Linear as Linear
from tamis.graph.ops.linear import MatMul as MatMul
from tamis.graph.ops.merge import Join as Join
from tamis.graph.ops.merge import Maximum as Maximum
from tamis.graph.ops.merge import Multiply as Multiply
from tamis.graph.ops.order import Order as Order
from tamis.graph.ops.pointwise import Clamp as Clamp
from tamis.graph.ops.pointwise import LeakyRelu as LeakyRelu
from tamis.graph.ops.pointwise import Negate as Negate
from tamis.graph.ops.pointwise import Relu as Relu
from tamis.graph.ops.pool import AdaptiveMaxPool as AdaptiveMaxPool
from tamis.graph.ops.pool import MaxPool as MaxPool
from tamis.graph.ops.rearrange import Pick as Pick
from tamis.graph.ops.rearrange import Rearrange as Rearrange

__all__ = [
    "AdaptiveMaxPool",
    "AddMM",
    "Call",
    "Capability",
    "Clamp",
    "Conv",
    "ConvTranspose",
    "Einsum",
    "Join",
    "LeakyRelu",
    "Linear",
    "MatMul",
    "MaxPool",
    "Maximum",
    "Multiply",
    "Negate",
    "Order",
    "Pick",
    "Rearrange",
    "Relu",
    "capability",
    "conv",
    "describe",
    "linear",
    "merge",
    "order",
    "pointwise",
    "pool",
    "rearrange",
    "require",
    "spaced",
    "upsample",
]


FAMILIES: tuple[Any, ...] = (
    linear.Linear,
    linear.MatMul,
    linear.AddMM,
    linear.Einsum,
    conv.Conv,
    conv.ConvTranspose,
    norm.BatchNorm,
    pointwise.Relu,
    pointwise.LeakyRelu,
    pointwise.Lipschitz,
    pointwise.Elu,
    pointwise.Clamp,
    pointwise.Negate,
    merge.Add,
    merge.Multiply,
    merge.Divide,
    merge.Maximum,
    merge.Join,
    rearrange.Rearrange,
    rearrange.Pad,
    rearrange.Pick,
    pool.MaxPool,
    pool.AvgPool,
    pool.AdaptiveAvgPool,
    pool.AdaptiveMaxPool,
    pool.Reduce,
    order.Order,
    upsample.Upsample,
)
OPAQUE = Op()
REGISTRY: dict[Callable[..., Any], Op] = {target: family() for family in FAMILIES for target in family.targets}


def describe(node: Node) -> Op:
    """What is known of a node's operation."""
    return REGISTRY.get(node.target, OPAQUE)


def capability(net: Network, node: Node) -> Capability:
    """What a node of a network admits."""
    return describe(node).capability(Call(node, lambda name: None, net.carries_data))


def require(net: Network, needed: Capability, wanted_by: str) -> None:
    """Raise UnsupportedOp for the first node that admits less than `needed`, naming it and the module it comes from."""
    words = {
        Capability.HOMOGENEOUS: "a homogeneous network",
        Capability.LIPSCHITZ: "1-Lipschitz operations with f(0) = 0",
    }
    for name in net.output_names:
        if name not in net.carries_data:
            raise InvalidInput(f"{wanted_by} needs every output to depend on an input: '{name}' does not")
    for node in net.data_nodes:
        if capability(net, node) < needed:
            raise UnsupportedOp(wanted_by, words[needed], node.op.removesuffix(".default"), node.module)
