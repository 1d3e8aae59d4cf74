"""Binary layers against loops over every product, and thresholds against exact arithmetic."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.binary.estimators import ESTIMATORS
from tamis.binary.layers import (
    BinaryConv1d,
    BinaryConv2d,
    BinaryLayer,
    BinaryLinear,
    binary_layers,
    clip_weights,
    thresholds,
)
from tamis.binary.scales import FORMS
from tamis.errors import InvalidInput

CONVOLUTIONS: list[dict[str, Any]] = [
    {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "padding": 1},
    {"in_channels": 4, "out_channels": 6, "kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2), "groups": 2},
    {"in_channels": 4, "out_channels": 4, "kernel_size": 2, "dilation": 2, "groups": 4, "bias": True},
    {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": "same", "dilation": (1, 2), "bias": True},
]
ROWS, COLUMNS = 6, 5


def shaken(layer: BinaryLayer, seed: int = 0) -> BinaryLayer:
    """With statistics and parameters as after some training, slopes of both signs and zero among them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.5 if "weight" in name else 1))
        assert layer.norm.running_mean is not None and layer.norm.running_var is not None
        layer.norm.running_mean.copy_(torch.randn(layer.norm.running_mean.shape, generator=generator))
        layer.norm.running_var.copy_(torch.rand(layer.norm.running_var.shape, generator=generator) + 0.1)
        layer.norm.weight[0] = 0.0
    return layer


def output_size(arguments: dict[str, Any]) -> tuple[int, int]:
    names = ("stride", "padding", "dilation", "groups")
    like = nn.Conv2d(*(arguments[name] for name in ("in_channels", "out_channels", "kernel_size")),
                     **{name: arguments[name] for name in names if name in arguments})  # fmt: skip
    rows, columns = like(torch.zeros(1, arguments["in_channels"], ROWS, COLUMNS)).shape[2:]
    return rows, columns


def real_sign(layer: BinaryLayer, value: float, channel: int) -> int:
    """sign ∘ BNorm of one number, in float64 from the definition."""
    norm = layer.norm
    assert norm.running_mean is not None and norm.running_var is not None
    deviation = math.sqrt(float(norm.running_var[channel]) + norm.eps)
    normalised = (value - float(norm.running_mean[channel])) / deviation
    normalised = normalised * float(norm.weight[channel]) + float(norm.bias[channel])
    if layer.shift is not None:
        normalised -= float(layer.shift[channel])
    return 1 if normalised >= 0 else -1


def literal_scale(layer: BinaryConv2d, o: int, h: int, w: int) -> np.float32:
    a = {name: factor.detach().abs().numpy() for name, factor in layer.factors.items()}
    if layer.form == "analytic":
        return np.float32(layer.weight.detach().double().abs().flatten(1).mean(1)[o].item())
    if layer.form == "channel":
        return np.float32(a["alpha"][o])
    if layer.form == "full":
        return np.float32(a["alpha"][o, h, w])
    if layer.form == "spatial":
        return np.float32(a["alpha"][o] * a["beta"][h, w])
    return np.float32((a["alpha"][o] * a["beta"][h]) * a["gamma"][w])


