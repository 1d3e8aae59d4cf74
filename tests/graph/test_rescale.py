"""Rescaling and normalizing: same function, same paths, other parameters (thesis, sections 2.4, 3.2 and 3.3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags, packed
from specimens import SPECIMENS, Around, Specimen
from torch import Tensor, nn
from zoo import traced_from_the_zoo

import tamis
from tamis.errors import InvalidInput, InvalidParameters
from tamis.graph.ops import REGISTRY
from tamis.training.models import MODELS, example_input

slow_tracing = settings(max_examples=7, deadline=None, suppress_health_check=list(HealthCheck))
aten = torch.ops.aten


def drawn(net: tamis.Network, seed: int, spread: float | None = None) -> tamis.Network:
    """Random parameters and batch-norm statistics; with `spread`, near those that are there."""
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for name, value in net.params.items():
        noise = normal(generator, *value.shape).to(value.dtype)
        if name.endswith("running_var"):
            params[name] = 0.25 + noise.abs()
        elif name.endswith("running_mean"):
            params[name] = noise
        elif name in net.trainable:
            params[name] = noise if spread is None else value + spread * noise
    return net.with_params(params)


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def assert_same_function(net: tamis.Network, other: tamis.Network, x: Tensor) -> None:
    for mine, theirs in zip(flat(net(x)), flat(other(x)), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-9, atol=1e-9 * float(mine.abs().max()))


def moved(net: tamis.Network, other: tamis.Network) -> set[str]:
    return {name for name, value in net.params.items() if not torch.equal(value, other.params[name])}


# -- the same function ---------------------------------------------------------------------------------------------


@slow_tracing
@given(dags(), st.integers(0, 2**20))
def test_random_graphs_keep_their_function_norms_and_costs(dag: Dag, seed: int) -> None:
    net = tamis.trace(dag, dag.example())
    x = dag.example(4, seed)
    others = [tamis.rescale(net, seed), *(tamis.normalize(net, q) for q in (0.5, 1, 2))]
    costs = tamis.path_costs(net)
    norms = {(q, r): tamis.path_norm(net, q, r) for q, r in ((0.5, 2), (1, 1), (2, math.inf))}
    for other in others:
        assert_same_function(net, other, x)
        for (q, r), norm in norms.items():
            assert tamis.path_norm(other, q, r) == pytest.approx(norm, rel=1e-9)
        theirs = tamis.path_costs(other)
        for name, mine in costs.values.items():
            scaled = theirs.values[name] * math.exp(theirs.log_scale - costs.log_scale)
            torch.testing.assert_close(scaled, mine, rtol=1e-9, atol=1e-12 * norms[1, 1])


class Between(nn.Module):
    """An operation between two layers, so that the scales of what it reads are free."""

    def __init__(self, specimen: Specimen, seed: int) -> None:
        super().__init__()
        self.shape = specimen.shape
        self.before, self.operation = nn.Linear(3, math.prod(self.shape)), Around(specimen, seed)
        with torch.no_grad():
            self.width = self.operation(torch.zeros(1, *self.shape)).numel()
        self.after = nn.Linear(self.width, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.before(x)).view(-1, *self.shape)
        return self.after(packed(self.operation(hidden), self.width))


class SideBySide(nn.Module):
    """Several networks on one input: one trace for all of them."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part(x) for part in self.parts]


# Over the batch too, which leaves no batch dimension.
OVER_EVERYTHING = {aten.mean.default, aten.sum.default, aten.max.default, aten.min.default}
# These ask for the size of the batch, and so go through torch's slow pass: in one network, with one pass for them all.
WITH_SIZES = [aten.bmm.default, aten.cat.default, aten.reshape.default]
OTHERS = [target for target in SPECIMENS if target not in OVER_EVERYTHING.union(WITH_SIZES)]
# One operation of each kind; all of them are rescaled, with fewer free scales, by the contract of operations too.
KINDS = [*{type(REGISTRY[target]): target for target in reversed(OTHERS)}.values()]
PARTS = [KINDS[::2], KINDS[1::2], WITH_SIZES, *(OTHERS[part::6] for part in range(6))]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(i, marks=pytest.mark.slow) for i in range(2, len(PARTS)))])
def test_every_operation_ties_the_scales_it_must(part: int) -> None:
    targets = PARTS[part]
    torch.manual_seed(0)
    model = SideBySide([Between(SPECIMENS[target], i) for i, target in enumerate(targets)])
    plain = tamis.trace(model.double(), torch.zeros(1, 3, dtype=torch.float64))
    assert plain.batched
    x = normal(torch.Generator().manual_seed(part), 8, 3)
    touched: set[str] = set()
    for seed in range(2):
        net = drawn(plain, seed)
        rescaled = tamis.rescale(net, seed)
        for other in (rescaled, tamis.normalize(net, 1), tamis.normalize(net, 2)):
            for target, mine, theirs in zip(targets, net(x), other(x), strict=True):
                close = torch.allclose(theirs, mine, rtol=1e-9, atol=1e-9 * float(mine.abs().max()))
                assert close, f"{target} lets scales differ that it should tie"
        touched |= {name.split(".")[1] for name in moved(net, rescaled)}
    assert len(touched) > len(targets) / 2


