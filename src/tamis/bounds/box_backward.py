"""Linear bounds pass backward through two networks here, as coefficients of neurons and of their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.box_lines import Line, Lines, lines
from tamis.bounds.box_maxima import Winners, find_winners, hand_on
from tamis.bounds.directed_rounding import EPS, FAINT, SAFE, SMALLEST, least, multiply_up
from tamis.bounds.interval import Interval
from tamis.bounds.interval_affine import (
    adds,
    apply_linear,
    apply_transpose,
    bound_underflow_loss,
    find_least_factor,
    interval_rule,
    make_indicators,
    multiplies,
)
from tamis.bounds.interval_pointwise import find_function
from tamis.bounds.joint_interval import Joint, Pair, Sizes
from tamis.bounds.weight_intervals import WeightIntervals
from tamis.graph import Node
from tamis.graph.ops import IntervalRule, describe

AT_A_TIME = 20_000_000  # entries of the coefficients of one tensor


@dataclass
class Coefficients:
    """A tensor has coefficients a of z and c of d = z' − z; rows lie along its batch axis."""

    a: Tensor | None = None
    c: Tensor | None = None

    # None stands for zero: equal layers at the end of two networks never make coefficients of z, only those of d.
    def add(self, a: Tensor | None = None, c: Tensor | None = None) -> None:
        if a is not None:
            self.a = a if self.a is None else self.a + a
        if c is not None:
            self.c = c if self.c is None else self.c + c


