"""Networks that look homogeneous, or rescalable, or dead, and are not quite: each once broke a bound or a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput, UnsupportedOp
from tamis.graph.fold import fold_batch_norm
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
    "one tensor for scale and shift": lambda x, m: F.relu(
        F.batch_norm(m.a(x), m.norm.running_mean, m.norm.running_var, m.p, m.p)
    ),
    "integers added": lambda x, m: F.relu(m.b(F.relu(m.a(x) + m.signs))),
    "a matrix times a vector": lambda x, m: F.relu(m.b(torch.stack([m.a(x)] * WIDTH, 1)) @ m.p),
    "a linear layer of one neuron": lambda x, m: F.relu(F.linear(m.a(x), m.p)).unsqueeze(1).expand(-1, WIDTH),
    "an equation without an arrow": lambda x, m: torch.einsum("bi,ij", F.relu(m.a(x)), m.b.weight),
    "an equation with dots": lambda x, m: torch.einsum("...i,ij->...j", F.relu(m.a(x)), m.b.weight),
    "indices as data": lambda x, m: m.a(x) + m.a(x).max(1, keepdim=True)[1],
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
    "one tensor for scale and shift",
    "integers added",
    "a matrix times a vector",
    "a linear layer of one neuron",
    "a boolean mask",
    "integer factors",
    "an expanded weight",
    "an expanded and masked weight",
    "a tensor read twice",
]


@cache
def traced(name: str) -> tuple[tamis.Network, Tensor]:
    model = Awkward(AWKWARD[name]).double().eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    net = tamis.trace(model, x)
    torch.testing.assert_close(net(x), model(x))
    return net, x


@pytest.mark.parametrize("name", AWKWARD)
def test_rescaling_and_normalizing_keep_the_function(name: str) -> None:
    net, x = traced(name)
    for other in (tamis.rescale(net, seed=1), tamis.normalize(net), tamis.normalize(net, q=2)):
        torch.testing.assert_close(other(x), net(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", AWKWARD)
def test_the_metric_bounds_or_refuses(name: str) -> None:
    net, x = traced(name)
    for seed in range(2):
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
        for i in range(
            0, values.numel(), max(1, values.numel() // 2)
        ):  # the first, one in the middle, and the last of odd ones
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


def test_a_number_for_each_sample() -> None:
    """A regression head whose last dimension is squeezed away."""

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x).squeeze(-1)

    x = torch.randn(4, 3, dtype=torch.float64)
    net = tamis.trace(Regression().double(), x)
    expected = float(net.params["lin.weight"].abs().sum() + net.params["lin.bias"].abs().sum())
    assert tamis.path_norm(net) == pytest.approx(expected)
    assert tamis.product_norm(net) == pytest.approx(expected)
    half = net.with_params({"lin.weight": net.params["lin.weight"] / 2})
    assert tamis.path_metric(net, half, x).shape == (4,)  # type: ignore[union-attr]
    assert tamis.path_costs(net).values["lin.bias"].shape == (1,)


def test_an_output_that_is_returned_twice_counts_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.lin(x)
            return y, y.clone()

    x = torch.randn(4, 3, dtype=torch.float64)
    net = tamis.trace(Twice().double(), x)
    other = tamis.rescale(net).with_params({"lin.weight": -net.params["lin.weight"]})
    assert tamis.path_norm(net) == pytest.approx(tamis.lifting(net).norm(1, 1))
    distance = sum((a - b).abs().sum(1) for a, b in zip(net(x), other(x), strict=True))
    assert bool((distance <= tamis.path_metric(net, other, x) * (1 + 1e-12)).all())  # type: ignore[union-attr]


def test_outputs_without_an_input_or_of_indices_are_refused_by_name() -> None:
    class Both(nn.Module):
        def __init__(self, fixed: bool) -> None:
            super().__init__()
            self.lin, self.value, self.fixed = nn.Linear(3, 2), nn.Parameter(torch.ones(2)), fixed

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.lin(x)
            return y, (self.value if self.fixed else y.max(1)[1])

    with pytest.raises(InvalidInput, match="needs every output to depend on an input: 'value' does not"):
        tamis.path_norm(tamis.trace(Both(True), torch.randn(2, 3)))
    with pytest.raises(UnsupportedOp, match=r"operator\.getitem"):
        tamis.path_norm(tamis.trace(Both(False), torch.randn(2, 3)))


@pytest.mark.parametrize(
    "mix", [lambda y: y + y.sum(0, keepdim=True), lambda y: y.flip(0), lambda y: y * y.shape[0], lambda y: y.sort(0)[0]]
)
def test_mixing_samples_makes_the_batch_one_sample(mix: Callable[[Tensor], Tensor]) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return mix(self.lin(x))

    x = torch.randn(3, 3, dtype=torch.float64)
    net = tamis.trace(Mixing().double(), x)
    assert not net.batched
    assert torch.equal(net(x), mix(F.linear(x, net.params["lin.weight"], net.params["lin.bias"])))
    other = net.with_params({"lin.weight": 2 * net.params["lin.weight"]})
    assert float((net(x) - other(x)).abs().sum()) <= tamis.path_metric(net, other, x) * (1 + 1e-12)


def test_other_indices_are_another_graph() -> None:
    class Permuted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 2)
            self.register_buffer("order", torch.tensor([2, 0, 1]))

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x[:, self.order])

    net = tamis.trace(Permuted(), torch.randn(2, 3))
    with pytest.raises(InvalidInput, match="the indices 'order' differ"):
        tamis.path_metric(net, net.with_params({"order": torch.tensor([0, 1, 2])}))


def test_a_batch_norm_across_an_unbatched_convolution_is_not_folded() -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.ReLU()).double().eval()
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].weight.normal_()
    x = torch.randn(2, 4, dtype=torch.float64)
    net = tamis.trace(model, x)
    for fold in (True, False):
        torch.testing.assert_close(fold_batch_norm(net, fold)(x), net(x))


def test_containers_of_the_model_are_restored() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.cache, self.shapes = nn.Linear(2, 2), {}, []

        def forward(self, x: Tensor) -> Tensor:
            self.cache["last"] = x
            self.shapes.append(x.shape)
            return self.lin(x)

    model = Remembering()
    cache = model.cache
    tamis.trace(model, torch.zeros(1, 2))
    assert model.cache is cache
    assert model.cache == {} and model.shapes == []


def test_weights_computed_in_many_steps_take_no_exponential_time() -> None:
    class Iterated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight
            for _ in range(60):  # 2^60 evaluations if nothing is remembered
                weight = torch.tanh(weight) * weight + 0.1
            return F.linear(x, weight)

    model = Iterated().double()
    x = torch.ones(1, 2, dtype=torch.float64)
    net = tamis.trace(model, x)
    weight = model(torch.eye(2, dtype=torch.float64)).detach()
    assert tamis.path_norm(net) == pytest.approx(float(weight.abs().sum()))
