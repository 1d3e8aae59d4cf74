"""The path-metric against the enumerated ‖Φ(θ)−Φ(θ')‖₁, exact arithmetic, its invariances, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
import tamis.paths.metric as metric
from tamis.errors import InvalidInput, InvalidParameters, UnsupportedOp
from tamis.paths.passes import ones_input
from tamis.paths.weights import Weights

slow_tracing = settings(max_examples=7, deadline=None, suppress_health_check=list(HealthCheck))
Params = dict[str, Tensor]


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def trainable(net: tamis.Network) -> Params:
    return {name: net.params[name] for name in net.params if name in net.trainable}


def has_batch_norm(net: tamis.Network) -> bool:
    return any(name.endswith("running_mean") for name in net.params)


def mlp(*widths: int, bias: bool = True) -> tamis.Network:
    torch.manual_seed(0)
    layers = [m for i, o in pairwise(widths) for m in (nn.Linear(i, o, bias), nn.ReLU())]
    return tamis.trace(nn.Sequential(*layers[:-1]).double(), torch.zeros(1, widths[0], dtype=torch.float64))


@cache
def traced_mlp(*widths: int, bias: bool = True) -> tamis.Network:
    return mlp(*widths, bias=bias)


class Residual(nn.Module):
    """Two blocks on one stream, without biases, so that a neuron dies when its weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)
        self.inner = nn.ModuleList(nn.Linear(4, 5, bias=False) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(5, 4, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        for inner, outer in zip(self.inner, self.outer, strict=True):
            h = F.relu(h + outer(F.relu(inner(h))))
        return self.head(h)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.MaxPool2d(2)
        self.skipped, self.last = nn.Conv2d(3, 3, 1), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(F.relu(self.norm(self.conv(x))))
        return self.last(F.relu(h + self.skipped(h)).view(-1, 12))


@cache
def traced(build: Callable[[], nn.Module]) -> tamis.Network:
    torch.manual_seed(0)
    shape = {Residual: (1, 3), ConvNet: (1, 1, 4, 4)}[build]  # type: ignore[index]
    return tamis.trace(build().double().eval(), torch.zeros(shape, dtype=torch.float64))


def drawn(net: tamis.Network, seed: int) -> tamis.Network:
    """Random parameters of both signs."""
    generator = torch.Generator().manual_seed(seed)
    params = {name: normal(generator, *value.shape) for name, value in trainable(net).items()}
    for name, value in net.params.items():
        if name.endswith("running_mean"):
            params[name] = normal(generator, *value.shape)
        if name.endswith("running_var"):
            params[name] = uniform(generator, *value.shape) + 0.25
    return net.with_params(params)


# -- changes of parameters: none of them makes a weight zero, so that both networks have the same paths -----------


def same_signs(value: Tensor, generator: torch.Generator) -> Tensor:
    return value * (0.2 + 2 * uniform(generator, *value.shape))


def slightly(value: Tensor, generator: torch.Generator) -> Tensor:
    return value * (1 + 1e-4 * normal(generator, *value.shape))


def some_flips(value: Tensor, generator: torch.Generator) -> Tensor:
    return value + 0.5 * normal(generator, *value.shape)


def all_flips(value: Tensor, generator: torch.Generator) -> Tensor:
    return -value


def unrelated(value: Tensor, generator: torch.Generator) -> Tensor:
    return normal(generator, *value.shape)


CHANGES = [same_signs, slightly, some_flips, all_flips, unrelated]


def changed(net: tamis.Network, change: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> tamis.Network:
    generator = torch.Generator().manual_seed(seed)
    return net.with_params({name: change(value, generator) for name, value in trainable(net).items()})


def pruned(net: tamis.Network, seed: int, keep: float = 0.5) -> tamis.Network:
    """Weights set to zero, and biases where no batch-norm absorbs them (γ, β and such biases move a folded bias)."""
    generator = torch.Generator().manual_seed(seed)
    values = {n: v for n, v in trainable(net).items() if v.dim() > 1 or not has_batch_norm(net)}
    return net.with_params({n: v * (uniform(generator, *v.shape) < keep) for n, v in values.items()})


def enumerated(mine: tamis.Lifting, theirs: tamis.Lifting) -> float:
    """‖Φ(θ)−Φ(θ')‖₁ path by path; the order of paths depends only on which weights are zero."""
    assert torch.equal(mine.starts, theirs.starts) and torch.equal(mine.ends, theirs.ends)
    return float((mine.phi - theirs.phi).abs().sum())


def max_minus_min(net: tamis.Network, other: tamis.Network) -> float:
    """ERRATA 18: ‖Φ(max)‖₁ − ‖Φ(min)‖₁, through θ'' = θ without the coordinates whose signs differ."""
    mine, theirs = trainable(net), trainable(other)
    between = {n: torch.where(v * theirs[n] < 0, 0.0, v) for n, v in mine.items()}
    total = 0.0
    for a, b in ((mine, between), (between, theirs)):
        larger = net.with_params({n: torch.maximum(v.abs(), b[n].abs()) for n, v in a.items()})
        smaller = net.with_params({n: torch.minimum(v.abs(), b[n].abs()) for n, v in a.items()})
        total += tamis.path_norm(larger) - tamis.path_norm(smaller)
    return total


# -- between the enumerated distance and max − min -----------------------------------------------------------------


@slow_tracing
@given(dags(), st.integers(0, 2**20))
def test_between_the_enumerated_distance_and_max_minus_min_and_exact_where_one_dominates(dag: Dag, seed: int) -> None:
    net = tamis.trace(dag, dag.example())  # tracing takes the most of the time: once for both
    lifted = tamis.lifting(net)
    check_between(net, lifted, seed)
    check_where_one_dominates(net, lifted, seed)


def check_between(net: tamis.Network, lifted: tamis.Lifting, seed: int) -> None:
    """Never below the enumerated distance, nor above max − min."""
    for change in CHANGES:
        other = changed(net, change, seed)
        distance, noise = tamis.path_metric(net, other), 1e-13 * (tamis.path_norm(net) + tamis.path_norm(other))
        assert enumerated(lifted, tamis.lifting(other)) <= distance * (1 + 1e-9) + noise
        if not has_batch_norm(net):  # there max and min would be of γ and μ, not of folded weights
            assert distance <= max_minus_min(net, other) * (1 + 1e-9) + noise


@pytest.mark.parametrize("change", CHANGES)
def test_never_looser_than_max_minus_min(change: Any) -> None:
    tighter = 0
    for seed in range(3):
        for plain in (traced_mlp(3, 5, 4, 2), traced_mlp(2, 2, 2, 2, 2, 1, bias=False), traced(Residual)):
            net = drawn(plain, seed)
            other = changed(net, change, seed + 1)
            distance, bound = tamis.path_metric(net, other), max_minus_min(net, other)
            assert distance <= bound * (1 + 1e-9)
            tighter += distance < 0.99 * bound
    assert tighter > 2 or change is all_flips


def check_where_one_dominates(net: tamis.Network, lifted: tamis.Lifting, seed: int) -> None:
    """Exact, and symmetric."""
    shrunk = [pruned(net, seed), changed(net, lambda v, g: v * uniform(g, *v.shape), seed)]
    for small in shrunk[: 1 if has_batch_norm(net) else 2]:
        exact = lifted.norm(1, 1) - tamis.lifting(small).norm(1, 1)
        noise = 1e-12 * tamis.path_norm(net)  # of that difference, not of the metric
        distances = tamis.path_metric(net, small), tamis.path_metric(small, net)
        for distance in distances:
            assert distance == pytest.approx(exact, rel=1e-9, abs=noise)
        assert distances[0] == pytest.approx(distances[1], rel=1e-9)
    assert tamis.path_metric(net, net) == 0


# -- exact arithmetic ----------------------------------------------------------------------------------------------


def exact_paths(net: tamis.Network) -> list[Fraction]:
    """Φ of an MLP in rational arithmetic, zeros included, so that any two can be compared path by path."""
    paths = [[Fraction(1)] for _ in range(net.input_shapes[0][1])]
    for name, weight in net.params.items():
        if name.endswith("weight"):
            bias = net.params.get(name.replace("weight", "bias"), torch.zeros(len(weight)))
            paths = [
                [p * Fraction(w) for before, w in zip(paths, row, strict=True) for p in before] + [Fraction(b)]
                for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
            ]
    return [p for ending in paths for p in ending]


def exact_distance(net: tamis.Network, other: tamis.Network) -> Fraction:
    return sum((abs(p - q) for p, q in zip(exact_paths(net), exact_paths(other), strict=True)), Fraction(0))


@pytest.mark.parametrize("relative", [1e-3, 1e-9, 1e-12, 1e-15])
def test_one_weight_barely_changed(relative: float) -> None:
    """The norms agree to a dozen digits or more, their difference must not be taken."""
    for seed in range(2):
        net = drawn(traced_mlp(2, 3, 3, 1), seed)
        for name, value in trainable(net).items():
            for sign in (1, -1):
                moved = value.clone()
                moved.view(-1)[0] *= 1 + sign * relative
                other = net.with_params({name: moved})
                exact = exact_distance(net, other)
                assert exact > 0
                assert abs(Fraction(tamis.path_metric(net, other)) / exact - 1) < 1e-9


def two_weights_moved(net: tamis.Network, relative: float) -> tamis.Network:
    """One up, one down: neither network dominates."""
    up, down = net.params["2.weight"].clone(), net.params["0.weight"].clone()
    up[0, 0] *= 1 + relative
    down[1, 1] *= 1 - relative
    return net.with_params({"2.weight": up, "0.weight": down})


@pytest.mark.parametrize("relative", [1e-6, 1e-12, 1e-15])
def test_never_below_when_two_weights_barely_change(relative: float) -> None:
    """The smaller of two bounds is returned, and each is rounded in its own way."""
    for seed in range(12):
        net = drawn(traced_mlp(2, 3, 3, 1), seed)
        other = two_weights_moved(net, relative)
        assert tamis.path_metric(net, other) >= exact_distance(net, other) * (1 - Fraction(1, 10**9))


def test_zeros_on_both_sides() -> None:
    """Pruned to different supports, some signs flipped: rational arithmetic needs no common support."""
    for seed in range(12):
        net = pruned(drawn(traced_mlp(2, 3, 3, 2), seed), seed, keep=0.7)
        other = pruned(changed(net, some_flips if seed % 2 else same_signs, seed + 1), seed + 2, keep=0.7)
        assert tamis.path_metric(net, other) >= exact_distance(net, other) * (1 - Fraction(1, 10**9))


# -- invariance ----------------------------------------------------------------------------------------------------

NETWORKS = {
    "mlp": lambda: traced_mlp(3, 6, 5, 2),
    "deep mlp": lambda: traced_mlp(3, *[3] * 6, 2),
    "residual": lambda: traced(Residual),
    "convolutional": lambda: traced(ConvNet),
}


def lively(net: tamis.Network, seed: int) -> tamis.Network:
    """Pruned so that every neuron keeps an incoming weight."""
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for name, value in trainable(net).items():
        if value.dim() > 1:
            mask = uniform(generator, *value.shape) < 0.6
            mask.flatten(1)[:, 0] |= ~mask.flatten(1).any(1)
            params[name] = value * mask
    return net.with_params(params)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_rescaling_of_both_changes_nothing(name: str) -> None:
    for seed in range(2):
        net = drawn(NETWORKS[name](), seed)
        other = lively(net, seed + 1)
        expected = tamis.path_metric(net, other)
        both = tamis.path_metric(tamis.rescale(net, seed), tamis.rescale(other, seed))
        assert both == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_pruning_is_measured_the_same_under_independent_rescalings(name: str) -> None:
    net = drawn(NETWORKS[name](), 1)
    other = lively(net, 2)
    expected = tamis.path_metric(net, other)
    rescaled = tamis.rescale(net, 2), tamis.rescale(other, 3)
    unit = tamis.normalize(net), tamis.normalize(other)
    for a, b in (rescaled, rescaled[::-1], unit, unit[::-1], (net, unit[1]), (rescaled[0], unit[1])):
        assert tamis.path_metric(a, b) == pytest.approx(expected, rel=1e-9)
    x = normal(torch.Generator().manual_seed(1), 3, *net.input_shapes[0][1:])
    torch.testing.assert_close(tamis.path_metric(*rescaled, x), tamis.path_metric(net, other, x), rtol=1e-9, atol=0)


def test_independent_rescalings_where_pruning_kills_a_neuron() -> None:
    net = drawn(traced_mlp(2, 3, 2, 1, bias=False), 0)
    weight = net.params["0.weight"].clone()
    weight[1] = 0
    other = net.with_params({"0.weight": weight})
    expected = tamis.path_metric(net, other)
    for seed in range(6):
        a, b = tamis.rescale(net, seed), tamis.rescale(other, seed + 10)
        assert tamis.path_metric(a, b) == pytest.approx(expected, rel=1e-9)


def test_independent_rescalings_where_pruning_kills_a_channel_of_a_skip_connection() -> None:
    net = drawn(traced(Residual), 0)
    weight = net.params["stem.weight"].clone()
    weight[1] = 0
    other = net.with_params({"stem.weight": weight})
    expected = tamis.path_metric(net, other)
    for seed in range(6):
        a, b = tamis.rescale(net, seed), tamis.rescale(other, seed + 10)
        assert tamis.path_metric(a, b) == pytest.approx(expected, rel=1e-9)
        assert tamis.path_metric(b, a) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_rescaled_copy_is_no_distance_away(name: str) -> None:
    net = drawn(NETWORKS[name](), 2)
    norm = tamis.path_norm(net)
    for same in (tamis.rescale(net, 2), tamis.normalize(net), tamis.normalize(net, 2)):
        assert tamis.path_metric(net, same) <= 1e-12 * norm
        assert tamis.path_metric(same, net) <= 1e-12 * norm


@pytest.mark.parametrize("name", NETWORKS)
def test_logarithms(name: str) -> None:
    net = drawn(NETWORKS[name](), 0)
    x = normal(torch.Generator().manual_seed(0), 3, *net.input_shapes[0][1:])
    for other in (lively(net, 1), drawn(net, 1)):
        assert math.exp(tamis.path_metric(net, other, log=True)) == pytest.approx(tamis.path_metric(net, other))
        torch.testing.assert_close(tamis.path_metric(net, other, x, log=True).exp(), tamis.path_metric(net, other, x))
    assert tamis.path_metric(net, net, log=True) == -math.inf


# -- beyond float64 ------------------------------------------------------------------------------------------------


LARGE = 1e12  # what each layer multiplies by, about


@pytest.fixture(scope="module")
def huge() -> tamis.Network:
    net = mlp(*[4] * 36, 2)  # deep enough to leave float64: 10^308 is passed at about layer 26
    return net.with_params({name: LARGE * value for name, value in net.params.items()})


def log_products(net: tamis.Network, other: tamis.Network) -> float:
    """log(‖Φ(θ)‖₁ − ‖Φ(θ')‖₁) of MLPs, the scale taken out by hand after every layer."""
    sums, log_scale = [torch.ones(4, dtype=torch.float64)] * 2, 0.0
    for name in net.params:
        if name.endswith("weight"):
            bias = name.replace("weight", "bias")
            layers = [(each.params[name].abs(), each.params[bias].abs()) for each in (net, other)]
            sums = [w @ s + b * math.exp(-log_scale) for s, (w, b) in zip(sums, layers, strict=True)]
            largest = float(sums[0].max())
            sums, log_scale = [s / largest for s in sums], log_scale + math.log(largest)
    return math.log(float(sums[0].sum() - sums[1].sum())) + log_scale


def test_a_huge_network_has_a_finite_logarithm(huge: tamis.Network) -> None:
    small = huge.with_params({"0.weight": torch.zeros(4, 4, dtype=torch.float64)})
    assert tamis.path_metric(huge, small, log=True) == pytest.approx(log_products(huge, small), rel=1e-9)
    with pytest.raises(OverflowError, match=r"path_metric is e\^.* beyond float64: pass log=True"):
        tamis.path_metric(huge, small)
    x = torch.ones(2, 4, dtype=torch.float64)
    assert bool(torch.isfinite(tamis.path_metric(huge, small, x, log=True)).all())
    with pytest.raises(OverflowError, match="pass log=True"):
        tamis.path_metric(huge, small, x)


@pytest.mark.parametrize("change", [slightly, some_flips, unrelated])
def test_a_huge_network_where_neither_dominates(huge: tamis.Network, change: Any) -> None:
    assert math.isfinite(tamis.path_metric(huge, changed(huge, change, 0), log=True))


@pytest.mark.parametrize("factor", [LARGE, 1 / LARGE])
def test_a_rescaled_copy_of_a_deep_network_is_no_distance_away(huge: tamis.Network, factor: float) -> None:
    net = huge.with_params({n: v * (factor / LARGE if n.endswith("weight") else 0) for n, v in huge.params.items()})
    away = tamis.path_metric(net, tamis.rescale(net, 1), log=True)
    assert away <= tamis.path_norm(net, log=True) + math.log(1e-9)


def test_huge_weights_where_neither_dominates() -> None:
    net = drawn(traced_mlp(3, 4, 2), 0)
    net = net.with_params({name: 1e160 * value for name, value in net.params.items()})
    assert math.isfinite(tamis.path_metric(net, changed(net, same_signs, 1), log=True))


# -- what is refused -----------------------------------------------------------------------------------------------


def test_what_is_not_a_network_is_refused() -> None:
    net = traced_mlp(3, 4, 2)
    with pytest.raises(InvalidInput, match="path_metric needs two Networks, the second is Linear"):
        tamis.path_metric(net, nn.Linear(3, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the first is dict"):
        tamis.path_metric({}, net)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [(3, 5, 2), (3, 4, 4, 2), (3, 4, 3), (4, 4, 2)])
def test_another_graph_is_refused(other: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"one and the same graph, got Network\(.*\) and Network\(.*with_params"):
        tamis.path_metric(traced_mlp(3, 4, 2), traced_mlp(*other))


def leaky(slope: float) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(slope), nn.Linear(4, 2))


def strided(stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 2, 3, stride), nn.AdaptiveAvgPool1d(1))


@pytest.mark.parametrize(("build", "shape"), [(leaky, (1, 3)), (strided, (1, 1, 9))])
def test_the_same_operations_with_other_numbers_are_refused(build: Any, shape: tuple[int, ...]) -> None:
    """Their parameters are equal, their functions are not: a distance of zero would be wrong."""
    nets = []
    for number in (1, 2):
        torch.manual_seed(0)
        nets.append(tamis.trace(build(number).double(), torch.zeros(shape, dtype=torch.float64)))
    with pytest.raises(InvalidInput):
        tamis.path_metric(*nets)


def test_wrong_inputs_are_refused() -> None:
    net = traced_mlp(3, 4, 2)
    with pytest.raises(InvalidInput, match=r"must have shape \(batch, 3\), got \(5, 4\)"):
        tamis.path_metric(net, net, torch.zeros(5, 4))
    with pytest.raises(InvalidInput, match=r"must have shape \(batch, 3\), got \(3,\)"):
        tamis.path_metric(net, net, torch.zeros(3))
    with pytest.raises(InvalidInput, match=r"takes 1 input\(s\) .* got 2"):
        tamis.path_metric(net, net, (torch.zeros(1, 3), torch.zeros(1, 3)))
    with pytest.raises(InvalidInput, match=r"must be a tensor of shape \(batch, 3\)"):
        tamis.path_metric(net, net, [[0.0, 0.0, 0.0]])  # type: ignore[arg-type]
    for wrong in (math.nan, math.inf):
        with pytest.raises(InvalidInput, match="finite input"):
            tamis.path_metric(net, net, torch.full((1, 3), wrong))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(wrong: float) -> None:
    net = traced_mlp(3, 4, 2)
    weight = net.params["2.weight"].clone()
    weight[1, 2] = wrong
    broken = net.with_params({"2.weight": weight})
    for pair in ((net, broken), (broken, net)):
        with pytest.raises(
            InvalidParameters, match=r"'2\.weight' of shape \(2, 4\) has 1 entries .* first at \(1, 2\)"
        ):
            tamis.path_metric(*pair)


def test_a_negative_running_variance_is_refused() -> None:
    net = traced(ConvNet)
    broken = net.with_params({"norm.running_var": torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)})
    with pytest.raises(InvalidParameters, match=r"norm"):
        tamis.path_metric(net, broken)


def test_an_empty_batch_has_no_distances() -> None:
    net = traced_mlp(3, 4, 2)
    assert tamis.path_metric(net, net, torch.zeros(0, 3)).shape == (0,)


def test_attention_is_refused_by_name() -> None:
    net = tamis.trace(nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)), torch.zeros(1, 3))
    with pytest.raises(UnsupportedOp, match=r"path_metric needs 1-Lipschitz .*'aten\.softmax\.int' at 1"):
        tamis.path_metric(net, net)


