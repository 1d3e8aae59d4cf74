"""The weights that data meets, and how far float64 may be from them where a network computes them from parameters.

A stored weight is exact. A batch-norm folded into a layer, or a mask times a weight, is computed: each sum, product,
quotient and inverse root on the way adds what it may have rounded to what was rounded before it. What any other
operation makes of parameters (a norm, say) counts as what float64 makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import EPS, FAINT, least
from tamis.graph.fixed import FixedValues
from tamis.graph.network import Network, Node, Ref, is_shape_arithmetic
from tamis.graph.ops import Call, merge, rearrange
from tamis.paths.scaled import is_weight

aten = torch.ops.aten


@dataclass(frozen=True)
class Weights:
    """Fixed values by name in float64, sizes and indices among them; `errors` has those that are not exact."""

    values: Mapping[str, Any]
    errors: Mapping[str, Tensor] = field(default_factory=dict)
    _least: dict[str, float] = field(default_factory=dict)

    def least(self, name: str) -> float:
        """The smallest positive magnitude among a tensor's entries and their errors."""
        if name not in self._least:
            parts: list[Any] = [value for value in (self.values[name], self.errors.get(name)) if is_weight(value)]
            self._least[name] = min(map(least, parts), default=1.0)
        return self._least[name]

    def error(self, name: str) -> Any:
        """How far each entry of a weight may be from the true one; what is no weight as it is."""
        value = self.values[name]
        return self.errors.get(name, torch.zeros_like(value)) if is_weight(value) else value

    def end(self, name: str, sign: int) -> Any:
        """The lowest (−1) or the highest (1) that a weight can be."""
        value = self.values[name]
        return value + sign * self.errors[name] if name in self.errors else value


class WeightIntervals(Mapping[str, Weights]):
    """For each node of a network that data reaches the weights that it reads, computed when they are asked for."""

    def __init__(self, net: Network, batch: int = 1) -> None:
        self.net, self._fixed = net, FixedValues(net, batch, torch.float64)

    def __iter__(self) -> Iterator[str]:
        return (node.name for node in self.net.data_nodes)

    def __len__(self) -> int:
        return len(self.net.data_nodes)

    def __getitem__(self, name: str) -> Weights:
        return self._gathered(each for each in self.net.node[name].references if each not in self.net.carries_data)

    def all(self) -> Weights:
        """What any node reads."""
        return self._gathered(self._fixed)

    def _gathered(self, names: Iterable[str]) -> Weights:
        values: dict[str, Any] = {}
        errors: dict[str, Tensor] = {}
        known: dict[str, tuple[Any, Any]] = {}
        for name in names:
            value, error = self._computed(name, known)
            if error is None:
                values[name] = self._fixed[name]  # where a mask of booleans has become one of numbers
            else:
                # Zero where nothing is known of a weight, so that its infinite error alone says so.
                errors[name] = torch.where(value.isfinite(), error, torch.inf)
                values[name] = torch.where(errors[name].isfinite(), value, 0.0)
        return Weights(values, errors)

    def _computed(self, name: str, known: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
        """A value, and how far it may be from the true one: None where it is exact, a list for several results."""
        if name not in known:
            node = self.net.node.get(name)
            if node is None or is_shape_arithmetic(node.target):
                known[name] = self._fixed.evaluated(name), None
            else:
                known[name] = _evaluated(node, {each: self._computed(each, known) for each in node.references})
        return known[name]


def _evaluated(node: Node, read: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    value = Call(node, lambda each: read[each][0], ()).run()
    if node.target in MOVES:
        return value, _moved(node, read)
    if node.target not in ERRORS:
        return value, None
    first, second = (_Term(node.arguments.get(argument), read) for argument in ("self", "other"))
    error = ERRORS[node.target](value, first, second, abs(float(node.arguments.get("alpha", 1))))
    return value, error if bool((error != 0).any()) else None


class _Term:
    """One argument of a node, a tensor or a number: its magnitude, and how far it may be from the true one."""

    def __init__(self, argument: Any, read: Mapping[str, tuple[Any, Any]]) -> None:
        value, error = read[argument.name] if isinstance(argument, Ref) else (argument or 0.0, None)
        self.size = torch.as_tensor(value).double().abs()
        self.error = torch.zeros_like(self.size) if error is None else error

    @property
    def is_unit(self) -> Tensor:
        """Where multiplying by this rounds nothing: by exactly 0, 1 or −1."""
        return (self.error == 0) & ((self.size == 0) | (self.size == 1))


def _sum(value: Tensor, first: _Term, second: _Term, alpha: float) -> Tensor:
    """Of a ± αb, or αa ± b; nothing where one of them is zero."""
    size, error = first.size + second.size, first.error + second.error
    # α is a number in the call, almost always 1; a product with it may round and underflow.
    exact = ((first.size == 0) | (second.size == 0)) & (alpha == 1)
    return max(1.0, alpha) * (2 * error + torch.where(exact, 0.0, 4 * EPS * size + FAINT * (alpha != 1)))


def _product(value: Tensor, first: _Term, second: _Term, alpha: float) -> Tensor:
    carried = first.size * second.error + second.size * first.error + first.error * second.error
    rounded = torch.where(first.is_unit | second.is_unit, 0.0, EPS * value.abs() + FAINT)
    # A size of zero times an error without end is no number: nothing is known.
    return (2 * carried + rounded + FAINT * (carried > 0).double()).nan_to_num(torch.inf, torch.inf)


def _quotient(value: Tensor, first: _Term, second: _Term, alpha: float) -> Tensor:
    smallest = second.size - second.error
    carried = (first.error + value.abs() * second.error) / smallest
    rounded = torch.where(second.is_unit | (first.size == 0), 0.0, EPS * value.abs() + FAINT)
    error = 2 * carried + rounded + FAINT * (carried > 0).double()
    return torch.where(smallest > 0, error, torch.inf).nan_to_num(torch.inf, torch.inf)


def _inverse_root(value: Tensor, first: _Term, second: _Term, alpha: float) -> Tensor:
    """Of a^(−1/2), which falls and is convex, so that the lower end of a moves it most."""
    smallest = first.size - 2 * first.error
    farthest = torch.where(smallest > 0, smallest.rsqrt(), torch.inf)
    return farthest - value + 8 * EPS * (farthest + value)


def _negative(value: Tensor, first: _Term, second: _Term, alpha: float) -> Tensor:
    return first.error


ERRORS: dict[Any, Callable[[Tensor, _Term, _Term, float], Tensor]] = {
    **dict.fromkeys(merge.Add.targets, _sum),
    **dict.fromkeys(merge.Multiply.targets, _product),
    **dict.fromkeys(merge.Divide.targets, _quotient),
    aten.rsqrt.default: _inverse_root,
    aten.neg.default: _negative,
}
MOVES = (*rearrange.Rearrange.targets, *rearrange.Pad.targets, *rearrange.Pick.targets, *merge.Join.targets)


def _moved(node: Node, read: Mapping[str, tuple[Any, Any]]) -> Any:
    """Errors move with the entries they belong to."""
    if all(error is None for _, error in read.values()):
        return None

    def lookup(name: str) -> Any:
        value, error = read[name]
        if isinstance(value, (list, tuple)):
            return [torch.zeros_like(each) for each in value] if error is None else error
        return value if not is_weight(value) else torch.zeros_like(value) if error is None else error

    padding = {"value": 0.0} if node.target in rearrange.Pad.targets else {}
    return Call(node, lookup, ()).run(**padding)
