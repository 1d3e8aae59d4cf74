"""Layers as least-squares problems: rows times weights are what PyTorch's own layers give, for every geometry."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

from tamis.artifact import Codes
from tamis.graph import Network, Node, Ref
from tamis.layerwise.layer_matrices import (
    ConvolutionLayout,
    DenseLayout,
    Geometry,
    MatrixLayout,
    TransposedConvolutionLayout,
    extract_patches,
)
from tamis.layerwise.layers import Kernels, find_layers

aten = torch.ops.aten
quickly = settings(max_examples=40, deadline=None)
CONV: dict[int, Any] = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
CONV_BY_NAME: dict[int, Any] = {1: aten.conv1d.padding, 2: aten.conv2d.padding, 3: aten.conv3d.padding}
TRANSPOSED: dict[int, Any] = {
    1: aten.conv_transpose1d.default,
    2: aten.conv_transpose2d.input,
    3: aten.conv_transpose3d.input,
}
KERNELS: tuple[Kernels, ...] = ("joint", "per_channel")


def one_node(target: Any, weight: Tensor, x: Tensor, *settings_: Any) -> tuple[Network, Tensor]:
    """A network of a single layer without a bias, and its output."""
    node = Node("y", target, (Ref("x"), Ref("w"), *settings_), shape=tuple(target(x, weight, *settings_).shape))
    net = Network(
        nodes=(node,),
        inputs=("x",),
        input_shapes=(tuple(x.shape),),
        input_dtypes=(x.dtype,),
        batched=False,
        params={"w": weight},
        trainable=frozenset({"w"}),
        outputs=(Ref("y"),),
        output_structure=pytree.tree_structure(0),
    )
    return net, target(x, weight, *settings_)


def form_of(net: Network, conv: Kernels) -> MatrixLayout:
    (layer,) = find_layers(net, None, None, conv, done="tested")
    return layer.layout


def check(net: Network, conv: Kernels, weight: Tensor, x: Tensor, outputs: Tensor, channel_axis: int) -> None:
    """All that a form promises, for one layer."""
    form = form_of(net, conv)
    matrix, rows = form.to_matrix(weight), form.to_rows(x)
    assert matrix.shape == (form.problems, form.neurons, form.features)
    assert rows.shape[0] == form.problems and rows.shape[2] == form.features
    assert torch.equal(form.to_weight(matrix), weight)
    products = (rows @ matrix.mT).reshape(form.groups, -1, rows.shape[1], form.neurons).sum(1)
    expected = outputs.movedim(channel_axis, -1).reshape(-1, form.groups, form.neurons).transpose(0, 1)
    torch.testing.assert_close(products, expected)
    check_channels(form, weight, outputs.shape[channel_axis])


def check_channels(form: MatrixLayout, weight: Tensor, channels: int) -> None:
    """A number for each output channel: on its neurons, back again, and as scales of codes."""
    assert form.channels == channels
    values = torch.arange(1.0, channels + 1, dtype=weight.dtype)
    spread = form.spread_channels(values)
    assert spread.shape == (form.problems, form.neurons)
    assert torch.equal(form.sum_by_channel(spread), values * (form.problems // form.groups))
    indices = torch.ones(weight.shape, dtype=torch.uint8)
    codes = Codes(indices, torch.tensor([0.0, 1.0], dtype=weight.dtype), values.reshape(form.channel_shape))
    assert torch.equal(form.to_matrix(codes.values()), spread[:, :, None].expand(-1, -1, form.features))


# -- linear --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=3), st.booleans(), st.booleans())
@quickly
def test_linear_layers(neurons: int, features: int, before: list[int], transposed: bool, as_mm: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = normal(generator, *before, features)
    if not transposed:
        weight = normal(generator, neurons, features)
        net, outputs = one_node(aten.linear.default, weight, x)
    else:
        weight = normal(generator, features, neurons)
        net, outputs = one_node(aten.mm.default if as_mm and len(before) == 1 else aten.matmul.default, weight, x)
    for conv in KERNELS:
        check(net, conv, weight, x, outputs, -1)
    form = form_of(net, "joint")
    assert isinstance(form, DenseLayout) and form.overlap == 1 and form.has_batch(x) is (len(before) > 0)
    assert form.to_weight(form.to_matrix(weight)).is_contiguous()


# -- convolutions --------------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], list[Any], bool]:
    """Shapes of weight and input, what else the operation takes, and whether there is a batch."""
    rank = draw(st.integers(1, 3))
    groups, each_in, each_out = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    window = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    padding = [draw(st.integers(0, 2)) for _ in range(rank)]
    spans = [d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)]
    sizes = [max(1, span - 2 * p) + draw(st.integers(0, 3)) for span, p in zip(spans, padding, strict=True)]
    batched = draw(st.booleans())
    x = (*([draw(st.integers(1, 2))] if batched else []), groups * each_in, *sizes)
    return (groups * each_out, each_in, *window), x, [None, stride, padding, dilation, groups], batched


@given(convolutions(), st.sampled_from(KERNELS))
@quickly
def test_convolutions(drawn: Any, conv: Kernels) -> None:
    shape, of_x, settings_, batched = drawn
    generator = torch.Generator().manual_seed(0)
    weight, x = normal(generator, *shape), normal(generator, *of_x)
    net, outputs = one_node(CONV[len(shape) - 2], weight, x, *settings_)
    check(net, conv, weight, x, outputs, 1 if batched else 0)
    form = form_of(net, conv)
    assert form.has_batch(x) is batched and form.overlap == math.prod(shape[2:])
    kernels = shape[1] * settings_[-1]
    assert form.problems == (kernels if conv == "per_channel" else settings_[-1])


@given(convolutions(), st.sampled_from(KERNELS), st.sampled_from(["same", "valid"]))
@quickly
def test_convolutions_padded_by_name(drawn: Any, conv: Kernels, padding: str) -> None:
    shape, of_x, (_, stride, _, dilation, groups), batched = drawn
    rank = len(shape) - 2
    generator = torch.Generator().manual_seed(0)
    spans = [d * (k - 1) for k, d in zip(shape[2:], dilation, strict=True)]
    of_x = (*of_x[:-rank], *[size + span for size, span in zip(of_x[-rank:], spans, strict=True)])
    weight, x = normal(generator, *shape), normal(generator, *of_x)
    stride = [1] * rank if padding == "same" else stride
    net, outputs = one_node(CONV_BY_NAME[rank], weight, x, None, stride, padding, dilation, groups)
    check(net, conv, weight, x, outputs, 1 if batched else 0)


@st.composite
def transposed_convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], list[Any], bool]:
    rank = draw(st.integers(1, 3))
    groups, each_in, each_out = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    window = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    sizes = [draw(st.integers(1, 4)) for _ in range(rank)]
    padding = []
    for n, k, s, d, e in zip(sizes, window, stride, dilation, extra, strict=True):
        whole = (n - 1) * s + d * (k - 1) + e + 1
        padding.append(draw(st.integers(0, min(3, (whole - 1) // 2))))  # may exceed the kernel's own reach
    batched = draw(st.booleans())
    x = (*([draw(st.integers(1, 2))] if batched else []), groups * each_in, *sizes)
    return (groups * each_in, each_out, *window), x, [None, stride, padding, extra, groups, dilation], batched


@given(transposed_convolutions(), st.sampled_from(KERNELS))
@quickly
def test_transposed_convolutions(drawn: Any, conv: Kernels) -> None:
    shape, of_x, settings_, batched = drawn
    generator = torch.Generator().manual_seed(0)
    weight, x = normal(generator, *shape), normal(generator, *of_x)
    net, outputs = one_node(TRANSPOSED[len(shape) - 2], weight, x, *settings_)
    check(net, conv, weight, x, outputs, 1 if batched else 0)
    assert isinstance(form_of(net, conv), TransposedConvolutionLayout) and form_of(net, conv).has_batch(x) is batched


def test_settings_given_once_hold_for_every_axis() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = normal(generator, 2, 2, 3, 2), normal(generator, 2, 2, 7, 6)
    net, outputs = one_node(aten.conv2d.default, weight, x, None, [2], [1], [2])
    check(net, "joint", weight, x, outputs, 1)


def test_inputs_that_are_views() -> None:
    """Channels last, expanded, cut out of something larger."""
    generator = torch.Generator().manual_seed(0)
    weight, whole = normal(generator, 4, 2, 3, 2), normal(generator, 3, 6, 8, 9)
    for x in (
        whole[1:, 1:3, 2:, ::2],
        whole[:, :2].to(memory_format=torch.channels_last),
        whole[:1, :2].expand(4, -1, -1, -1),
        whole[:, :1].expand(-1, 2, -1, -1),
    ):
        net, outputs = one_node(aten.conv2d.default, weight, x)
        check(net, "joint", weight, x, outputs, 1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_masks_and_indices_have_matrices_too(dtype: torch.dtype) -> None:
    values = torch.arange(2 * 3 * 2 * 2).reshape(6, 2, 2, 1).to(dtype)
    for form in (
        ConvolutionLayout.of((6, 2, 2, 1), 2, Geometry((1, 1), (0,) * 4, (1, 1)), False),
        TransposedConvolutionLayout.of((6, 2, 2, 1), 3, Geometry((1, 1), (0,) * 4, (1, 1)), (2, 2), True),
    ):
        matrix = form.to_matrix(values)
        assert matrix.dtype is dtype and torch.equal(form.to_weight(matrix), values)


def test_patches_are_a_view() -> None:
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    windows = extract_patches(x, [2, 2], [1, 2], [1, 1])
    assert windows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(windows[0, 0].reshape(4, 4).T, F.unfold(x, (2, 2), stride=(1, 2))[0])
