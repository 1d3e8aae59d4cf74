"""The space of XNOR-Nets++ has real first and last layers, and signs with positive scales between (Theorem 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tamis.bayes.networks import Chain, refuse_sizes
from tamis.bayes.prior import SCALE, SIGN
from tamis.bayes.space import UNIFORM, Block, Structure, StructurePrior
from tamis.errors import InvalidInput

EPSILON = 1e-5  # of the batch normalization, as torch's


class Xnor(Chain):
    """An `Xnor` network has one real convolution, k − 2 binary ones, and a real linear layer before the softmax.

        x_1 = w_1 * x + b_1,      x_l = (w_l^bin ⊛ sign ∘ BNorm(x_{l−1})) ⊙ w_l^scale       (12)

    A scale is the product of one number for each filter, each row and each column. Signs are ±1, sign(0) = +1, and the
    binary convolution is a whole number (printed: {0, 1}; see ERRATA 6). BNorm is by the statistics of the mini-batch
    that is asked for, so that a network is a function of its weights and of one round's inputs.

    Args:
        input_shape: of one input: (features,), (channels, length) or (channels, rows, columns).
        classes: K.
        layers: which numbers of layers, each ≥ 3.
        filters, sizes, structure_prior: as of `tamis.bayes.networks.Chain`.

    Example:
        >>> space = Xnor((1, 8, 8), classes=10, layers=[3, 4], filters=[8, 16], sizes=[3])

    Reference: chee2021xnor.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        layers: Sequence[int],
        filters: Sequence[int],
        sizes: Sequence[int] = (1,),
        structure_prior: StructurePrior = UNIFORM,
    ) -> None:
        self.axes = len(input_shape) - 1
        if not 0 <= self.axes <= 2:
            raise InvalidInput(f"input_shape must have one, two or three numbers, got {tuple(input_shape)}")
        if len(layers) and min(layers) < 3:
            raise InvalidInput(
                f"an XNOR network has a first, a last and a binary layer: layers ≥ 3, got {list(layers)}"
            )
        if not self.axes:
            refuse_sizes(sizes)
        super().__init__(input_shape, classes, layers, filters, sizes, structure_prior)

    def blocks(self, structure: Structure) -> tuple[Block, ...]:
        first = (
            Block("first.weight", self._find_weight_shape(structure, 1)),
            Block("first.bias", (structure.filters,)),
        )
        binary: list[Block] = []
        for layer in range(2, structure.layers):
            name = f"binary.{layer - 2}"
            binary.append(Block(f"{name}.weight", self._find_weight_shape(structure, layer), SIGN))
            # (12): h_1 + h_2 + h_3 scales, and not their product: one vector for each axis of the layer's output.
            extents = (structure.filters, *self.positions(structure, layer))
            binary += [Block(f"{name}.scale.{axis}", (extent,), SCALE) for axis, extent in enumerate(extents)]
        return (*first, *binary, *self._list_last_blocks(structure))

    def forward(self, structure: Structure, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        x = self.convolve(x, weights["first.weight"], weights["first.bias"])
        for layer in range(structure.layers - 2):
            name = f"binary.{layer}"
            x = self.convolve(_Sign.apply(_normalise_batch(x)), weights[f"{name}.weight"])
            for axis in range(self.axes + 1):
                # (extent, 1, …) lines up from the right with this axis of (batch, filters, …); the rank-1 tensor is
                # never made.
                x = x * weights[f"{name}.scale.{axis}"].reshape(-1, *[1] * (self.axes - axis))
        return self.classify(weights, x)

    def check_inputs(self, x: Tensor) -> Tensor:
        checked = super().check_inputs(x)
        if not self.axes and len(x) == 1:
            raise InvalidInput(
                "batch normalization of a dense layer needs two inputs or more in a mini-batch, got 1: of one input "
                "every sign is +1"
            )
        return checked


def _normalise_batch(x: Tensor) -> Tensor:
    """Subtract each channel's mean over mini-batch and positions, and divide by its standard deviation."""
    # All axes but the channels'. A constant channel has variance 0: EPSILON keeps it at 0, which has the sign +1.
    over = [0, *range(2, x.dim())]
    return (x - x.mean(over, keepdim=True)) / (x.var(over, correction=0, keepdim=True) + EPSILON).sqrt()


class _Sign(torch.autograd.Function):
    """This sign is +1 where x ≥ 0 and else −1, with gradient g ↦ g · 1_{|x| ≤ 1}, and works in `torch.func.vmap`.

    A proposal that follows this gradient is as right as any other: Metropolis' ratio sees to that.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x.abs() <= 1).to(x.dtype)