# What the larger ones are made of is among the tricky architectures below.
QUICK = ("mlp", "gcn", "cnn1d", "resnet20")
ZOO = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in MODELS
    if not name.startswith(("resnet1", "resnet3", "resnet4", "resnet5", "vgg1", "vit_s"))
]


@cache
def from_the_zoo(name: str) -> tamis.Network:
    """With random statistics, shifts and biases: fresh ones are 0 or 1 and would hide mistakes."""
    _, _, plain = traced_from_the_zoo(name)
    return drawn(plain, 1, spread=0.1)


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_are_rescaled_bit_by_bit(name: str) -> None:
    net, x = from_the_zoo(name), example_input(name)
    assert all(value.dtype == torch.float32 for n, value in net.params.items() if n in net.trainable)
    seen: set[str] = set()
    for seed in (0, 1):
        other = tamis.rescale(net, seed)
        assert torch.equal(other(x), net(x))
        seen |= moved(net, other)
    # The last layer's bias cannot move, and attention has no such symmetry.
    assert len(seen) >= (0 if name == "vit_tiny_test" else 0.4 * len(net.trainable))


@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo_are_normalized(name: str) -> None:
    net, x = from_the_zoo(name).to(torch.float64), example_input(name).double()
    for q in (1, 2):
        other = tamis.normalize(net, q)
        assert_same_function(net, other, x)
        if name != "vit_tiny_test":
            assert tamis.path_norm(other, log=True) == pytest.approx(tamis.path_norm(net, log=True), rel=1e-9)
            assert moved(net, other)


@pytest.mark.parametrize(
    "name",
    ["cnn1d", "resnet20", *(pytest.param(n, marks=pytest.mark.slow) for n in ("densenet_small", "mobilenet_small"))],
)
def test_norms_and_costs_of_the_zoo_do_not_depend_on_scales(name: str) -> None:
    net = from_the_zoo(name)
    norm, costs = tamis.path_norm(net, log=True), tamis.path_costs(net)
    for other in (tamis.rescale(net, 3), tamis.rescale(net, 4)):
        theirs = tamis.path_costs(other)
        assert tamis.path_norm(other, log=True) == pytest.approx(norm, rel=1e-12)
        for key, mine in costs.values.items():
            scaled = theirs.values[key] * math.exp(theirs.log_scale - costs.log_scale)
            torch.testing.assert_close(scaled, mine, rtol=1e-9, atol=1e-9 * math.exp(norm - costs.log_scale))


# -- architectures that are easy to get wrong ----------------------------------------------------------------------


