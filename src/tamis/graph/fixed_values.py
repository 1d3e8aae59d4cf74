"""The fixed values of a network are the weights that its data meets, and the sizes that its graph computes with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tamis.graph.network import SIZE, Network, Node, is_shape_arithmetic, references_in, resolve
from tamis.graph.ops import Entrywise, describe


class FixedValues(Mapping[str, Any]):
    """Fixed values do not depend on an input: `weights_of_data_nodes` as tensors and sizes as integers, by name.

    A pruning mask times a weight, or a batch-norm folded into a convolution, is one weight here. Each value is computed
    when it is asked for and belongs to the caller, who may change it in place: a pass over a large network
    then needs the memory of its largest layer only, and reuses it, which is many times faster than fresh memory.

    Args:
        net: the network.
        batch: the batch size that sizes are for.
        dtype: floating-point tensors are converted to it before anything is computed from them.
    """

    def __init__(self, net: Network, batch: int = 1, dtype: torch.dtype | None = None) -> None:
        self.net, self.batch, self.dtype = net, batch, dtype
        sizes = [node.name for node in net.nodes if is_shape_arithmetic(node.target)]
        self._names = (*net.weights_of_data_nodes, *sizes)
        self._arithmetic = _find_arithmetic_operands(net)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Any:
        return self.evaluate(name)

    def evaluate(self, name: str, zeroed: str | None = None) -> Any:
        """Return a value, as if the parameter `zeroed` were zero."""
        value = self._compute(name, zeroed, {})
        if self.dtype and name in self._arithmetic and not value.is_floating_point():
            return value.to(self.dtype)  # a mask of booleans, say
        return value

    def _compute(self, name: str, zeroed: str | None, known: dict[str, Any]) -> Any:
        """Return a value that may be changed; meanwhile `known` keeps the values that are read more than once."""

        def lookup(source: str) -> Any:
            if source not in known:
                value = self._compute(source, zeroed, known)
                if len(self.net.users[source]) == 1 or not isinstance(value, Tensor):
                    return value
                known[source] = value
            # `_compute_product` writes to its factor, so that a value with several readers is never given away itself.
            return known[source].clone()

        node = self.net.node.get(name)
        if node is None:
            value = self._copy(self.net.params[name] if name in self.net.params else self.net.constants[name])
            return value.zero_() if name == zeroed else value
        if node.target is SIZE and node.args[0].name in self.net.carries_data:
            return self.net.size_of(node, self.batch)
        if describe(node).entrywise(node) is Entrywise.PRODUCT:
            return _compute_product(node, *resolve(node.args, lookup))
        value = node.target(*resolve(node.args, lookup), **resolve(node.kwargs, lookup))
        expanded = isinstance(value, Tensor) and 0 in value.stride()
        return value.contiguous() if expanded else value  # so that each entry has its own place

    def _copy(self, value: Tensor) -> Tensor:
        return value.to(self.dtype, copy=True) if self.dtype and value.is_floating_point() else value.clone()


def _compute_product(node: Node, first: Any, second: Any) -> Tensor:
    """Return a product, computed in the place of the factor that has its shape."""
    # Both factors are the caller's to change (see `_compute`), so that no memory of a weight's size is asked for again.
    large, small = (first, second) if _fits(first, node) else (second, first)
    return large.mul_(small) if _fits(large, node) else first * second


def _find_arithmetic_operands(net: Network) -> frozenset[str]:
    """Return the fixed tensors that data is multiplied with or that are added to it, without indices."""
    met = (
        node.arguments.get(argument)
        for node in net.data_nodes
        for argument in (*describe(node).multipliers, *describe(node).addends)
    )
    return frozenset(references_in(tuple(met))) & set(net.weights_of_data_nodes)


def _fits(value: Any, node: Node) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and tuple(value.shape) == node.shape
