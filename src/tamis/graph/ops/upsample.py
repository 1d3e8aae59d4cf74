"""Linear, bilinear, trilinear and bicubic upsampling have fixed weights, separable over dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.graph.ops.base import Call, Capability, IntervalRule, Op, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Upsample(Op):
    """Upsampling interpolates along each spatial dimension in turn."""

    targets: Targets = (
        aten.upsample_linear1d.default,
        aten.upsample_linear1d.vec,
        aten.upsample_bilinear2d.vec,
        aten.upsample_trilinear3d.default,
        aten.upsample_trilinear3d.vec,
        aten.upsample_bicubic2d.vec,
    )
    interval = IntervalRule.AFFINE

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Tensor:
        x = self._read_input(call)
        for axis in range(2, x.dim()):
            # Bicubic weights may be negative. Axis by axis |w|^q is exact: a pixel's weight is a product over axes.
            weights = self._compute_weights(call, axis).abs() ** q
            weights[self._compute_weights(call, axis) == 0] = 0
            x = torch.einsum("bc...i,oi->bc...o", x.movedim(axis, -1), weights).movedim(-1, axis)
        return x

    def reach(self, call: Call) -> Tensor:
        x = self._read_input(call)
        for axis in range(2, x.dim()):
            # A pixel of weight zero is no antecedent: it must not count in the maximum.
            feeds = self._compute_weights(call, axis) != 0
            x = (x.movedim(axis, -1).unsqueeze(-2) * feeds).amax(-1).movedim(-1, axis)
        return x

    def summands(self, call: Call) -> int:
        return sum(self._read_input(call).shape[2:])

    def ties(self, call: Call, scales: Scales) -> Tensor:
        channels = scales.along(self._read_input(call), 1)
        return scales.spread(channels, 1, call.shape)

    @staticmethod
    def _read_input(call: Call) -> Tensor:
        return call["input" if "input" in call.node.arguments else "self"]

    def _compute_weights(self, call: Call, axis: int) -> Tensor:
        """Return the (outputs × inputs) matrix along one axis, found by running the operation on unit vectors."""
        x = self._read_input(call)
        n = x.shape[axis]
        # The n unit vectors lie along the channels, which the operation never mixes, and are constant along the other
        # axes, where interpolation keeps constants: any one place there shows the weights of this axis.
        shape = [1, n] + [x.shape[d] if d != axis else n for d in range(2, x.dim())]
        indicator = torch.eye(n, dtype=x.dtype, device=x.device).view(
            [1, n] + [n if d == axis else 1 for d in range(2, x.dim())]
        )
        name = "input" if "input" in call.node.arguments else "self"
        result = call.run(**{name: indicator.expand(shape).contiguous()})[0]  # (n, *outputs)
        return result.movedim(axis - 1, 1).reshape(n, result.shape[axis - 1], -1)[:, :, 0].T.contiguous()