def test_nothing_is_changed() -> None:
    net, x = drawn(traced(ConvNet), 0), torch.ones(2, 1, 4, 4, dtype=torch.float64)
    other = drawn(net, 1)
    before = {**net.state_dict()}, {**other.state_dict()}, x.clone()
    tamis.path_metric(net, other, x)
    for old, now in ((before[0], net.params), (before[1], other.params)):
        assert all(torch.equal(value, now[name]) for name, value in old.items())
    assert torch.equal(before[2], x)


@pytest.mark.parametrize("seed", [43, 230])
def test_the_smaller_of_two_bounds_is_taken_where_many_outputs_add_up(seed: int) -> None:
    """A total over 200 outputs has a mantissa far above 1, so that exponents alone do not tell the smaller one."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 200, bias=False)).double()
    net = tamis.trace(model, torch.zeros(1, 3).double())
    params = {name: value.clone() for name, value in net.params.items()}
    params["0.weight"] *= 1 + 0.3 * torch.randn(3, 3).double() * (seed % 3)
    params["0.weight"] *= torch.rand(3, 1).double() * 2
    params["2.weight"] *= 1 + 0.5 * torch.rand(200, 3).double()
    params["2.weight"][0] *= 1 + seed % 4
    other = net.with_params(params)
    starts, weights = ones_input(net), Weights(net, 1)
    plain = metric._compute_distance(net, weights, Weights(other, 1), starts)
    aligned = metric._compute_aligned_distance(net, weights, other, starts)
    assert aligned is not None and plain.above(0) < aligned.above(0)
    assert tamis.path_metric(net, other) == plain.above(0)


def test_totals_are_compared_as_the_numbers_they_are() -> None:
    numbers = torch.tensor([0.0, 1e-300, 0.25, 0.5, 1.0, 3.0, 900.0, 1e300], dtype=torch.float64)
    for first in numbers:
        for second in numbers:
            for exponents in ((0, 0), (1, 0), (-3, 5), (7, -2)):
                one, two = (
                    metric._Totals(value.reshape(1), torch.tensor([exponent]), 1.0)
                    for value, exponent in zip((first, second), exponents, strict=True)
                )
                exact = [Fraction(float(v)) * Fraction(2) ** e for v, e in zip((first, second), exponents, strict=True)]
                assert bool(one.is_below(two)) == (exact[0] < exact[1])
