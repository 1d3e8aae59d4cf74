"""`box_deviation` bounds how far apart two networks can be anywhere in a box around an input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.bounds.bound import Bound, exp_rounded_up, log_rounded_up
from tamis.bounds.interval import Interval, interval
from tamis.bounds.joint_interval import check_pair, joint_interval
from tamis.bounds.linear_relaxation import linear_relaxation
from tamis.errors import InvalidInput, InvalidParameters, UnsupportedOp
from tamis.graph import Network
from tamis.paths import path_metric

Inputs = Tensor | tuple[Tensor, ...]
SOURCES = {
    "joint interval": "paulsen2020reludiff, differential intervals",
    "linear relaxation": "zhang2018crown, backward linear bounds",
    "path metric": "gonon2024thesis, Theorem 3.4.1",
}
CARRIED = 100_000_000  # outputs × neurons up to which linear bounds are carried backward
LARGEST = torch.finfo(torch.float64).max
ROUNDING = 1e-9  # relative: more than the passes of the path-metric, whose terms are all positive, can lose


def box_deviation(
    net: Network,
    other: Network,
    x: Inputs,
    radius: float | Inputs,
    within: tuple[float, float] | None = None,
) -> list[Bound]:
    """Bound max_k |R_θ(x')_k − R_θ'(x')_k| over all x' with |x' − x| ≤ radius, for each input x of a batch.

    It is the smallest of three: differential intervals (`joint_interval`), linear bounds of the difference carried
    backward (`linear_relaxation`), and the path-metric on the largest |x'|, which bounds the sum over outputs. It
    is informative where it says more than the intervals of the two networks, each computed by itself.

    The bound holds for both functions in exact arithmetic, with parameters as they are stored; rounding on the way to
    it is covered at any scale (docs/rounding.md), that of whoever evaluates the networks is not. Networks that are
    equal give exactly zero. Where values leave float64's range a method says nothing: the bound is infinite if all do.

    Args:
        net: a network.
        other: the same graph with other parameters.
        x: a batch of inputs (or a tuple, for several inputs); the whole input where the network has no batch dimension.
        radius: how far each entry of x may move: a number, or a tensor that broadcasts to x (a tuple of them).
        within: the range that entries of inputs have at all, such as (0, 1) for pixels; boxes are cut to it.

    Returns:
        One `Bound` for each input of the batch. `terms` has the number that each method gave; a method that does not
        apply, or says nothing, is named in `checked`, with the reason.

    Raises:
        UnsupportedOp: an operation is neither affine, nor monotone, nor a maximum.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> moved = net.with_params({"2.bias": net.params["2.bias"] + 0.25})
        >>> round(box_deviation(net, moved, torch.full((1, 2), 0.5), radius=2 / 255, within=(0, 1))[0].value, 6)
        0.25

    Reference: paulsen2020reludiff, zhang2018crown, gonon2024thesis.
    """
    check_pair(net, other)
    boxes = _make_boxes(net, x, radius, within)
    if net.batched and not len(boxes[net.inputs[0]].low):
        return []
    # The separate intervals are no candidate for the bound (SOURCES does not name them), but the measure of what is
    # informative.
    found: dict[str, list[Size]] = {
        "joint interval": _find_largest(net, joint_interval(net, other, boxes)),
        "separate intervals": _find_largest(net, _subtract_intervals(net, other, boxes)),
    }
    notes: list[str] = []
    carried = _count_outputs(net) * _count_neurons(net)
    if carried <= CARRIED:
        # Each output needs rows of coefficients over all neurons, which soon costs more than all the rest.
        found["linear relaxation"] = _find_largest(net, linear_relaxation(net, other, boxes))
    else:
        notes.append(f"linear relaxation left out: outputs × neurons is {carried:.2g}, more than {CARRIED:.2g}")
    try:
        found["path metric"] = _bound_by_path_metric(net, other, boxes)
    # The path-metric needs operations that are 1-Lipschitz with f(0) = 0, boxes do not: sigmoid has intervals, but no
    # paths.
    except (UnsupportedOp, InvalidParameters) as reason:  # or a computed weight has left float64's range
        notes.append(f"path metric left out: {reason}")
    each = (dict(zip(found, sizes, strict=True)) for sizes in zip(*found.values(), strict=True))
    return [_choose_smallest(sizes, notes) for sizes in each]


@dataclass(frozen=True)
class Size:
    """A size is a number and its natural logarithm, both rounded up: one may survive where the other leaves float64."""

    value: float
    log: float

    @classmethod
    def of(cls, value: float) -> Size:
        return cls(value, log_rounded_up(value))

    @classmethod
    def from_log(cls, log: float) -> Size:
        return cls(exp_rounded_up(log), log)


def _choose_smallest(found: dict[str, Size], notes: Sequence[str]) -> Bound:
    """Return the smallest of what the methods found for one input."""
    # Logarithms decide: values that overflow to ∞ are still told apart by them.
    best = min((name for name in SOURCES if name in found), key=lambda name: (found[name].log, found[name].value))
    silent = [
        f"{name} says nothing: values leave float64's range" for name, size in found.items() if size.log == math.inf
    ]
    return Bound(
        value=found[best].value,
        log_value=found[best].log,
        informative=found[best].log < found["separate intervals"].log or found[best].log == -math.inf,
        source=SOURCES[best],
        checked=("both networks are one graph with finite parameters", *notes, *silent),
        terms={name: size.value for name, size in found.items()},
    )


def _make_boxes(
    net: Network, x: Inputs, radius: float | Inputs, within: tuple[float, float] | None
) -> dict[str, Interval]:
    """Return the box around each input, by the input's name."""
    inputs = x if isinstance(x, tuple) else (x,)
    net.check_inputs(inputs)
    radii = radius if isinstance(radius, tuple) else (radius,) * len(inputs)
    if len(radii) != len(inputs):
        raise InvalidInput(f"the network takes {len(inputs)} inputs, got {len(radii)} radii")
    if within is not None and not within[0] <= within[1]:
        raise InvalidInput(f"within must be (low, high) with low ≤ high, got {within}")
    return {n: _make_box(n, v, r, within) for n, v, r in zip(net.inputs, inputs, radii, strict=True)}


def _make_box(name: str, x: Tensor, radius: float | Tensor, within: tuple[float, float] | None) -> Interval:
    if not x.is_floating_point():
        raise InvalidInput(f"a box needs an input of floating-point numbers, '{name}' has {x.dtype}")
    x = x.detach().double()
    try:
        radii = torch.as_tensor(radius, dtype=torch.float64, device=x.device)
    except (TypeError, ValueError):
        raise InvalidInput(f"the radius must be a number or a tensor, got {radius!r:.50}") from None
    try:
        radii = radii.expand_as(x)
    except RuntimeError:
        wanted, got = tuple(x.shape), tuple(radii.shape)
        raise InvalidInput(
            f"the radius must be a number or broadcast to '{name}' of shape {wanted}, got {got}"
        ) from None
    wrong = int((~(torch.isfinite(x) & (radii >= 0) & torch.isfinite(radii))).sum())
    if wrong:
        raise InvalidInput(f"'{name}' has {wrong} entries where x is not finite or the radius not a number ≥ 0")
    wide = Interval(x - radii, x + radii).widen()  # so that the rounded ends still hold the box
    # A radius of zero keeps x exactly: the box of one point must not grow.
    box = Interval(torch.where(radii > 0, wide.low, x), torch.where(radii > 0, wide.high, x))
    if within is None:
        return box
    # Inputs outside of `within` do not exist, so cutting the box leaves none out.
    cut = Interval(box.low.clamp(min=within[0]), box.high.clamp(max=within[1]))
    empty = int((cut.low > cut.high).sum())
    if empty:
        raise InvalidInput(f"'{name}' has {empty} entries farther than the radius from the range within={within}")
    return cut


def _subtract_intervals(net: Network, other: Network, boxes: dict[str, Interval]) -> list[Interval]:
    """Return what follows for the difference from the intervals of each network alone."""
    return [theirs - mine for mine, theirs in zip(interval(net, boxes), interval(other, boxes), strict=True)]


def _find_largest(net: Network, outputs: list[Interval]) -> list[Size]:
    """Return for each input the largest magnitude over all outputs."""
    each = [output.size.flatten(1).amax(1) if net.batched else output.size.amax().view(1) for output in outputs]
    return [Size.of(value) for value in torch.stack(each).amax(0).tolist()]


def _bound_by_path_metric(net: Network, other: Network, boxes: dict[str, Interval]) -> list[Size]:
    """Bound the deviation by the path-metric on the largest |x'| of the box, with which it grows (ERRATA 19)."""
    sizes = tuple(boxes[name].size for name in net.inputs)
    # Of an input that float64 does not hold nothing can be said; the largest number stands in for it on the way.
    known = [size.isfinite().flatten(1).all(1) if net.batched else size.isfinite().all().view(1) for size in sizes]
    logs = path_metric(net, other, tuple(size.clamp(max=LARGEST) for size in sizes), log=True)
    said = zip(torch.as_tensor(logs).view(-1).tolist(), torch.stack(known).all(0).tolist(), strict=True)
    # The metric sums over outputs, and so bounds their maximum as well. In logarithms, since it may overflow where the
    # other two methods have a number.
    return [Size.from_log(log + ROUNDING if held else math.inf) for log, held in said]


def _count_outputs(net: Network) -> int:
    return sum(math.prod(net.shape_of(name)) for name in net.output_names)


def _count_neurons(net: Network) -> int:
    return sum(math.prod(node.shape) for node in net.data_nodes if node.shape is not None)
