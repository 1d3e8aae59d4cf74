"""What is read off a graph: against hand counts, against published depths, and where Remark 4.4.1 does not apply."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import dags
from torch import Tensor, nn

import tamis
from tamis.bounds.shape import GraphShape, fully_connected_widths, read_shape
from tamis.errors import AssumptionViolated, InvalidInput, UnsupportedOp
from tamis.training import models
from tamis.training.models.resnet import BasicBlock, ResNet


class Flow(nn.Module):
    """Layers by name, and how data flows through them."""

    def __init__(self, flow: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.flow = flow
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.flow(self, x)


def shape_of(model: nn.Module, *shape: int) -> GraphShape:
    return read_shape(tamis.trace(model.eval(), torch.zeros(1, *shape)))


def test_a_perceptron_by_hand() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    assert shape_of(model, 4) == GraphShape(
        d_in=4,
        d_out=3,
        depth=3,
        kernel=1,
        pool_kinds=0,
        pool_layers=0,
        params=4 * 8 + 8 + 8 * 5 + 5 + 5 * 3 + 3,
        rescalings=13,
        biases=True,
        pooling_in_layers=True,
        longest_path=3,
        weight_sharing=False,
    )


def test_a_short_resnet_by_hand() -> None:
    """The stem and the head of ResNet-18 around a block of each kind: 1 + 2 + 2 + 1 layers, and one pooling."""
    model = ResNet(BasicBlock, (1, 1, 1, 1), 10)
    model.layer3 = model.layer4 = nn.Identity()  # type: ignore[assignment]
    model.fc = nn.Linear(128, 10)
    shape = shape_of(model, 3, 32, 32)
    assert (shape.depth, shape.kernel, shape.pool_kinds, shape.pool_layers) == (6, 9, 1, 1)
    assert shape.pooling_in_layers and shape.biases and shape.d_out == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "depth"),
    [("resnet18", 18), ("resnet34", 34), ("resnet50", 50), ("resnet101", 101), ("resnet152", 152)],
)
def test_resnets_have_the_depth_in_their_name(name: str, depth: int) -> None:
    shape = shape_of(models.MODELS[name](), 3, 32, 32)
    assert (shape.depth, shape.kernel, shape.pool_kinds, shape.pool_layers) == (depth, 9, 1, 1)
    assert shape.pooling_in_layers and shape.biases and shape.d_out == 1000


def test_batch_norm_is_folded_before_parameters_are_counted() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    shape = shape_of(model, 2, 5, 5)
    assert shape.params == 2 * 3 * 9 + 3 + 27 * 2 + 2
    assert shape.weight_sharing and shape.rescalings == 3 and shape.depth == 2


def test_identity_neurons_are_dropped_from_the_depth_but_not_from_the_longest_path() -> None:
    linear = nn.Sequential(
        nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(), nn.AvgPool1d(2), nn.Linear(2, 2), nn.Linear(2, 1)
    )
    shape = shape_of(nn.Sequential(linear), 1, 4)
    assert shape.depth == 2  # the ReLU and the output
    assert shape.longest_path == 5  # linear, linear with ReLU, average, linear, linear


def test_paths_around_two_poolings() -> None:
    def flow(net: Any, x: Tensor, skips: bool) -> Tensor:
        first = F.relu(net.first(x))
        second = F.relu(net.second(F.max_pool1d(first, 2)))
        third = F.interpolate(F.relu(net.third(F.max_pool1d(second, 2))), scale_factor=4.0)
        return net.last(third + first if skips else third)

    layers = {name: nn.Conv1d(1 if name == "first" else 2, 2, 1) for name in ("first", "second", "third", "last")}
    for skips in (True, False):
        shape = shape_of(Flow(partial(flow, skips=skips), **layers), 1, 8)
        assert (shape.depth, shape.pool_layers, shape.pool_kinds, shape.kernel) == (4, 2, 1, 2)
        assert shape.pooling_in_layers != skips


@pytest.mark.slow
def test_a_unet_has_paths_around_its_pooling() -> None:
    shape = shape_of(models.unet_small(), 3, 8, 8)
    assert shape.pool_layers == 2 and shape.pool_kinds == 1 and not shape.pooling_in_layers
    assert shape_of(models.vgg_small(), 3, 32, 32).pooling_in_layers


def test_a_skip_over_pooling_is_seen() -> None:
    def around(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        return net.last(F.max_pool1d(h, 3, 1, 1) + h)

    def through(net: Any, x: Tensor) -> Tensor:
        h = F.max_pool1d(F.relu(net.first(x)), 3, 1, 1)
        return net.last(h + F.relu(h))

    layers = {"first": nn.Conv1d(1, 2, 1), "last": nn.Conv1d(2, 1, 1)}
    assert not shape_of(Flow(around, **layers), 1, 6).pooling_in_layers
    assert shape_of(Flow(through, **layers), 1, 6).pooling_in_layers


@pytest.mark.parametrize(
    ("flow", "kinds", "kernel", "depth"),
    [
        (lambda net, x: net.last(F.relu(net.first(x)).amax(2)), 1, 6, 2),  # merged with the ReLU before it
        (lambda net, x: net.last(net.first(x).amax(2)), 1, 6, 2),  # of sums: a neuron of its own
        (lambda net, x: net.last(F.relu(net.first(x).amax(2))), 1, 6, 3),
        (lambda net, x: net.last(F.relu(net.first(x)).sort(1)[0].sum(2)), 2, 2, 2),  # largest and second largest
        (lambda net, x: net.last(F.relu(net.first(x)).topk(3, 2)[0].sum(2)), 3, 6, 2),
        (lambda net, x: net.last(net.first(x).median(2)[0]), 1, 6, 2),
        (lambda net, x: net.last(net.first(x).kthvalue(2, 2)[0]), 1, 6, 2),
        (lambda net, x: net.last(torch.maximum(net.first(x), -net.first(x)).sum(2)), 1, 2, 2),
        (lambda net, x: net.last(F.relu(net.first(x)).amin(2) + F.relu(net.first(x)).amax(2)), 2, 6, 2),
        # Windows of 2 and 3: one kind where nothing is negative, two where the largest may be.
        (lambda net, x: net.last(F.max_pool1d(F.relu(net.first(x)), 3, 1, 1).sum(2)), 1, 3, 2),
        (lambda net, x: net.last(F.max_pool1d(net.first(x), 3, 1, 1).sum(2)), 2, 3, 2),
    ],
)
def test_kinds_of_selections(flow: Callable[..., Any], kinds: int, kernel: int, depth: int) -> None:
    shape = shape_of(Flow(flow, first=nn.Conv1d(1, 2, 1), last=nn.Linear(2, 1)), 1, 6)
    assert (shape.pool_kinds, shape.kernel, shape.depth) == (kinds, kernel, depth)


def test_kinds_of_activations() -> None:
    def flow(net: Any, x: Tensor) -> Tensor:
        return F.leaky_relu(net.a(x), 0.1) + F.relu(net.b(x)) + net.a(x).clamp(min=0) + net.b(x).abs()

    assert shape_of(Flow(flow, a=nn.Linear(2, 2), b=nn.Linear(2, 2)), 2).activations == 3
    assert shape_of(nn.Linear(2, 2), 2).activations == 1  # what the printed constant counts


def test_biases_are_anything_that_is_added() -> None:
    assert not shape_of(nn.Linear(2, 2, bias=False), 2).biases
    assert shape_of(Flow(lambda net, x: net.a(x) + 1.5, a=nn.Linear(2, 2, bias=False)), 2).biases
    assert not shape_of(Flow(lambda net, x: net.a(x) + x, a=nn.Linear(2, 2, bias=False)), 2).biases


@settings(deadline=None, max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(dags())
def test_random_graphs_have_a_shape(dag: Any) -> None:
    net = tamis.trace(dag, dag.example())
    shape = read_shape(net)
    assert shape.d_out == net(dag.example()).shape[1]
    assert shape.depth >= 1 and shape.longest_path >= 1
    assert shape.depth <= len(net.data_nodes) + 1
    assert (shape.kernel > 1) <= (shape.pool_layers > 0)


def test_widths_of_fully_connected_networks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert fully_connected_widths(tamis.trace(model, torch.zeros(1, 2, 2)), "the test") == (4, 8, 3)


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        (nn.Conv1d(1, 1, 1), (1, 4), "aten.conv1d"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), (2,), "aten.linear"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (2,), "last linear layer"),
        (nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(), nn.Linear(2, 2)), (2,), "aten.leaky_relu"),
        (nn.Linear(2, 2), (3, 2), "several rows"),
        (Flow(lambda net, x: x + net.a(x), a=nn.Linear(2, 2)), (2,), "aten.add"),
    ],
)
def test_other_networks_are_not_fully_connected(model: nn.Module, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(AssumptionViolated, match=f"the test needs a layered fully connected.*{why}"):
        fully_connected_widths(tamis.trace(model, torch.zeros(1, *shape)), "the test")


def test_errors_name_what_was_given() -> None:
    with pytest.raises(InvalidInput, match="read_shape needs a Network, got Linear"):
        read_shape(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the test needs a Network, got Linear"):
        fully_connected_widths(nn.Linear(1, 1), "the test")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOp, match=r"read_shape needs a homogeneous network: 'aten\.gelu'"):
        shape_of(nn.Sequential(nn.Linear(2, 2), nn.GELU()), 2)
    right: dict[str, Any] = {
        **dict.fromkeys(("d_in", "d_out", "depth", "kernel", "params"), 2),
        **dict.fromkeys(("pool_kinds", "pool_layers", "rescalings"), 0),
        "biases": False,
        "pooling_in_layers": True,
    }
    assert GraphShape(**right).longest_path == 2
    with pytest.raises(InvalidInput, match="depth of a GraphShape must be an integer of at least 1, got 0"):
        GraphShape(**{**right, "depth": 0})
    with pytest.raises(InvalidInput, match="pool_kinds = 0 and pool_layers = 3"):
        GraphShape(**{**right, "pool_layers": 3})


@given(st.integers(1, 4), st.integers(1, 5))
@settings(deadline=None, max_examples=3)
def test_depth_is_the_number_of_layers(layers: int, width: int) -> None:
    blocks = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    shape = shape_of(nn.Sequential(*blocks, nn.Linear(width, 1)), width)
    assert shape.depth == shape.longest_path == layers + 1
    assert shape.rescalings == layers * width