class Net(nn.Module):
    """Layers and parameters by name, and how data flows through them."""

    def __init__(self, flow: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.flow = flow
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.flow(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


TRICKY: dict[str, tuple[tuple[int, ...], Callable[[], Net]]] = {
    "a layer used twice": (
        (4,),
        lambda: Net(lambda n, x: n.l(F.relu(n.c(F.relu(n.c(x))))), c=nn.Linear(4, 4), l=nn.Linear(4, 2)),
    ),
    "a transposed weight": (
        (4,),
        lambda: Net(lambda n, x: F.linear(F.relu(n.c(x)), n.c.weight.t()), c=nn.Linear(4, 3)),
    ),
    "a shared bias": (
        (4,),
        lambda: Net(
            lambda n, x: n.e(F.relu(F.linear(F.relu(F.linear(x, n.w, n.b)), n.v, n.b))),
            w=parameter(3, 4),
            v=parameter(3, 3),
            b=parameter(3),
            e=nn.Linear(3, 2),
        ),
    ),
    "a bias added by hand": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(F.relu(n.p - n.c(x)) * n.q),
            c=nn.Conv2d(2, 3, 3, bias=False),
            p=parameter(3, 2, 1),
            q=parameter(3, 1, 2),
            d=nn.Conv2d(3, 2, 2),
        ),
    ),
    "a token": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(torch.cat([F.relu(n.c(x)), n.p.expand(x.shape[0], -1, -1, -1)], 1)),
            c=nn.Conv2d(2, 3, 3),
            p=parameter(1, 2, 2, 2),
            d=nn.Conv2d(5, 2, 2),
        ),
    ),
    "two batch-norms": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(F.relu(n.b(n.a(n.c(x))))),
            c=nn.Conv2d(2, 3, 3),
            a=nn.BatchNorm2d(3),
            b=nn.BatchNorm2d(3),
            d=nn.Conv2d(3, 2, 2),
        ),
    ),
    "batch-norms that cannot be folded": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(F.relu(n.b(h := n.c(n.a(x)))) + h),
            a=nn.BatchNorm2d(2),
            c=nn.Conv2d(2, 3, 3),
            b=nn.BatchNorm2d(3, affine=False),
            d=nn.Conv2d(3, 2, 2),
        ),
    ),
    "a batch-norm used twice": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(F.relu(n.b(n.e(F.relu(n.b(n.c(x))))))),
            c=nn.Conv2d(2, 3, 1),
            e=nn.Conv2d(3, 3, 1),
            b=nn.BatchNorm2d(3),
            d=nn.Conv2d(3, 2, 2),
        ),
    ),
    "a batch-norm over another axis": (
        (3, 4),
        lambda: Net(lambda n, x: n.d(F.relu(n.b(n.c(x)))), c=nn.Linear(4, 5), b=nn.BatchNorm1d(3), d=nn.Linear(5, 2)),
    ),
    "grouped and transposed": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(F.channel_shuffle(F.relu(n.b(n.c(x))), 2)),
            c=nn.ConvTranspose2d(2, 4, 3, groups=2),
            b=nn.BatchNorm2d(4),
            d=nn.ConvTranspose2d(4, 6, 2, groups=2, stride=2),
        ),
    ),
    "pixels from channels": (
        (2, 4, 4),
        lambda: Net(
            lambda n, x: n.d(F.pixel_shuffle(F.relu(n.c(x)), 2)), c=nn.Conv2d(2, 8, 3, padding=1), d=nn.Conv2d(2, 2, 2)
        ),
    ),
    "channels from pixels": (
        (6,),
        lambda: Net(lambda n, x: n.d(F.relu(n.c(x)).unflatten(1, (2, 2, 2))), c=nn.Linear(6, 8), d=nn.Conv2d(2, 2, 2)),
    ),
    "rows and columns mixed": (
        (3, 4),
        lambda: Net(
            lambda n, x: n.d(F.relu(n.e(F.relu(n.c(x)).transpose(1, 2))).transpose(1, 2)),
            c=nn.Linear(4, 5),
            e=nn.Linear(3, 6),
            d=nn.Linear(5, 2),
        ),
    ),
    "a stream added to itself": (
        (4,),
        lambda: Net(
            lambda n, x: n.d(F.relu((h := F.relu(n.c(x))) - h.roll(1, 1))), c=nn.Linear(4, 5), d=nn.Linear(5, 2)
        ),
    ),
    "a hidden output": (
        (4,),
        lambda: Net(
            lambda n, x: [h := F.relu(n.c(x)), n.d(F.relu(n.e(h)))],
            c=nn.Linear(4, 5),
            e=nn.Linear(5, 3),
            d=nn.Linear(3, 2),
        ),
    ),
    "what is not homogeneous": (
        (4,),
        lambda: Net(
            lambda n, x: n.d(F.softmax(n.c(F.relu(n.a(x))), 1) + F.gelu(n.b(x))),
            a=nn.Linear(4, 6),
            b=nn.Linear(4, 5),
            c=nn.Linear(6, 5),
            d=nn.Linear(5, 2),
        ),
    ),
}


@pytest.mark.parametrize("name", TRICKY)
def test_tricky_architectures(name: str) -> None:
    shape, build = TRICKY[name]
    torch.manual_seed(0)
    plain = tamis.trace(build().double(), torch.zeros(1, *shape, dtype=torch.float64))
    for seed in range(2):
        net, x = drawn(plain, seed), normal(torch.Generator().manual_seed(seed), 6, *shape)
        for other in (tamis.rescale(net, seed), *(tamis.normalize(net, q) for q in (0.5, 1 + seed))):
            assert_same_function(net, other, x)


