"""Path quantities of small networks in rational arithmetic, by recursion over neurons and by every path: the oracle.

It shares no code with the fast passes. A network is a list of steps on vectors of neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import tamis

F0, F1 = Fraction(0), Fraction(1)
Matrix = list[list[Fraction]]
SCALES = {
    "ordinary": (-2, 2),
    "tiny": (-1070, -900),
    "huge": (900, 1020),
    "float32": (-149, 127),
    "any": (-1070, 1020),
}
Params = dict[str, Tensor]


class Chain(nn.Module):
    """Fully connected layers with what may stand between them: a skip, a concatenation, a pool, a batch-norm."""

    def __init__(self, width: int, depth: int, kind: str, outputs: int = 2) -> None:
        super().__init__()
        self.kind = kind
        joined = 2 * width if kind == "concatenation" else width
        self.layers = nn.ModuleList(nn.Linear(width if i == 0 else joined, width) for i in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth if kind == "batch-norm" else 0))
        self.head = nn.Linear(joined // 2 if kind == "pool" else joined, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            h = layer(x)
            h = torch.relu(self.norms[i](h) if self.kind == "batch-norm" else h)
            if self.kind == "residual" and i:
                h = h + x
            x = torch.cat([h, layer_input(self, x)], 1) if self.kind == "concatenation" else h
        if self.kind == "pool":
            x = torch.max_pool1d(x[:, None], 2)[:, 0]
        out: Tensor = self.head(x)
        return out


def layer_input(chain: Chain, x: Tensor) -> Tensor:
    """As many neurons of what a layer has read as it has itself."""
    return x[:, : chain.head.in_features // 2]


@dataclass(frozen=True)
class Exact:
    """The weights of a `Chain` as rational numbers, batch-norm folded with a scale s that is given."""

    kind: str
    layers: list[tuple[Matrix, list[Fraction]]]
    head: tuple[Matrix, list[Fraction]]

    def run(self, start: Sequence[Any], affine: Callable[..., list[Any]], add: Callable[[Any, Any], Any]) -> list[Any]:
        """The chain with `affine` in the place of its layers and `add` in that of sums and maxima."""
        x = list(start)
        for i, (weight, bias) in enumerate(self.layers):
            h = affine(weight, bias, x, i)
            if self.kind == "residual" and i:
                h = [add(a, b) for a, b in zip(h, x, strict=True)]
            x = h + x[: len(h)] if self.kind == "concatenation" else h
        if self.kind == "pool":
            x = [add(a, b) for a, b in zip(x[::2], x[1::2], strict=True)]
        return affine(*self.head, x, len(self.layers))

    def norms(self, start: Sequence[Fraction]) -> list[Fraction]:
        """‖Φ^{→v}‖₁ for each output, inputs counting with the sizes in `start`."""
        return self.run(start, _magnified, lambda a, b: a + b)

    def input_norms(self, width: int) -> list[Fraction]:
        """The same over the paths that start at an input alone."""
        return self.run([F1] * width, lambda w, b, x, i: _magnified(w, [F0] * len(b), x, i), lambda a, b: a + b)

    def paths(self, width: int) -> list[list[Fraction]]:
        """Every product along a path, for each output; those through zeros included, so that any two compare."""
        return self.run([[F1] for _ in range(width)], _continued, lambda a, b: a + b)

    def realization(self, x: Sequence[Fraction]) -> list[Fraction]:
        """The network itself."""
        last = len(self.layers)

        def affine(weight: Matrix, bias: list[Fraction], u: list[Fraction], i: int) -> list[Fraction]:
            sums = [b + _dot(row, u) for row, b in zip(weight, bias, strict=True)]
            return sums if i == last else [max(s, F0) for s in sums]

        def merge(a: Fraction, b: Fraction) -> Fraction:
            return max(a, b) if self.kind == "pool" else a + b

        return self.run(x, affine, merge)

    def products(self, width: int) -> list[Fraction]:
        """Π_{1,·} of each output: |b| + ‖w‖₁ · the largest that feeds it; a merge of two is ‖(1,1)‖₁ · the larger."""

        def affine(weight: Matrix, bias: list[Fraction], u: list[Fraction], i: int) -> list[Fraction]:
            return [abs(b) + sum(map(abs, row), F0) * max(u) for row, b in zip(weight, bias, strict=True)]

        return self.run([F1] * width, affine, lambda a, b: 2 * max(a, b))


def _dot(row: Sequence[Fraction], u: Sequence[Fraction]) -> Fraction:
    return sum((w * v for w, v in zip(row, u, strict=True)), F0)


def _magnified(weight: Matrix, bias: list[Fraction], u: list[Fraction], i: int) -> list[Fraction]:
    return [abs(b) + _dot([abs(w) for w in row], u) for row, b in zip(weight, bias, strict=True)]


def _continued(weight: Matrix, bias: list[Fraction], u: list[list[Fraction]], i: int) -> list[list[Fraction]]:
    edges = [list(zip(row, u, strict=True)) for row in weight]
    return [[b, *(w * p for w, paths in row for p in paths)] for row, b in zip(edges, bias, strict=True)]


def exact(kind: str, depth: int, params: Params) -> Exact:
    """The rational network of a `Chain` with these parameters. Scales of batch-norms must be powers of two."""
    layers = []
    for i in range(depth):
        weight, bias = fractions(params[f"layers.{i}.weight"]), fractions(params[f"layers.{i}.bias"])
        if kind == "batch-norm":
            weight, bias = _folded(weight, bias, i, params)
        layers.append((weight, bias))
    return Exact(kind, layers, (fractions(params["head.weight"]), fractions(params["head.bias"])))


def _folded(weight: Matrix, bias: list[Fraction], i: int, params: Params) -> tuple[Matrix, list[Fraction]]:
    gamma, beta, mean, var = (
        fractions(params[f"norms.{i}.{name}"]) for name in ("weight", "bias", "running_mean", "running_var")
    )
    roots = [_exact_root(v + Fraction(1e-5)) for v in var]
    scales = [g / r for g, r in zip(gamma, roots, strict=True)]
    folded = [[w * s for w in row] for row, s in zip(weight, scales, strict=True)]
    shifts = [s * b + t - s * m for s, b, t, m in zip(scales, bias, beta, mean, strict=True)]
    return folded, shifts


def _exact_root(value: Fraction) -> Fraction:
    """√value to eighty digits more than float64 has."""
    digits = 2**400
    return Fraction(math.isqrt(value.numerator * value.denominator * digits**2), value.denominator * digits)


def fractions(value: Any) -> Any:
    """Nested lists of floats as rational numbers."""
    value = value.tolist() if isinstance(value, Tensor) else value
    return [fractions(item) for item in value] if isinstance(value, list) else Fraction(value)


def distance(net: Exact, other: Exact, width: int) -> Fraction:
    """‖Φ(θ) − Φ(θ')‖₁ over every path."""
    pairs = zip(net.paths(width), other.paths(width), strict=True)
    return sum((abs(p - q) for mine, theirs in pairs for p, q in zip(mine, theirs, strict=True)), F0)


def log2(value: Fraction) -> float:
    """The binary logarithm of a positive rational number of any size."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    scaled = value / Fraction(2) ** shift
    return math.log2(float(scaled)) + shift


def at_least(computed_log: float, exact_value: Fraction) -> bool:
    """Whether exp(computed_log) ≥ exact_value, without rounding: by rational bounds of the exponential."""
    if exact_value == 0:
        return True
    if computed_log == -math.inf:
        return False
    return _exp_above(computed_log) >= exact_value


def _exp_above(log: float) -> Fraction:
    """A rational number ≥ exp(log), by at most a part in 2^200."""
    value = Fraction(log)
    halvings = max(0, math.ceil(abs(log)).bit_length() + 8)
    small = value / 2**halvings
    term, total = F1, F1
    for k in range(1, 40):
        term = term * small / k
        total += term
        if k % 4 == 0:
            term, total = _short(term), _short(total)
    total += abs(term)
    for _ in range(halvings):
        total = _short(total * total)
    return total * (1 + Fraction(1, 2**200))


def _short(value: Fraction) -> Fraction:
    """A number within a part in 2^300 of a positive or negative one, with short numerator and denominator."""
    if value == 0:
        return value
    shift = 320 - (value.numerator.bit_length() - value.denominator.bit_length())
    return Fraction(math.ceil(value * Fraction(2) ** shift)) / Fraction(2) ** shift


def drawn(generator: torch.Generator, shape: Sequence[int], scale: str, dtype: torch.dtype) -> Tensor:
    """Numbers of both signs with exponents all over a range, a few of them zero; extremes of the type among them."""
    low, high = SCALES[scale]
    mantissa = torch.rand(tuple(shape), generator=generator, dtype=torch.float64) / 2 + 0.5
    exponents = torch.randint(low, high + 1, tuple(shape), generator=generator)
    kinds = torch.randint(0, 12, tuple(shape), generator=generator)
    signs = torch.randint(0, 2, tuple(shape), generator=generator) * 2 - 1
    values = [math.ldexp(m, e) for m, e in zip(mantissa.flatten().tolist(), exponents.flatten().tolist(), strict=True)]
    value = torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))
    value = value.where(kinds > 1, 0.0)
    if scale == "any":
        value = value.where(kinds != 2, 5e-324).where(kinds != 3, 1.7e308)
    if scale == "float32":
        value = value.where(kinds != 2, 2.0**-149).where(kinds != 3, 3.4e38)
    return (value * signs).to(dtype)


def forged(hidden: int = 12) -> tuple[tamis.Network, tamis.Network]:
    """A network, and one with other outputs and a chain of dead neurons whose weights grow beyond all others."""
    torch.manual_seed(0)
    widths = [4, *[6] * hidden, 3]
    layers = [m for i, o in pairwise(widths) for m in (nn.Linear(i, o), nn.ReLU())]
    net = tamis.trace(nn.Sequential(*layers[:-1]), torch.zeros(1, 4))
    params = {name: value.clone() for name, value in net.params.items()}
    for i in range(hidden + 1):
        weight, bias = params[f"{2 * i}.weight"], params[f"{2 * i}.bias"]
        sign = weight[0, 0].sign()
        if i:
            weight[:, 0] = 0
        if 0 < i < hidden:
            weight[0] = 0
            weight[0, 0] = 3e38 * sign
            bias[0] = 0
    params["0.bias"][0] = -3e38
    params[f"{2 * hidden}.bias"] += 10
    return net, net.with_params(params)
