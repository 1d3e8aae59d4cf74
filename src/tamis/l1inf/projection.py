"""The Euclidean projection takes every neuron's incoming weights, with its bias, onto the ℓ1 ball of radius c.

Of a column v with ‖v‖₁ > c it is sign(v) max(|v| − θ, 0), where θ > 0 makes its norm c (Algorithm 2 of Yang). Where
the text sorts |v| to find θ, here t = m − θ is found, with m = max |v|, from the gaps d = m − |v|:

    Σ max(t − d, 0) = c,    v ↦ sign(v) max(t − d, 0).

That is the same in exact arithmetic. In floating point, θ of a column of huge numbers would be rounded by more than c,
and t, which is at most c, is not. Sums are in float64 throughout.

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any, overload

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.kernels.triton import runs_on

DTYPES = (torch.float32, torch.float64)
ENTRIES_AT_ONCE = 1 << 24  # that torch copies to float64


@overload
def project(weight: Tensor, c: float, bias: None = None, *, transposed: bool = False, groups: int = 1) -> Tensor: ...
@overload
def project(
    weight: Tensor, c: float, bias: Tensor, *, transposed: bool = False, groups: int = 1
) -> tuple[Tensor, Tensor]: ...
def project(
    weight: Tensor, c: float, bias: Tensor | None = None, *, transposed: bool = False, groups: int = 1
) -> Tensor | tuple[Tensor, Tensor]:
    """Project weights, with their biases, so that the ℓ1-norm of every neuron's column is at most c.

    A column whose norm exceeds c by no more than rounding is left as it is, so that a projection is its own projection
    to the last bit. Gradients flow: inside the ball they pass; outside, with s = sign of the result (0 where it is 0),
    g ↦ |s| g − s ⟨s, g⟩ / ‖s‖₁.

    On a CPU the extension does it in linear time, on a GPU a Triton kernel; otherwise torch. The last bit may differ.

    Args:
        weight: float32 or float64, of a linear layer (outputs, inputs) or a convolution (outputs, inputs, kernel…): a
            column of the text is what belongs to one output.
        c: the radius, 0 or more.
        bias: (outputs,), or None: each is part of its neuron's column.
        transposed: whether the weight is that of a transposed convolution, (inputs, outputs / groups, kernel…).
        groups: of the transposed convolution; of others they make no difference.

    Returns:
        The weight, or with a bias the pair (weight, bias); nothing that was passed is changed.

    Example:
        >>> project(torch.tensor([[3.0, -1.0], [0.2, 0.3]]), c=1.0)
        tensor([[1.0000, 0.0000],
                [0.2000, 0.3000]])

    Reference: yang2021l1inf.
    """
    c = check_radius(c)
    _check_tensors(weight, bias, transposed, groups)
    rows = as_columns(weight, transposed, groups)
    # A bias is one more entry of its neuron's column: projected apart, both together could exceed c.
    projected, projected_bias = _Projection.apply(rows, bias, c)
    result = restore_shape(projected, weight, transposed, groups)
    return result if bias is None else (result, projected_bias)


def project_(
    weight: Tensor,
    c: float,
    bias: Tensor | None = None,
    *,
    transposed: bool = False,
    groups: int = 1,
    pending: list[Tensor] | None = None,
) -> None:
    """Project in place and outside of autograd, as after an optimizer's step.

    Args:
        pending: to ask a GPU whether all was finite takes longer than to project a layer. With a list, it is not
            asked: what `contains_nonfinite` needs to ask once for many layers is added to it. Columns that are not
            finite stay.

    The others are those of `project`.
    """
    c = check_radius(c)
    _check_tensors(weight, bias, transposed, groups)
    with torch.no_grad():
        # A view of the weight where it is contiguous, and then the projection is written into it; otherwise a copy,
        # which is copied back below.
        rows = as_columns(weight, transposed, groups).contiguous()
        offsets = None if bias is None else bias.contiguous()
        thresholds = _find_thresholds(rows, offsets, c, rows, offsets)
        if pending is not None and thresholds.is_cuda:
            pending.append(thresholds)
        else:
            _check_finite(thresholds, rows, offsets)
        for given, copied in ((weight, restore_shape(rows, weight, transposed, groups)), (bias, offsets)):
            if given is None or copied is None:
                continue
            if given.data_ptr() == copied.data_ptr():
                torch.autograd.graph.increment_version(given)  # numpy wrote to it, of which autograd knows nothing
            elif thresholds.is_cuda or bool(thresholds.any()):  # a GPU copies sooner than it answers
                given.copy_(copied)


def contains_nonfinite(pending: Iterable[Tensor]) -> bool:
    """Return whether any layer that `project_` added to this list had an entry that was not finite."""
    devices: dict[torch.device, list[Tensor]] = {}
    for thresholds in pending:
        devices.setdefault(thresholds.device, []).append(thresholds)
    # θ is never negative, so that a sum is NaN exactly where one of its terms is. It is one question to each device.
    return any(math.isnan(torch.cat(each).sum().item()) for each in devices.values())


def check_radius(c: Any, name: str = "c") -> float:
    """Return a radius as a plain float; raise InvalidInput for anything that is no radius."""
    if isinstance(c, Tensor) and c.numel() == 1:
        c = c.item()
    if isinstance(c, bool) or not isinstance(c, Real) or not 0 <= float(c) < math.inf:
        raise InvalidInput(
            f"{name}={c!r} must be a number ≥ 0: the largest ℓ1-norm of a neuron's weights with its bias"
        )
    return float(c)


def as_columns(weight: Tensor, transposed: bool = False, groups: int = 1) -> Tensor:
    """Reshape a weight to (outputs, incoming weights); the result is a view where one exists."""
    if not transposed:
        return weight.flatten(1)
    inputs, outputs, *kernel = weight.shape
    # `outputs` of the weight are those of one group, and only that group's inputs reach them.
    split = weight.reshape(groups, inputs // groups, outputs, math.prod(kernel))
    return split.transpose(1, 2).reshape(groups * outputs, -1)


def restore_shape(rows: Tensor, weight: Tensor, transposed: bool = False, groups: int = 1) -> Tensor:
    """Bring columns back to the shape of the weight that they come from."""
    if not transposed:
        return rows.view(weight.shape)
    inputs, outputs, *kernel = weight.shape
    split = rows.view(groups, outputs, inputs // groups, math.prod(kernel))
    return split.transpose(1, 2).reshape(weight.shape)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor | None, c: float) -> tuple[Tensor, Tensor | None]:
        # The kernels write row after row, so that what they write to must be contiguous, whatever the weight was.
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        out_bias = None if bias is None else torch.empty_like(bias, memory_format=torch.contiguous_format)
        rows, bias = rows.contiguous(), None if bias is None else bias.contiguous()
        thresholds = _find_thresholds(rows, bias, c, out, out_bias)
        _check_finite(thresholds, rows, bias)
        shrunk = thresholds != 0  # inside the ball θ is exactly 0, and the projection is the identity
        ctx.save_for_backward(out, out_bias, shrunk)
        return out, out_bias

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, None]:
        out, out_bias, shrunk = ctx.saved_tensors
        gradient, gradient_bias = gradients
        # On its face of the ball the projection is affine: θ takes the same from every entry that is not 0, so that the
        # gradient loses its mean along the signs, and entries that became 0 get none.
        signs, share = out.sign(), (out.sign() * gradient).sum(1)
        size = signs.abs().sum(1)
        if out_bias is not None:
            bias_signs = out_bias.sign()
            share, size = share + bias_signs * gradient_bias, size + bias_signs.abs()
            bias_mean = share / size.clamp(min=1)
            inner = bias_signs.abs() * gradient_bias - bias_signs * bias_mean
            gradient_bias = torch.where(shrunk, inner, gradient_bias)
        mean = (share / size.clamp(min=1))[:, None]
        gradient = torch.where(shrunk[:, None], signs.abs() * gradient - signs * mean, gradient)
        return gradient, gradient_bias, None


def _find_thresholds(rows: Tensor, bias: Tensor | None, c: float, out: Tensor, out_bias: Tensor | None) -> Tensor:
    """Write the projections, and return θ of each column: 0 inside the ball, NaN where an entry is not finite.

    What is read may be written over.
    """
    # Nothing to project, and no largest entry that `amax` could find.
    if rows.shape[1] == 0 and bias is None:
        return rows.new_zeros(len(rows), dtype=torch.float64)
    if rows.device.type == "cpu" and (extension := dispatch.native()) is not None:
        thresholds = torch.empty(len(rows), dtype=torch.float64)
        # numpy shares the tensor's memory: nothing is copied on the way to the extension and back.
        read = [None if tensor is None else tensor.detach().numpy() for tensor in (rows, bias)]
        written = [None if tensor is None else tensor.detach().numpy() for tensor in (out, out_bias)]
        threads = torch.get_num_threads()
        extension.project_l1(*read, c, slack(rows, bias), *written, thresholds.numpy(), threads)
    elif runs_on(rows.device):
        from tamis.kernels.triton import l1ball

        thresholds = l1ball.project_l1(rows, bias, c, slack(rows, bias), out, out_bias)
    else:
        thresholds = _project_with_torch(rows, bias, c, out, out_bias)
    return thresholds


def slack(rows: Tensor, bias: Tensor | None) -> float:
    """Return the relative amount by which rounding can raise the norm of a projection.

    To float32, each entry is rounded once, and t before is good to far more. In float64 t itself is rounded, and is a
    part of every entry.
    """
    # Without it, a column that was projected would be outside by a rounding, and shrink again at every step.
    entries = rows.shape[1] + (bias is not None)
    return torch.finfo(rows.dtype).eps * (entries if rows.dtype == torch.float64 else 1)


def _project_with_torch(rows: Tensor, bias: Tensor | None, c: float, out: Tensor, out_bias: Tensor | None) -> Tensor:
    """Write the projections with torch alone, and return θ as `_find_thresholds` does."""
    # A sum of float32 in float32 could put a column of many entries on the wrong side of c.
    norms = rows.abs().sum(1, dtype=torch.float64)
    if bias is not None:
        norms = norms + bias.abs()
    thresholds = torch.zeros_like(norms)
    if out is not rows:
        out.copy_(rows)
    if bias is not None and out_bias is not None and out_bias is not bias:
        out_bias.copy_(bias)
    # Not norms > c·(…): a NaN must count as outside, to be found below.
    outside = (~(norms <= c * (1 + slack(rows, bias)))).nonzero()[:, 0]
    for part in outside.split(max(1, ENTRIES_AT_ONCE // (rows.shape[1] + 1))):
        values = rows[part].double()
        if bias is not None:
            values = torch.cat([values, bias[part, None].double()], 1)
        shrunk, thresholds[part] = _shrink(values, c)
        out[part] = shrunk[:, : rows.shape[1]].to(out.dtype)
        if out_bias is not None:
            out_bias[part] = shrunk[:, -1].to(out.dtype)
    return thresholds


def _shrink(values: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Compute the projections of columns outside the ball, in float64, and θ of each."""
    sizes = values.abs()
    largest = sizes.amax(1)
    # |w| − θ = t − gap with t = largest − θ. Entries that are large and nearly equal would cancel most of their digits
    # in |w| − θ; their gaps are small and exact, and t is no larger than c.
    gaps = largest[:, None] - sizes
    t = _solve_t(gaps, c) if c > 0 else torch.zeros_like(largest)
    projected = values.sign() * (t[:, None] - gaps).clamp(min=0) + 0.0  # of −0, 0
    return projected, torch.where(largest.isfinite(), largest - t, math.nan)


