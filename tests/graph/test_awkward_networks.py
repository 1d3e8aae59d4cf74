"""Networks that look homogeneous, or rescalable, or dead, and are not quite: each once broke a bound or a function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamis
from tamis.errors import UnsupportedOp
from tamis.graph.trace import network_from_program

WIDTH = 4


class Awkward(nn.Module):
    """`function(x, module)` over parameters of every kind."""

    def __init__(self, function: Callable[[Tensor, Awkward], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function = function
        self.a, self.b = nn.Linear(3, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.p, self.row = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(1, WIDTH))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.last = nn.Linear(WIDTH, 2)
        self.register_buffer("keep", torch.tensor([True, False, True, True]))
        self.register_buffer("signs", torch.tensor([1, -1, 1, -2]))
        with torch.no_grad():
            self.a.weight[0] = 0  # nothing flows into the first neuron
            self.norm.running_mean.normal_()
            self.norm.weight.normal_()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(x, self))


AWKWARD: dict[str, Callable[[Tensor, Awkward], Tensor]] = {
    "a parameter added to a silent neuron": lambda x, m: F.relu(m.a(x) + m.p),
    "a batch-norm reading a silent neuron": lambda x, m: m.norm(F.relu(m.a(x))),
    "a product of two data tensors": lambda x, m: F.relu(m.a(x)) * F.relu(m.b(m.a(x))),
    "data as the weight of a linear layer": lambda x, m: F.linear(
        F.relu(m.a(x)), F.relu(m.b(m.a(x)))[:1].expand(WIDTH, WIDTH)
    ),
    "data as the bias of addmm": lambda x, m: torch.addmm(F.relu(m.a(x)), F.relu(m.b(m.a(x))), m.b.weight),
    "a batch-norm after addmm": lambda x, m: F.relu(m.norm(torch.addmm(m.p, m.a(x), m.b.weight, beta=2, alpha=-3))),
    "a maximum with a parameter": lambda x, m: torch.maximum(F.relu(m.a(x)), m.p.abs() + 2),
    "a boolean mask": lambda x, m: F.relu(m.a(x)) * m.keep,
    "integer factors": lambda x, m: F.relu(m.a(x) * m.signs) - m.signs,
    "an expanded weight": lambda x, m: F.relu(F.linear(m.a(x), m.row.expand(WIDTH, WIDTH))),
    "an expanded and masked weight": lambda x, m: F.relu(F.linear(m.a(x), m.row.expand(WIDTH, WIDTH) * m.keep)),
    "two fixed tensors in one einsum": lambda x, m: torch.einsum(
        "bi,ij,jk->bk", F.relu(m.a(x)), m.b.weight, m.b.weight
    ),
    "a tensor read twice": lambda x, m: F.relu(m.a(x)) + F.relu(m.a(x)) - 3 * m.a(x),
}
HOMOGENEOUS = [
    "a parameter added to a silent neuron",
    "a batch-norm reading a silent neuron",
    "a batch-norm after addmm",
    "a boolean mask",
    "integer factors",
    "an expanded weight",
    "an expanded and masked weight",
    "a tensor read twice",
]


def traced(name: str) -> tuple[tamis.Network, Tensor]:
    model = Awkward(AWKWARD[name]).double().eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    net = tamis.trace(model, x)
    torch.testing.assert_close(net(x), model(x))
    return net, x


@pytest.mark.parametrize("name", AWKWARD)
def test_rescaling_and_normalizing_keep_the_function(name: str) -> None:
    net, x = traced(name)
    for other in (
        tamis.rescale(net, seed=1),
        tamis.rescale(net, seed=2),
        tamis.normalize(net),
        tamis.normalize(net, q=2),
    ):
        torch.testing.assert_close(other(x), net(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", AWKWARD)
def test_the_metric_bounds_or_refuses(name: str) -> None:
    net, x = traced(name)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        noise = {
            n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in net.params.items() if n in net.trainable
        }
        flipped = {"keep": ~net.params["keep"], "signs": -net.params["signs"]}
        for other in (net.with_params(noise), net.with_params(flipped), net.with_params({**noise, **flipped})):
            if name not in HOMOGENEOUS:
                with pytest.raises(UnsupportedOp):
                    tamis.path_metric(net, other, x)
                continue
            distance = (net(x) - other(x)).abs().sum(1)
            assert bool((distance <= torch.as_tensor(tamis.path_metric(net, other, x)) * (1 + 1e-12) + 1e-15).all())


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_norms_and_costs_equal_enumeration(name: str) -> None:
    net, x = traced(name)
    lifted = tamis.lifting(net, x[:1])
    torch.testing.assert_close(lifted.realization(x[:1]), net(x[:1]).flatten())
    norm = tamis.path_norm(net)
    assert norm == pytest.approx(lifted.norm(1, 1), rel=1e-9)
    assert tamis.path_norm(net, q=2) == pytest.approx(lifted.norm(2, 1), rel=1e-9)
    for key, values in tamis.path_costs(net).values.items():
        for i in range(values.numel()):
            without = net.params[key].clone()
            without.view(-1)[i] = 0
            lost = norm - tamis.lifting(net.with_params({key: without})).norm(1, 1)
            assert float(values.view(-1)[i]) == pytest.approx(lost, rel=1e-9, abs=1e-9 * norm)


def test_an_image_without_a_batch_dimension() -> None:
    """Channels are then the first axis; the whole input is one sample."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, 1, dilation=2),
        nn.AvgPool2d(2, 1, padding=1),
        nn.Conv2d(3, 2, 2),
    )
    x = torch.randn(2, 4, 4, dtype=torch.float64)
    net = tamis.trace(model.double(), x)
    assert not net.batched
    lifted = tamis.lifting(net, x, q=2)
    torch.testing.assert_close(lifted.realization(x), net(x).flatten())
    assert tamis.path_norm(net, q=2, r=2) == pytest.approx(lifted.norm(2, 2), rel=1e-9)
    assert tamis.product_norm(net, q=2, r=2) == pytest.approx(lifted.product_norm(2), rel=1e-9)
    rescaled = tamis.rescale(net, seed=1)
    assert not torch.equal(rescaled.params["0.weight"], net.params["0.weight"])
    for other in (rescaled, tamis.normalize(net)):
        torch.testing.assert_close(other(x), net(x))


def test_a_model_that_counts_its_calls() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.lin(x)

    model = Counting()
    x = torch.randn(3, 2)
    net = tamis.trace(model, x)
    assert float(model.calls) == 0
    assert torch.equal(net(x), model.lin(x))
    assert net.batched


def test_programs_exported_in_training_mode_are_not_affine() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train(), (torch.randn(3, 2),))
    net = network_from_program(program)
    with pytest.raises(UnsupportedOp, match=r"path_norm needs a homogeneous network: 'aten\._native_batch_norm"):
        tamis.path_norm(net)


def test_programs_keep_tied_weights_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    net = network_from_program(torch.export.export(model.eval(), (torch.randn(3, 3),)))
    assert dict(net.aliases) == {"2.weight": "0.weight"}
