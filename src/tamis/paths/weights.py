"""The weights that data meets on a path are in float64 here, with how far rounding may have moved computed ones.

A weight that is a parameter is read as it is. One with a batch-norm folded in is computed, s·w or s·b + β − s·μ, and
rounded at every step. For an upper bound each computed weight E carries an allowance k·u·A ≥ |computed − exact|, where
u is `UNIT`, A is the same expression with plus signs on magnitudes, and k counts roundings:

    a parameter   A = |E|                     k = 0, or what rescaling it has cost
    a · b         A = A_a A_b + 2^-1022       k = k_a + k_b + 2     (2^-1022 stands for underflow; 0 · b stays 0)
    a ± b         A = A_a + A_b               k = max(k_a, k_b) + 2
    a^(-1/2)      A = |E|                     k = k_a · max(A_a / |a|) + 4
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tamis.graph import FixedValues, Network, Node, resolve
from tamis.graph.ops import Entrywise, describe
from tamis.paths.scaled import UNIT, extent, is_weight

SMALLEST_NORMAL, SMALLEST = 2.0**-1022, 2.0**-1074


class Magnitudes(Mapping[str, Any]):
    """Magnitudes are |θ| in float64 for every weight that data meets, computed on demand; sizes stay integers."""

    def __init__(self, net: Network) -> None:
        self.fixed = FixedValues(net, dtype=torch.float64)

    def __iter__(self) -> Iterator[str]:
        return iter(self.fixed)

    def __len__(self) -> int:
        return len(self.fixed)

    def __getitem__(self, name: str) -> Any:
        value = self.fixed[name]
        return value.abs_() if is_weight(value) else value


class Weights(Mapping[str, Any]):
    """`Weights` are the signed weights, with what rounding may have cost each.

    Args:
        net: the network, batch-norm folded.
        batch: the batch size that sizes are for.
        roundings: how many units of `UNIT` each parameter itself may be off by.
    """

    def __init__(self, net: Network, batch: int = 1, roundings: float = 0.0) -> None:
        self.net, self.roundings = net, roundings
        self.fixed = FixedValues(net, batch, torch.float64)
        self._latest: tuple[str, Tensor | None] = ("", None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.fixed)

    def __len__(self) -> int:
        return len(self.fixed)

    def __getitem__(self, name: str) -> Any:
        return self.fixed[name]

    def above(self, name: str) -> Any:
        """Return at least the exact magnitudes; sizes and indices as they are."""
        value, allowance = self[name], self.allowance(name)
        if not is_weight(value):
            return value
        # |exact| ≤ |computed| + allowance. In place, since `fixed` computes a fresh tensor each time.
        return value.abs_() if allowance is None else value.abs_().add_(allowance)

    def allowance(self, name: str) -> Tensor | None:
        """Return at least |computed − exact|; None where they are the same."""
        if name != self._latest[0]:  # one layer's weights are asked for again and again
            self._latest = name, self._compute_allowance(name)
        return self._latest[1]

    def _compute_allowance(self, name: str) -> Tensor | None:
        if name not in self.net.node and not self.roundings:
            return None
        if not is_weight(self.fixed[name]):
            return None
        # A first-order count k·u·A is below the true error by terms of order u²; the factor 1 + 2^-20 is far above
        # them.
        size, count = self._size(name, {})
        if not count:
            return None
        allowance = size * (count * UNIT * (1 + 2.0**-20))
        return allowance.add_(size.sign_(), alpha=SMALLEST)  # where the product has underflowed, too

    def _size(self, name: str, known: dict[str, tuple[Tensor, float]]) -> tuple[Tensor, float]:
        """Compute A and k of the table above; `known` keeps them while one weight is looked at."""
        if name not in known:
            known[name] = self._compute_size(name, known)
        return known[name]

    def _compute_size(self, name: str, known: dict[str, tuple[Tensor, float]]) -> tuple[Tensor, float]:
        node = self.net.node.get(name)
        entrywise = None if node is None else describe(node).entrywise(node)
        if node is None or entrywise is None:
            # A parameter; or what a model computes in another way, which is what float64 makes of it.
            return self._measure_stored(name)
        if entrywise is Entrywise.INVERSE_ROOT:
            return self._measure_inverse_root(node, *self._size(node.args[0].name, known))
        if entrywise in (Entrywise.PRODUCT, Entrywise.SUM):
            (a, k), (b, j) = (self._measure_operand(each, known) for each in node.args[:2])
            if entrywise is Entrywise.PRODUCT:
                return _multiply_sizes(a, b), k + j + 2
            if k or j:
                # A sum's operands may cancel and their errors do not, hence plus signs and magnitudes in A.
                return a + b * abs(node.arguments["alpha"]), max(k, j) + 2
            return self._measure_stored(name)[0], 2  # one rounding of what is exact, however much cancels
        if entrywise is Entrywise.NEGATION:
            return self._size(node.args[0].name, known)
        if entrywise.moves:
            size, count = self._size(node.args[0].name, known)
            moved: Tensor = node.target(size, *resolve(node.args[1:], self.fixed.evaluate))
            return moved.contiguous(), count
        return self._measure_stored(name)  # a quotient: as above

    def _measure_stored(self, name: str) -> tuple[Tensor, float]:
        return self.fixed.evaluate(name).double().abs_(), self.roundings

    def _measure_operand(self, value: Any, known: dict[str, tuple[Tensor, float]]) -> tuple[Tensor, float]:
        if isinstance(value, (int, float)):
            return torch.tensor(abs(float(value)), dtype=torch.float64), 0.0
        return self._size(value.name, known)

    def _measure_inverse_root(self, node: Node, size: Tensor, count: float) -> tuple[Tensor, float]:
        root, source = self.fixed.evaluate(node.name), self.fixed.evaluate(node.args[0].name)
        # d a^(-1/2) / a^(-1/2) = −½ da/a: half the relative error of a would do, the whole covers the second order too.
        relative = count * float((size / source.abs()).max()) if size.numel() else 0.0
        # Beyond a thousandth the first order is not enough, and nothing is known of the weight.
        return (root, relative + 4) if relative * UNIT < 1e-3 else (torch.full_like(root, math.inf), 1.0)


def _multiply_sizes(a: Tensor, b: Tensor) -> Tensor:
    """Compute A_a A_b + 2^-1022 where neither is zero; the latter is left out where it is far below a rounding."""
    size = a * b
    if extent(a).low * extent(b).low >= 2.0**-900:
        return size
    # A product in the subnormal numbers has no relative error to speak of; 2^−1022 k u is more than it can be off by.
    return size.add_((a > 0) & (b > 0), alpha=SMALLEST_NORMAL)


def stored_sources(net: Network, name: str) -> frozenset[str]:
    """Return the parameters and constants that a fixed tensor is computed from; its own name if it is one."""
    found, waiting = set(), [name]
    seen = {name}
    while waiting:
        each = waiting.pop()
        if each in net.params or each in net.constants:
            found.add(each)
        new = [ref for ref in net.node[each].references if ref not in seen] if each in net.node else []
        seen.update(new)
        waiting += new
    return frozenset(found)


class Above(Mapping[str, Any]):
    """These magnitudes are at least the exact |θ|, for every weight that data meets."""

    def __init__(self, net: Network) -> None:
        self.weights = Weights(net)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, name: str) -> Any:
        return self.weights.above(name)
