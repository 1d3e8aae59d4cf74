"""Forward passes over a network on magnitudes run here, in numbers of any size.

Every operation is linear in its data and in its weights, and adds nothing negative. So it runs once, as it is, where
float64 holds everything at once, and on parts of the data and parts of the weights where it does not (see `Scaled`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput, InvalidParameters
from tamis.graph import Network, Node, Ref, references_in
from tamis.graph.ops import Call, describe
from tamis.paths.scaled import (
    HIGHEST,
    LOWEST,
    REACH,
    Extent,
    Part,
    Scaled,
    align_parts,
    extent,
    map_tensors,
    powers_of_two,
    split_into_parts,
    times_power_of_two,
)

FURTHEST = 1000  # the largest exponent at which the number 1 is worth a normal number
NEGLIGIBLE = 2.0**-700  # what underflows is far below a rounding of a number from here on
LARGEST_POWER = 500  # so that m^q for a mantissa m ≥ 1/2 is far from underflow
PER_NODE = 16  # roundings of a node beside its sum: powers, divisors, factors, the weights' own

Lookup = Callable[[str], Scaled]
Step = Callable[[Node, Sequence[Lookup]], list[Scaled]]
Watch = Callable[[str, Tensor, int | None], Tensor]


def walk(net: Network, starts: Sequence[Mapping[str, Tensor]], step: Step) -> list[dict[str, Scaled]]:
    """Pass one or several streams of non-negative values through the nodes that carry data.

    Args:
        net: the network.
        starts: for each stream, the values at the inputs.
        step: given a node and a lookup per stream, the node's value in each stream.

    Returns:
        For each stream the values of the outputs, by name.
    """
    values = {name: [split_into_parts([(start[name], 0)], 0) for start in starts] for name in net.inputs}
    finished = dict(zip((node.name for node in net.nodes), net.finished_after, strict=True))
    for node in net.data_nodes:
        lookups = [lambda name, i=i: values[name][i] for i in range(len(starts))]
        values[node.name] = step(node, lookups)
        for name in finished[node.name]:  # no later node reads it, so memory stays small
            values.pop(name, None)
    return [{name: values[name][i] for name in net.output_names} for i in range(len(starts))]


def find_adding_nodes(net: Network, *weights: Mapping[str, Any]) -> frozenset[str]:
    """Return the nodes that add something fixed and not zero, in any of several sets of weights."""

    def adds(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(adds(item) for item in value)
        if not isinstance(value, Ref):
            return bool(value)
        if value.name in net.carries_data:
            return False
        return any(bool(torch.as_tensor(each[value.name]).any()) for each in weights)

    def node_adds(node: Node) -> bool:
        return any(adds(node.arguments.get(name)) for name in describe(node).addends)

    return frozenset(node.name for node in net.data_nodes if node_adds(node))


class Operation:
    """An operation is one node with the magnitudes of its weights, ready for data.

    Args:
        net: the network.
        node: the node.
        weights: |θ|, by name; only what the node reads is asked for.
        q: the power that weights are raised to.
        watch: called with the name, the value and the exponent of each part of a weight that meets data, the exponent
            None for a weight that meets it whole; what it returns is used in its place.
    """

    def __init__(
        self, net: Network, node: Node, weights: Mapping[str, Any], q: float = 1, watch: Watch | None = None
    ) -> None:
        self.net, self.node, self.q, self.op = net, node, q, describe(node)
        self.weights, self.watch = weights, watch or (lambda name, value, exponent: value)
        self.data = [name for name in node.references if name in net.carries_data]
        self.factors = self._name_fixed_tensors(self.op.multipliers)
        self.addends = self._name_fixed_tensors(self.op.addends)

    def magnitude(self, data: Lookup, adds: bool) -> Scaled:
        """Run the operation on |θ|^q (thesis, Theorem 3.1.1), without what it adds unless it `adds`."""
        inputs = {name: data(name) for name in self.data}
        roundings = max(each.roundings for each in inputs.values())
        # Values that neither grow nor shrink stay within the range of their parts: no new split is needed.
        if not self.op.grows:
            return Scaled(tuple((self._run(values, {}, 0.0), e) for values, e in align_parts(inputs)), roundings)
        # A sum of n terms that are not negative is off by at most n roundings of itself, whatever the order.
        roundings += PER_NODE + self._count_summands(inputs)
        result = self._at_once(inputs, adds, roundings)
        if result is not None:
            return result
        powers = 0 if self.q == 1 else 2048 * (self.q + 1)  # 2^(exponent · q), whose exponent is rounded
        return split_into_parts(self._list_terms(inputs, adds), roundings + powers)

    def change(self, data: Lookup, adds: bool) -> Scaled:
        """Run the operation with changes of weights as its weights; one without factors lets no data through."""
        # (w − w')u' has data only as a factor of a change: x + b must give |b − b'| here, not |x| + |b − b'|.
        return self.magnitude(data if self.factors else _make_zeros(data), adds)

    def reach(self, data: Lookup) -> Scaled:
        """Return the largest value among those that feed each output neuron."""
        inputs = {name: data(name) for name in self.data}
        terms = [(self.op.reach(self._call(values, {})), exponent) for values, exponent in align_parts(inputs)]
        roundings = max(each.roundings for each in inputs.values())
        return split_into_parts(terms, roundings, torch.maximum)

    # -- all at once, where float64 holds everything ------------------------------------------------------------------

    def _at_once(self, inputs: Mapping[str, Scaled], adds: bool, roundings: float) -> Scaled | None:
        """Run the operation in one go; None where something that matters might have left float64's range."""
        # Scaling by one power of two commutes with the operation, which is linear, except for what it adds: a bias has
        # to be brought into the same units, by `one`.
        aligned = _align(inputs)
        if aligned is None or (adds and abs(aligned[1]) > FURTHEST):
            return None
        values, exponent = aligned
        one = math.ldexp(1.0, -exponent) if adds else 0.0  # the number 1 in the units of the data
        result = self._run(values, self._watched_weights, one)
        seen = extent(result)
        if not seen.zeros and seen.low >= LOWEST and seen.high <= HIGHEST:
            return Scaled(((result, exponent),), roundings)
        fine = not seen.zeros and seen.low >= NEGLIGIBLE and seen.high < math.inf
        # Where a result is tiny or zero, nothing may have underflowed on the way to it.
        if fine or self._fit(values, one):
            return split_into_parts([(result, exponent)], roundings)
        return None

    def _fit(self, values: Mapping[str, Any], one: float) -> bool:
        """Return whether all products of data, weights and numbers are normal numbers."""
        data = [extent(value) for value in values.values()]
        if all(each.high == 0 for each in data) and not one:  # zeros stay zeros, unless 0 · ∞ was among the products
            return all(each.high < math.inf for each in self._factor_extents)
        added = [each for each in self._addend_extents if each.high] if one else []
        # Data, a weight and a number together reach 2^±(600 + 300 + 100), within the normal numbers of float64.
        return (
            all(_lies_within(each, 2 * REACH) for each in data)
            and all(_lies_within(each, REACH) for each in self._factor_extents)
            and all(_lies_within(Extent(each.low * one, each.high * one, False), 2 * REACH) for each in added)
            and all(2.0**-100 <= _raise_to_power(abs(number), self.q) <= 2.0**100 for number in self._numbers)
        )

    @cached_property
    def _watched_weights(self) -> dict[str, Any]:
        """Return |θ|^q, watched; an additive term that is left out is not."""
        fixed = {name: self.weights[name] for name in self._fixed}
        for name in self.factors + self.addends:
            # In place: these tensors were computed for this node alone, and a copy would double what the largest layer
            # takes.
            powered = fixed[name] if self.q == 1 else fixed[name].pow_(self.q)
            fixed[name] = self.watch(name, powered, None)
        return fixed

    @cached_property
    def _factor_extents(self) -> list[Extent]:
        return [self._find_extent(name) for name in self.factors]

    @cached_property
    def _addend_extents(self) -> list[Extent]:
        numbers = [_raise_to_power(abs(number), self.q) for number in self._numbers]
        return [self._find_extent(name) for name in self.addends] + [Extent(each, each, False) for each in numbers]

    def _find_extent(self, name: str) -> Extent:
        """Return the numbers between which |θ|^q lies, from |θ|, since the power may have underflowed."""
        found = extent(self._watched_weights[name] if self.q == 1 else self.weights[name])
        if self.q == 1 or not found.high:
            return found
        return Extent(_raise_to_power(found.low, self.q), _raise_to_power(found.high, self.q), found.zeros)

    # -- part by part -------------------------------------------------------------------------------------------------

    def _list_terms(self, inputs: Mapping[str, Scaled], adds: bool) -> list[Part]:
        """Return what parts of the data and of the weights contribute to the result, each with its exponent."""
        self._check_numbers()
        fixed = {name: self.weights[name] for name in self._fixed}
        zeros = {name: map_tensors(torch.zeros_like, each.parts[0][0]) for name, each in inputs.items()}
        # Linear in data and in each factor, the result is the sum over all choices of parts. What is added meets none
        # of these, so it runs apart, on zeros.
        terms = []
        for values, exponent in align_parts(inputs):
            for chosen, shift in self._list_choices(self.factors):
                terms.append((self._run(values, {**fixed, **chosen}, 0.0), exponent + shift))
        if adds:
            for chosen, shift in self._list_choices(self.addends):
                terms.append((self._run(zeros, {**fixed, **chosen}, 1.0), shift))
        return terms

    def _list_choices(self, names: Sequence[str]) -> list[tuple[dict[str, Tensor], int]]:
        """Return all choices of one part of each of these weights; numbers in their place need no parts."""
        parts = [[(name, part, exponent) for part, exponent in self._list_parts(name)] for name in names]
        return [
            ({name: part for name, part, _ in choice}, sum(exponent for *_, exponent in choice))
            for choice in itertools.product(*parts)
        ]

    def _list_parts(self, name: str) -> list[Part]:
        """Return |θ|^q in parts, watched."""
        weight = self.weights[name]
        if not math.isfinite(extent(weight).high):
            raise InvalidParameters(
                f"the weight '{name}' of '{self.node.op.removesuffix('.default')}' at "
                f"{self.node.module or 'the top level'} is computed from parameters and leaves float64's range: "
                "a batch-norm's scale, or that of the layer before it, is too large"
            )
        return [
            (self.watch(name, part, e), e) for part, e in raise_to_power(split_into_parts([(weight, 0)], 0), self.q)
        ]

    def _check_numbers(self) -> None:
        for number in self._numbers:
            if not LOWEST <= _raise_to_power(abs(number), self.q) <= HIGHEST:
                raise InvalidParameters(
                    f"the number {number:g} of '{self.node.op.removesuffix('.default')}' at "
                    f"{self.node.module or 'the top level'} is too far from 1 for path passes: make it a parameter"
                )

    # -- the call itself ----------------------------------------------------------------------------------------------

    def _run(self, values: Mapping[str, Any], fixed: Mapping[str, Any], one: float) -> Any:
        return self.op.magnitude(self._call(values, fixed), self.q, one)

    def _call(self, values: Mapping[str, Any], fixed: Mapping[str, Any]) -> Call:
        def lookup(name: str) -> Any:
            if name in values:
                return values[name]
            return fixed[name] if name in fixed else self.weights[name]

        return Call(self.node, lookup, self.net.carries_data)

    def _count_summands(self, inputs: Mapping[str, Scaled]) -> int:
        return self.op.summands(
            self._call({name: each.parts[0][0] for name, each in inputs.items()}, self._watched_weights)
        )

    @property
    def _fixed(self) -> list[str]:
        return [name for name in self.node.references if name not in self.net.carries_data]

    def _name_fixed_tensors(self, arguments: Sequence[str]) -> list[str]:
        """Return the names of what is fixed among some arguments."""
        named = references_in([self.node.arguments.get(argument) for argument in arguments])
        return [name for name in dict.fromkeys(named) if name not in self.net.carries_data]

    @cached_property
    def _numbers(self) -> list[float]:
        """Return the numbers, except zeros, that are written into the call and multiply data or are added to it."""
        named = (*self.op.multipliers, *self.op.addends, "alpha", "beta", "negative_slope")
        values = [self.node.arguments.get(name) for name in named]
        return [value for value in values if isinstance(value, (int, float)) and value]