def literal(layer: BinaryConv2d, x: Tensor) -> Tensor:
    """(sign(W) ⊛ sign ∘ BNorm(x)) ⊙ w_scale + bias, output by output, product by product."""
    rows, columns = output_size_of(layer, x)
    outputs = np.zeros((len(x), layer.out_channels, rows, columns), dtype=np.float32)
    per_group = layer.out_channels // layer.groups
    weights = [[1 if value >= 0 else -1 for value in row] for row in layer.weight.flatten(1).tolist()]
    signs = {at: real_sign(layer, float(x[at]), at[1]) for at in np.ndindex(*x.shape)}
    for n, o, h, w in np.ndindex(*outputs.shape):
        total = 0
        for c in range(layer.in_channels // layer.groups):
            channel = o // per_group * (layer.in_channels // layer.groups) + c
            for tap, (i, j) in enumerate(np.ndindex(*layer.kernel_size), c * math.prod(layer.kernel_size)):
                row = h * layer.stride[0] - layer.padding[0] + i * layer.dilation[0]
                column = w * layer.stride[1] - layer.padding[1] + j * layer.dilation[1]
                if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                    total += weights[o][tap] * signs[n, channel, row, column]
        outputs[n, o, h, w] = np.float32(total) * literal_scale(layer, o, h, w)
        if layer.bias is not None:
            outputs[n, o, h, w] += np.float32(layer.bias[o].item())
    return torch.from_numpy(outputs)


def output_size_of(layer: BinaryConv2d, x: Tensor) -> tuple[int, int]:
    rows, columns = (
        (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for extent, padding, dilation, kernel, stride in zip(
            x.shape[2:], layer.padding, layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    )
    return rows, columns


@pytest.mark.parametrize("arguments", CONVOLUTIONS)
@pytest.mark.parametrize(("form", "estimator"), [*((form, "clipped") for form in FORMS), ("rank_one", "rsign")])
def test_a_convolution_is_its_definition_to_the_bit(arguments: dict[str, Any], form: str, estimator: str) -> None:
    layer = shaken(BinaryConv2d(**arguments, scale=form, output_size=output_size(arguments), estimator=estimator))
    assert isinstance(layer, BinaryConv2d)
    layer.eval()
    x = torch.randn(2, layer.in_channels, ROWS, COLUMNS, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = literal(layer, x)
        assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x), expected)  # with gradients


def test_one_axis_is_two_of_which_one_has_length_one() -> None:
    flat = shaken(BinaryConv1d(4, 6, 3, 2, 1, 2, 2, True, scale="rank_one", output_size=4)).eval()
    square = BinaryConv2d(4, 6, (1, 3), (1, 2), (0, 1), (1, 2), 2, True, scale="rank_one", output_size=(1, 4)).eval()
    state = {name: value.clone() for name, value in flat.state_dict().items()}
    state["weight"] = state["weight"][:, :, None]
    state["gamma"] = state.pop("beta")
    square.load_state_dict(state, strict=False)  # β stays one
    x = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(flat(x), square(x[:, :, None])[:, :, 0])


@pytest.mark.parametrize("form", FORMS)
def test_a_linear_layer_is_a_convolution_of_one_pixel(form: str) -> None:
    linear = shaken(BinaryLinear(5, 3, bias=True, scale=form)).eval()
    pixel = BinaryConv2d(5, 3, 1, bias=True, scale="analytic" if form == "analytic" else "channel").eval()
    state = linear.state_dict()
    pixel.load_state_dict({**state, "weight": state["weight"][:, :, None, None]})
    x = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(0))
    expected = pixel(x.reshape(28, 5, 1, 1)).reshape(4, 7, 3)
    assert torch.equal(linear(x), expected)
    assert torch.equal(linear(x[:, 0]), expected[:, 0])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_training_takes_signs_of_the_batch_normalised(estimator: str) -> None:
    layer = shaken(BinaryConv2d(3, 4, 3, padding=1, estimator=estimator)).train()
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    normalised = F.batch_norm(x, None, None, layer.norm.weight, layer.norm.bias, training=True)
    if layer.shift is not None:
        normalised = normalised - layer.shift[:, None, None]
    signs = torch.where(normalised >= 0, 1.0, -1.0)
    weights = torch.where(layer.weight >= 0, 1.0, -1.0)
    expected = F.conv2d(signs, weights, padding=1) * layer.factors["alpha"].abs()[:, None, None]
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_reach_everything_by_the_estimators(training: bool) -> None:
    """Those of W, α and x against products written out, in float64 where BNorm is known."""
    layer = BinaryLinear(4, 3).double().train(training)
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.no_grad():
        layer.weight.mul_(3)  # some of them beyond 1
    coming = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layer(x).backward(coming)
    normalised = layer.norm(x).detach() if training else x.detach() / math.sqrt(1 + layer.norm.eps)
    signs, weights = torch.sign(normalised), torch.sign(layer.weight.detach())
    alpha = layer.factors["alpha"]
    inside = (layer.weight.detach().abs() <= 1).double()
    assert 0 < inside.sum() < inside.numel()
    assert layer.weight.grad is not None and alpha.grad is not None and x.grad is not None
    torch.testing.assert_close(layer.weight.grad, ((coming * alpha.detach()).T @ signs) * inside)
    torch.testing.assert_close(alpha.grad, (coming * (signs @ weights.T)).sum(0))
    if not training:
        back = (coming * alpha.detach()) @ weights * (normalised.abs() <= 1) / math.sqrt(1 + layer.norm.eps)
        torch.testing.assert_close(x.grad, back)
    assert x.grad.abs().sum() > 0


def test_xnor_nets_gradient_flows_through_the_mean_as_well() -> None:
    layer = BinaryLinear(4, 2, scale="analytic").double()
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer(x).sum().backward()
    signs = torch.sign(layer.norm(x).detach())
    weights = torch.sign(layer.weight.detach())
    through_signs = signs.sum(0) * layer.weight.detach().abs().mean(1, keepdim=True)
    through_mean = (signs @ weights.T).sum(0)[:, None] * weights / 4
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, through_signs + through_mean)


