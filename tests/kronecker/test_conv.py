"""Convolutions against `nn.Conv2d` with the dense weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import tamis
from tamis.errors import InvalidInput
from tamis.kronecker.conv import KroneckerConv2d
from tamis.kronecker.families import dense, monarch

SMALL = st.integers(1, 3)


@given(SMALL, SMALL, SMALL, st.integers(0, 2), st.integers(1, 2), st.booleans(), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_it_convolves(
    rows: int, columns: int, stride: int, padding: int, dilation: int, bias: bool, batch: int
) -> None:
    torch.manual_seed(0)
    patterns = monarch(6, 4 * rows * columns, 2)
    made = KroneckerConv2d(4, 6, (rows, columns), patterns, stride, (padding, 1), dilation, bias, dtype=torch.float64)
    weight = made.dense_weight().reshape(6, 4, rows, columns)
    x = torch.randn(batch, 4, 7, 6, dtype=torch.float64)
    want = F.conv2d(x, weight, made.bias, stride, (padding, 1), dilation)
    torch.testing.assert_close(made(x), want, rtol=1e-12, atol=1e-12)
    if batch:
        torch.testing.assert_close(made(x[0]), want[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(made(x.to(memory_format=torch.channels_last)), want, rtol=1e-12, atol=1e-12)


def convolution(kernel: int, padding: int, stride: int) -> KroneckerConv2d:
    torch.manual_seed(0)
    return KroneckerConv2d(2, 4, kernel, monarch(4, 2 * kernel**2, 2), stride, padding, dtype=torch.float64)


@pytest.mark.parametrize(("kernel", "padding", "stride"), [(1, 0, 1), (1, 0, 2), (3, 1, 1)])
def test_gradients(kernel: int, padding: int, stride: int) -> None:
    made = convolution(kernel, padding, stride)
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    made(x).square().sum().backward()
    got = [x.grad, *(parameter.grad for parameter in made.parameters())]
    x.grad = None
    made.zero_grad()
    weight = made.dense_weight().reshape(4, 2, kernel, kernel)
    F.conv2d(x, weight, made.bias, stride, padding).square().sum().backward()
    for mine, theirs in zip(got, [x.grad, *(parameter.grad for parameter in made.parameters())], strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "padding", "stride"), [pytest.param(1, 0, 1, marks=pytest.mark.slow), (1, 0, 2), (3, 1, 1)]
)
def test_export_and_trace(kernel: int, padding: int, stride: int) -> None:
    made = convolution(kernel, padding, stride)
    net = tamis.trace(made, torch.zeros(2, 2, 4, 5, dtype=torch.float64))
    for batch in (1, 3):
        x = torch.randn(batch, 2, 4, 5, dtype=torch.float64)
        torch.testing.assert_close(net(x), made(x))


def test_padding_same_and_valid() -> None:
    x = torch.randn(1, 2, 5, 5)
    assert KroneckerConv2d(2, 4, (3, 5), dense(4, 30), padding="same")(x).shape == (1, 4, 5, 5)
    same = KroneckerConv2d(2, 4, 3, dense(4, 18), padding="same")
    want = F.conv2d(x, same.dense_weight().reshape(4, 2, 3, 3), same.bias, padding="same")
    torch.testing.assert_close(same(x), want)
    assert KroneckerConv2d(2, 4, 3, dense(4, 18), padding="valid")(x).shape == (1, 4, 3, 3)
    described = repr(KroneckerConv2d(2, 4, 3, dense(4, 18), padding="same"))
    assert (
        "2, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), patterns=[(1, 4, 18, 1)]"
        in described
    )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "patterns": (
        {"patterns": dense(4, 17)},
        r"4 filters for 2 channels with a kernel of \(3, 3\) make a matrix of 4 × 18, .* is one of 4 × 17",
    ),
    "kernel": ({"kernel_size": 0}, "kernel_size must be a whole number ≥ 1, or two of them, got 0"),
    "kernel of another kind": ({"kernel_size": 3.0}, "kernel_size must be a whole number ≥ 1, .* got 3.0"),
    "no kernel": ({"kernel_size": None}, "kernel_size must be .* got None"),
    "truth": ({"kernel_size": True}, "kernel_size must be .* got True"),
    "strides": ({"stride": (2, 1.5)}, r"stride must be .* got \(2, 1.5\)"),
    "dilation": ({"dilation": None}, "dilation must be .* got None"),
    "no padding": ({"padding": None}, "padding must be a whole number ≥ 0, or two of them, got None"),
    "in channels": ({"in_channels": 2.0}, "in_channels must be a whole number ≥ 1, got 2.0"),
    "out channels": ({"out_channels": None}, "out_channels must be a whole number ≥ 1, got None"),
    "stride": ({"stride": (1, 2, 3)}, r"stride must be .* got \(1, 2, 3\)"),
    "padding": ({"padding": "full"}, "padding must be whole numbers, 'valid', or 'same' .* got 'full'"),
    "same": ({"padding": "same", "stride": 2}, r"got 'same' for a kernel of \(3, 3\) and a stride of \(2, 2\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str) -> None:
    changed, message = BAD[case]
    arguments: dict[str, Any] = {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "patterns": dense(4, 18)}
    with pytest.raises(InvalidInput, match=message):
        KroneckerConv2d(**{**arguments, **changed})


def test_inputs_of_other_shapes_are_refused() -> None:
    made = KroneckerConv2d(2, 4, 3, dense(4, 18))
    for shape in ((1, 3, 5, 5), (5, 5), (1, 1, 2, 5, 5)):
        with pytest.raises(InvalidInput, match=r"takes an input of shape \(batch, 2, rows, columns\), or one without"):
            made(torch.zeros(shape))


def test_inputs_of_other_kinds_are_refused() -> None:
    made = KroneckerConv2d(2, 4, 3, dense(4, 18))
    with pytest.raises(InvalidInput, match="x must be a tensor, got list"):
        made([1, 2])
    with pytest.raises(InvalidInput, match=r"x must hold real or complex numbers, got torch\.int64"):
        made(torch.zeros(1, 2, 5, 5).long())
    with pytest.raises(InvalidInput, match=r"x must be a dense tensor, got one of torch\.sparse_coo"):
        made(torch.zeros(1, 2, 5, 5).to_sparse())
