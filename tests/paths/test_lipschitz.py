"""Attacks on the two Lipschitz bounds: in x by the path-norm (Theorem 3.3.1), in θ by the path-metric (Theorem 3.4.1).

A few architectures are traced once; thousands of parameter sets and inputs are tried on each, by chance and by ascent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from torch import Tensor, nn
from zoo import traced_pretrained

import tamis
from tamis.errors import UnsupportedOp
from tamis.training.models import gcn

ROUNDING = 1e-9  # relative
EVALUATION = 1e-13  # what evaluating a network rounds, relative to its path-norm times the size of the input
Params = dict[str, Tensor]


# -- architectures -------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Layers by name, and how data flows through them."""

    def __init__(self, flow: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.flow = flow
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.flow(self, x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.left(x)) - F.relu(self.right(y))
        return self.both(F.relu(hidden)), hidden.amax(1, keepdim=True)


def mlp(*widths: int, bias: bool = True, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [nn.Linear(i, o, bias) for i, o in pairwise(widths)]
    return nn.Sequential(*[m for layer in layers[:-1] for m in (layer, activation())], layers[-1])


def residual(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.stem(x))
    h = F.relu(h + net.b(F.relu(net.a(h))))
    return net.head(h - 0.5 * net.d(F.relu(net.c(h))))


def convolutional(net: Any, x: Tensor) -> Tensor:
    h = F.max_pool2d(F.leaky_relu(net.bn(net.conv(x)), 0.2), 2, 1, 1)
    h = torch.maximum(h, net.depthwise(h)) + net.late(F.relu(h))
    return net.head(F.avg_pool2d(h, 2).view(-1, 12))


def selections(net: Any, x: Tensor) -> Tensor:
    h = net.first(x).sort(1)[0]
    h = torch.cat([h.topk(2, 1)[0], h.abs().kthvalue(2, 1, keepdim=True)[0], torch.minimum(h, -net.second(x))], 1)
    return net.head(F.relu(h))


def dense(net: Any, x: Tensor) -> Tensor:
    h = torch.cat([x, F.relu(net.first(x))], 1)
    h = torch.cat([h, F.relu(net.norm(net.second(h)))], 1)
    return net.up(F.interpolate(h, scale_factor=1.5, mode="bilinear")).mean((2, 3))


Architecture = tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]
HOMOGENEOUS: dict[str, Architecture] = {
    "one layer": (lambda: nn.Linear(5, 3), ((5,),)),
    "mlp": (lambda: mlp(4, 8, 6, 2), ((4,),)),
    "narrow mlp": (lambda: mlp(2, *[2] * 8, 1), ((2,),)),
    "mlp without biases": (lambda: mlp(3, 10, 10, 1, bias=False), ((3,),)),
    "mlp with batch-norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
        ((3,),),
    ),
    "residual": (
        lambda: Net(
            residual,
            stem=nn.Linear(3, 4),
            a=nn.Linear(4, 5),
            b=nn.Linear(5, 4),
            c=nn.Linear(4, 3),
            d=nn.Linear(3, 4),
            head=nn.Linear(4, 2),
        ),
        ((3,),),
    ),
    "convolutional": (
        lambda: Net(
            convolutional,
            conv=nn.Conv2d(1, 3, 3, padding=1),
            bn=nn.BatchNorm2d(3),
            depthwise=nn.Conv2d(3, 3, 3, padding=1, groups=3),
            late=nn.Conv2d(3, 3, 1),
            head=nn.Linear(12, 2),
        ),
        ((1, 4, 4),),
    ),
    "selections": (
        lambda: Net(selections, first=nn.Linear(3, 4), second=nn.Linear(3, 4), head=nn.Linear(7, 2)),
        ((3,),),
    ),
    "dense and up": (
        lambda: Net(
            dense,
            first=nn.Conv2d(1, 2, 3, padding=1),
            second=nn.Conv2d(3, 2, 1),
            norm=nn.BatchNorm2d(2),
            up=nn.ConvTranspose2d(5, 2, 2, stride=2, padding=1),
        ),
        ((1, 3, 3),),
    ),
    "a layer used twice": (
        lambda: Net(
            lambda net, x: net.last(F.relu(net.twice(F.relu(net.twice(x))))), twice=nn.Linear(3, 3), last=mlp(3, 2)
        ),
        ((3,),),
    ),
    "two inputs": (TwoInputs, ((3,), (2,))),
}
LIPSCHITZ: dict[str, Architecture] = {
    "tanh": (lambda: mlp(3, 6, 4, 2, activation=nn.Tanh), ((3,),)),
    "relu6": (lambda: mlp(3, 6, 4, 2, activation=nn.ReLU6), ((3,),)),
    "hardtanh, elu and skip": (
        lambda: Net(
            lambda net, x: net.c(F.hardtanh(net.a(x)) + F.elu(net.b(x), 0.5).sin()),
            a=nn.Linear(3, 5),
            b=nn.Linear(3, 5),
            c=nn.Linear(5, 2),
        ),
        ((3,),),
    ),
}


