"""What intervals and linear bounds owe to every operation that tamis describes; a new one is tested by its specimen."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from bounds.box_attacks import holds
from draws import normal
from specimens import SPECIMENS, network

import tamis
from tamis.bounds.box_deviation import SOURCES, box_deviation
from tamis.bounds.interval import Interval, interval
from tamis.bounds.joint_interval import joint_interval
from tamis.bounds.linear_relaxation import linear_relaxation
from tamis.graph.network import op_name
from tamis.graph.ops import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

FIRST = {family.targets[0] for family in FAMILIES}  # one of each family; the others take longer
TARGETS = pytest.mark.parametrize(
    "target", [t if t in FIRST else pytest.param(t, marks=pytest.mark.slow) for t in SPECIMENS], ids=op_name
)


@cache
def pair(target: Any) -> tuple[tamis.Network, tamis.Network, torch.Tensor]:
    x, net = SPECIMENS[target].example(), network(target)
    generator = torch.Generator().manual_seed(3)
    moved = {n: net.params[n] + 0.2 * normal(generator, *net.params[n].shape) for n in net.trainable}
    return net, net.with_params(moved), x[:1] if net.batched else x


@TARGETS
def test_every_operation_is_passed_soundly(target: Any) -> None:
    net, other, x = pair(target)
    box = Interval(x - 0.1, x + 0.1)
    (joint,), (linear,) = joint_interval(net, other, box), linear_relaxation(net, other, box)
    assert bool((linear.low >= joint.low).all()) and bool((linear.high <= joint.high).all())
    if net.batched:
        assert holds(net, other, box, [linear], steps=2)
    else:  # the attack wants samples along the first axis
        gap = other(x) - net(x)
        assert bool((linear.low - 1e-12 <= gap).all()) and bool((gap <= linear.high + 1e-12).all())
    (zero,), (also_zero,) = joint_interval(net, net, box), linear_relaxation(net, net, box)
    assert float(zero.size.max()) == float(also_zero.size.max()) == 0.0


@TARGETS
def test_at_a_point_every_operation_is_exact(target: Any) -> None:
    net, other, x = pair(target)
    point = Interval(x, x)
    torch.testing.assert_close(interval(net, point)[0].centre, net(x), rtol=1e-9, atol=1e-9)
    (found,) = joint_interval(net, other, point)
    torch.testing.assert_close(found.centre, other(x) - net(x), rtol=1e-9, atol=1e-9)
    assert float(found.radius.max()) < 1e-9


class Smaller(torch.nn.Module):
    """min(x, level), the level being computed from x as well, with weight 0."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        with torch.no_grad():
            for layer, weight, bias in ((self.one, 1.0, 0.0), (self.other, 0.0, level)):
                layer.weight.fill_(weight)
                layer.bias.fill_(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(self.one(x), self.other(x))


def test_a_minimum_is_not_taken_for_a_maximum() -> None:
    """At the low end of the box x wins in both networks; were it to win everywhere, they would be equal."""
    net, small = (tamis.trace(Smaller(level), torch.zeros(1, 1)) for level in (0.0, -1.0))
    assert float(net(torch.tensor([[2.0]])) - small(torch.tensor([[2.0]]))) == 1
    (bound,) = box_deviation(net, small, torch.zeros(1, 1), 2.0)
    assert len(SOURCES.keys() & bound.terms.keys()) >= 2
    assert all(term >= 1 for name, term in bound.terms.items() if name in SOURCES), bound.terms