def raise_to_power(scaled: Scaled, q: float) -> list[Part]:
    """Raise weights to the q-th power, part by part; a power of two that is not whole goes into the values."""
    if q == 1:
        return list(scaled.parts)
    if q > LARGEST_POWER:
        raise InvalidInput(f"weights as far from 1 as these need q ≤ {LARGEST_POWER}, got q = {q:g}")
    result: list[Part] = []
    for value, exponent in scaled.parts:
        # (m · 2^e)^q = m^q · 2^(qe): m^q does not underflow, and qe stays an exponent, of any size.
        mantissa, own = torch.frexp(value)
        power = (own + exponent).double() * q
        whole = torch.floor(power).long()
        group = whole // REACH  # a large q spreads exponents further than one part reaches
        near = mantissa**q * torch.exp2(power - whole) * powers_of_two(whole - group * REACH)
        for each in group[value > 0].unique().tolist():
            result.append((near.where((value > 0) & (group == each), 0.0), each * REACH))
    return result or [(scaled.parts[0][0], 0)]


def ones_input(net: Network) -> dict[str, Tensor]:
    """Return inputs full of ones, in float64, on the device of the parameters."""
    shapes = zip(net.inputs, net.input_shapes, strict=True)
    return {name: torch.ones(shape, dtype=torch.float64, device=net.device) for name, shape in shapes}