# -- thresholds --------------------------------------------------------------------------------------------------------


def normed(slope: float, bias: float, mean: float, variance: float, shift: float | None) -> BinaryLinear:
    layer = BinaryLinear(1, 1, estimator="clipped" if shift is None else "rsign").eval()
    with torch.no_grad():
        layer.norm.weight.fill_(slope)
        layer.norm.bias.fill_(bias)
        assert layer.norm.running_mean is not None and layer.norm.running_var is not None
        layer.norm.running_mean.fill_(mean)
        layer.norm.running_var.fill_(variance)
        if layer.shift is not None:
            layer.shift.fill_(shift)
    return layer


def around(value: float) -> list[float]:
    """The finite floats of 32 bits at and next to a number."""
    near = torch.tensor(value, dtype=torch.float32)
    beside = [torch.nextafter(near, torch.tensor(end)).item() for end in (-math.inf, math.inf)]
    return [number for number in (beside[0], near.item(), beside[1]) if math.isfinite(number)]


finite = st.floats(-1e3, 1e3, width=32)


@given(
    slope=finite,
    bias=finite,
    mean=finite,
    variance=st.floats(0, 1e3, width=32),
    shift=st.none() | finite,
    x=st.floats(-1e4, 1e4, width=32),
)
def test_a_threshold_is_the_sign_of_the_exact_line(
    slope: float, bias: float, mean: float, variance: float, shift: float | None, x: float
) -> None:
    layer = normed(slope, bias, mean, variance, shift)
    (tau,), (flip,) = (each.tolist() for each in thresholds(layer))
    s = slope / math.sqrt(variance + layer.norm.eps)
    t = bias - s * mean - (0 if shift is None else shift)
    for value in [x, mean, *around(tau)]:
        line = Fraction(s) * Fraction(value) + Fraction(t)
        positive = (value >= tau) != flip
        if abs(line) > Fraction(2) ** -50 * abs(Fraction(t)):  # beyond the rounding of −t/s to 53 bits
            assert positive == (line >= 0)


def test_thresholds_where_the_line_is_exact() -> None:
    """Slopes and offsets that are powers of two: τ itself is on the line, and sign(0) = +1 on either side."""
    variance = 1 - 1e-5
    for slope in (2.0, -2.0):
        layer = normed(slope, 1.0, 0.0, variance, None)
        layer.norm.eps = 1.0 - float(np.float32(variance))
        (tau,), (flip,) = (each.tolist() for each in thresholds(layer))
        found = [(value >= tau) != flip for value in around(-0.5 if slope > 0 else 0.5)]
        assert found == ([False, True, True] if slope > 0 else [True, True, False])


@pytest.mark.parametrize("bias", [-1.0, -0.0, 0.0, 2.0])
def test_a_slope_of_zero_gives_one_sign_for_all(bias: float) -> None:
    layer = normed(0.0, bias, 3.0, 1.0, None)
    x = torch.tensor([[-math.inf], [-1e38], [0.0], [1e38], [math.inf]])
    assert (layer.binary_input(x) == (1 if bias >= 0 else -1)).all()


@pytest.mark.parametrize(("slope", "below"), [(1e-30, -1), (-1e-30, 1)])
@pytest.mark.parametrize("bias", [1e30, -1e30])
def test_thresholds_beyond_all_numbers(slope: float, below: int, bias: float) -> None:
    layer = normed(slope, bias, 0.0, 1.0, None)
    x = torch.tensor([[-math.inf], [-3e38], [0.0], [3e38], [math.inf]])
    between = 1 if bias > 0 else -1
    assert layer.binary_input(x).flatten().tolist() == [below, between, between, between, -below]


def test_a_nan_is_not_beyond_any_threshold() -> None:
    nan = torch.tensor([[math.nan]])
    assert normed(1.0, 0.0, 0.0, 1.0, None).binary_input(nan).item() == -1
    assert normed(-1.0, 0.0, 0.0, 1.0, None).binary_input(nan).item() == 1  # false xor flip
    assert normed(1.0, 0.0, 0.0, 1.0, None).train()(torch.tensor([[math.nan], [1.0]])).isfinite().all()


def test_thresholds_are_as_wide_as_the_layer() -> None:
    assert [thresholds(BinaryLinear(2, 2).to(dtype))[0].dtype for dtype in (torch.float16, torch.float32)] == [
        torch.float32
    ] * 2
    assert thresholds(BinaryLinear(2, 2).double())[0].dtype is torch.float64
    assert not thresholds(BinaryLinear(2, 2))[0].requires_grad


