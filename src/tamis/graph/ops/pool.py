"""Pooling runs over windows, adaptive windows or whole dimensions, by maximum, average or sum."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tamis.graph.ops.base import Call, Capability, IntervalRule, Op, Targets
from tamis.graph.ops.windows import MAX_POOL, repeat_per_dimension
from tamis.graph.symmetry import Scales

aten = torch.ops.aten
AVG_POOL = {2: F.avg_pool2d, 3: F.avg_pool3d}


class _Pool(Op):
    """Pooling keeps channels apart, and all pixels of a channel have one scale."""

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def summands(self, call: Call) -> int:
        return math.prod(call["self"].shape[-_read_rank(call) :])

    def ties(self, call: Call, scales: Scales) -> Any:
        # A window puts pixels of one channel together, by a maximum or a sum, and both need a common scale.
        axis = call["self"].dim() - _read_rank(call) - 1  # 1, or 0 without a batch
        shape = call.node.shape or tuple(call.run()[0].shape)
        return self._wrap_result(call, scales.spread(scales.along(call["self"], axis), axis, shape))

    def _wrap_result(self, call: Call, value: Tensor) -> Any:
        """Return a value as the operation does: alone, or with indices that nobody may use as data."""
        return value if call.node.shape else (value, None)


class MaxPool(_Pool):
    """Max-pooling takes the largest value of each window; on |θ|^q the sum of the window (thesis, Theorem 3.1.1)."""

    targets: Targets = (
        aten.max_pool1d.default,
        aten.max_pool2d.default,
        aten.max_pool3d.default,
        aten.max_pool1d_with_indices.default,
        aten.max_pool2d_with_indices.default,
        aten.max_pool3d_with_indices.default,
    )
    interval = IntervalRule.SELECTING

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        x, (window, stride, padding, dilation) = call["self"], _read_geometry(call)
        if set(dilation) == {1}:
            return self._wrap_result(call, _sum_windows(x, window, stride, padding, call["ceil_mode"]))
        largest = call.run()
        size = (largest if call.node.shape else largest[0]).shape[-len(window) :]
        return self._wrap_result(call, _sum_dilated(x, window, stride, padding, dilation, size))

    def reach(self, call: Call) -> Any:
        return call.run()


class AvgPool(_Pool):
    """Average pooling has edges of weight 1/n, so (1/n)^q on |θ|^q, where the call says how n is counted."""

    targets: Targets = (aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
    interval = IntervalRule.AFFINE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        mean = call.run()
        # The data arrive raised to q, and the call divides their sum by n: n^(1−q) turns 1/n into (1/n)^q.
        return mean if q == 1 else mean * self._compute_divisors(call) ** (1 - q)

    def reach(self, call: Call) -> Tensor:
        window, stride, padding, _ = _read_geometry(call)
        # Every entry of a window is an edge into the mean, so the largest of them is what feeds it.
        return MAX_POOL[len(window)](call["self"], window, stride, padding, 1, call["ceil_mode"])

    @staticmethod
    def _compute_divisors(call: Call) -> Tensor:
        """Return what each window's sum was divided by: the sum of ones over their mean."""
        # Asked of the call itself, since the count depends on count_include_pad, ceil_mode and divisor_override.
        ones = torch.ones_like(call["self"])
        window, stride, padding, _ = _read_geometry(call)
        return _sum_windows(ones, window, stride, padding, call["ceil_mode"]) / call.run(self=ones)


class AdaptiveAvgPool(_Pool):
    """Adaptive average pooling takes the mean over windows that split the input into a given number of parts."""

    targets: Targets = (
        aten.adaptive_avg_pool1d.default,
        aten.adaptive_avg_pool2d.default,
        aten.adaptive_avg_pool3d.default,
    )
    interval = IntervalRule.AFFINE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        mean = call.run()
        return mean if q == 1 else mean * _count_adaptive_inputs(call["self"], mean, _read_rank(call)) ** (1 - q)

    def reach(self, call: Call) -> Tensor:
        x, size = call["self"], call["output_size"]
        pools = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
        return pools[_read_rank(call)](x, size)


class AdaptiveMaxPool(_Pool):
    """Adaptive max-pooling takes the largest value over windows that split the input into a given number of parts."""

    targets: Targets = (
        aten.adaptive_max_pool1d.default,
        aten.adaptive_max_pool2d.default,
        aten.adaptive_max_pool3d.default,
    )
    interval = IntervalRule.SELECTING

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        x, size = call["self"], call["output_size"]
        pools = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
        # torch has no adaptive sum: the mean times the number of entries of each window is one.
        mean = pools[_read_rank(call)](x, size)
        return self._wrap_result(call, mean * _count_adaptive_inputs(x, mean, _read_rank(call)))

    def reach(self, call: Call) -> Any:
        return call.run()


