"""One small network for every operation that tamis describes: what an operation must bring along to be tested."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import tamis

aten = torch.ops.aten
INDEX = torch.tensor([2, 0, 1])


@dataclass(frozen=True)
class Specimen:
    """An input shape (without batch), shapes of extra parameters, and the operation applied to x with them."""

    shape: tuple[int, ...]
    apply: Callable[..., Any]
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def module(self, seed: int = 0) -> nn.Module:
        return Around(self, seed).double().eval()

    def example(self, batch: int = 2, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, *self.shape, generator=generator, dtype=torch.float64)


class Around(nn.Module):
    """operation(x · scale + shift), so that parameters lie before the operation, with signs and biases."""

    def __init__(self, specimen: Specimen, seed: int) -> None:
        super().__init__()
        self.specimen = specimen
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator))

        self.scale, self.shift = draw(*specimen.shape), draw(*specimen.shape)
        self.extra = nn.ParameterDict({name: draw(*shape) for name, shape in specimen.weights.items()})
        self.register_buffer("mean", torch.randn(3, generator=generator))
        self.register_buffer("variance", torch.rand(3, generator=generator) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        result = self.specimen.apply(x * self.scale + self.shift, self)
        assert isinstance(result, Tensor)
        return result


def plain(shape: tuple[int, ...], apply: Callable[[Tensor], Any]) -> Specimen:
    return Specimen(shape, lambda x, _: apply(x))


def weighted(shape: tuple[int, ...], apply: Callable[..., Any], **weights: tuple[int, ...]) -> Specimen:
    return Specimen(shape, lambda x, m: apply(x, *(m.extra[name] for name in weights)), weights)


def normalized(x: Tensor, module: Any) -> Tensor:
    weight, bias = module.extra["weight"], module.extra["bias"]
    return aten.batch_norm.default(x, weight, bias, module.mean, module.variance, False, 0.1, 1e-5, False)


image, line, volume = (2, 3, 3), (2, 5), (1, 2, 2, 2)
SPECIMENS: dict[Any, Specimen] = {
    aten.linear.default: weighted((4,), aten.linear.default, weight=(3, 4), bias=(3,)),
    aten.matmul.default: weighted((3, 4), lambda x, w: aten.matmul.default(w, x), weight=(2, 3)),
    aten.mm.default: weighted((4,), aten.mm.default, weight=(4, 3)),
    aten.bmm.default: weighted((3, 4), lambda x, w: aten.bmm.default(x, w.expand(x.shape[0], 4, 2)), weight=(1, 4, 2)),
    aten.addmm.default: weighted(
        (4,), lambda x, w, b: aten.addmm.default(b, x, w, beta=-2, alpha=3), weight=(4, 3), bias=(3,)
    ),
    aten.einsum.default: weighted((3, 2), lambda x, w: torch.einsum("bij,jk->bki", x, w), weight=(2, 3)),
    aten.conv1d.default: weighted(
        line, lambda x, w, b: aten.conv1d.default(x, w, b, [2], [1]), weight=(3, 2, 3), bias=(3,)
    ),
    aten.conv2d.default: weighted(
        image, lambda x, w, b: aten.conv2d.default(x, w, b, [2, 1], [1, 2], [1, 2], 2), weight=(4, 1, 2, 3), bias=(4,)
    ),
    aten.conv3d.default: weighted(
        volume, lambda x, w: aten.conv3d.default(x, w, None, [1] * 3, [1] * 3), weight=(2, 1, 2, 2, 2)
    ),
    aten.conv1d.padding: weighted(line, lambda x, w: aten.conv1d.padding(x, w, None, [1], "same"), weight=(2, 2, 2)),
    aten.conv2d.padding: weighted(
        image, lambda x, w: aten.conv2d.padding(x, w, None, [1, 1], "valid"), weight=(2, 2, 2, 3)
    ),
    aten.conv3d.padding: weighted(
        volume, lambda x, w: aten.conv3d.padding(x, w, None, [1] * 3, "same"), weight=(1, 1, 2, 1, 2)
    ),
    aten.conv_transpose1d.default: weighted(
        (2, 3),
        lambda x, w, b: aten.conv_transpose1d.default(x, w, b, [2], [1], [1], 2, [1]),
        weight=(2, 1, 3),
        bias=(2,),
    ),
    aten.conv_transpose2d.input: weighted(
        (4, 2, 2),
        lambda x, w, b: aten.conv_transpose2d.input(x, w, b, [2, 1], [1, 0], [1, 0], 2, [1, 2]),
        weight=(4, 2, 2, 2),
        bias=(4,),
    ),
    aten.conv_transpose3d.input: weighted(
        volume, lambda x, w: aten.conv_transpose3d.input(x, w, None, [2, 2, 2], [1, 1, 1]), weight=(1, 2, 3, 2, 2)
    ),
    aten.batch_norm.default: Specimen((3, 2, 2), normalized, {"weight": (3,), "bias": (3,)}),
    aten.relu.default: plain(image, aten.relu.default),
    aten.abs.default: plain(image, aten.abs.default),
    aten.leaky_relu.default: plain(image, lambda x: aten.leaky_relu.default(x, -1.5)),
    aten.clamp.default: plain(image, lambda x: aten.clamp.default(x, None, 0)),
    aten.clamp_min.default: plain(image, lambda x: aten.clamp_min.default(x, 0)),
    aten.clamp_max.default: plain(image, lambda x: aten.clamp_max.default(x, 0)),
    aten.hardtanh.default: plain(image, lambda x: aten.hardtanh.default(x, 0.0, float("inf"))),
    aten.neg.default: plain(image, aten.neg.default),
    aten.add.Tensor: weighted(image, lambda x, w: aten.add.Tensor(x, w, alpha=-2), weight=(2, 1, 3)),
    aten.add.Scalar: plain(image, lambda x: aten.add.Scalar(x, -0.5)),
    aten.sub.Tensor: plain(image, lambda x: aten.sub.Tensor(x, x.flip(1), alpha=3)),
    aten.sub.Scalar: plain(image, lambda x: aten.sub.Scalar(x, 0.5)),
    aten.rsub.Scalar: plain(image, lambda x: aten.rsub.Scalar(x, 0.5, 2)),
    aten.rsub.Tensor: plain(image, lambda x: aten.rsub.Tensor(x, x.flip(1), alpha=3)),
    aten.mul.Tensor: weighted(image, aten.mul.Tensor, weight=(2, 1, 1)),
    aten.mul.Scalar: plain(image, lambda x: aten.mul.Scalar(x, -0.5)),
    aten.div.Tensor: plain(image, lambda x: aten.div.Tensor(x, -3.0)),
    aten.div.Scalar: plain(image, lambda x: aten.div.Scalar(x, 3)),
    aten.maximum.default: plain(image, lambda x: aten.maximum.default(x, x.flip(1))),
    aten.minimum.default: plain(image, lambda x: aten.minimum.default(x, x.flip(1))),
    aten.cat.default: weighted(
        image, lambda x, w: aten.cat.default([x, w.expand(x.shape[0], 1, 3, 3), x], 1), weight=(1, 1, 3, 3)
    ),
    aten.stack.default: plain(image, lambda x: aten.stack.default([x, -x], 2)),
    aten.reshape.default: plain(image, lambda x: aten.reshape.default(x.transpose(1, 2), [x.shape[0], 6, 3])),
    aten.permute.default: plain(image, lambda x: aten.permute.default(x, [0, 2, 3, 1])),
    aten.transpose.int: plain(image, lambda x: aten.transpose.int(x, 1, 2)),
    aten.t.default: plain((3,), lambda x: aten.t.default(aten.t.default(x))),
    aten.unsqueeze.default: plain(image, lambda x: aten.unsqueeze.default(x, 1)),
    aten.squeeze.dim: plain((1, 3), lambda x: aten.squeeze.dim(x, 1)),
    aten.squeeze.dims: plain((1, 3, 1), lambda x: aten.squeeze.dims(x, [1, 3])),
    aten.expand.default: plain((1, 3), lambda x: aten.expand.default(x, [-1, 2, -1])),
    aten.repeat.default: plain((2, 3), lambda x: aten.repeat.default(x, [1, 2, 1])),
    aten.slice.Tensor: plain(image, lambda x: aten.slice.Tensor(x, 2, 0, 3, 2)),
    aten.select.int: plain(image, lambda x: aten.select.int(x, 2, 1)),
    aten.index_select.default: plain(image, lambda x: aten.index_select.default(x, 2, INDEX)),
    aten.index.Tensor: plain(image, lambda x: aten.index.Tensor(x, [None, None, INDEX])),
    aten.flip.default: plain(image, lambda x: aten.flip.default(x, [1, 2])),
    aten.roll.default: plain(image, lambda x: aten.roll.default(x, [1], [2])),
    aten.split.Tensor: plain((5, 2), lambda x: torch.cat(aten.split.Tensor(x, 2, 1)[::-1], 1)),
    aten.split_with_sizes.default: plain((5, 2), lambda x: aten.split_with_sizes.default(x, [1, 4], 1)[1]),
    aten.unbind.int: plain(image, lambda x: aten.unbind.int(x, 1)[1]),
    operator.getitem: plain(image, lambda x: aten.unbind.int(x, 1)[0]),
    aten.pixel_shuffle.default: plain((4, 2, 1), lambda x: aten.pixel_shuffle.default(x, 2)),
    aten.pixel_unshuffle.default: plain((1, 2, 4), lambda x: aten.pixel_unshuffle.default(x, 2)),
    aten.channel_shuffle.default: plain((4, 2, 1), lambda x: aten.channel_shuffle.default(x, 2)),
    aten.im2col.default: plain(image, lambda x: aten.im2col.default(x, [2, 2], [1, 1], [1, 1], [2, 2])),
    aten.reflection_pad1d.default: plain(line, lambda x: aten.reflection_pad1d.default(x, [1, 2])),
    aten.reflection_pad2d.default: plain(image, lambda x: aten.reflection_pad2d.default(x, [1, 1, 0, 2])),
    aten.reflection_pad3d.default: plain(volume, lambda x: aten.reflection_pad3d.default(x, [1, 0, 0, 1, 1, 0])),
    aten.replication_pad1d.default: plain(line, lambda x: aten.replication_pad1d.default(x, [1, 2])),
    aten.replication_pad2d.default: plain(image, lambda x: aten.replication_pad2d.default(x, [1, 1, 0, 2])),
    aten.replication_pad3d.default: plain(volume, lambda x: aten.replication_pad3d.default(x, [1, 0, 0, 1, 1, 0])),
    aten.upsample_nearest1d.default: plain(line, lambda x: aten.upsample_nearest1d.default(x, [7])),
    aten.upsample_nearest2d.default: plain(image, lambda x: aten.upsample_nearest2d.default(x, [4, 5])),
    aten.upsample_nearest3d.default: plain(volume, lambda x: aten.upsample_nearest3d.default(x, [3, 2, 3])),
    aten.upsample_nearest1d.vec: plain(line, lambda x: aten.upsample_nearest1d.vec(x, None, [2.0])),
    aten.upsample_nearest2d.vec: plain(image, lambda x: aten.upsample_nearest2d.vec(x, None, [2.0, 1.5])),
    aten.upsample_nearest3d.vec: plain(volume, lambda x: aten.upsample_nearest3d.vec(x, None, [2.0, 1.0, 1.5])),
    aten._upsample_nearest_exact1d.default: plain(line, lambda x: aten._upsample_nearest_exact1d.default(x, [7])),
    aten._upsample_nearest_exact2d.default: plain(image, lambda x: aten._upsample_nearest_exact2d.default(x, [4, 5])),
    aten._upsample_nearest_exact3d.default: plain(
        volume, lambda x: aten._upsample_nearest_exact3d.default(x, [3, 2, 3])
    ),
    aten._upsample_nearest_exact1d.vec: plain(line, lambda x: aten._upsample_nearest_exact1d.vec(x, None, [2.0])),
    aten._upsample_nearest_exact2d.vec: plain(image, lambda x: aten._upsample_nearest_exact2d.vec(x, None, [2.0, 1.5])),
    aten._upsample_nearest_exact3d.vec: plain(
        volume, lambda x: aten._upsample_nearest_exact3d.vec(x, None, [2.0, 1.0, 1.5])
    ),
    aten.constant_pad_nd.default: plain(image, lambda x: aten.constant_pad_nd.default(x, [1, 0, 2, 1, 1, 0])),
    aten.pad.default: plain(image, lambda x: aten.pad.default(x, [1, 0, 0, 1], "constant", None)),
    aten.max_pool1d.default: plain(line, lambda x: aten.max_pool1d.default(x, [3], [2], [1])),
    aten.max_pool2d.default: plain(
        (1, 5, 4), lambda x: aten.max_pool2d.default(x, [2, 2], [2, 1], [1, 0], [2, 1], True)
    ),
    aten.max_pool3d.default: plain(
        (1, 3, 2, 3), lambda x: aten.max_pool3d.default(x, [2] * 3, [2] * 3, [1] * 3, [1] * 3, True)
    ),
    aten.max_pool1d_with_indices.default: plain(
        line, lambda x: aten.max_pool1d_with_indices.default(x, [2], [1], [0], [2])[0]
    ),
    aten.max_pool2d_with_indices.default: plain(
        image, lambda x: aten.max_pool2d_with_indices.default(x, [2, 2], [1, 1])[0]
    ),
    aten.max_pool3d_with_indices.default: plain(
        volume, lambda x: aten.max_pool3d_with_indices.default(x, [2, 1, 2], [1, 1, 1])[0]
    ),
    aten.avg_pool1d.default: plain(line, lambda x: aten.avg_pool1d.default(x, [3], [2], [1], True, False)),
    aten.avg_pool2d.default: plain((1, 4, 5), lambda x: aten.avg_pool2d.default(x, [3, 2], [2, 2], [1, 1], True, True)),
    aten.avg_pool3d.default: plain(
        volume, lambda x: aten.avg_pool3d.default(x, [2] * 3, [1] * 3, [1] * 3, False, True, 5)
    ),
    aten.adaptive_avg_pool1d.default: plain(line, lambda x: aten.adaptive_avg_pool1d.default(x, [3])),
    aten.adaptive_avg_pool2d.default: plain((2, 5, 3), lambda x: aten.adaptive_avg_pool2d.default(x, [2, 2])),
    aten.adaptive_avg_pool3d.default: plain(volume, lambda x: aten.adaptive_avg_pool3d.default(x, [1, 2, 1])),
    aten.adaptive_max_pool1d.default: plain(line, lambda x: aten.adaptive_max_pool1d.default(x, [3])[0]),
    aten.adaptive_max_pool2d.default: plain((2, 5, 3), lambda x: aten.adaptive_max_pool2d.default(x, [2, 2])[0]),
    aten.adaptive_max_pool3d.default: plain(volume, lambda x: aten.adaptive_max_pool3d.default(x, [1, 2, 1])[0]),
    aten.mean.dim: plain(image, lambda x: aten.mean.dim(x, [1, 2], True)),
    aten.mean.default: plain((3,), lambda x: aten.mean.default(x)),
    aten.sum.dim_IntList: plain(image, lambda x: aten.sum.dim_IntList(x, [2])),
    aten.sum.default: plain((3,), lambda x: aten.sum.default(x)),
    aten.max.dim: plain(image, lambda x: aten.max.dim(x, 1)[0]),
    aten.min.dim: plain(image, lambda x: aten.min.dim(x, 2, True)[0]),
    aten.amax.default: plain(image, lambda x: aten.amax.default(x, [1, 3])),
    aten.amin.default: plain(image, lambda x: aten.amin.default(x, [2], True)),
    aten.max.default: plain((3,), lambda x: aten.max.default(x)),
    aten.min.default: plain((3,), lambda x: aten.min.default(x)),
    aten.kthvalue.default: plain(image, lambda x: aten.kthvalue.default(x, 2, 2)[0]),
    aten.median.dim: plain(image, lambda x: aten.median.dim(x, 3, True)[0]),
    aten.topk.default: plain(image, lambda x: aten.topk.default(x, 2, 2)[0]),
    aten.sort.default: plain(image, lambda x: aten.sort.default(x, 1, True)[0]),
    aten.sort.stable: plain(image, lambda x: aten.sort.stable(x, stable=True, dim=1)[0]),
    aten.upsample_linear1d.default: plain(line, lambda x: aten.upsample_linear1d.default(x, [7], True)),
    aten.upsample_linear1d.vec: plain(line, lambda x: aten.upsample_linear1d.vec(x, None, False, [1.5])),
    aten.upsample_bilinear2d.vec: plain(image, lambda x: aten.upsample_bilinear2d.vec(x, None, True, [2.0, 1.5])),
    aten.upsample_trilinear3d.default: plain(volume, lambda x: aten.upsample_trilinear3d.default(x, [3, 2, 3], False)),
    aten.upsample_trilinear3d.vec: plain(volume, lambda x: aten.upsample_trilinear3d.vec(x, [3, 2, 3], False, None)),
    aten.upsample_bicubic2d.vec: plain(image, lambda x: aten.upsample_bicubic2d.vec(x, [4, 6], True, None)),
    # Lipschitz, not homogeneous.
    aten.tanh.default: plain(image, aten.tanh.default),
    aten.relu6.default: plain(image, aten.relu6.default),
    aten.sin.default: plain(image, aten.sin.default),
    aten.atan.default: plain(image, aten.atan.default),
    aten.asinh.default: plain(image, aten.asinh.default),
    aten.elu.default: plain(image, lambda x: aten.elu.default(x, 0.9)),
}


@cache
def network(target: Any) -> tamis.Network:
    """The network of an operation's specimen: tracing takes longer than all that is checked of it."""
    return tamis.trace(SPECIMENS[target].module(), SPECIMENS[target].example())