@pytest.mark.parametrize("bias", [(1, 3), (1,)])
def test_addmm_with_a_bias_that_is_broadcast(bias: tuple[int, ...]) -> None:
    model = Net(
        lambda n, x: n.d(F.relu(torch.addmm(n.b, x, n.w))), w=parameter(4, 3), b=parameter(*bias), d=nn.Linear(3, 2)
    )
    net = tamis.trace(model.double(), torch.zeros(1, 4, dtype=torch.float64))
    x = normal(torch.Generator().manual_seed(0), 6, 4)
    assert_same_function(net, tamis.rescale(net, 1), x)
    assert_same_function(net, tamis.normalize(net), x)


def factors_of_biases(model: Net, x: Tensor) -> set[tuple[float, ...]]:
    """By what the neurons of layer `b` are rescaled with each of some seeds: as many as have scales of their own."""
    net = drawn(tamis.trace(model.double(), torch.zeros_like(x[:1] if x.dim() > 1 else x)), 0)
    found = []
    for seed in range(5):
        other = tamis.rescale(net, seed)
        assert_same_function(net, other, x)
        found.append((other.params["b.bias"] / net.params["b.bias"]).tolist())
    return set(zip(*found, strict=True))


def test_a_matrix_on_the_left_leaves_every_column_its_scale() -> None:
    """W X mixes the rows of X and no columns: these have scales of their own, which the layers around it absorb."""
    model = Net(lambda n, x: n.d(n.w @ F.relu(n.b(x))), b=nn.Linear(2, 4), w=parameter(5, 3), d=nn.Linear(4, 2))
    assert len(factors_of_biases(model, normal(torch.Generator().manual_seed(0), 6, 3, 2))) == 4


def test_a_matrix_before_a_vector_ties_all_of_its_entries() -> None:
    """W x mixes all entries of a vector: they share one scale."""
    model = Net(lambda n, x: n.d(n.w @ F.relu(n.b(x))), b=nn.Linear(2, 4), w=parameter(4, 4), d=nn.Linear(4, 2))
    (factors,) = factors_of_biases(model, normal(torch.Generator().manual_seed(0), 2))
    assert set(factors) != {1.0}


# -- rescale -------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes() -> None:
    net = from_the_zoo("cnn1d")
    one, again, other = tamis.rescale(net, 5), tamis.rescale(net, 5), tamis.rescale(net, 6)
    assert not moved(one, again)
    assert moved(one, other)
    for name in moved(net, one):  # by powers of two, up to 4096 either way
        ratio = (one.params[name].double() / net.params[name].double()).nan_to_num(nan=1.0).log2()
        assert torch.equal(ratio, ratio.round()) and float(ratio.abs().max()) <= 12


def test_the_network_itself_stays_as_it_was() -> None:
    net = from_the_zoo("resnet20")
    before = net.state_dict()
    tamis.rescale(net, 1), tamis.normalize(net), tamis.normalize(net, 2)
    assert all(torch.equal(value, net.params[name]) for name, value in before.items())


# -- Definition 3.2.1: every hidden neuron has norm one ------------------------------------------------------------


def mlp(*widths: int, bias: bool = True, batch_norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs, bias)]
        layers += [nn.BatchNorm1d(outputs)] * (batch_norm and i + 2 < len(widths))
    return nn.Sequential(*layers)


