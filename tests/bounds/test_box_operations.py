"""What intervals and linear bounds owe to every operation that tamis describes; a new one is tested by its specimen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bounds.box_attacks import holds
from draws import normal
from specimens import SPECIMENS

import tamis
from tamis.bounds.interval import Interval, interval
from tamis.bounds.joint_interval import joint_interval
from tamis.bounds.linear_relaxation import linear_relaxation
from tamis.graph.network import op_name

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


def pair(target: Any) -> tuple[tamis.Network, tamis.Network, torch.Tensor]:
    x = SPECIMENS[target].example()
    net = tamis.trace(SPECIMENS[target].module(), x)
    generator = torch.Generator().manual_seed(3)
    moved = {n: net.params[n] + 0.2 * normal(generator, *net.params[n].shape) for n in net.trainable}
    return net, net.with_params(moved), x


@pytest.mark.parametrize("target", SPECIMENS, ids=op_name)
def test_every_operation_is_passed_soundly(target: Any) -> None:
    net, other, x = pair(target)
    box = Interval(x - 0.1, x + 0.1)
    (joint,), (linear,) = joint_interval(net, other, box), linear_relaxation(net, other, box)
    if not net.batched:  # the attack wants samples along the first axis
        low, high = (Interval(each.low[None], each.high[None]) for each in (joint, linear))
        assert bool(((other(x) - net(x))[None] >= torch.maximum(low.low, high.low) - 1e-12).all())
        assert bool(((other(x) - net(x))[None] <= torch.minimum(low.high, high.high) + 1e-12).all())
    else:
        assert holds(net, other, box, [joint]) and holds(net, other, box, [linear])
    assert bool((linear.size <= joint.size).all())
    (zero,), (also_zero,) = joint_interval(net, net, box), linear_relaxation(net, net, box)
    assert float(zero.size.max()) == float(also_zero.size.max()) == 0.0


@pytest.mark.parametrize("target", SPECIMENS, ids=op_name)
def test_at_a_point_every_operation_is_exact(target: Any) -> None:
    net, other, x = pair(target)
    point = Interval(x, x)
    torch.testing.assert_close(interval(net, point)[0].centre, net(x), rtol=1e-9, atol=1e-9)
    for found in (joint_interval(net, other, point)[0], linear_relaxation(net, other, point)[0]):
        torch.testing.assert_close(found.centre, other(x) - net(x), rtol=1e-9, atol=1e-9)
        assert float(found.radius.max()) < 1e-9
