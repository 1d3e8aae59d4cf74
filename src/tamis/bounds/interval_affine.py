"""Affine operations are run here as intervals need them: their linear part, on magnitudes, transposed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import EPS, SAFE, SMALLEST, least
from tamis.bounds.weight_intervals import WeightIntervals
from tamis.errors import UnsupportedOp
from tamis.graph import Network, Node, Ref, references_in
from tamis.graph.ops import Call, IntervalRule, describe
from tamis.paths import is_weight

Lookup = Callable[[str], Any]
Values = Mapping[str, Any]
LOST_UNIT = 2.0**-48  # rounding(…) is at least this: what is lost for other reasons is counted in units of it


def interval_rule(net: Network, node: Node, wanted_by: str) -> IntervalRule:
    """Return how intervals pass through a node; UnsupportedOp where nobody knows."""
    rule = describe(node).interval_rule(Call(node, lambda name: None, net.carries_data))
    if rule is None:
        needed = "affine operations, monotone ones and maxima"
        raise UnsupportedOp(wanted_by, needed, node.op.removesuffix(".default"), node.module)
    return rule


def apply_linear(net: Network, node: Node, data: Lookup, weights: Values, bias: bool = True) -> Any:
    """Run the operation on signed data; without `bias` its linear part, everything fixed that it adds set to zero."""
    call = _call(net, node, data, weights)
    if bias:
        return call.run()
    return call.run(
        **{name: _zero_fixed(net, node.arguments[name], data, weights) for name in _name_added_arguments(node)}
    )


def apply_magnitudes(net: Network, node: Node, data: Lookup, weights: Values, one: float) -> Tensor:
    """Run the operation with magnitudes |θ| on non-negative data, `one` times what it adds included.

    Infinite data and weights say that a number is unknown: times zero it is zero, and infinite otherwise.
    """
    sizes = {name: data(name) for name in node.references if name in net.carries_data}
    fixed = {name: value.abs() if is_weight(value) else value for name, value in _list_fixed(net, node, weights)}
    if all(bool(each.isfinite().all()) for each in (*sizes.values(), *filter(is_weight, fixed.values()))):
        return _compute_magnitude(net, node, sizes, fixed, one)
    # Run as it is, 0 · ∞ would give NaN. So finite numbers and infinite ones pass apart, the latter as indicators: a
    # result is infinite where an infinite number meets one that is not zero.
    result = _compute_magnitude(
        net, node, _zero_unless(sizes, torch.isfinite), _zero_unless(fixed, torch.isfinite), one
    )
    for unknown in (
        # Unknown data that meets a weight, then an unknown weight that meets data. Only the second can be a bias, hence
        # `one` there alone.
        _compute_magnitude(net, node, _indicate(sizes, torch.isinf), _indicate(fixed, _is_nonzero), 0.0),
        _compute_magnitude(net, node, _indicate(sizes, _is_nonzero), _indicate(fixed, torch.isinf), one),
    ):
        result = torch.where(unknown > 0, torch.inf, result)
    return result


def size_of(net: Network, node: Node, data: Lookup, weights: WeightIntervals, one: float) -> Tensor:
    """Return the size that an affine operation's rounding is relative to: `rounding` times it covers all that is lost.

    It is the operation on magnitudes plus, in units of LOST_UNIT, the errors of the weights themselves and what
    underflowing products may lose: 2^−1074 for each, where both factors are not zero.
    """
    size = apply_magnitudes(net, node, data, weights.values, one)
    lost = _bound_underflow(net, node, data, weights, one)
    names = [name for name, _ in _list_fixed(net, node, weights.values)]
    if any(name in weights.errors for name in names):
        # |W̃ − W||x| + |b̃ − b|. A node that only adds its fixed tensor must not add the data a second time.
        through = data if multiplies(net, node) else lambda name: torch.zeros_like(data(name))
        lost = lost + apply_magnitudes(net, node, through, {name: weights.error(name) for name in names}, one)
    # The caller multiplies all by `rounding` ≥ LOST_UNIT, so that at least `lost` is left of the second term.
    return size + lost / LOST_UNIT


def _bound_underflow(net: Network, node: Node, data: Lookup, weights: WeightIntervals, one: float) -> Tensor | float:
    """Return what products that underflow may lose, 0.0 where none can."""
    sizes = {name: data(name) for name in node.references if name in net.carries_data}
    if min(map(least, sizes.values())) * find_least_factor(net, node, weights) >= SAFE:
        return 0.0
    met = _compute_magnitude(net, node, _indicate(sizes, _is_nonzero), make_indicators(net, node, weights), one)
    return bound_underflow_loss(net, node, weights) * (met > 0).double()


def find_least_factor(net: Network, node: Node, weights: WeightIntervals) -> float:
    """Return at most the smallest factor, except zero, that a node multiplies by: a weight or a number in the call.

    None of them counts as more than 1: a large bias multiplies nothing, and must not hide a small weight.
    """
    # Whether a number in a call multiplies or divides is not known here: the smaller of both is on the safe side.
    numbers = [min(abs(number), 1 / abs(number), 1.0) for number in _list_numbers(node)]
    return math.prod([*numbers, *(min(weights.least(name), 1.0) for name, _ in _list_fixed(net, node, weights.values))])


def make_indicators(net: Network, node: Node, weights: WeightIntervals) -> dict[str, Any]:
    """Return ones where a weight is not zero, or may not be."""
    return {
        name: ((value != 0) | (weights.error(name) != 0)).double() if is_weight(value) else value
        for name, value in _list_fixed(net, node, weights.values)
    }


def bound_underflow_loss(net: Network, node: Node, weights: WeightIntervals, terms: int = 0) -> float:
    """Return at most what one sum's underflowing products lose; numbers in the call may multiply that again."""
    # A factor in the call, such as the alpha of an addition, may come after the products and multiply what they lost.
    grown = math.prod(max(1.0, abs(number)) for number in _list_numbers(node))
    return 2 * SMALLEST * ((terms or _count_terms(net, node, weights.values)) + 32) * grown


