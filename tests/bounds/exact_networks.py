"""Small networks in exact rational arithmetic, and draws of parameters and boxes at every scale that float64 has."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import torch
from bounds.box_attacks import drawn
from torch import Tensor

import tamis
from tamis.graph import Node, resolve
from tamis.graph.ops import merge, rearrange

aten = torch.ops.aten
Array = Any  # of Fractions, in a numpy array of objects
MOVES = (*rearrange.Rearrange.targets, *rearrange.Pick.targets, *merge.Join.targets)
DIGITS = 760  # of functions whose values are not rational: enough for 1 + x of any x to be more than 1
FLAT = 4000  # e^−FLAT is about …
FAINTEST = Fraction(1, 2**5700)  # … this, and stands for less


def exact(value: Tensor) -> Array:
    """The numbers of a tensor as they are stored."""
    flat = np.array([Fraction(each) for each in value.double().flatten().tolist()], dtype=object)
    return flat.reshape(tuple(value.shape))


def evaluate(net: tamis.Network, x: Array) -> list[Fraction]:
    """All outputs of a network for one input, without a batch dimension of more than one."""
    values: dict[str, Any] = {name: exact(each) for name, each in {**net.params, **net.constants}.items()}
    values[net.inputs[0]] = x
    for node in net.nodes:
        values[node.name] = _apply(node, values)
    return [each for name in net.output_names for each in values[name].flatten().tolist()]


def _apply(node: Node, values: dict[str, Any]) -> Any:
    if node.target in MOVES:
        return _move(node, values)
    if node.target in POINTWISE:
        number = POINTWISE[node.target](node.arguments)
        x = values[node.arguments["self"].name]
        return np.array([number(each) for each in x.flatten()], dtype=object).reshape(x.shape)
    return OPERATIONS[node.target](**{key: resolve(value, values.__getitem__) for key, value in node.arguments.items()})


def _move(node: Node, values: dict[str, Any]) -> Any:
    """Run an operation that copies on the places of numbers in one long list."""
    if node.target in rearrange.Pick.targets:
        return values[node.args[0].name][node.args[1]]
    pool: list[Any] = []

    def places(name: str) -> Any:
        if isinstance(values[name], int):
            return values[name]
        start = len(pool)
        pool.extend(values[name].flatten())
        return torch.arange(start, len(pool)).view(values[name].shape)

    result = node.target(*resolve(node.args, places), **resolve(node.kwargs, places))
    numbers = np.array([*pool, None], dtype=object)[:-1]
    return [numbers[each.numpy()] for each in result] if isinstance(result, list) else numbers[result.numpy()]


def _linear(input: Array, weight: Array, bias: Array | None) -> Array:
    result = input @ weight.T
    return result if bias is None else result + bias


def _conv(
    input: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Array:
    assert (list(dilation), groups) == ([1, 1], 1)
    rows, columns = weight.shape[2:]
    (top, left), (down, right) = padding, stride
    padded = np.pad(input, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=Fraction(0))
    height, width = (padded.shape[2] - rows) // down + 1, (padded.shape[3] - columns) // right + 1
    result = np.empty((len(input), len(weight), height, width), dtype=object)
    for i, j in product(range(height), range(width)):
        window = padded[:, :, i * down : i * down + rows, j * right : j * right + columns]
        result[:, :, i, j] = window.reshape(len(input), -1) @ weight.reshape(len(weight), -1).T
    return result if bias is None else result + bias[None, :, None, None]


def _batch_norm(
    input: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, eps: float, **_: Any
) -> Array:
    column = (1, -1, *[1] * (input.ndim - 2))
    scale = np.array([w / root(v + Fraction(eps)) for w, v in zip(weight, running_var, strict=True)], dtype=object)
    return (input - running_mean.reshape(column)) * scale.reshape(column) + bias.reshape(column)


def root(value: Fraction) -> Fraction:
    """The square root, to some 2000 bits more than float64 has."""
    shift = 4096 + 2 * max(0, value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction(math.isqrt((value.numerator << 2 * shift) // value.denominator), 1 << shift)


def _windows(self: Array, kernel_size: Any, combine: Callable[[Any], Any]) -> Array:
    rows, columns = (list(kernel_size) * 2)[:2]
    height, width = self.shape[2] // rows, self.shape[3] // columns
    result = np.empty((*self.shape[:2], height, width), dtype=object)
    for place in np.ndindex(*result.shape):
        b, c, i, j = place
        result[place] = combine(self[b, c, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns].flatten())
    return result


def _sorted(self: Array, dim: int, **_: Any) -> tuple[Array, None]:
    return np.sort(self, axis=dim), None


def number(value: Any) -> Any:
    return Fraction(value) if isinstance(value, (int, float)) else value


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.linear.default: _linear,
    aten.conv2d.default: _conv,
    aten.batch_norm.default: _batch_norm,
    aten.add.Tensor: lambda self, other, alpha: self + number(alpha) * number(other),
    aten.sub.Tensor: lambda self, other, alpha: self - number(alpha) * number(other),
    aten.mul.Tensor: lambda self, other: self * number(other),
    aten.neg.default: lambda self: -self,
    aten.div.Tensor: lambda self, other: self / number(other),
    aten.maximum.default: lambda self, other: np.maximum(self, other),
    aten.minimum.default: lambda self, other: np.minimum(self, other),
    aten.max_pool2d.default: lambda self, kernel_size, **_: _windows(self, kernel_size, max),
    aten.avg_pool2d.default: lambda self, kernel_size, **_: _windows(self, kernel_size, mean),
    aten.sort.default: _sorted,
    aten.sym_size.int: lambda self, dim: self.shape[dim],
}


def _clamped(low: Any, high: Any) -> Callable[[Fraction], Fraction]:
    def run(x: Fraction) -> Fraction:
        x = x if low is None else max(x, Fraction(low))
        return x if high is None else min(x, Fraction(high))

    return run


def _transcendental(function: Callable[[Any], Any]) -> Callable[[Any], Callable[[Fraction], Fraction]]:
    def run(x: Fraction) -> Fraction:
        with mpmath.workdps(DIGITS):
            sign, mantissa, exponent, _ = function(mpmath.mpf(x.numerator) / x.denominator)._mpf_
            return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent

    return lambda arguments: run


def _saturating(function: Callable[[Any], Any], low: int, high: int) -> Callable[[Any], Callable[[Fraction], Fraction]]:
    """Of a function that is nearer to its limits, beyond ±FLAT, than any float64 is."""
    inner = _transcendental(function)

    def run(x: Fraction) -> Fraction:
        if abs(x) < FLAT:
            return inner({})(x)
        return high - FAINTEST if x > 0 else low + FAINTEST

    return lambda arguments: run


def _elu(arguments: Any) -> Callable[[Fraction], Fraction]:
    alpha, scale, rate = (Fraction(arguments[name]) for name in ("alpha", "scale", "input_scale"))
    curve = _saturating(mpmath.expm1, -1, 0)(arguments)
    return lambda x: scale * x if x > 0 else scale * alpha * curve(rate * x)


POINTWISE: dict[Any, Callable[[Any], Callable[[Fraction], Fraction]]] = {
    aten.relu.default: lambda arguments: _clamped(0, None),
    aten.relu6.default: lambda arguments: _clamped(0, 6),
    aten.abs.default: lambda arguments: abs,
    aten.hardtanh.default: lambda arguments: _clamped(arguments["min_val"], arguments["max_val"]),
    aten.clamp.default: lambda arguments: _clamped(arguments["min"], arguments["max"]),
    aten.clamp_min.default: lambda arguments: _clamped(arguments["min"], None),
    aten.clamp_max.default: lambda arguments: _clamped(None, arguments["max"]),
    aten.leaky_relu.default: lambda a: lambda x: x if x > 0 else Fraction(a["negative_slope"]) * x,
    aten.elu.default: _elu,
    aten.tanh.default: _saturating(mpmath.tanh, -1, 1),
    aten.sigmoid.default: _saturating(lambda x: 1 / (1 + mpmath.exp(-x)), 0, 1),
    aten.atan.default: _transcendental(mpmath.atan),
    aten.asinh.default: _transcendental(mpmath.asinh),
    aten.sin.default: _transcendental(mpmath.sin),
}


@dataclass(frozen=True)
class Scales:
    """Powers of two to draw from: for whole tensors, and for entries within them."""

    tensors: tuple[int, ...]
    entries: tuple[int, ...] = (0,)


ORDINARY = Scales((0,))
SCALES = {
    "ordinary": ORDINARY,
    "subnormal": Scales((-1074, -1070, -1040)),
    "small and large": Scales((-1020, -500, 0, 500, 1000)),
    "single": Scales((-149, -126, 0, 126)),
    "mixed entries": Scales((0, -300, 300), (0, -60, 60, -700, 600)),
    "cancelling": Scales((-600, 600)),
    "huge": Scales((1000, 1023)),
}


def draw_number(random_: random.Random, scales: Scales) -> float:
    """Of a drawn size, or zero; never infinite."""
    exponent = random_.choice(scales.entries)
    value = math.ldexp(random_.choice((1.0, 1.5, random_.uniform(0.5, 2))), max(-1074, min(1022, exponent)))
    return random_.choice((0.0, value, value, -value, -value))


def draw_tensor(random_: random.Random, like: Tensor, scales: Scales) -> Tensor:
    shift = random_.choice(scales.tensors)
    one = Scales((0,), tuple(shift + entry for entry in scales.entries))
    numbers = [draw_number(random_, one) for _ in range(like.numel())]
    return torch.tensor(numbers, dtype=torch.float64).view(like.shape)


def draw_network(random_: random.Random, name: str, scales: Scales) -> tamis.Network:
    """An architecture of `box_attacks` with parameters of those scales; variances are positive."""
    net = drawn(name, 0)
    params = {}
    for key, value in net.params.items():
        if value.is_floating_point():
            new = draw_tensor(random_, value, scales)
            params[key] = new.abs() + 2.0**-30 if key.endswith("running_var") else new
    return net.with_params(params)


def draw_change(random_: random.Random, net: tamis.Network, scales: Scales) -> tamis.Network:
    """Another network: pruned, moved by a unit in the last place, or of other weights, tensor by tensor."""
    params = {}
    for key in sorted(net.trainable):  # a set has another order in every process
        value = net.params[key]
        other = draw_tensor(random_, value, scales)
        keep = torch.tensor([random_.random() < 0.5 for _ in range(value.numel())]).view(value.shape)
        nudged = torch.nextafter(value, torch.full_like(value, random_.choice((-1.0, 1.0)) * 1e308))
        params[key] = random_.choice((value, value * keep, torch.where(keep, value, other), nudged, other))
    return net.with_params(params)


def points(random_: random.Random, low: Array, high: Array, count: int) -> list[Array]:
    """A corner of a box, and points on its faces and inside."""
    found = [low]
    while len(found) < count:
        shares = [random_.choice((Fraction(0), Fraction(1), Fraction(random_.random()))) for _ in range(low.size)]
        found.append(low + (high - low) * np.array(shares, dtype=object).reshape(low.shape))
    return found
