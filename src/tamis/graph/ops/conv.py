"""Convolutions and transposed convolutions are described here, in one, two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from tamis.graph.ops.base import Call, Targets, Windows
from tamis.graph.ops.weighted import Weighted
from tamis.graph.ops.windows import MAX_POOL, repeat_per_dimension
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Conv(Weighted):
    """A convolution has a kernel (outputs, inputs / groups, *window), and any stride, padding, dilation and groups."""

    targets: Targets = (
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
        aten.conv1d.padding,
        aten.conv2d.padding,
        aten.conv3d.padding,
    )
    is_convolution = True

    def reach(self, call: Call) -> Tensor:
        x, (window, stride, padding, dilation) = self._find_largest_in_group(call), self.geometry(call)
        # An output reads a window of all channels of its group: the largest over the group first, then over the window.
        # Zeros around the border never exceed a non-negative value. The pool's own padding will not do: torch limits it
        # to half a window, and here it may be larger, or differ from side to side ("same").
        x = F.pad(x, padding)
        return self._repeat_per_output(call, MAX_POOL[len(window)](x, window, stride, 0, dilation))

    def ties(self, call: Call, scales: Scales) -> Tensor:
        axis = call["input"].dim() - call["weight"].dim() + 1  # 1, or 0 without a batch
        incoming = scales.along(call["input"], axis)
        outgoing = scales.layer(call.node, "weight", self.channel_axes, incoming, bias="bias", groups=call["groups"])
        return scales.spread(outgoing, axis, call.shape)

    def summands(self, call: Call) -> int:
        # A window of every channel of the group, and the bias.
        weight = call["weight"]
        return weight.numel() // max(1, weight.shape[self.channel_axes[0]]) + 1

    def products(self, call: Call) -> int:
        shape = call["weight"].shape
        return math.prod(shape) // shape[self.channel_axes[0]]

    def macs(self, call: Call) -> int:
        return call.run().numel() * call["weight"][0].numel()

    def windows(self, call: Call) -> Windows:
        _, stride, padding, dilation = self.geometry(call)
        return Windows(tuple(stride), tuple(padding), tuple(dilation))

    @staticmethod
    def _find_largest_in_group(call: Call) -> Tensor:
        """Return the largest value over the channels that an output channel reads, one channel for each group."""
        x, groups = call["input"], call["groups"]
        x = x if x.dim() == call["weight"].dim() else x[None]
        return x.unflatten(1, (groups, -1)).amax(2)

    def _repeat_per_output(self, call: Call, x: Tensor) -> Tensor:
        batched = call["input"].dim() == call["weight"].dim()
        outputs = x.repeat_interleave(call.shape[1 if batched else 0] // call["groups"], dim=1)
        return outputs if batched else outputs[0]

    def geometry(self, call: Call) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return window, stride, padding as `F.pad` takes it, and dilation."""
        window = list(call["weight"].shape[2:])
        stride, dilation = (
            repeat_per_dimension(call["stride"], len(window)),
            repeat_per_dimension(call["dilation"], len(window)),
        )
        padding = call["padding"]
        if padding == "valid":
            sides = [(0, 0) for _ in window]
        elif padding == "same":
            total = [d * (k - 1) for k, d in zip(window, dilation, strict=True)]
            sides = [(t // 2, t - t // 2) for t in total]  # an odd total puts the extra zero at the end, as torch does
        else:
            sides = [(p, p) for p in repeat_per_dimension(padding, len(window))]
        # `F.pad` takes the last dimension first.
        return window, stride, list(chain(*reversed(sides))), dilation


class ConvTranspose(Conv):
    """A transposed convolution has a kernel (inputs, outputs / groups, *window)."""

    targets: Targets = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
    channel_axes = (1, 0)

    def reach(self, call: Call) -> Tensor:
        x, (window, spacing, padding, dilation) = self._find_largest_in_group(call), self.geometry(call)
        x = F.pad(spaced(x, spacing), padding)
        return self._repeat_per_output(call, MAX_POOL[len(window)](x, window, 1, 0, dilation))

    def geometry(self, call: Call) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return window, spacing, padding as `F.pad` takes it, and dilation.

        A transposed convolution is a convolution of stride 1, with the kernel turned round, over the input with
        `spacing` − 1 zeros between its pixels.
        """
        window = list(call["weight"].shape[2:])
        spacing, dilation = (
            repeat_per_dimension(call["stride"], len(window)),
            repeat_per_dimension(call["dilation"], len(window)),
        )
        padding, extra = (
            repeat_per_dimension(call["padding"], len(window)),
            repeat_per_dimension(call["output_padding"], len(window)),
        )
        # Negative where the call's padding is larger than the window's reach: `F.pad` then crops.
        border = [d * (k - 1) - p for d, k, p in zip(dilation, window, padding, strict=True)]
        sides = [(b, b + e) for b, e in zip(border, extra, strict=True)]
        return window, spacing, list(chain(*reversed(sides))), dilation

    def windows(self, call: Call) -> Windows:
        _, spacing, padding, dilation = self.geometry(call)
        return Windows((1,) * len(spacing), tuple(padding), tuple(dilation), tuple(spacing))

    def macs(self, call: Call) -> int:
        # Every pixel that is read is multiplied by a whole kernel, however much of it lands outside the output.
        return call["input"].numel() * call["weight"][0].numel()


def spaced(x: Tensor, spacing: Sequence[int]) -> Tensor:
    """Return a batch of inputs with `spacing` − 1 zeros between their pixels."""
    # No zeros after the last pixel: what the call asks for there is part of the padding.
    lengths = [s * (n - 1) + 1 for s, n in zip(spacing, x.shape[2:], strict=True)]
    result = x.new_zeros(*x.shape[:2], *lengths)
    result[(slice(None), slice(None), *[slice(None, None, s) for s in spacing])] = x
    return result
