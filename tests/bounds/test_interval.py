"""Intervals of one network: closed forms, inclusion, attacks, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bounds.box_attacks import ARCHITECTURES, FUNCTIONS, around, drawn, flat, inputs, mlp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tamis
from tamis.bounds.interval import Interval, interval
from tamis.bounds.interval_pointwise import find_pointwise
from tamis.errors import InvalidInput, UnsupportedOp
from tamis.graph import Node
from tamis.graph.network import op_name

aten = torch.ops.aten


@pytest.mark.parametrize("node", FUNCTIONS, ids=lambda node: f"{op_name(node.target)}{node.args[1:]}")
@given(low=st.floats(-8, 8), width=st.floats(0, 9))
@settings(deadline=None, max_examples=12)
def test_ranges_and_slopes_of_functions_of_one_neuron(node: Node, low: float, width: float) -> None:
    function = find_pointwise(node)
    assert function is not None
    x = torch.linspace(low, low + width, 201, dtype=torch.float64)
    values = function.run(x)
    smallest, largest = function.extremes(x[:1], x[-1:])
    assert bool((smallest <= values).all()) and bool((values <= largest).all())
    down, up = function.slopes(x[:1], x[-1:])
    rise, run = values[:, None] - values, x[:, None] - x
    forward = run > 0
    tolerance = 1e-13 * (1 + abs(low) + width)
    assert bool((rise <= up * run + tolerance)[forward].all())
    assert bool((rise >= down * run - tolerance)[forward].all())
    if target_is_monotone(node) and width > 0:
        torch.testing.assert_close(torch.cat([smallest, largest]), values[[0, -1]])


def target_is_monotone(node: Node) -> bool:
    turns = node.target in (aten.abs.default, aten.sin.default) or (
        node.target is aten.leaky_relu.default and node.args[1] < 0
    )
    return not turns


def test_a_linear_layer_gives_the_exact_range() -> None:
    net = tamis.trace(nn.Linear(3, 2).double(), torch.zeros(1, 3, dtype=torch.float64))
    weight, bias, x = net.params["weight"], net.params["bias"], inputs(net, 0)
    (found,) = interval(net, around(x, 0.3))
    centre, radius = x @ weight.T + bias, 0.3 * weight.abs().sum(1)
    torch.testing.assert_close(found.low, centre - radius)
    torch.testing.assert_close(found.high, centre + radius)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_attack_leaves_the_intervals(name: str) -> None:
    for seed in range(2):
        net = drawn(name, seed)
        x, generator = inputs(net, seed), torch.Generator().manual_seed(seed)
        for radius in (0.0, 0.05, 1.0):
            (found,) = interval(net, around(x, radius))
            offset = 2 * torch.rand(40, *x.shape, generator=generator, dtype=torch.float64) - 1
            offset[1::2] = offset[1::2].sign()
            y = flat(net, (x + radius * offset).flatten(0, 1)).unflatten(0, (40, len(x)))  # all points as one batch
            slack = 1e-12 * (1 + y.abs().max())
            assert bool((found.low.flatten(1) - slack <= y).all() and (y <= found.high.flatten(1) + slack).all())


@given(seed=st.integers(0, 99), inner=st.floats(0, 1), grown=st.floats(0, 1))
@settings(deadline=None, max_examples=6)
def test_a_larger_box_has_larger_intervals(seed: int, inner: float, grown: float) -> None:
    net = drawn("max-pool", seed)
    x = inputs(net, seed)
    (small,), (large,) = interval(net, around(x, inner)), interval(net, around(x, inner + grown))
    slack = 1e-12 * (1 + large.size)
    assert bool((large.low <= small.low + slack).all()) and bool((small.high <= large.high + slack).all())


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, lambda: nn.Softmax(1), lambda: nn.PReLU()])
def test_what_is_not_known_is_refused_by_name(activation: Any) -> None:
    net = tamis.trace(mlp(3, 4, 2, activation=activation), torch.zeros(1, 3))
    x = torch.zeros(1, 3, dtype=torch.float64)
    wanted = r"interval needs affine operations, monotone ones and maxima: 'aten\.[\w.]+' at 1 is not"
    with pytest.raises(UnsupportedOp, match=wanted):
        interval(net, around(x, 0.1))


def test_a_product_of_data_is_refused() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    net = tamis.trace(Square(), torch.zeros(1, 3))
    with pytest.raises(UnsupportedOp, match=r"'aten\.mul\.Tensor' at the top level"):
        interval(net, around(torch.zeros(1, 3, dtype=torch.float64), 0.1))


def test_boxes_are_checked() -> None:
    net, x = drawn("mlp", 0), torch.zeros(2, 4, dtype=torch.float64)
    with pytest.raises(InvalidInput, match=r"8 entries that are not numbers with low ≤ high"):
        interval(net, Interval(x + 1, x))
    with pytest.raises(InvalidInput, match=r"two float64 tensors of one shape, got torch.float32"):
        interval(net, Interval(x.float(), x))
    with pytest.raises(InvalidInput, match=r"has the inputs .* got boxes for \['nobody'\]"):
        interval(net, {"nobody": Interval(x, x)})
    with pytest.raises(InvalidInput, match=r"must have shape \(batch, 4\)"):
        interval(net, Interval(x[:, :3], x[:, :3]))


def test_leaving_float64_says_nothing() -> None:
    net = drawn("deep mlp", 0)
    huge = net.with_params({n: 1e100 * v for n, v in net.params.items()})
    (found,) = interval(huge, around(inputs(net, 0), 1.0))
    assert bool((found.low == -torch.inf).all()) and bool((found.high == torch.inf).all())


def test_an_output_that_is_fixed_is_refused() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * self.weight, self.weight * 2

    net = tamis.trace(Fixed(), torch.zeros(3, 2, dtype=torch.float64))
    x = torch.zeros(net.input_shapes[0], dtype=torch.float64)
    with pytest.raises(InvalidInput, match=r"every output to depend on an input: '\w+' does not"):
        interval(net, around(x, 0.1))


def test_the_centre_is_the_middle_or_the_finite_end_or_zero() -> None:
    """Entry by entry, beside one another: an infinite end, or a sum that overflows, spoils no other entry's middle."""
    ends = [(1.0, 4.0), (3.0, torch.inf), (-torch.inf, 5.0), (-torch.inf, torch.inf), (1e308, 1.5e308), (0.0, 5e-324)]
    low, high = torch.tensor(ends, dtype=torch.float64).T
    assert Interval(low, high).centre.tolist() == [2.5, 3.0, 5.0, 0.0, 1.25e308, 0.0]
    assert Interval(low[:1], high[:1]).centre.tolist() == [2.5]
