"""Tiny random networks at any scale of their weights, with their outputs and path-liftings in exact rational numbers.

This knows nothing of tamis: a network is a list of steps over vectors, run by torch and, here, by `fractions`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor, nn

Vector = list[Fraction]
Matrix = list[list[float]]
SQUARE_ROOT_BITS = 600  # of a batch-norm's √(variance + ε): far beyond what any float64 can tell apart
EPSILON = 1e-5


@dataclass(frozen=True)
class Step:
    """One operation on the latest vector.

    Attributes:
        kind: linear, norm (batch-norm), relu, add or concatenate (an earlier vector), or largest (of pairs).
        weight: a matrix for linear; the rows γ, mean and variance for norm.
        bias: for linear and norm.
        earlier: which earlier vector add and concatenate read; 0 is the input.
    """

    kind: str
    weight: Matrix | None = None
    bias: list[float] | None = None
    earlier: int = 0


@dataclass(frozen=True)
class ExactNetwork:
    """A network as a list of steps, its weights being numbers of `dtype`."""

    width: int
    steps: tuple[Step, ...]
    dtype: torch.dtype

    def module(self) -> nn.Module:
        """The same network for torch."""
        return _Module(self).to(self.dtype).eval()

    def outputs(self, x: Sequence[float]) -> Vector:
        """R_θ(x), exactly (a batch-norm's square root to 600 bits)."""
        values = [[Fraction(each) for each in x]]
        for step in self.steps:
            values.append(_run(step, values))
        return values[-1]

    def paths(self) -> tuple[list[Vector], list[Vector]]:
        """For each output the products of weights along its paths: those from an input, and those from a bias.

        Networks with the same steps list their paths in the same order. A maximum passes the paths of both of its
        arguments on, as a sum would (thesis, Definition 2.3.3).
        """
        values = [[([Fraction(int(i == j)) for j in range(self.width)], []) for i in range(self.width)]]
        for step in self.steps:
            values.append(_lift(step, values))  # type: ignore[arg-type]
        return [inputs for inputs, _ in values[-1]], [biases for _, biases in values[-1]]

    def with_weights(self, steps: Sequence[Step]) -> ExactNetwork:
        """The same graph with other weights."""
        return replace(self, steps=tuple(steps))


class _Module(nn.Module):
    def __init__(self, network: ExactNetwork) -> None:
        super().__init__()
        self.network = network
        for number, step in enumerate(network.steps):
            if step.kind == "linear":
                assert step.weight is not None
                layer: nn.Module = nn.Linear(len(step.weight[0]), len(step.weight), dtype=network.dtype)
                _fill(layer.weight, step.weight)
                _fill(layer.bias, step.bias)
            elif step.kind == "norm":
                assert step.weight is not None
                layer = nn.BatchNorm1d(len(step.weight[0]), eps=EPSILON, dtype=network.dtype)
                for target, values in zip(
                    (layer.weight, layer.running_mean, layer.running_var), step.weight, strict=True
                ):
                    _fill(target, values)
                _fill(layer.bias, step.bias)
            else:
                continue
            self.add_module(f"step{number}", layer)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for number, step in enumerate(self.network.steps):
            latest = values[-1]
            if step.kind in ("linear", "norm"):
                values.append(self.get_submodule(f"step{number}")(latest))
            elif step.kind == "relu":
                values.append(torch.relu(latest))
            elif step.kind == "add":
                values.append(latest + values[step.earlier])
            elif step.kind == "concatenate":
                values.append(torch.cat([latest, values[step.earlier]], 1))
            else:
                values.append(torch.maximum(latest, latest.flip(1)))
        return values[-1]


def _fill(target: Tensor | None, values: object) -> None:
    assert target is not None
    with torch.no_grad():
        target.copy_(torch.tensor(values, dtype=target.dtype))


def _run(step: Step, values: list[Vector]) -> Vector:
    x = values[-1]
    if step.kind in ("linear", "norm"):
        matrix, bias = affine(step)
        return [sum((w * v for w, v in zip(row, x, strict=True)), b) for row, b in zip(matrix, bias, strict=True)]
    if step.kind == "relu":
        return [max(each, Fraction(0)) for each in x]
    if step.kind == "add":
        return [a + b for a, b in zip(x, values[step.earlier], strict=True)]
    if step.kind == "concatenate":
        return x + values[step.earlier]
    return [max(a, b) for a, b in zip(x, reversed(x), strict=True)]


def _lift(step: Step, values: list[list[tuple[Vector, Vector]]]) -> list[tuple[Vector, Vector]]:
    x = values[-1]
    if step.kind in ("linear", "norm"):
        matrix, bias = affine(step)
        return [
            (
                [w * product for w, (inputs, _) in zip(row, x, strict=True) for product in inputs],
                [w * product for w, (_, biases) in zip(row, x, strict=True) for product in biases] + [b],
            )
            for row, b in zip(matrix, bias, strict=True)
        ]
    if step.kind == "relu":
        return x
    others = {"add": lambda: values[step.earlier], "largest": lambda: list(reversed(x))}
    if step.kind == "concatenate":
        return x + values[step.earlier]
    return [(a + c, b + d) for (a, b), (c, d) in zip(x, others[step.kind](), strict=True)]


def affine(step: Step) -> tuple[list[Vector], Vector]:
    """The matrix and the bias that a linear step or a batch-norm stands for."""
    assert step.weight is not None and step.bias is not None
    if step.kind == "linear":
        return [[Fraction(w) for w in row] for row in step.weight], [Fraction(b) for b in step.bias]
    gammas, means, variances = ([Fraction(each) for each in row] for row in step.weight)
    scales = [gamma / _root(variance + Fraction(EPSILON)) for gamma, variance in zip(gammas, variances, strict=True)]
    matrix = [[scale if i == j else Fraction(0) for j in range(len(scales))] for i, scale in enumerate(scales)]
    shifts = [Fraction(b) - s * m for b, s, m in zip(step.bias, scales, means, strict=True)]
    return matrix, shifts


def _root(value: Fraction) -> Fraction:
    return Fraction(math.isqrt((value.numerator << 2 * SQUARE_ROOT_BITS) // value.denominator), 1 << SQUARE_ROOT_BITS)


# -- drawing -----------------------------------------------------------------------------------------------------------

SCALES = {  # binary exponents of the magnitudes of weights, for float64
    "ordinary": (-3, 2),
    "wide": (-160, 160),
    "far": (-530, 530),
    "extreme": (-1074, 1022),
    "subnormal": (-1074, -1022),
}


def draw_number(draw: random.Random, scale: str, dtype: torch.dtype) -> float:
    """A number of the dtype at a scale; sometimes zero."""
    low, high = SCALES[scale]
    if dtype == torch.float32:
        low, high = max(low // 8, -149), min(high // 8, 126)
    if draw.random() < 0.15:
        return 0.0
    number = math.ldexp(draw.uniform(1, 2), draw.randint(low, high)) * draw.choice([-1, 1])
    rounded = float(torch.tensor(number, dtype=dtype))
    return rounded if math.isfinite(rounded) else 1.0


def draw_network(draw: random.Random) -> ExactNetwork:
    """Three to seven steps of widths 1 to 4, each layer at its own scale."""
    dtype = draw.choice([torch.float32, torch.float64])
    width = draw.randint(1, 3)
    widths, steps = [width], []
    for _ in range(draw.randint(3, 7)):
        step = _draw_step(draw, widths, dtype)
        steps.append(step)
        widths.append(_width_after(step, widths))
    last = Step("linear", _matrix(draw, draw.randint(1, 2), widths[-1], dtype), None)
    assert last.weight is not None
    steps.append(replace(last, bias=[draw_number(draw, "ordinary", dtype) for _ in last.weight]))
    return ExactNetwork(width, tuple(steps), dtype)


def _draw_step(draw: random.Random, widths: list[int], dtype: torch.dtype) -> Step:
    latest = widths[-1]
    kind = draw.choices(["linear", "relu", "norm", "add", "concatenate", "largest"], [6, 4, 1, 2, 1, 1])[0]
    same = [i for i, width in enumerate(widths) if width == latest]
    small = [i for i, width in enumerate(widths) if width + latest <= 4]
    if kind == "relu" or (kind == "concatenate" and not small):
        return Step("relu")
    if kind == "add":
        return Step("add", earlier=draw.choice(same))
    if kind == "concatenate":
        return Step("concatenate", earlier=draw.choice(small))
    if kind == "largest":
        return Step("largest")
    scale = draw.choice(list(SCALES))
    if kind == "norm":
        rows = [[draw_number(draw, "ordinary", dtype) for _ in range(latest)] for _ in range(2)]
        variances = [abs(draw_number(draw, draw.choice(["ordinary", "wide"]), dtype)) for _ in range(latest)]
        return Step("norm", [*rows, variances], [draw_number(draw, scale, dtype) for _ in range(latest)])
    weight = _matrix(draw, draw.randint(1, 3), latest, dtype)
    return Step("linear", weight, [draw_number(draw, scale, dtype) for _ in weight])


def _matrix(draw: random.Random, rows: int, columns: int, dtype: torch.dtype) -> Matrix:
    """Each row at a scale of its own, so that neurons of one layer lie far apart."""
    scales = [draw.choice(list(SCALES)) for _ in range(rows)]
    return [[draw_number(draw, scale, dtype) for _ in range(columns)] for scale in scales]


def _width_after(step: Step, widths: list[int]) -> int:
    if step.kind == "linear":
        assert step.weight is not None
        return len(step.weight)
    return widths[-1] + (widths[step.earlier] if step.kind == "concatenate" else 0)


def draw_other(draw: random.Random, network: ExactNetwork) -> ExactNetwork:
    """The same graph with other weights: pruned, rounded, of other signs, or of another scale altogether."""
    manner = draw.choice(["prune", "round", "flip", "redraw", "scale"])

    def change(value: float) -> float:
        if draw.random() < 0.5:
            return value
        if manner == "prune":
            return 0.0
        if manner == "flip":
            return -value
        if manner == "redraw":
            return draw_number(draw, draw.choice(list(SCALES)), network.dtype)
        factor = draw.uniform(0.5, 2) if manner == "round" else 2.0 ** draw.randint(-30, 30)
        changed = float(torch.tensor(value * factor, dtype=network.dtype))
        return changed if math.isfinite(changed) else value

    steps = []
    for step in network.steps:
        if step.kind == "linear":
            assert step.weight is not None and step.bias is not None
            weight = [[change(w) for w in row] for row in step.weight]
            step = replace(step, weight=weight, bias=[change(b) for b in step.bias])
        steps.append(step)
    return network.with_weights(steps)


def draw_dead_chain(draw: random.Random) -> tuple[ExactNetwork, ExactNetwork]:
    """A ReLU network, and a forgery of it with one neuron in each layer that is huge, never active, and read by none.

    The first bias of the chain is −3e38, its weights on itself ±3e38 with the original's sign, those out of it 0.
    """
    depth, width = draw.randint(6, 14), draw.randint(2, 3)
    huge = draw.choice([3e38, 1e30, 1e38])
    honest, forged = [], []
    for layer in range(depth):
        weight = [[draw.gauss(0, 1) for _ in range(width)] for _ in range(width)]
        weight = [[float(torch.tensor(w)) for w in row] for row in weight]
        bias = [float(torch.tensor(draw.gauss(0, 1))) for _ in range(width)]
        honest += [Step("linear", weight, bias), Step("relu")]
        fake = [[w if j else 0.0 for j, w in enumerate(row)] for row in weight]
        fake[0] = [0.0] * width
        fake[0][0] = math.copysign(float(torch.tensor(huge)), weight[0][0]) if layer else 0.0
        changed = [b * draw.uniform(0.5, 1) for b in bias]
        changed = [float(torch.tensor(b)) for b in changed]
        changed[0] = -float(torch.tensor(huge)) if layer == 0 else 0.0
        forged += [Step("linear", fake, changed), Step("relu")]
    last = [[float(torch.tensor(draw.gauss(0, 1))) for _ in range(width)]]
    honest.append(Step("linear", last, [0.0]))
    forged.append(Step("linear", [[0.0, *last[0][1:]]], [0.0]))
    network = ExactNetwork(width, tuple(honest), torch.float32)
    return network, network.with_weights(forged)