def widen_around(centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of an interval; infinite where centre or radius has left float64's range."""
    # ∞ − ∞ would be NaN: an end that is not known must be infinite on its own side.
    known = centre.isfinite() & radius.isfinite()
    if bool(known.all()):
        return centre - radius, centre + radius
    return torch.where(known, centre - radius, -torch.inf), torch.where(known, centre + radius, torch.inf)


def apply_transpose(
    net: Network, node: Node, weights: Values, shapes: Mapping[str, torch.Size], cotangents: Any
) -> dict[str, Tensor]:
    """Apply the transpose of the linear part to a result's coefficients, which gives those of the data the node reads.

    Args:
        shapes: shapes of that data.
        cotangents: a tensor like the result, or for several results a list of tensors and None.
    """
    names = [name for name in node.references if name in net.carries_data]
    example = next(each for each in _as_list(cotangents) if each is not None)
    # The gradient of an affine operation is its transpose, wherever it is taken: here at zero.
    with torch.enable_grad():
        leaves = {name: example.new_zeros(shapes[name]).requires_grad_() for name in names}
        results = _as_list(apply_linear(net, node, leaves.__getitem__, weights))
        # There may be fewer cotangents than results: they end at the last result that somebody reads.
        pairs = [(r, c) for r, c in zip(results, _as_list(cotangents), strict=False) if c is not None]
        grads = torch.autograd.grad(
            [r for r, _ in pairs], [leaves[name] for name in names], [c for _, c in pairs], allow_unused=True
        )
    return {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}


def multiplies(net: Network, node: Node) -> bool:
    """Return whether a fixed tensor multiplies data in a node, rather than being added to it."""
    met = (node.arguments.get(argument) for argument in describe(node).multipliers)
    return any(name not in net.carries_data for name in references_in(tuple(met)))


def adds(node: Node) -> bool:
    """Return whether something fixed may be added to data in a node."""
    return any(node.arguments.get(name) is not None for name in _name_added_arguments(node))


def rounding(net: Network, node: Node, weights: Values) -> float:
    """Return what an affine operation may lose to rounding, relative to its value on magnitudes.

    A sum of n products in any order is off by at most n·u/(1 − n·u), u = ε/2, of the sum of their magnitudes. The 32
    more are for centres and radii, for what is computed of these magnitudes, and for the last sum.
    """
    return EPS / 2 * (_count_terms(net, node, weights) + 32)


def _count_terms(net: Network, node: Node, weights: Values) -> int:
    """Return at most how many terms an output of an affine operation has."""

    def make_empty(name: str) -> Any:
        # Only shapes matter for counting the terms of a sum, and tensors on "meta" have no memory.
        return torch.empty(net.shape_of(name), device="meta")  # for a batch of one, whatever batch runs

    return describe(node).products(_call(net, node, make_empty, weights))


def _list_fixed(net: Network, node: Node, weights: Values) -> list[tuple[str, Any]]:
    """Return what a node reads that does not depend on the input."""
    return [(name, weights[name]) for name in node.references if name not in net.carries_data]


def _list_numbers(node: Node) -> list[float]:
    """Return the numbers in a call that are not zero: factors, divisors, windows."""

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from numbers(item)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            yield float(value)

    return list(numbers(list(node.arguments.values())))


def _compute_magnitude(net: Network, node: Node, sizes: Values, fixed: Values, one: float) -> Tensor:
    result: Tensor = describe(node).magnitude(_call(net, node, sizes.__getitem__, fixed), 1, one)
    return result


def _indicate(values: Values, condition: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return ones where numbers meet a condition, zeros elsewhere; sizes and indices stay as they are."""
    return {name: condition(value).double() if is_weight(value) else value for name, value in values.items()}


def _zero_unless(values: Values, condition: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the values with zeros where numbers do not meet a condition."""
    return {
        name: torch.where(condition(value), value, 0.0) if is_weight(value) else value for name, value in values.items()
    }


def _is_nonzero(value: Tensor) -> Tensor:
    return value != 0


def _call(net: Network, node: Node, data: Lookup, weights: Values) -> Call:
    def lookup(name: str) -> Any:
        return data(name) if name in net.carries_data else weights[name]

    return Call(node, lookup, net.carries_data)


def _name_added_arguments(node: Node) -> tuple[str, ...]:
    """Return the arguments that are added where they are fixed; what padding fills in is one."""
    op = describe(node)
    return (*op.addends, *op.fillings)


def _zero_fixed(net: Network, value: Any, data: Lookup, weights: Values) -> Any:
    """Return an argument with zeros in the place of fixed tensors and numbers."""
    if isinstance(value, (list, tuple)):
        return [_zero_fixed(net, item, data, weights) for item in value]
    if isinstance(value, Ref):
        return data(value.name) if value.name in net.carries_data else torch.zeros_like(weights[value.name])
    # Numbers count as well: `x + 3` adds 3, which the linear part does not have.
    return None if value is None else 0


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
