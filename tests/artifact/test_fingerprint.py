"""Equal fingerprints mean equal functions of the parameters; other functions have others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.artifact.fingerprint import fingerprint
from tamis.training.models import MODELS


class Layers(nn.Module):
    """A network whose every setting can be changed without changing a parameter's name or shape."""

    def __init__(
        self,
        stride: int = 1,
        padding: int = 1,
        slope: float = 0.1,
        activation: Callable[[Tensor], Tensor] = torch.relu,
        shift: float = 0.5,
        eps: float = 1e-5,
        swapped: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, stride=stride, padding=padding)
        self.norm = nn.BatchNorm2d(2, eps=eps)
        self.leaky, self.activation = nn.LeakyReLU(slope), activation
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.swapped = swapped
        self.shift: Tensor
        self.register_buffer("shift", torch.full((2,), shift), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.leaky(self.norm(self.conv(x))).mean((2, 3)) + self.shift
        first, second = (self.second, self.first) if self.swapped else (self.first, self.second)
        return second(self.activation(first(x)))


def printed(model: nn.Module, *shape: int) -> str:
    return fingerprint(tamis.trace(model, torch.zeros(2, *shape)))


DEFAULT = printed(Layers(), 2, 5, 5)


@pytest.mark.parametrize(
    "other",
    [
        Layers(stride=2),
        Layers(padding=0),
        Layers(slope=0.2),
        Layers(eps=1e-3),
        Layers(activation=torch.tanh),
        Layers(activation=nn.GELU()),
        Layers(activation=lambda x: torch.relu(torch.relu(x))),
        Layers(activation=lambda x: 2 * x),
        Layers(shift=0.25),
        Layers(swapped=True),
        nn.Sequential(Layers()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_another_function_has_another_fingerprint(other: nn.Module) -> None:
    assert printed(other, 2, 5, 5) != DEFAULT


def test_another_input_shape_has_another_fingerprint() -> None:
    assert printed(Layers(), 2, 6, 5) != DEFAULT
    whole = nn.Linear(3, 3)
    assert fingerprint(tamis.trace(whole, torch.zeros(2, 3))) != fingerprint(tamis.trace(whole, torch.zeros(2, 4, 3)))


def test_numbers_of_a_scale_have_their_fingerprint() -> None:
    class Scale(nn.Module):
        def __init__(self, number: float) -> None:
            super().__init__()
            self.number = number

        def forward(self, x: Tensor) -> Tensor:
            return self.number * x

    assert len({printed(Scale(number), 3) for number in (1.0, 2.0, 2.0000000001, -2.0)}) == 4


@pytest.mark.parametrize("batch", [1, 16])
def test_the_batch_the_weights_and_the_mode_do_not_count(batch: int) -> None:
    torch.manual_seed(batch)
    model = Layers().train(batch % 2 == 0)
    model.norm.running_mean += batch
    assert fingerprint(tamis.trace(model, torch.randn(batch, 2, 5, 5))) == DEFAULT


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True)


@pytest.mark.parametrize(("make", "shape"), [(MODELS["gcn"], (8,)), (attention, (3, 4))], ids=["gcn", "attention"])
def test_models_whose_graphs_have_sizes_in_them(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    batches = (12, 12) if len(shape) == 1 else (1, 3)  # the first dimension of a graph's nodes is no batch
    net, other = (tamis.trace(make(), torch.randn(batch, *shape)) for batch in batches)
    prints = {fingerprint(each) for each in (net, other, tamis.rescale(net, seed=1))}
    assert prints == {fingerprint(tamis.prune(net, 0.5, "magnitude").network)}


def test_the_device_does_not_count() -> None:
    """A model that makes a tensor where its input is has the device in its graph."""
    model = Layers(activation=lambda x: x * torch.full((2,), 3.0, device=x.device))
    net = tamis.trace(model, torch.zeros(2, 2, 5, 5))
    moved = tuple(
        replace(node, kwargs={**node.kwargs, "device": torch.device("cuda:1")}) if "device" in node.kwargs else node
        for node in net.nodes
    )
    assert moved != net.nodes and fingerprint(net.replace(nodes=moved)) == fingerprint(net) != DEFAULT


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(dags(), st.integers(0, 2**20))
def test_random_graphs(dag: Dag, seed: int) -> None:
    net = tamis.trace(dag, dag.example())
    assert fingerprint(tamis.rescale(net, seed)) == fingerprint(net)
    assert fingerprint(tamis.trace(dag, dag.example(3, seed))) == fingerprint(net)


def test_which_parameters_are_tied_counts() -> None:
    tied, untied = (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)) for _ in range(2))
    tied[2].weight = tied[0].weight
    assert printed(tied, 3) != printed(untied, 3)


def test_inputs_are_told_apart() -> None:
    class Two(nn.Module):
        def __init__(self, swapped: bool) -> None:
            super().__init__()
            self.linear, self.swapped = nn.Linear(3, 2), swapped

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.linear(y) - x[:, :2] if self.swapped else self.linear(x) - y[:, :2]

    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    assert fingerprint(tamis.trace(Two(False), example)) != fingerprint(tamis.trace(Two(True), example))


def test_the_order_of_outputs_counts() -> None:
    class Pair(nn.Module):
        def __init__(self, first: str, second: str) -> None:
            super().__init__()
            self.names, self.a, self.b = (first, second), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return dict(zip(self.names, (self.a(x), self.b(x)), strict=True))

    one, other = (fingerprint(tamis.trace(Pair(*names), torch.zeros(1, 2))) for names in ("xy", "yx"))
    assert one != other