class Reduce(Op):
    """A reduction takes the mean or the sum over whole dimensions."""

    targets: Targets = (aten.mean.dim, aten.mean.default, aten.sum.dim_IntList, aten.sum.default)
    interval = IntervalRule.AFFINE

    def capability(self, call: Call) -> Capability:
        # With a dtype of its own the call rounds, or truncates, its argument before anything is added.
        return Capability.HOMOGENEOUS if call.node.arguments.get("dtype") is None else Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        result, x = call.run(), call["self"]
        if not call.node.op.startswith("aten.mean") or q == 1:
            return result
        # As in `AvgPool`: the mean of q-th powers holds 1/n where the path has (1/n)^q.
        return result * (x.numel() / result.numel()) ** (1 - q)

    def summands(self, call: Call) -> int:
        x, dims = call["self"], call.node.arguments.get("dim")
        return math.prod(x.shape[dim] for dim in (dims or range(x.dim())))

    def reach(self, call: Call) -> Tensor:
        x, named = call["self"], call.node.arguments
        return x.amax(named.get("dim") or tuple(range(x.dim())), named.get("keepdim", False))

    def ties(self, call: Call, scales: Scales) -> Tensor:
        named = call.node.arguments
        return scales.reduced(call["self"], named.get("dim"), named.get("keepdim", False))


def _read_rank(call: Call) -> int:
    """Return the number of dimensions that windows have, from the operation's name."""
    (rank,) = re.findall(r"(\d)d", call.node.op)
    return int(rank)


def _read_geometry(call: Call) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return window, stride, padding and dilation of a pooling call, one number for each dimension."""
    rank = _read_rank(call)
    window = repeat_per_dimension(call["kernel_size"], rank)
    stride = repeat_per_dimension(call["stride"], rank) if call["stride"] else window  # as torch does without one
    dilation = repeat_per_dimension(call.node.arguments.get("dilation", 1), rank)
    return window, stride, repeat_per_dimension(call["padding"], rank), dilation


def _sum_windows(x: Tensor, window: list[int], stride: list[int], padding: list[int], ceil: bool) -> Tensor:
    """Return the sum over each window, padding counting as zero."""
    if len(window) == 1:  # torch has no divisor_override in one dimension
        return _sum_windows(x.unsqueeze(2), [1, *window], [1, *stride], [0, *padding], ceil).squeeze(2)
    # A divisor of 1 makes the average a sum, whatever count the window would have had.
    return AVG_POOL[len(window)](x, window, stride, padding, ceil, True, 1)


def _sum_dilated(
    x: Tensor, window: list[int], stride: list[int], padding: list[int], dilation: list[int], size: torch.Size
) -> Tensor:
    """Return the sum over each dilated window, as a convolution with ones that is wide enough for `size` outputs."""
    # Average pooling has no dilation. The far side is padded, or cropped, to what `size` windows span, since ceil_mode
    # may let the last window hang over the edge.
    rank = len(window)
    span = [s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in zip(stride, size, dilation, window, strict=True)]
    sides: list[int] = []
    for length, need, p in reversed(list(zip(x.shape[-rank:], span, padding, strict=True))):
        sides += [p, need - length - p]
    flat = F.pad(x.reshape(-1, 1, *x.shape[-rank:]), sides)
    ones = torch.ones(1, 1, *window, dtype=x.dtype, device=x.device)
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    return conv(flat, ones, stride=stride, dilation=dilation).view(*x.shape[:-rank], *size)


def _count_adaptive_inputs(x: Tensor, pooled: Tensor, rank: int) -> Tensor:
    """Return how many inputs each adaptive window holds: ⌈(i+1)n/m⌉ − ⌊in/m⌋ along each dimension."""
    # Windows overlap where m does not divide n, so n/m is not the count.
    counts = torch.ones((), dtype=x.dtype, device=x.device)
    for n, m in zip(x.shape[-rank:], pooled.shape[-rank:], strict=True):
        sizes = [-(-(i + 1) * n // m) - i * n // m for i in range(m)]
        counts = counts.unsqueeze(-1) * torch.tensor(sizes, dtype=x.dtype, device=x.device)
    return counts