def gather(net: Network, outputs: Mapping[str, Scaled]) -> tuple[Tensor, Tensor, float]:
    """Return mantissas, exponents and roundings of all output neurons, (batch, neurons), batch 1 without one."""
    each = [outputs[name].unpack() for name in net.output_names]  # one that is returned twice counts twice
    rows = [[part.reshape(len(part) if net.batched else 1, -1) for part in pair] for pair in each]
    mantissas, exponents = (torch.cat(list(side), 1) for side in zip(*rows, strict=True))
    return mantissas, exponents, max(outputs[name].roundings for name in net.output_names)


def _align(inputs: Mapping[str, Scaled]) -> tuple[dict[str, Any], int] | None:
    """Bring all data to one exponent; None where that takes a large step."""
    if any(len(each.parts) > 1 for each in inputs.values()):
        return None
    parts = {name: each.parts[0] for name, each in inputs.items()}
    exponents = [exponent for _, exponent in parts.values()]
    # Within REACH of one another, the parts with the smaller exponent still lie above 2^−600 after the shift.
    if max(exponents) - min(exponents) > REACH:
        return None
    return {name: times_power_of_two(value, e - max(exponents)) for name, (value, e) in parts.items()}, max(exponents)


def _make_zeros(data: Lookup) -> Lookup:
    def zeros(name: str) -> Scaled:
        # Zeros of the right shapes rather than no data at all: an operation needs to be run to give what it adds.
        return Scaled(((map_tensors(torch.zeros_like, data(name).parts[0][0]), 0),))

    return zeros


def _lies_within(seen: Extent, reach: int) -> bool:
    return seen.high == 0 or (seen.low >= math.ldexp(1.0, -reach) and seen.high <= math.ldexp(1.0, reach))


def _raise_to_power(value: float, q: float) -> float:
    """Return a power of a positive number, which is never 0, even where float64 underflows."""
    try:
        # An extent of 0 would say that there is no weight, and hide that its power has underflowed.
        return max(value**q, math.ulp(0.0))
    except OverflowError:
        return math.inf
