"""What every described operation must satisfy; a new one is tested by being registered and bringing a specimen."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from specimens import SPECIMENS

import tamis
from tamis.errors import UnsupportedOp
from tamis.graph import fold_batch_norm
from tamis.graph.network import op_name
from tamis.graph.ops import REGISTRY, Capability, Opaque, capability

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        metafunc.parametrize("target", [*SPECIMENS], ids=op_name)
    if "homogeneous" in metafunc.fixturenames:
        metafunc.parametrize("homogeneous", [t for t in SPECIMENS if t not in LIPSCHITZ_ONLY], ids=op_name)


aten = torch.ops.aten
LIPSCHITZ_ONLY = {
    aten.tanh.default,
    aten.relu6.default,
    aten.sin.default,
    aten.atan.default,
    aten.asinh.default,
    aten.elu.default,
}


@cache
def traced(target: Any) -> tuple[tamis.Network, torch.Tensor]:
    specimen = SPECIMENS[target]
    x = specimen.example()
    net = tamis.trace(specimen.module(), x)
    return net, x


def one_sample(net: tamis.Network, x: torch.Tensor) -> torch.Tensor:
    return x[:1] if net.batched else x


def test_every_registered_operation_has_a_specimen() -> None:
    assert {target for target, op in REGISTRY.items() if not isinstance(op, Opaque)} == set(SPECIMENS)


def test_tracing_keeps_the_operation_and_its_values(target: Any) -> None:
    net, x = traced(target)
    assert any(node.target is target for node in net.nodes)
    torch.testing.assert_close(net(x), SPECIMENS[target].module()(x), rtol=1e-12, atol=1e-12)


def test_capability(target: Any) -> None:
    net, _ = traced(target)
    least = min(capability(net, node) for node in net.data_nodes)
    assert least == (Capability.LIPSCHITZ if target in LIPSCHITZ_ONLY else Capability.HOMOGENEOUS)


def test_writing_out_and_folding_batch_norm_change_no_output(target: Any) -> None:
    net, x = traced(target)
    for fold in (True, False):
        torch.testing.assert_close(fold_batch_norm(net, fold)(x), net(x))


def test_path_and_product_norms_equal_enumeration(homogeneous: Any) -> None:
    net, x = traced(homogeneous)
    x = one_sample(net, x)
    for q in (0.5, 1, 2, 4):
        lifted = tamis.lifting(net, x, q=q)
        torch.testing.assert_close(lifted.realization(x), net(x).flatten(), rtol=1e-9, atol=1e-9)
        for r in (1, 2, math.inf):
            assert tamis.path_norm(net, q, r) == pytest.approx(lifted.norm(q, r), rel=1e-9)
            assert tamis.product_norm(net, q, r) == pytest.approx(lifted.product_norm(r), rel=1e-9)


def test_costs_equal_the_norm_with_and_without_each_coordinate(homogeneous: Any) -> None:
    net, _ = traced(homogeneous)
    costs, norm = tamis.path_costs(net), tamis.path_norm(net)
    for name, values in costs.values.items():
        for i in range(0, values.numel(), max(1, values.numel() // 3)):
            without = net.params[name].clone()
            without.view(-1)[i] = 0
            lost = norm - tamis.path_norm(net.with_params({name: without}))
            assert float(values.view(-1)[i]) == pytest.approx(lost, rel=1e-9, abs=1e-9 * norm)


def test_rescaling_and_normalizing_change_no_output(target: Any) -> None:
    net, x = traced(target)
    for same in (tamis.rescale(net, seed=1), tamis.normalize(net), tamis.normalize(net, q=2)):
        torch.testing.assert_close(same(x), net(x), rtol=1e-9, atol=1e-9)


def test_metric_bounds_the_distance_of_outputs(target: Any) -> None:
    net, x = traced(target)
    generator = torch.Generator().manual_seed(7)
    for spread in (0.01, 0.5, 5.0):
        noise = {
            n: spread * torch.randn(v.shape, generator=generator) for n, v in net.params.items() if n in net.trainable
        }
        other = net.with_params({name: net.params[name] + change for name, change in noise.items()})
        distance = (net(x) - other(x)).abs()
        distance = distance.flatten(1).sum(1) if net.batched else distance.sum()
        bound = torch.as_tensor(tamis.path_metric(net, other, x))
        assert bool((distance <= bound * (1 + 1e-12)).all())


@pytest.mark.parametrize("call", [tamis.path_norm, tamis.path_costs, tamis.lifting, tamis.product_norm])
def test_what_needs_homogeneity_refuses_by_name(call: Any) -> None:
    net, _ = traced(aten.tanh.default)
    with pytest.raises(UnsupportedOp, match=r"needs a homogeneous network: 'aten\.tanh' at the top level of the model"):
        call(net)