@cache
def traced(name: str) -> tamis.Network:
    build, shapes = (HOMOGENEOUS | LIPSCHITZ)[name]
    torch.manual_seed(0)
    return tamis.trace(build().double(), tuple(torch.zeros(2, *shape, dtype=torch.float64) for shape in shapes))


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def drawn(net: tamis.Network, seed: int) -> tamis.Network:
    """Random parameters: Gaussian, heavy-tailed, sparse, non-negative, or badly scaled, in turn."""
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for name, value in net.params.items():
        if not value.is_floating_point():
            continue
        new = normal(generator, *value.shape)
        if name.endswith("running_var"):
            new = new.abs() + 0.1
        elif seed % 5 == 1:
            new = new**3
        elif seed % 5 == 2:
            new = new * (uniform(generator, *value.shape) < 0.5)
        elif seed % 5 == 3:
            new = new.abs()
        elif seed % 5 == 4:
            new = new * 10 ** (2 * normal(generator, value.shape[0])).view(-1, *[1] * (value.dim() - 1))
        params[name] = new
    return net.with_params(params)


def inputs(net: tamis.Network, generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Inputs of all scales; the first is zero."""
    sizes = 10 ** (4 * uniform(generator, batch) - 2)
    sizes[0] = 0
    return tuple(normal(generator, batch, *s[1:]) * sizes.view(-1, *[1] * (len(s) - 1)) for s in net.input_shapes)


def outputs(net: tamis.Network, x: tuple[Tensor, ...]) -> Tensor:
    """All output neurons side by side."""
    result = net(*x)
    return torch.cat([y.flatten(1) for y in (result if isinstance(result, tuple) else (result,))], 1)


def sup(x: tuple[Tensor, ...]) -> Tensor:
    """‖x‖_∞ of every sample, over all inputs."""
    return torch.cat([part.flatten(1) for part in x], 1).abs().amax(1)


# -- Lipschitz in x ------------------------------------------------------------------------------------------------


def check_in_x(net: tamis.Network, x: tuple[Tensor, ...], y: tuple[Tensor, ...]) -> float:
    """Theorem 3.3.1 at every pair, output by output and in all norms; the largest ratio seen in the ℓ¹-norm."""
    difference = (outputs(net, x) - outputs(net, y)).abs()
    distance = sup(tuple(a - b for a, b in zip(x, y, strict=True)))
    whole, sharp = tamis.path_norms(net), tamis.path_norms(net, part="input")
    noise = EVALUATION * torch.maximum(sup(x), sup(y)).clamp(min=1)  # in units of the path-norm
    for v, norm in enumerate(zip(sharp.values, whole.values, strict=True)):
        assert bool((difference[:, v] <= (distance * (1 + ROUNDING) * norm[0] + noise * norm[1])).all())
    for r in (0.5, 1, 2, math.inf):
        left = torch.linalg.vector_norm(difference, r, dim=1)
        assert sharp.mixed(r) <= whole.mixed(r) * (1 + ROUNDING)
        assert bool((left <= distance * (1 + ROUNDING) * sharp.mixed(r) + noise * whole.mixed(r)).all())
    ratios = difference.sum(1) / (distance * sharp.mixed(1))
    return float(ratios.where(distance > 1e-3, 0.0).nan_to_num().max())


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_in_x_for_random_networks_and_pairs(name: str) -> None:
    for seed in range(5):  # one of each kind of parameters
        net, generator = drawn(traced(name), seed), torch.Generator().manual_seed(1000 + seed)
        x = inputs(net, generator, 40)
        far = inputs(net, generator, 40)
        near = tuple(part + 1e-5 * normal(generator, *part.shape) for part in x)
        corner = tuple(part + sup(x).max() * normal(generator, *part.shape).sign() for part in x)
        # All pairs as one batch: the norms are computed once for them.
        y = tuple(torch.cat(parts) for parts in zip(far, near, corner, strict=True))
        check_in_x(net, tuple(torch.cat([part] * 3) for part in x), y)


def climbed_pairs(net: tamis.Network, seed: int, steps: int = 40) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Pairs that ascend log ‖R(x)−R(y)‖₁ − log ‖x−y‖_∞, from random starts."""
    generator = torch.Generator().manual_seed(seed)
    x = tuple(3 * normal(generator, 24, *shape[1:]) for shape in net.input_shapes)
    step = tuple(normal(generator, *part.shape).sign() for part in x)
    leaves = [part.clone().requires_grad_() for part in (*x, *step)]
    half = len(x)
    optimizer = torch.optim.Adam(leaves, lr=0.15)
    for _ in range(steps):
        x, y = tuple(leaves[:half]), tuple(a + b for a, b in zip(leaves[:half], leaves[half:], strict=True))
        ratio = (outputs(net, x) - outputs(net, y)).abs().sum(1) / sup(tuple(leaves[half:])).clamp(min=1e-3)
        optimizer.zero_grad()
        (-(ratio + 1e-12).log().sum()).backward()
        optimizer.step()
    x = tuple(part.detach() for part in leaves[:half])
    return x, tuple(a + b.detach() for a, b in zip(x, leaves[half:], strict=True))


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_in_x_under_gradient_ascent(name: str) -> None:
    """Non-negative weights (seed 3) meet the bound, unless branches are subtracted or selected among."""
    closest = {}
    for seed in (0, 3):
        net = drawn(traced(name), seed)
        closest[seed] = check_in_x(net, *climbed_pairs(net, seed))
    assert closest[3] > (0.04 if name in ("residual", "convolutional", "selections", "two inputs") else 0.95)


def test_norms_of_the_attacks_are_those_of_path_norm() -> None:
    net = drawn(traced("convolutional"), 0)
    for r in (0.5, 1, 2, math.inf):
        assert tamis.path_norm(net, 1, r) == tamis.path_norms(net).mixed(r)
        assert tamis.path_norm(net, 1, r, part="input") == tamis.path_norms(net, part="input").mixed(r)


# -- Lipschitz in θ ------------------------------------------------------------------------------------------------


def pruned(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return net.with_params({n: net.params[n] * (uniform(generator, *net.params[n].shape) < 0.6) for n in net.trainable})


def rounded_towards_zero(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return net.with_params({n: (4 * net.params[n]).trunc() / 4 for n in net.trainable})


def rounded_to_nearest(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return net.with_params({n: (2 * net.params[n]).round() / 2 for n in net.trainable})


def perturbed(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return net.with_params({n: net.params[n] + 0.7 * normal(generator, *net.params[n].shape) for n in net.trainable})


def barely_perturbed(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return net.with_params(
        {n: net.params[n] * (1 + 1e-6 * normal(generator, *net.params[n].shape)) for n in net.trainable}
    )


def unrelated(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return drawn(net, int(torch.randint(1000, (), generator=generator)))


def signs_flipped(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return net.with_params({name: -net.params[name] for name in net.trainable})


def rescaled_and_pruned(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    return tamis.rescale(pruned(net, generator), seed=3)


def statistics_changed(net: tamis.Network, generator: torch.Generator) -> tamis.Network:
    moved = {n: v for n, v in net.params.items() if n.endswith(("running_mean", "running_var"))}
    return net.with_params({n: v + uniform(generator, *v.shape) for n, v in moved.items()})


CHANGES = [
    pruned,
    rounded_towards_zero,
    rounded_to_nearest,
    perturbed,
    barely_perturbed,
    unrelated,
    signs_flipped,
    rescaled_and_pruned,
    statistics_changed,
]


@lru_cache(maxsize=8)  # the same network is compared with many
def path_size(net: tamis.Network) -> float:
    """The sum over paths; for networks that are only 1-Lipschitz, the distance from the zero network."""
    try:
        return tamis.path_norm(net)
    except UnsupportedOp:
        zero = net.with_params({n: torch.zeros_like(net.params[n]) for n in net.trainable})
        return float(tamis.path_metric(net, zero))


def check_in_theta(net: tamis.Network, other: tamis.Network, x: tuple[Tensor, ...]) -> float:
    """‖R_θ(x)−R_θ'(x)‖₁ ≤ path_metric(θ, θ', x), and ≤ max(‖x‖_∞, 1) · path_metric(θ, θ'); the largest ratio seen."""
    difference = (outputs(net, x) - outputs(other, x)).abs().sum(1)
    scale = sup(x).clamp(min=1)
    noise = EVALUATION * scale * (path_size(net) + path_size(other))
    bound = tamis.path_metric(net, other, x)
    assert isinstance(bound, Tensor) and bound.shape == difference.shape
    assert bool((difference <= bound * (1 + ROUNDING) + noise).all())
    assert bool((difference <= scale * tamis.path_metric(net, other) * (1 + ROUNDING) + noise).all())
    return float((difference / bound)[bound > 1e3 * noise].max()) if bool((bound > 1e3 * noise).any()) else 0.0


def check_changes(name: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        seed = number % 5  # a kind of parameters
        net, generator = drawn(traced(name), seed), torch.Generator().manual_seed(2000 + seed)
        if CHANGES[number] is not statistics_changed or any(name.endswith("running_mean") for name in net.params):
            check_in_theta(net, CHANGES[number](net, generator), inputs(net, generator, 24))


EVERY_NETWORK = pytest.mark.parametrize("name", [*HOMOGENEOUS, *LIPSCHITZ])


@EVERY_NETWORK
def test_in_theta_for_random_networks_and_changes(name: str) -> None:
    """Every other change; the next architecture meets those that lie between."""
    place = [*HOMOGENEOUS, *LIPSCHITZ].index(name)
    numbers = {*range(place % 2, len(CHANGES), 2), CHANGES.index(statistics_changed)}
    check_changes(name, sorted(numbers))


@pytest.mark.slow
@EVERY_NETWORK
def test_in_theta_for_every_change(name: str) -> None:
    check_changes(name, range(len(CHANGES)))


@pytest.mark.parametrize("name", LIPSCHITZ)
def test_what_is_only_1_lipschitz_has_a_metric_but_no_norm(name: str) -> None:
    net = traced(name)
    assert tamis.path_metric(net, drawn(net, 0)) > 0
    with pytest.raises(UnsupportedOp, match=r"path_norm needs a homogeneous network: 'aten\.(tanh|relu6|hardtanh)"):
        tamis.path_norm(net)


def test_what_is_not_1_lipschitz_is_refused_by_name() -> None:
    net = tamis.trace(mlp(3, 4, 2, activation=nn.GELU), torch.zeros(1, 3))
    with pytest.raises(UnsupportedOp, match=r"path_metric needs 1-Lipschitz operations .*'aten\.gelu' at 1"):
        tamis.path_metric(net, net)


# Networks on which a pass over |θ| and |x| is the plain forward pass, so that the bound has a gradient.
SMOOTH = ["mlp", "narrow mlp", "mlp without biases", "residual"]


def evaluated(net: tamis.Network, params: Params, x: Tensor) -> Tensor:
    """The network's outputs as a differentiable function of parameters and input."""
    return net.run({**params, net.inputs[0]: x})[net.output_names[0]]


def magnitude(net: tamis.Network, params: Params, x: Tensor) -> Tensor:
    """Σ_p |Φ_p(θ)| |x_{p₀}| for every sample."""
    return evaluated(net, {n: v.abs() for n, v in params.items()}, x.abs()).sum(1)


def smooth_bound(net: tamis.Network, mine: Params, theirs: Params, x: Tensor) -> Tensor:
    """ERRATA 18 and 19, differentiable: through θ'' = θ without the coordinates whose signs differ."""
    between = {n: torch.where(v * theirs[n] < 0, 0.0, v) for n, v in mine.items()}
    total = torch.zeros(len(x), dtype=torch.float64)
    for a, b in ((mine, between), (between, theirs)):
        a, b = ({n: v.abs() for n, v in each.items()} for each in (a, b))
        larger = {n: torch.maximum(v, b[n]) for n, v in a.items()}
        smaller = {n: torch.minimum(v, b[n]) for n, v in a.items()}
        total = total + magnitude(net, larger, x) - magnitude(net, smaller, x)
    return total


def shrunk(mine: Params, freedom: Params) -> Params:
    """θ' dominated by θ."""
    return {n: v * torch.sigmoid(freedom[n]) for n, v in mine.items()}


def same_signs(mine: Params, freedom: Params) -> Params:
    return {n: v * freedom[n].exp() for n, v in mine.items()}


def free(mine: Params, freedom: Params) -> Params:
    return freedom


@pytest.mark.slow
@pytest.mark.parametrize("move", [shrunk, same_signs, free])
@pytest.mark.parametrize("name", SMOOTH)
def test_in_theta_under_gradient_ascent(name: str, move: Callable[[Params, Params], Params]) -> None:
    """Ascend the ratio of distance and bound in θ, θ' and x together; only an ascent that comes close counts."""
    closest = 0.0
    for seed in range(3):
        net, generator = drawn(traced(name), 5 * seed), torch.Generator().manual_seed(seed)
        mine = {n: v.clone().requires_grad_() for n, v in net.params.items()}
        freedom = {n: normal(generator, *v.shape).requires_grad_() for n, v in net.params.items()}
        x = normal(generator, 12, *net.input_shapes[0][1:]).requires_grad_()
        optimizer = torch.optim.Adam([*mine.values(), *freedom.values(), x], lr=0.05)
        for step in range(121):
            theirs = move(mine, freedom)
            if step % 40 == 0:
                first, second = net.with_params(mine), net.with_params(theirs)
                closest = max(closest, check_in_theta(first, second, (x.detach(),)))
            difference = (evaluated(net, mine, x) - evaluated(net, theirs, x)).abs().sum(1)
            ratio = difference / (smooth_bound(net, mine, theirs, x) + 1e-9)
            optimizer.zero_grad()
            (-(ratio + 1e-6).log().sum()).backward()
            optimizer.step()
    assert closest > 0.6


def test_opposite_signs_are_covered() -> None:
    """Figure 3.4: ReLU(x) and −ReLU(−x) have the same Φ and nothing else in common."""
    plain = tamis.trace(mlp(1, 1, 1, bias=False).double(), torch.zeros(1, 1, dtype=torch.float64))
    one = torch.ones(1, 1, dtype=torch.float64)
    net = plain.with_params({"0.weight": one, "2.weight": one})
    other = plain.with_params({"0.weight": -one, "2.weight": -one})
    assert torch.equal(tamis.lifting(net).phi, tamis.lifting(other).phi)
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)[:, None]
    difference = (net(x) - other(x)).abs().sum(1)
    torch.testing.assert_close(difference, x.abs()[:, 0])
    assert bool((difference <= tamis.path_metric(net, other, x)).all())
    assert tamis.path_metric(net, other) >= 1
    check_in_theta(net, other, (x,))


def test_two_neurons_of_all_signs_and_sizes() -> None:
    """All pairs of two-weight networks over a grid, zeros included; the first with x and output turned to be ≥ 0."""
    plain = tamis.trace(mlp(1, 1, 1, bias=False).double(), torch.zeros(1, 1, dtype=torch.float64))
    positive = torch.tensor([0.0, 1.0], dtype=torch.float64)
    grid = torch.tensor([-2.0, -0.5, 0.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    for a, b, c, d in torch.cartesian_prod(positive, positive, grid, grid).view(-1, 4, 1, 1):
        net, other = (plain.with_params({"0.weight": v, "2.weight": w}) for v, w in ((a, b), (c, d)))
        difference, bound = (net(x) - other(x)).abs().sum(1), tamis.path_metric(net, other, x)
        assert bool((difference <= bound * (1 + ROUNDING)).all()), (a, b, c, d)


def test_samples_of_a_batch_do_not_meet() -> None:
    net = drawn(traced("mlp without biases"), 0)
    other = perturbed(net, torch.Generator().manual_seed(0))
    x = torch.logspace(-30, 30, 7, dtype=torch.float64)[:, None] * torch.ones(7, 3, dtype=torch.float64)
    alone = torch.cat([tamis.path_metric(net, other, x[i : i + 1]) for i in range(7)])
    torch.testing.assert_close(tamis.path_metric(net, other, x), alone, rtol=1e-12, atol=0)


def test_a_network_without_a_batch_dimension() -> None:
    torch.manual_seed(0)
    net = tamis.trace(gcn().double(), torch.zeros(12, 8, dtype=torch.float64))
    assert not net.batched
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        other, x = perturbed(net, generator), 3 * normal(generator, 12, 8)
        bound = tamis.path_metric(net, other, x)
        assert isinstance(bound, float)
        assert float((net(x) - other(x)).abs().sum()) <= bound * (1 + ROUNDING)


def test_tiny_samples_beside_huge_ones() -> None:
    net = drawn(traced("mlp without biases"), 0)
    other = perturbed(net, torch.Generator().manual_seed(0))
    x = torch.tensor([[1e200], [1e-200]], dtype=torch.float64) * torch.ones(2, 3, dtype=torch.float64)
    difference = (net(x) - other(x)).abs().sum(1)
    assert bool((difference <= tamis.path_metric(net, other, x)).all())


# -- a real network ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pretrained_resnet_and_its_pruned_copy() -> None:
    net = traced_pretrained("resnet20").to(torch.float64)
    weights = [n for n in net.trainable if net.params[n].dim() > 1]
    threshold = torch.cat([net.params[n].abs().flatten() for n in weights]).quantile(0.3)
    small = net.with_params({n: net.params[n] * (net.params[n].abs() > threshold) for n in weights})
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([size * normal(generator, 2, 3, 32, 32) for size in (1e-3, 0.1, 1, 10)])
    assert 0 < check_in_theta(net, small, (x,)) < 1
    y = x + torch.cat([size * normal(generator, 2, 3, 32, 32).sign() for size in (1e-4, 0.1, 1, 10)])
    assert 0 < check_in_x(net, (x,), (y,)) < 1