class Packed(nn.Module):
    """What `nn.Flatten` does, without torch's slow pass."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return packed(x, self.size)


def convolutions() -> nn.Sequential:
    """Without padding, so that all neurons of a channel read the whole kernel."""
    first, second = nn.Conv2d(1, 3, 2), nn.Conv2d(3, 4, 2, bias=False)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), Packed(16), nn.Linear(16, 2))


PLAIN: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(3, 5, 4, 2), (3,)),
    "mlp without biases": (lambda: mlp(3, 5, 4, 2, bias=False), (3,)),
    "mlp with batch-norm": (lambda: mlp(3, 5, 4, 2, batch_norm=True), (3,)),
    "deep mlp": (lambda: mlp(2, *[3] * 4, 1), (2,)),
    "convolutions": (convolutions, (1, 4, 4)),
}


@cache
def traced(name: str, upto: int | None = None) -> tamis.Network:
    """A network of `PLAIN`, or only what comes before one of its activations."""
    build, shape = PLAIN[name]
    torch.manual_seed(0)
    return tamis.trace(build()[:upto].double(), torch.zeros(1, *shape, dtype=torch.float64))


def hidden_layers(name: str) -> list[int]:
    return [i for i, layer in enumerate(PLAIN[name][0]()) if isinstance(layer, nn.ReLU)]


def incoming(net: tamis.Network, q: float) -> list[Tensor]:
    """‖(θ^{→v}, b_v)‖_q for the neurons of each layer of an `nn.Sequential` in turn, batch-norm folded in by hand."""
    params, norms = net.params, []
    for layer in sorted({int(name.split(".")[0]) for name in params}):
        weight = params[f"{layer}.weight"]
        if weight.dim() > 1:
            weight, bias = weight.flatten(1), params.get(f"{layer}.bias", torch.zeros(len(weight)))
            if (after := f"{layer + 1}.running_var") in params:
                scale = params[f"{layer + 1}.weight"] / (params[after] + 1e-5).sqrt()
                bias = params[f"{layer + 1}.bias"] + scale * (bias - params[f"{layer + 1}.running_mean"])
                weight = weight * scale[:, None]
            norms.append(((weight.abs() ** q).sum(1) + bias.abs() ** q) ** (1 / q))
    return norms


@pytest.mark.parametrize("q", [0.5, 1, 2])
@pytest.mark.parametrize("name", PLAIN)
def test_hidden_neurons_of_normalized_networks_have_norm_one(name: str, q: float) -> None:
    """Definition 3.2.1, and Theorem 3.3.2 at the outputs."""
    net = tamis.normalize(drawn(traced(name), seed=int(2 * q)), q)
    *hidden, last = incoming(net, q)
    for norms in hidden:
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-9, atol=0)
    for place in hidden_layers(name):
        part = traced(name, place)
        lifted = tamis.path_norms(part.with_params({n: net.params[n] for n in part.params}), q)
        ones = torch.ones_like(lifted.values)
        torch.testing.assert_close(lifted.values * math.exp(lifted.log_scale), ones, rtol=1e-9, atol=0)
    for r in (0.5, 1, 2, math.inf):
        norm = float(torch.linalg.vector_norm(last, r))
        assert tamis.path_norm(net, q, r) == pytest.approx(norm, rel=1e-9)
        assert tamis.product_norm(net, q, r) == pytest.approx(norm, rel=1e-9)


@pytest.mark.parametrize("q", [0.5, 1, 2])
def test_the_product_of_layers_is_smallest_where_normalized(q: float) -> None:
    """Theorem 3.3.2: the path-norm is the least Π over all scalings."""
    for seed in range(2):
        net = drawn(traced("mlp"), seed)
        for r in (1, math.inf):
            least = tamis.product_norm(tamis.normalize(net, q), q, r)
            assert least == pytest.approx(tamis.path_norm(net, q, r), rel=1e-9)
            for other in (net, tamis.rescale(net, seed), tamis.normalize(net, 3)):
                assert least <= tamis.product_norm(other, q, r) * (1 + 1e-9)


@pytest.mark.parametrize("q", [0.5, 1, 2, 3])
def test_the_product_of_layers_in_closed_form(q: float) -> None:
    """Lemma 3.3.3: Π_{q,∞} = ∏ ‖M_ℓ‖_{q,∞} without biases."""
    for seed in range(8):
        net = drawn(traced("mlp without biases"), seed)
        rows = [float(norms.max()) for norms in incoming(net, q)]
        assert tamis.product_norm(net, q, math.inf) == pytest.approx(math.prod(rows), rel=1e-9)


def with_dead_neuron(net: tamis.Network, layer: str, neuron: int) -> tamis.Network:
    params = {f"{layer}.{kind}": net.params[f"{layer}.{kind}"].clone() for kind in ("weight", "bias")}
    for value in params.values():
        value[neuron] = 0
    return net.with_params(params)


def test_nothing_flows_out_of_a_dead_neuron() -> None:
    """In the last hidden layer, with no layer after it to normalize."""
    net = with_dead_neuron(drawn(traced("mlp"), 0), "2", 1)
    x = normal(torch.Generator().manual_seed(0), 5, 3)
    for q in (0.5, 1, 2):
        unit = tamis.normalize(net, q)
        assert_same_function(net, unit, x)
        assert not unit.params["4.weight"][:, 1].any() and not unit.params["2.weight"][1].any()
        assert bool(net.params["4.weight"][:, 1].all())
        assert tamis.path_norm(unit, q) == pytest.approx(tamis.path_norm(net, q), rel=1e-9)
        assert tamis.product_norm(unit, q) == pytest.approx(tamis.path_norm(net, q), rel=1e-9)


def test_networks_with_dead_neurons_are_normalized_too() -> None:
    """Definition 3.2.1 where a neuron of the first hidden layer is dead, and one that reads only that neuron."""
    net = with_dead_neuron(drawn(traced("mlp"), 0), "0", 1)
    weight, bias = net.params["2.weight"].clone(), net.params["2.bias"].clone()
    weight[2, [0, 2, 3, 4]], bias[2] = 0, 0
    net = net.with_params({"2.weight": weight, "2.bias": bias})
    for q in (0.5, 1, 2):
        unit = tamis.normalize(net, q)
        first, second, last = incoming(unit, q)
        torch.testing.assert_close(first, torch.tensor([1.0, 0, 1, 1, 1], dtype=torch.float64))
        torch.testing.assert_close(second, torch.tensor([1.0, 1, 0, 1], dtype=torch.float64))
        assert not unit.params["4.weight"][:, 2].any()
        assert tamis.product_norm(unit, q) == pytest.approx(float(last.sum()), rel=1e-9)
        assert tamis.product_norm(unit, q) == pytest.approx(tamis.path_norm(net, q), rel=1e-9)


def test_padding_leaves_norms_of_at_most_one() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)]
    shape = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    whole = tamis.trace(nn.Sequential(*layers, nn.ReLU(), Packed(32), nn.Linear(32, 1)).double(), shape)
    part = tamis.trace(nn.Sequential(*layers).double(), shape)
    unit = tamis.normalize(drawn(whole, 0))
    norms = tamis.path_norms(part.with_params({n: unit.params[n] for n in part.params})).values.view(2, 4, 4)
    assert float(norms.max()) <= 1 + 1e-9
    assert bool((norms[:, 0, 0] < norms[:, 1, 1]).all())


@pytest.mark.parametrize("q", [0, -1, math.inf, math.nan])
def test_an_exponent_out_of_range_is_refused(q: float) -> None:
    with pytest.raises(InvalidInput, match="normalize needs 0 < q < ∞, got q = "):
        tamis.normalize(traced("mlp"), q)


def test_parameters_that_are_not_finite_are_refused_by_name() -> None:
    net = traced("mlp")
    with pytest.raises(InvalidParameters, match=r"'2\.bias'"):
        tamis.normalize(net.with_params({"2.bias": torch.full((4,), math.nan)}))


def test_normalizing_what_float64_cannot_hold_is_refused() -> None:
    net = drawn(traced("deep mlp"), 0)
    net = net.with_params({name: 1e90 * value for name, value in net.params.items()})
    with pytest.raises((OverflowError, InvalidParameters)):
        tamis.normalize(net)


# -- skip connections ----------------------------------------------------------------------------------------------


def test_channels_tied_by_a_skip_connection_share_a_factor() -> None:
    """In a ResNet the stem and every block's last convolution write to one stream, so they are rescaled alike."""
    net = from_the_zoo("resnet20").to(torch.float64)
    x = example_input("resnet20").double()
    for other in (tamis.rescale(net, 2), tamis.normalize(net), tamis.normalize(net, 2)):
        assert_same_function(net, other, x)

        def factors(shift: str, other: tamis.Network = other) -> Tensor:
            """By how much the channels that a batch-norm shifts were rescaled."""
            return other.params[shift] / net.params[shift]

        stem = factors("bn1.bias")
        assert len(stem.unique()) > 1
        for block in range(3):
            torch.testing.assert_close(factors(f"layer1.{block}.bn2.bias"), stem, rtol=1e-12, atol=0)
            assert not torch.allclose(factors(f"layer1.{block}.bn1.bias"), stem)
        # The shortcut without parameters puts the 16 channels in the middle of 32.
        wider = factors("layer2.0.bn2.bias")
        torch.testing.assert_close(wider[8:24], stem, rtol=1e-12, atol=0)
        assert not torch.allclose(wider[:8], stem[:8])