# -- as modules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("form", FORMS)
def test_a_state_is_saved_and_loaded(form: str, estimator: str) -> None:
    arguments: dict[str, Any] = {"scale": form, "output_size": 5, "estimator": estimator}
    layer = shaken(BinaryConv2d(3, 4, 3, padding=1, bias=True, **arguments)).eval()
    other = BinaryConv2d(3, 4, 3, padding=1, bias=True, **arguments).eval()
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert f"scale='{form}'" in repr(layer) and f"estimator='{estimator}'" in repr(layer)


def test_scales_stay_positive_through_steps_that_cross_zero() -> None:
    torch.manual_seed(0)
    layer = BinaryConv2d(3, 4, 3, padding=1, scale="rank_one", output_size=(5, 5))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    crossed = False
    for _ in range(60):
        optimizer.zero_grad()
        x = torch.randn(8, 3, 5, 5)
        (layer(x) + 1).square().mean().backward()
        optimizer.step()
        clip_weights(layer)
        assert (layer.scale() > 0).all() and layer.weight.abs().max() <= 1
        crossed |= any(bool((factor < 0).any()) for factor in layer.factors.values())
    assert crossed


def test_real_weights_are_convolved_with_signs_and_not_scaled() -> None:
    layer = shaken(BinaryConv2d(3, 4, 3, bias=True)).eval()
    layer.real_weights = True
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), F.conv2d(layer.binary_input(x), layer.weight, layer.bias))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"scale='rank_one' has scales for rows and columns: give output_size"):
        BinaryConv2d(3, 4, 3, scale="rank_one")
    with pytest.raises(InvalidInput, match=r"scale must be one of analytic, .*, got 'rank1'"):
        BinaryConv2d(3, 4, 3, scale="rank1")
    with pytest.raises(InvalidInput, match=r"estimator must be one of clipped, approx_sign, rsign, got 'ste'"):
        BinaryLinear(3, 4, estimator="ste")
    with pytest.raises(InvalidInput, match=r"groups=2 must divide in_channels=3 and out_channels=4"):
        BinaryConv2d(3, 4, 3, groups=2)
    with pytest.raises(InvalidInput, match=r"kernel_size must be a whole number, or 2 of them, got \(3,\)"):
        BinaryConv2d(3, 4, (3,))
    with pytest.raises(InvalidInput, match=r"stride must be a whole number, or 1 of them, got 0"):
        BinaryConv1d(3, 4, 3, stride=0)
    with pytest.raises(InvalidInput, match=r"got 'same' for a kernel of 2×2 and a stride of 1×1"):
        BinaryConv2d(3, 4, 2, padding="same")
    assert BinaryConv2d(3, 4, 3, padding="valid").padding == (0, 0)


def test_inputs_that_do_not_fit_are_named() -> None:
    layer = BinaryConv2d(3, 4, 3, padding=1, scale="spatial", output_size=(5, 5))
    with pytest.raises(InvalidInput, match=r"for outputs of 5×5, but an input of shape \(2, 3, 4, 5\) gives .* 4×5"):
        layer(torch.zeros(2, 3, 4, 5))
    with pytest.raises(InvalidInput, match=r"of shape \(batch, 3, rows, columns\), got \(2, 4, 5, 5\)"):
        layer(torch.zeros(2, 4, 5, 5))
    with pytest.raises(InvalidInput, match=r"BinaryConv1d takes .* \(batch, 3, length\), got \(3, 5\)"):
        BinaryConv1d(3, 4, 3)(torch.zeros(3, 5))
    with pytest.raises(InvalidInput, match=r"of shape \(batch, …, 3\), got \(2, 4\)"):
        BinaryLinear(3, 4)(torch.zeros(2, 4))
    with pytest.raises(InvalidInput, match=r"Linear has no binary layer: make some with tamis.binary.binarize"):
        binary_layers(nn.Linear(2, 2))


def test_sums_near_the_largest_exact_one_are_exact() -> None:
    """All products +1, and all but one: n and n − 2 for many weights a neuron."""
    n = 20_000
    layer = BinaryLinear(n, 2).eval()
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.weight[1, 7] = -1.0
        layer.factors["alpha"].fill_(1.0)
        assert layer(torch.ones(1, n)).tolist() == [[n, n - 2]]


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_whole_numbers_of_the_right_parity(seed: int) -> None:
    layer = BinaryConv2d(16, 8, 3, padding=1).eval()
    with torch.no_grad():
        layer.factors["alpha"].fill_(1.0)
        x = torch.randn(2, 16, 12, 12, generator=torch.Generator().manual_seed(seed))
        inside = layer(x)[:, :, 1:-1, 1:-1]
    for value in inside.unique().tolist():
        assert value % 2 == 0 and abs(value) <= 144
