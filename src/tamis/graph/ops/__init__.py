"""Each family of operations has a file here, and `describe` finds the family of a node.

Where nobody described the operation, the answer is the base class `Op`, which is opaque.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tamis.errors import InvalidInput, UnsupportedOp, join_names
from tamis.graph.network import Network, Node, op_name
from tamis.graph.ops import conv, linear, merge, norm, opaque, order, pointwise, pool, rearrange, upsample
from tamis.graph.ops.base import Call as Call
from tamis.graph.ops.base import Capability as Capability
from tamis.graph.ops.base import Entrywise as Entrywise
from tamis.graph.ops.base import IntervalRule as IntervalRule
from tamis.graph.ops.base import LayerArguments as LayerArguments
from tamis.graph.ops.base import Op as Op
from tamis.graph.ops.base import Opaque as Opaque
from tamis.graph.ops.base import Windows as Windows
from tamis.graph.ops.conv import spaced as spaced
from tamis.graph.ops.scalar_functions import ABS as ABS
from tamis.graph.ops.scalar_functions import RELU as RELU
from tamis.graph.ops.scalar_functions import SIGMOID as SIGMOID
from tamis.graph.ops.scalar_functions import TANH as TANH
from tamis.graph.ops.scalar_functions import Exponential as Exponential
from tamis.graph.ops.scalar_functions import PiecewiseLinear as PiecewiseLinear
from tamis.graph.ops.scalar_functions import ScalarFunction as ScalarFunction
from tamis.graph.ops.scalar_functions import Sigmoidal as Sigmoidal
from tamis.graph.ops.scalar_functions import Sinusoid as Sinusoid

__all__ = [
    "ABS",
    "RELU",
    "SIGMOID",
    "TANH",
    "Call",
    "Capability",
    "Entrywise",
    "Exponential",
    "IntervalRule",
    "LayerArguments",
    "Op",
    "Opaque",
    "PiecewiseLinear",
    "ScalarFunction",
    "Sigmoidal",
    "Sinusoid",
    "Windows",
    "capability",
    "describe",
    "register_op",
    "require",
    "spaced",
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
    pointwise.Sigmoid,
    pointwise.InverseRoot,
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
    opaque.Embedding,
    opaque.LSTM,
    opaque.GRU,
    opaque.RNN,
    opaque.Normalization,
)
OPAQUE = Op()
# Targets are keys, so each operation has one description: `register_op` refuses a second one.
REGISTRY: dict[Callable[..., Any], Op] = {target: family() for family in FAMILIES for target in family.targets}


def register_op(op: Op) -> Op:
    """Describe an operation that tamis does not know, so that everything here can treat it.

    Args:
        op: an object of a subclass of `Op`; what it must say is in docs/extending.md. `tamis.testing.check_op` checks
            that it says the truth.

    Returns:
        The same object.

    Raises:
        InvalidInput: it names no targets, or one that is described already.

    Example:
        >>> from tamis.graph.ops import Capability, Op
        >>> class RunningSum(Op):
        ...     targets = (torch.ops.aten.cumsum.default,)
        ...     def capability(self, call):
        ...         return Capability.HOMOGENEOUS
        ...     def magnitude(self, call, q, one):
        ...         return call.run()
        ...     def reach(self, call):
        ...         return call["self"].cummax(call["dim"]).values
        >>> op = tamis.register_op(RunningSum())
    """
    if not isinstance(op, Op):
        hint = ": pass an object of it, not the class" if isinstance(op, type) and issubclass(op, Op) else ""
        raise InvalidInput(f"register_op needs an Op, got {op!r}{hint}")
    if not op.targets or not all(callable(target) for target in op.targets):
        raise InvalidInput(
            f"{type(op).__name__}.targets must name the operations that it describes, such as "
            f"(torch.ops.aten.cumsum.default,), got {op.targets!r}"
        )
    # All targets are checked before any is entered: a refused description leaves the registry as it was.
    taken = {op_name(target): type(REGISTRY[target]).__name__ for target in op.targets if target in REGISTRY}
    if taken:
        raise InvalidInput(
            f"{type(op).__name__} cannot be registered: "
            f"{join_names(f'{name} is described by {owner} already' for name, owner in taken.items())}"
        )
    REGISTRY.update(dict.fromkeys(op.targets, op))
    return op


def describe(node: Node) -> Op:
    """Return what is known of a node's operation."""
    return REGISTRY.get(node.target, OPAQUE)


def capability(net: Network, node: Node) -> Capability:
    """Return what a node of a network admits."""
    # Values play no part in what a call admits, so the lookup gives none.
    return describe(node).capability(Call(node, lambda name: None, net.carries_data))


def require(net: Network, needed: Capability, wanted_by: str) -> None:
    """Raise UnsupportedOp for the first node that admits less than `needed`, and name its operation and module."""
    words = {
        Capability.HOMOGENEOUS: "a homogeneous network",
        Capability.LIPSCHITZ: "1-Lipschitz operations with f(0) = 0",
    }
    for name in net.output_names:
        # A constant output has no path from an input, and every statement about its inputs would be empty.
        if name not in net.carries_data:
            raise InvalidInput(f"{wanted_by} needs every output to depend on an input: '{name}' does not")
    for node in net.data_nodes:
        if capability(net, node) < needed:
            raise UnsupportedOp(wanted_by, words[needed], node.op.removesuffix(".default"), node.module)
