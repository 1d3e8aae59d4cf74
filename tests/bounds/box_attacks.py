"""Small networks, changes of their parameters, and a search for the input of a box where two networks differ most."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from torch import Tensor, nn

import tamis
from tamis.bounds.interval import Interval
from tamis.graph import Node, Ref
from tamis.graph.ops import REGISTRY, Op

aten = torch.ops.aten
EVALUATION = 1e-12  # what evaluating a small network may round, relative to its outputs


class Net(nn.Module):
    """Layers by name, and how data flows through them."""

    def __init__(self, flow: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.flow = flow
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.flow(self, x)


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [module for i, o in pairwise(widths) for module in (nn.Linear(i, o), activation())]
    return nn.Sequential(*layers[:-1])


def residual(net: Any, x: Tensor) -> Tensor:
    h = F.relu(net.stem(x))
    return net.head(F.relu(h + net.b(F.relu(net.a(h)))) - 0.5 * h)


def convolutional(pool: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    def flow(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.norm(net.first(x)))
        h = pool(F.leaky_relu(h + net.second(h), 0.1), 2)
        return net.head(h.flatten(1))

    return lambda: Net(
        flow,
        first=nn.Conv2d(1, 3, 3, padding=1),
        norm=nn.BatchNorm2d(3),
        second=nn.Conv2d(3, 3, 3, padding=1),
        head=nn.Linear(12, 3),
    )


def turned(net: Any, x: Tensor) -> Tensor:
    """Samples lie along other axes than the first for a while; a split, a maximum, a sort."""
    h = F.relu(net.first(x).t())
    left, right = h.chunk(2, dim=0)
    h = torch.maximum(left, 0.5 * right).t()
    return net.last(torch.cat([h, h.sort(1)[0][:, :2], torch.minimum(h, -h)], 1))


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(4, 8, 8, 3), (4,)),
    "deep mlp": (lambda: mlp(3, 6, 6, 6, 6, 2), (3,)),
    "tanh": (lambda: mlp(3, 6, 4, 2, activation=nn.Tanh), (3,)),
    "sigmoid": (lambda: mlp(3, 6, 4, 2, activation=nn.Sigmoid), (3,)),
    "hardtanh": (lambda: mlp(3, 6, 4, 2, activation=nn.Hardtanh), (3,)),
    "elu": (lambda: mlp(3, 6, 4, 2, activation=lambda: nn.ELU(1.5)), (3,)),
    "residual": (
        lambda: Net(residual, stem=nn.Linear(3, 5), a=nn.Linear(5, 5), b=nn.Linear(5, 5), head=nn.Linear(5, 2)),
        (3,),
    ),
    "max-pool": (convolutional(F.max_pool2d), (1, 4, 4)),
    "avg-pool": (convolutional(F.avg_pool2d), (1, 4, 4)),
    "turned": (lambda: Net(turned, first=nn.Linear(3, 8), last=nn.Linear(10, 2)), (3,)),
}


# The others differ from these by the function of one neuron, which other tests pass through all of them.
KINDS = ("mlp", "sigmoid", "residual", "max-pool", "avg-pool", "turned")
one_of_each_kind = pytest.mark.parametrize(
    "name", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)


@cache
def traced(name: str) -> tamis.Network:
    build, shape = ARCHITECTURES[name]
    torch.manual_seed(0)
    return tamis.trace(build().double(), torch.zeros(2, *shape, dtype=torch.float64))


def drawn(name: str, seed: int) -> tamis.Network:
    """A network with random parameters, batch-norm statistics included."""
    net, generator = traced(name), torch.Generator().manual_seed(seed)
    params = {}
    for key, value in net.params.items():
        if value.is_floating_point():
            new = normal(generator, *value.shape)
            params[key] = new.abs() + 0.2 if key.endswith("running_var") else new
    return net.with_params(params)


def inputs(net: tamis.Network, seed: int, batch: int = 2) -> Tensor:
    return normal(torch.Generator().manual_seed(1000 + seed), batch, *net.input_shapes[0][1:])


def pruned(net: tamis.Network) -> tamis.Network:
    return net.with_params({n: net.params[n] * (net.params[n].abs() > 0.4) for n in net.trainable})


def rounded(net: tamis.Network) -> tamis.Network:
    return net.with_params({n: (8 * net.params[n]).round() / 8 for n in net.trainable})


def barely_moved(net: tamis.Network) -> tamis.Network:
    generator = torch.Generator().manual_seed(5)
    moved = {n: net.params[n] * (1 + 1e-5 * normal(generator, *net.params[n].shape)) for n in net.trainable}
    return net.with_params(moved)


def unrelated(net: tamis.Network) -> tamis.Network:
    generator = torch.Generator().manual_seed(6)
    return net.with_params({n: normal(generator, *net.params[n].shape) for n in net.trainable})


CHANGES = (pruned, rounded, barely_moved, unrelated)


def two_changes(name: str) -> list[tuple[int, Callable[[tamis.Network], tamis.Network]]]:
    """Two of the changes, numbered; neighbouring architectures get the two others, so that each change is met often."""
    return list(enumerate(CHANGES))[list(ARCHITECTURES).index(name) % 2 :: 2]


def around(x: Tensor, radius: float) -> Interval:
    return Interval(x - radius, x + radius)


def flat(net: tamis.Network, x: Tensor) -> Tensor:
    result = net(x)
    parts = result if isinstance(result, tuple) else (result,)
    return torch.cat([part.flatten(1) for part in parts], 1)


def difference(net: tamis.Network, other: tamis.Network, x: Tensor) -> Tensor:
    return flat(other, x) - flat(net, x)


def attacked(net: tamis.Network, other: tamis.Network, box: Interval, steps: int = 12) -> tuple[Tensor, Tensor]:
    """For every output the smallest and the largest difference found: random points, corners, and ascent in signs."""
    generator = torch.Generator().manual_seed(0)
    centre, radius = (box.low + box.high) / 2, (box.high - box.low) / 2

    def inside(x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, box.low), box.high)

    def attack(x: Tensor) -> Tensor:
        """For copies of the batch side by side, as one larger batch: what all of them find at once."""
        return difference(net, other, x.flatten(0, 1)).unflatten(0, x.shape[:2])

    offsets = 2 * torch.rand(30, *centre.shape, generator=generator, dtype=torch.float64) - 1
    offsets[::2] = offsets[::2].sign()
    found = [attack(centre[None]).detach(), attack(inside(centre + radius * offsets)).detach()]
    outputs = found[0].shape[2]
    # One copy climbs and one descends for each output, so that all ascents cost as many evaluations as one.
    goals = torch.cat([torch.eye(outputs), -torch.eye(outputs)]).double()
    x = centre.expand(2 * outputs, *centre.shape)
    for step in range(steps):
        x = x.detach().requires_grad_()
        value = attack(x)
        found.append(value.detach())
        (gradient,) = torch.autograd.grad((goals[:, None] * value).sum(), x)
        x = inside(x.detach() + 2 * radius / (step + 1) * gradient.sign())
    every = torch.cat(found)
    return every.amin(0), every.amax(0)


def noise(net: tamis.Network, other: tamis.Network, box: Interval) -> float:
    """What evaluating both networks may round."""
    outputs = [flat(each, end).abs().max() for each in (net, other) for end in (box.low, box.high)]
    return EVALUATION * float(1 + torch.stack(outputs).max())


def holds(net: tamis.Network, other: tamis.Network, box: Interval, claim: list[Interval], steps: int = 12) -> bool:
    """Whether no attack leaves the intervals that are claimed for the differences."""
    low, high = attacked(net, other, box, steps)
    slack = noise(net, other, box)
    claimed = [torch.cat([getattr(each, end).flatten(1) for each in claim], 1) for end in ("low", "high")]
    return bool((low >= claimed[0] - slack).all() and (high <= claimed[1] + slack).all())


CALLS = {  # further arguments of functions of one neuron
    aten.leaky_relu.default: [(0.3,), (-1.7,), (2.5,)],
    aten.clamp.default: [(-0.5, 1.0), (None, 0.25), (0.0, None)],
    aten.clamp_min.default: [(-0.25,)],
    aten.clamp_max.default: [(0.75,)],
    aten.hardtanh.default: [(), (-0.5, 0.0)],
    aten.elu.default: [(), (0.5, 2.0, 1.5), (3.0,)],
}
POINTWISE = [target for target, op in REGISTRY.items() if type(op).function is not Op.function]
FUNCTIONS = [Node("f", target, (Ref("x"), *more)) for target in POINTWISE for more in CALLS.get(target, [()])]


def exact_output(net: tamis.Network, x: list[Fraction]) -> list[Fraction]:
    """An MLP in exact arithmetic."""
    layers = sorted({name.split(".")[0] for name in net.params}, key=int)
    for layer in layers:
        weight, bias = net.params[f"{layer}.weight"].tolist(), net.params[f"{layer}.bias"].tolist()
        rows = zip(weight, bias, strict=True)
        x = [sum((Fraction(w) * v for w, v in zip(row, x, strict=True)), Fraction(b)) for row, b in rows]
        x = [max(v, Fraction(0)) for v in x] if layer != layers[-1] else x
    return x
