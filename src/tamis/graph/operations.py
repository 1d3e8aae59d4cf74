"""`operations_of` lists the operations of a network and what each of them costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.graph.fixed_values import FixedValues
from tamis.graph.network import Network, Node
from tamis.graph.ops import OPAQUE, Call, Capability, capability, describe


@dataclass(frozen=True)
class Operation:
    """An `Operation` is one operation that an input reaches.

    Attributes:
        name, module, op: the node's, the path of the module that calls it, and what it is.
        shape: of its result, for a batch of one; None where that is no tensor.
        parameters: the trainable ones that it reads.
        parameter_count: how many numbers these are.
        macs: multiply-accumulates for one sample; None where nobody described the operation.
        capability: what can be proved of it.
    """

    name: str
    module: str
    op: str
    shape: tuple[int, ...] | None
    parameters: tuple[str, ...]
    parameter_count: int
    macs: int | None
    capability: Capability


def operations_of(net: Network) -> tuple[Operation, ...]:
    """Return the operations that an input reaches, with what they cost."""
    return tuple(_iterate_operations(net))


def _iterate_operations(net: Network) -> Iterator[Operation]:
    # Counting needs shapes only: on "meta" nothing is computed, and a large network takes no memory.
    values = {name: _drop_values(value) for name, value in FixedValues(net).items()}
    values |= {name: torch.empty(s, device="meta") for name, s in zip(net.inputs, net.input_shapes, strict=True)}
    for node in net.data_nodes:
        call = Call(node, values.__getitem__, net.carries_data)
        values[node.name] = None if node.shape is None else torch.empty(node.shape, device="meta")
        names = tuple(_find_parameters(net, node))
        count = sum(net.params[name].numel() for name in names)
        yield Operation(
            node.name, node.module, node.op, node.shape, names, count, _count_macs(call), capability(net, node)
        )


def _drop_values(value: Any) -> Any:
    """Return a tensor without its numbers, which counting does not need, in the precision that data has here too."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, device="meta", dtype=torch.float32 if value.is_floating_point() else value.dtype)


def _count_macs(call: Call) -> int | None:
    op = describe(call.node)
    if op is OPAQUE:
        return None
    try:
        return op.macs(call)
    except NotImplementedError:  # torch cannot run it on shapes alone
        return None


def _find_parameters(net: Network, node: Node) -> Iterator[str]:
    """Yield trainable parameters that a node reads, directly or through a computed weight (a mask times a weight)."""
    # Data counts as seen: the parameters behind it belong to the operations that computed it.
    pending, seen = list(node.references), set(net.carries_data)
    while pending:
        name = pending.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in net.trainable:
            yield name
        elif name in net.node:
            pending += net.node[name].references