def _solve_t(gaps: Tensor, c: float) -> Tensor:
    """Solve Σ max(t − d, 0) = c by t ← (c + Σ_{d<t} d) / #{d < t}, from t = c on, until the count stays (Michelot).

    Some log₄(n² / ε) steps are the most that columns of n numbers can take; see kernels/cpu/l1ball.cpp for why.
    """
    # c is an upper bound of t, since the largest entry has the gap 0 and alone gives t ≤ c: from above, t only falls.
    t = gaps.new_full((len(gaps),), c)
    count = gaps.new_full((len(gaps),), -1, dtype=torch.int64)
    while True:
        below = gaps < t[:, None]  # t only falls, and so does the count: when it stays, t is a fixed point
        before, count = count, below.sum(1)
        if torch.equal(before, count):
            return t
        # The minimum, because rounding could let t rise by a digit, and the count go to and fro without end.
        t = torch.minimum(t, (c + torch.where(below, gaps, 0.0).sum(1)) / count.clamp(min=1))


def _check_tensors(weight: Any, bias: Any, transposed: bool, groups: int) -> None:
    for name, tensor in (("weight", weight), ("bias", bias)):
        if name == "bias" and tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise InvalidInput(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in DTYPES:
            raise InvalidInput(f"{name} is {tensor.dtype}: project it as float32 or float64")
    if weight.dim() < 2:
        raise InvalidInput(f"weight has the shape {tuple(weight.shape)}: it must be (outputs, inputs, …)")
    if transposed and (groups < 1 or weight.shape[0] % groups):
        raise InvalidInput(f"{groups=} must divide the {weight.shape[0]} inputs of a transposed convolution")
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is None:
        return
    if bias.shape != (outputs,):
        raise InvalidInput(f"bias has the shape {tuple(bias.shape)}, and the weight has {outputs} outputs")
    if bias.dtype != weight.dtype or bias.device != weight.device:
        raise InvalidInput(
            f"bias is {bias.dtype} on {bias.device}, and the weight {weight.dtype} on {weight.device}: make them alike"
        )


def _check_finite(thresholds: Tensor, rows: Tensor, bias: Tensor | None) -> None:
    """Raise InvalidInput with the first entry of the first neuron that is not finite."""
    if not math.isnan(thresholds.sum().item()):
        return
    neuron = int(thresholds.isnan().nonzero()[0])
    bad = rows[neuron][~rows[neuron].isfinite()]
    what, value = ("weight", bad[0]) if len(bad) else ("bias", bias[neuron] if bias is not None else None)
    raise InvalidInput(f"a {what} of output {neuron} is {value}: only finite numbers can be projected")
