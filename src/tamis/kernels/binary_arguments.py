"""The arguments of a binary layer are grouped and checked here, and give the shape of the result.

`tamis.kernels.binary` says what a layer computes and how packed bits and packed weights are laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels.bit_layout import count_packed_rows, count_words

MOST_PRODUCTS = 1 << 22  # of one output, and one more: the kernels add them up as 32-bit integers, then as float32


# What is checked of a tensor: (shape, dtype, device). A call is checked once for each combination, then looked up.
TensorKind = tuple[torch.Size, torch.dtype, torch.device]
Operand = TypeVar("Operand", Tensor, TensorKind)


# The three classes below are tuples and not dataclasses because a call builds and hashes them, and a small layer takes
# no longer than that: a frozen dataclass takes three times as long to make.
class Geometry(NamedTuple):
    """A geometry holds the numbers of a layer.

    Attributes:
        weight_shape: (O, C / groups, kh, kw).
        stride, padding, dilation: of rows and of columns, as in torch.nn.functional.conv2d.
        out_groups: the groups of the layer that reads the result as packed bits.
    """

    weight_shape: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    out_groups: int = 1


class Operands(NamedTuple, Generic[Operand]):
    """Operands are the tensors of a layer, or their kinds.

    Attributes:
        x: float32 (N, C, H, W), or packed bits (N, groups, words, H, W).
        weight: what `pack_weight` gave.
        scales: the factors of the scale, float32: (α,), (full,), (α, β) or (α, β, γ).
        thresholds, flips: τ and f, (C), float32 and bool, of float inputs; packed bits have none.
        out_thresholds, out_flips: τ and f, (O), of the layer that reads the result, which is then packed bits.
    """

    x: Operand
    weight: Operand
    scales: tuple[Operand, ...]
    thresholds: Operand | None = None
    flips: Operand | None = None
    out_thresholds: Operand | None = None
    out_flips: Operand | None = None


class EpilogueKind(NamedTuple):
    """An epilogue has these steps after a layer in the same pass: + bias, · slope + shift, + a tensor, max(·, 0).

    Attributes:
        bias, slope, shift: the kinds of these vectors, or None.
        adds: whether a tensor of the result's shape is added.
        one_rounding: whether · slope + shift is rounded once, or both the product and the sum.
        relu: whether a ReLU comes last.
    """

    bias: TensorKind | None = None
    slope: TensorKind | None = None
    shift: TensorKind | None = None
    adds: bool = False
    one_rounding: bool = False
    relu: bool = False


def kind_of(tensor: Tensor) -> TensorKind:
    """Return the shape, dtype and device of a tensor."""
    return tensor.shape, tensor.dtype, tensor.device


def kind_or_none(tensor: Tensor | None) -> TensorKind | None:
    """Return the kind of a tensor, or None for None."""
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def kinds_of(operands: Operands[Tensor]) -> Operands[TensorKind]:
    """Return the properties of the tensors that are checked, by which a call is looked up."""
    x, weight, scales, thresholds, flips, out_thresholds, out_flips = operands
    # Written out, since this runs in every call: a small layer takes no longer than a generator does.
    return Operands(
        kind_of(x),
        kind_of(weight),
        tuple(map(kind_of, scales)),
        kind_or_none(thresholds),
        kind_or_none(flips),
        kind_or_none(out_thresholds),
        kind_or_none(out_flips),
    )


def describe(kind: TensorKind) -> str:
    """Write the dtype and shape of a tensor for a message."""
    return f"{kind[1]} ({', '.join(map(str, kind[0]))})"


def check_images(name: str, x: TensorKind, channels: int, groups: int) -> None:
    """Refuse inputs that are not float32 (N, C, H, W), of as many channels, in groups that divide them."""
    if len(x[0]) != 4 or x[1] != torch.float32:
        raise InvalidInput(f"{name} needs float32 (N, C, H, W), not {describe(x)}")
    if x[0][1] != channels:
        raise InvalidInput(f"{name} got inputs {describe(x)} for {channels} channels")
    if groups < 1 or channels < 1 or channels % groups:
        raise InvalidInput(f"{name} got {channels} channels, which {groups} groups do not divide")


def check_vectors(
    name: str, first: tuple[str, TensorKind], second: tuple[str, TensorKind], device: torch.device
) -> None:
    """Check thresholds and flips, each given with the name that the caller knows it by."""
    (tau, thresholds), (f, flips) = first, second
    if len(thresholds[0]) != 1 or thresholds[1] != torch.float32:
        raise InvalidInput(f"{name} needs float32 {tau} of one axis, not {describe(thresholds)}")
    if flips[0] != thresholds[0] or flips[1] != torch.bool:
        raise InvalidInput(
            f"{name} needs bool {f} of the shape of {tau}, {describe(thresholds)}, not {describe(flips)}"
        )
    if thresholds[2] != device or flips[2] != device:
        raise InvalidInput(f"{name} got inputs on {device}, {tau} on {thresholds[2]}, {f} on {flips[2]}")


def _compute_output_size(size: Sequence[int], geometry: Geometry) -> tuple[int, int]:
    _, _, *kernel = geometry.weight_shape
    stride, padding, dilation = geometry.stride, geometry.padding, geometry.dilation
    if not len(stride) == len(padding) == len(dilation) == 2:
        raise InvalidInput(
            f"binary_conv2d needs two numbers each: stride {stride}, padding {padding}, dilation {dilation}"
        )
    if min(*stride, *dilation) < 1 or min(padding) < 0:
        raise InvalidInput(
            f"binary_conv2d needs a stride and dilation of at least 1 and padding of at least 0, not {tuple(stride)}, "
            f"{tuple(dilation)}, {tuple(padding)}"
        )
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    room = [length + 2 * p - r for length, p, r in zip(size, padding, reach, strict=True)]
    if min(room) < 0 or min(size) < 1:
        raise InvalidInput(
            f"binary_conv2d got images of {tuple(size)} with padding {tuple(padding)}, smaller than a kernel of {reach}"
        )
    height, width = (left // s + 1 for left, s in zip(room, stride, strict=True))
    return height, width


def check_result_shape(kinds: Operands[TensorKind], geometry: Geometry) -> tuple[int, ...]:
    """Check everything that could be wrong with a call, and return the shape of its result."""
    x, weight, shape = kinds.x, kinds.weight, geometry.weight_shape
    if len(shape) != 4 or min(shape) < 1:
        raise InvalidInput(f"binary_conv2d needs a weight_shape (O, C / groups, kh, kw), not {tuple(shape)}")
    outputs, each, *kernel = shape
    taps, groups = kernel[0] * kernel[1], weight[0][0] if len(weight[0]) == 4 else 0
    rows = sum(count_packed_rows(each, taps))
    packed = (groups, -(-outputs // groups // 8), rows, 8) if groups else ()
    if weight[1] != torch.int64 or weight[0] != packed or outputs % groups or weight[2] != x[2]:
        raise InvalidInput(
            f"binary_conv2d got inputs on {x[2]} and weights {describe(weight)} on {weight[2]}, which is not what "
            f"pack_weight gives there for {tuple(shape)}"
        )
    if each * taps >= MOST_PRODUCTS:
        raise InvalidInput(f"binary_conv2d sums fewer than 2²² products, not {each * taps}: weights {tuple(shape)}")
    _check_input(kinds, shape, groups)
    height, width = _compute_output_size(x[0][-2:], geometry)
    _check_scales(kinds.scales, (outputs, height, width), x[2])
    out_thresholds, out_flips, out_groups = kinds.out_thresholds, kinds.out_flips, geometry.out_groups
    if (out_thresholds is None) != (out_flips is None):
        raise InvalidInput("binary_conv2d needs out_thresholds and out_flips together, or neither")
    if out_thresholds is None or out_flips is None:
        return x[0][0], outputs, height, width
    check_vectors("binary_conv2d", ("out_thresholds", out_thresholds), ("out_flips", out_flips), device=x[2])
    if out_thresholds[0].numel() != outputs:
        raise InvalidInput(
            f"binary_conv2d got {out_thresholds[0].numel()} out_thresholds for {outputs} output channels"
        )
    if out_groups < 1 or outputs % out_groups:
        raise InvalidInput(f"binary_conv2d got {outputs} output channels, which {out_groups} out_groups do not divide")
    return x[0][0], out_groups, count_words(outputs // out_groups), height, width


def _check_input(kinds: Operands[TensorKind], shape: Sequence[int], groups: int) -> None:
    """Check that the input is packed bits alone, or floats with thresholds and flips."""
    x, thresholds, flips = kinds.x, kinds.thresholds, kinds.flips
    each = shape[1]
    if x[1] == torch.int64:
        words = count_words(each)
        if len(x[0]) != 5 or tuple(x[0][1:3]) != (groups, words):
            raise InvalidInput(
                f"binary_conv2d needs packed bits (N, {groups}, {words}, H, W) for weights {tuple(shape)} in {groups} "
                f"groups, not {describe(x)}"
            )
        if thresholds is not None or flips is not None:
            raise InvalidInput("binary_conv2d got packed bits with thresholds or flips: they are already compared")
        return
    if thresholds is None or flips is None:
        raise InvalidInput(f"binary_conv2d needs thresholds and flips for inputs {describe(x)}")
    check_vectors("binary_conv2d", ("thresholds", thresholds), ("flips", flips), device=x[2])
    check_images("binary_conv2d", x, each * groups, groups)
    if thresholds[0].numel() != each * groups:
        raise InvalidInput(
            f"binary_conv2d got {thresholds[0].numel()} thresholds for {each * groups} channels: weights "
            f"{tuple(shape)} in {groups} groups"
        )


def _check_scales(scales: tuple[TensorKind, ...], output: tuple[int, int, int], device: torch.device) -> None:
    outputs, height, width = output
    shapes = tuple(tuple(scale[0]) for scale in scales)
    per_output = (outputs,)
    if shapes not in (
        (per_output,),
        ((outputs, height, width),),
        (per_output, (height, width)),
        (per_output, (height,), (width,)),
    ):
        raise InvalidInput(
            f"binary_conv2d needs scales of shapes ({outputs}), ({outputs}, {height}, {width}), ({outputs}) and "
            f"({height}, {width}), or ({outputs}), ({height}) and ({width}), not {shapes}"
        )
    for scale in scales:
        if scale[1] != torch.float32 or scale[2] != device:
            raise InvalidInput(f"binary_conv2d needs scales in float32 on {device}, not {scale[1]} on {scale[2]}")