class Backward:
    """A backward pass carries upper bounds of linear functions of neurons and differences back to the box of inputs.

    Coefficients are rounded on the way. What that can change in a bound is added to it node by node, as a multiple of
    the coefficients' magnitudes times the largest magnitudes that the node's intervals have (docs/rounding.md).

    Args:
        pair: the networks.
        values: the joint intervals of all nodes before those that are asked for, for one box. More may be put in later.
        sizes: what rounding is relative to at affine nodes.
        axes: the axis of samples in each tensor, so that many functions can be carried side by side; None to carry one
            at a time.
    """

    def __init__(
        self, pair: Pair, values: Mapping[str, Any], sizes: Mapping[str, Sizes], axes: Mapping[str, int] | None
    ) -> None:
        self.pair, self.values, self.sizes, self.axes = pair, values, sizes, axes
        self._lines: dict[str, Lines] = {}
        self._winners: dict[str, Winners | None] = {}
        self._wide: tuple[int, Pair] = (1, pair)
        # The two below are set for each call of `_interval`, since `values` may have grown since the last one.
        self._widest = 0  # neurons of a tensor
        self._rounding = 0.0  # of sums over all neurons of a tensor, relative to the sums of their magnitudes

    @cached_property
    def reverse(self) -> Backward:
        """Return the same with the networks in each other's place."""
        # Views rather than copies: `values` and `sizes` fill up while the pass runs, and the reverse must see that.
        return Backward(self.pair.swap(), _Swapped(self.values), _Swapped(self.sizes), self.axes)

    def mine(self, name: str, neurons: Tensor | None = None) -> Interval:
        """Compute intervals of a tensor's neurons in the first network; of all, or infinite but for those asked for."""
        return self._compute_interval(name, neurons, lambda rows: self.upper(name, Coefficients(a=rows)))

    def apart(self, name: str, neurons: Tensor | None = None) -> Interval:
        """Compute intervals of the differences, from both orders of the networks."""
        # W' d + (W' − W) z and W d + (W' − W) z' are equal, but bounds of their parts are not: both hold.
        mine = self._compute_interval(name, neurons, lambda rows: self.upper(name, Coefficients(c=rows)))
        reverse = self.reverse
        other = reverse._compute_interval(name, neurons, lambda rows: reverse.upper(name, Coefficients(c=rows)))
        # The reverse bounds z − z' = −d, hence the minus sign.
        return mine & -other

    def _compute_interval(self, name: str, neurons: Tensor | None, upper: Callable[[Tensor], Tensor]) -> Interval:
        like: Tensor = self.values[name].mine.low
        widest = max(value.mine.low.numel() for value in self.values.values() if isinstance(value, Joint))
        # The sums over neurons are added up, node by node.
        self._widest, self._rounding = widest, 2 * EPS * (widest + 8 * len(self.pair.net.data_nodes) + 64)
        neurons = torch.arange(like.numel(), device=like.device) if neurons is None else neurons
        # Neurons that nobody asked for keep an infinite interval, which an intersection leaves as it was.
        high = torch.full_like(like, torch.inf).flatten()
        low = -high
        # A lower bound is an upper bound of the negative, so each neuron needs two rows.
        for chosen in neurons.split(1 if self.axes is None else max(1, AT_A_TIME // (2 * widest))):
            rows = self._make_indicators(name, chosen)
            if self.axes is None:
                high[chosen], low[chosen] = upper(rows), -upper(-rows)
            else:
                both = upper(torch.cat([rows, -rows], self.axes[name]))
                high[chosen], low[chosen] = both[: len(chosen)], -both[len(chosen) :]
        # What has left float64's range says nothing.
        high, low = torch.where(high.isfinite(), high, torch.inf), torch.where(low.isfinite(), low, -torch.inf)
        return Interval(low.view(like.shape), high.view(like.shape))

    def _make_indicators(self, name: str, neurons: Tensor) -> Tensor:
        """Return for each neuron a row that is one there and zero elsewhere."""
        like = self.values[name].mine.low
        rows = like.new_zeros(len(neurons), like.numel())
        rows[torch.arange(len(neurons), device=like.device), neurons] = 1.0
        if self.axes is None:
            return rows.view(like.shape)
        axis = self.axes[name]
        return rows.view(len(neurons), *like.shape[:axis], *like.shape[axis + 1 :]).movedim(0, axis)

    def upper(self, name: str, start: Coefficients) -> Tensor:
        """Bound for each row the largest value that a·z + c·d can have on the box."""
        rows = next(each for each in (start.a, start.c) if each is not None)
        self._widen(1 if self.axes is None else rows.shape[self.axes[name]])
        # Invariant: for each row and each x of the box, a·z + c·d is at most `total` plus what all carried coefficients
        # give on the neurons that they belong to.
        total = rows.new_zeros(self._wide[0])
        carried: dict[str, dict[int, Coefficients]] = {name: {0: start}}
        # In reverse order all readers of a node come first, so its coefficients are complete when it is popped. What is
        # left in the end belongs to inputs.
        for node in reversed(self.pair.net.data_nodes):
            if node.name in carried:
                total = total + self._carry_node(node, carried.pop(node.name), carried)
        for each, coefficients in carried.items():
            # Coefficients c of an input are dropped: both networks read the same x, so d = 0 there.
            total = total + self._bound_input(each, coefficients[0].a)
        return total

    def _widen(self, rows: int) -> None:
        """Prepare weights for a batch of that many rows."""
        if self._wide[0] != rows:
            self._wide = rows, self.pair.for_batch(rows)

    def _carry_node(
        self, node: Node, results: dict[int, Coefficients], carried: dict[str, dict[int, Coefficients]]
    ) -> Any:
        """Carry a node's coefficients to what it reads, and return what they add to the constant."""

        def carry(name: str, index: int = 0, **parts: Tensor | None) -> None:
            carried.setdefault(name, {}).setdefault(index, Coefficients()).add(**parts)

        rule = self._find_rule(node)
        if describe(node).picks_result:
            source = self.pair.net.node[node.args[0].name]
            if self._find_rule(source) is IntervalRule.SELECTING:  # the other result is indices
                return self._carry_selection(source, node, results[0], carry)
            # Of an operation with several results, such as a split, each result's coefficients wait under its own
            # index.
            carry(source.name, node.args[1], a=results[0].a, c=results[0].c)
            return 0.0
        if rule is IntervalRule.SELECTING:
            return self._carry_selection(node, node, results[0], carry)
        if rule is IntervalRule.POINTWISE:
            return self._carry_pointwise(node, results[0], carry)
        return self._carry_affine(node, results, carry)

    def _find_rule(self, node: Node) -> IntervalRule:
        return interval_rule(self.pair.net, node, "linear_relaxation")

    def _carry_affine(self, node: Node, results: dict[int, Coefficients], carry: Callable[..., None]) -> Any:
        net, pair, wide = self.pair.net, self.pair, self._wide[1]
        if self._find_rule(node) is IntervalRule.MOVING and any(name in pair.inexact for name in node.references):
            return self._bound_constant(node, results[0])  # what it moves there is an interval, not a number
        changes, wide_changes = pair.changes(node), wide.changes(node)
        # Results that nobody read have None, which `transposed` takes for coefficients of zero.
        a, c = ([getattr(results.get(i), part, None) for i in range(max(results) + 1)] for part in ("a", "c"))
        total = self._carry_back(node, wide.mine, a, "mine", carry) + self._carry_back(
            node, wide.other, c, "apart", carry
        )
        # a_in = Wᵀ a + (W' − W)ᵀ c: the second term is the differences' share in the coefficients of z.
        if wide_changes is not None and multiplies(net, node):
            total = total + self._carry_back(node, wide_changes, c, "mine", carry)
        # Several results are only made by moving entries, which neither rounds nor adds anything.
        if isinstance(self.values[node.name], list):
            return total
        total = total + self._bound_slack(node, results[0])
        if adds(node):
            # On zeros an affine operation gives what it adds: b, and for the changes b' − b.
            nothing = {n: torch.zeros_like(self.values[n].mine.low) for n in node.references if n in net.carries_data}
            for rows, weights in ((results[0].a, pair.mine), (results[0].c, changes)):
                if weights is not None:
                    added = apply_linear(net, node, nothing.__getitem__, weights.values)
                    total = total + self._sum_products(node.name, rows, added)
        return total

    def _carry_back(
        self, node: Node, weights: WeightIntervals, rows: list[Any], of: str, carry: Callable[..., None]
    ) -> Any:
        """Carry coefficients through a node's transpose, to those of z (`of` "mine") or d ("apart").

        Returns what products may have lost there that underflow: 2^−1074 for each, times the largest |z| or |d|.
        """
        rows_met = [each for each in rows if each is not None]
        if not rows_met:
            return 0.0
        net, part = self.pair.net, "a" if of == "mine" else "c"
        shapes = {name: self._find_shape(name) for name in node.references if name in net.carries_data}
        for name, moved in apply_transpose(net, node, weights.values, shapes, rows).items():
            carry(name, **{part: moved})
        # Nothing is lost where entries are only moved, or where no product comes near underflow.
        if (
            self._find_rule(node) is IntervalRule.MOVING
            or least(rows_met[0]) * find_least_factor(net, node, weights) >= SAFE
        ):
            return 0.0
        # The transpose on indicators counts the products of two factors that are not zero; where it counts none,
        # nothing was lost, and equal networks keep a bound of exactly zero.
        met = apply_transpose(net, node, make_indicators(net, node, weights), shapes, [(rows_met[0] != 0).double()])
        lost = bound_underflow_loss(net, node, weights, self._widest)
        total: Any = 0.0
        for name, count in met.items():
            # A coefficient that lost δ changes the bound by at most δ times the largest |z| or |d| that it multiplies.
            size = getattr(self.values[name], of).size
            total = total + self._sum_products(
                name, (count != 0).double(), multiply_up(torch.full_like(size, lost), size)
            )
        return total

    def _bound_slack(self, node: Node, results: Coefficients) -> Any:
        """Return what products with the node's transpose may have rounded, relative to the node on magnitudes."""
        value: Joint = self.values[node.name]
        # Nodes that are not affine in the joint pass have no sizes of their own; they only move entries, so the
        # magnitudes of their values are the sums of products.
        sizes = self.sizes.get(node.name) or Sizes(
            value.mine.size, value.other.size, value.apart.size, value.apart.size
        )
        return self._bound_rounding(node.name, results.a, sizes.mine) + self._bound_rounding(
            node.name, results.c, sizes.apart
        )

    def _bound_rounding(self, name: str, rows: Tensor | None, size: Tensor) -> Any:
        """Return what sums of products of the rows with numbers of that size may lose, to rounding and to underflow."""
        # Exactly nothing for rows or sizes of zero: networks that are equal must give zero.
        if rows is None or not (bool(rows.any()) and bool(size.any())):
            return 0.0
        return self._rounding * self._sum_products(name, rows.abs(), size) + FAINT * (size.numel() + 1)

    def _carry_selection(self, node: Node, result: Node, rows: Coefficients, carry: Callable[..., None]) -> Any:
        """Carry coefficients to a neuron that always wins; elsewhere return the largest value on the intervals."""
        if node.name not in self._winners:
            self._winners[node.name] = find_winners(self.pair.net, node, self.values)
        known = self._winners[node.name]
        if known is None:
            return self._bound_constant(result, rows)
        shapes = {name: self._find_shape(name) for name in node.references}
        rest = Coefficients()
        # z of the result is z of a winner known in the first network; d is the winner's only if it wins in both.
        for part, decided in (("a", known.mine), ("c", known.both)):
            each = getattr(rows, part)
            if each is not None:
                rest.add(**{part: each.masked_fill(decided, 0.0)})
                for name, kept in hand_on(node, self.values, shapes, each.masked_fill(~decided, 0.0)).items():
                    carry(name, **{part: kept})
        return self._bound_constant(result, rest)

    def _bound_constant(self, node: Node, results: Coefficients) -> Any:
        """Return the largest value on the node's own intervals."""
        value: Joint = self.values[node.name]
        total: Any = 0.0
        for rows, x in ((results.a, value.mine), (results.c, value.apart)):
            # A linear function is largest at a corner: the high end where the coefficient is positive, the low end
            # where not.
            total = (
                total
                + self._sum_products(node.name, _take_positive_part(rows), x.high)
                + self._sum_products(node.name, _take_negative_part(rows), x.low)
            )
            total = total + self._bound_rounding(node.name, rows, x.size)
        return total

    def _carry_pointwise(self, node: Node, results: Coefficients, carry: Callable[..., None]) -> Any:
        read = node.arguments["self"].name
        x: Joint = self.values[read]
        if node.name not in self._lines:
            self._lines[node.name] = lines(find_function(node), x, self.values[node.name])
        bounds = self._lines[node.name]
        # For an upper bound, a positive coefficient needs a line above the function and a negative one a line below.
        terms: list[tuple[Tensor | None, Line]] = [
            (_take_positive_part(results.a), bounds.above),
            (_take_negative_part(results.a), bounds.below),
            (_take_positive_part(results.c), bounds.apart_above),
            (_take_negative_part(results.c), bounds.apart_below),
        ]
        total: Any = 0.0
        for rows, line in terms:
            if rows is None:
                continue
            # Lines for f(z') − f(z) may have a slope in z, so a coefficient of d can become one of z here, never the
            # reverse.
            carry(read, a=rows * line.z_slope, c=rows * line.d_slope)
            by_z, by_d = multiply_up(line.z_slope.abs(), x.mine.size), multiply_up(line.d_slope.abs(), x.apart.size)
            total = total + self._sum_products(node.name, rows, line.offset)
            total = total + self._bound_rounding(node.name, rows, by_z + by_d + line.offset.abs())
            total = total + self._bound_underflow(node.name, rows, line.z_slope, x.mine.size)
            total = total + self._bound_underflow(node.name, rows, line.d_slope, x.apart.size)
        return total

    def _bound_underflow(self, name: str, rows: Tensor, slope: Tensor, size: Tensor) -> Any:
        """Return what underflowing products of rows and slopes may have lost, times the numbers that they multiply."""
        if least(rows) * least(slope) >= SAFE:
            return 0.0
        # A product that underflows loses at most half of SMALLEST; multiplied upward, since this product may underflow
        # too.
        lost = multiply_up(torch.full_like(size, SMALLEST), size)
        return self._sum_products(name, ((rows != 0) & (slope != 0)).double(), lost)

    def _bound_input(self, name: str, a: Tensor | None) -> Any:
        """Return the largest value of a·x on the box; differences are zero there."""
        box: Interval = self.values[name].mine
        # max over |x − m| ≤ r of a·x is a·m + |a|·r; what the rounded m and r lose is added below.
        linear = self._sum_products(name, a, box.centre) + self._sum_products(name, _take_magnitudes(a), box.radius)
        return linear + self._bound_rounding(name, a, box.size)

    def _sum_products(self, name: str, rows: Tensor | None, values: Tensor) -> Any:
        """Sum products row by row; a number with the coefficient zero does not count, even if it is infinite."""
        if rows is None:
            return 0.0
        product = rows * values
        if not bool(values.isfinite().all()):
            # 0 · ∞ would be NaN, and make a whole row say nothing for a neuron that it does not use.
            product = product.masked_fill(rows == 0, 0.0)
        if self.axes is None:
            return product.sum().view(1)
        return product.movedim(self.axes[name], 0).flatten(1).sum(1)

    def _find_shape(self, name: str) -> torch.Size:
        shape = list(self.values[name].mine.low.shape)
        if self.axes is not None:
            shape[self.axes[name]] = self._wide[0]
        return torch.Size(shape)


class _Swapped(Mapping[str, Any]):
    """These are joint intervals, or sizes, with the networks in each other's place."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return [each and each.swap() for each in value] if isinstance(value, list) else value.swap()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _take_positive_part(rows: Tensor | None) -> Tensor | None:
    return None if rows is None else rows.clamp(min=0)


def _take_negative_part(rows: Tensor | None) -> Tensor | None:
    return None if rows is None else rows.clamp(max=0)


def _take_magnitudes(rows: Tensor | None) -> Tensor | None:
    return None if rows is None else rows.abs()


def find_batch_axes(pair: Pair, boxes: Mapping[str, Interval]) -> dict[str, int] | None:
    """Find for each tensor of data the axis along which samples lie; None where one has no such axis.

    It is the axis of size one that has size two in a batch of two.
    """
    # Sizes are compared rather than deduced, so that reshapes and transposes that move the batch need no rules here.
    single, double = ({n: boxes[n].low[:1].repeat(k, *[1] * (boxes[n].low.dim() - 1)) for n in boxes} for k in (1, 2))
    values = [_evaluate(pair.for_batch(k + 1), each) for k, each in enumerate((single, double))]
    axes: dict[str, int] = {}
    for name, one in values[0].items():
        if not isinstance(one, Tensor):
            continue
        found = [i for i, (a, b) in enumerate(zip(one.shape, values[1][name].shape, strict=True)) if a != b]
        # An axis on which samples and channels are merged cannot be widened row by row.
        if len(found) != 1 or one.shape[found[0]] != 1:
            return None
        axes[name] = found[0]
    return axes


def _evaluate(pair: Pair, values: dict[str, Any]) -> dict[str, Any]:
    """Evaluate every node of the first network."""
    for node in pair.net.data_nodes:
        values[node.name] = apply_linear(pair.net, node, values.__getitem__, pair.mine.values)
    return values
