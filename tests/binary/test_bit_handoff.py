"""Where bits go from layer to layer, where floats must, and thresholds before a bias or an activation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.binary.bit_handoff import find_least_input
from tamis.binary.compile import compile
from tamis.binary.layers import BinaryConv1d, BinaryConv2d, BinaryLinear
from tamis.binary.packed_layers import packed_layers
from tamis.kernels import dispatch

NUMBERS = st.floats(width=32, allow_nan=False)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """With parameters and statistics other than those it begins with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            drawn = torch.randn(value.shape, generator=generator)
            value.copy_(drawn.abs() + 0.1 if name.endswith("running_var") else drawn)
    return model


def exchanged(model: nn.Module, *inputs: Tensor) -> list[tuple[bool, bool]]:
    """For each layer, whether it reads and gives bits, as seen while the compiled model runs; after comparing both."""
    torch.manual_seed(0)
    compiled, seen = compile(model), []

    def look(_module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        seen.append((given[0].dtype is torch.int64, result.dtype is torch.int64))

    with torch.no_grad():
        for x in inputs:
            assert torch.equal(compiled(x), copy.deepcopy(model).eval()(x))
        for layer in packed_layers(compiled).values():
            layer.register_forward_hook(look)
        compiled(inputs[0])
    assert {(layer.reads_bits, layer.gives_bits) for layer in packed_layers(compiled).values()} == {*seen}
    return seen


class Doubled(nn.Module):
    """Two layers with something between them that is no module."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.second = BinaryConv2d(6, 6, 3, padding=1), BinaryConv2d(6, 6, 3, padding=1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.between(self.first(x)))
        return result


class Residual(Doubled):
    """The first layer's output is read twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        result: Tensor = self.second(y) + y
        return result


class Choosing(Doubled):
    """What it does depends on the numbers that it is given."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return super().forward(x)


# -- where bits go -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "between",
    [
        [],
        [nn.Identity()],
        [nn.Dropout(), nn.Dropout2d()],
        [nn.ReLU()],
        [nn.ReLU6(), nn.Identity()],
        [nn.Hardtanh(-0.5, 0.25)],
        [nn.Sequential(nn.Dropout(), nn.ReLU())],
        [nn.BatchNorm2d(70)],
        [nn.BatchNorm2d(70), nn.ReLU(), nn.BatchNorm2d(70, affine=False), nn.Hardtanh()],
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_bits_go_through_what_needs_no_floats(between: list[nn.Module], bias: bool) -> None:
    first = BinaryConv2d(5, 70, 3, padding=1, bias=bias, scale="rank_one", output_size=6)
    second = BinaryConv2d(70, 6, 3, stride=2, groups=2, bias=bias)
    model = shaken(nn.Sequential(first, *copy.deepcopy(between), second))
    assert exchanged(model, torch.randn(3, 5, 6, 6)) == [(False, True), (True, False)]


def test_three_layers_signals_and_linear_layers() -> None:
    signals = nn.Sequential(BinaryConv1d(4, 9, 3), nn.ReLU(), BinaryConv1d(9, 6, 3, groups=3), BinaryConv1d(6, 2, 1))
    assert exchanged(shaken(signals), torch.randn(2, 4, 12)) == [(False, True), (True, True), (True, False)]
    linear = shaken(nn.Sequential(BinaryLinear(9, 65, bias=True), nn.Dropout(), BinaryLinear(65, 3)))
    assert exchanged(linear, torch.randn(4, 9), torch.randn(2, 3, 9)) == [(False, True), (True, False)]


@pytest.mark.parametrize(
    "between",
    [
        [nn.InstanceNorm2d(6)],
        [nn.MaxPool2d(2)],
        [nn.GELU()],
        [nn.Tanh()],
        [nn.BatchNorm2d(6), nn.Tanh()],
        [nn.Flatten(2)],
    ],
)
def test_what_needs_floats_keeps_them(between: list[nn.Module]) -> None:
    last = BinaryConv1d(6, 6, 1) if isinstance(between[0], nn.Flatten) else BinaryConv2d(6, 6, 1)
    model = shaken(nn.Sequential(BinaryConv2d(6, 6, 3, padding=1), *copy.deepcopy(between), last))
    assert exchanged(model, torch.randn(2, 6, 4, 4)) == [(False, False)] * 2


def test_functions_shortcuts_and_choices_keep_floats() -> None:
    for model in (Doubled(torch.relu), Doubled(lambda y: y * 2), Residual(nn.Identity()), Choosing(nn.Identity())):
        assert exchanged(shaken(model), torch.randn(2, 6, 5, 5)) == [(False, False)] * 2
    assert exchanged(shaken(Doubled(nn.ReLU())), torch.randn(2, 6, 5, 5)) == [(False, True), (True, False)]


def test_a_layer_or_an_activation_that_is_used_twice_keeps_floats() -> None:
    twice = BinaryConv2d(6, 6, 3, padding=1)
    model = shaken(nn.Sequential(twice, twice, BinaryConv2d(6, 6, 1)))
    assert exchanged(model, torch.randn(2, 6, 5, 5)) == [(False, False)] * 3
    relu = nn.ReLU()
    layers = [BinaryConv2d(6, 6, 1) for _ in range(3)]
    model = shaken(nn.Sequential(layers[0], relu, layers[1], relu, layers[2]))
    assert exchanged(model, torch.randn(2, 6, 5, 5)) == [(False, False)] * 3


def test_a_hook_between_them_sees_floats() -> None:
    model = nn.Sequential(BinaryConv2d(6, 6, 1), nn.ReLU(), BinaryConv2d(6, 6, 1))
    model[1].register_forward_hook(lambda _module, given, _result: given[0] * 3)
    assert exchanged(shaken(model), torch.randn(2, 6, 5, 5)) == [(False, False)] * 2


@pytest.mark.parametrize("changes", [True, False])
def test_a_hook_of_a_container_sees_floats_and_no_compiling(changes: bool) -> None:
    seen: list[Any] = []

    def look(_module: nn.Module, _given: Any, result: Tensor) -> Tensor | None:
        seen.append(result)
        return result - 3 if changes else None

    first, last = nn.Sequential(BinaryConv2d(6, 6, 1), nn.ReLU()), nn.Sequential(BinaryConv2d(6, 6, 1))
    first.register_forward_hook(look)
    model, x = shaken(nn.Sequential(first, last)).eval(), torch.randn(2, 6, 5, 5)
    compiled = compile(model)
    assert not seen
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert torch.equal(*seen)


def test_what_a_container_with_a_hook_shares_stays() -> None:
    relu = nn.ReLU()
    hooked = nn.Sequential(nn.Conv2d(6, 6, 1), relu)
    hooked.register_forward_hook(lambda *_: None)
    model = shaken(nn.Sequential(hooked, BinaryConv2d(6, 6, 1), relu, BinaryConv2d(6, 6, 1)))
    assert exchanged(model, torch.randn(2, 6, 5, 5)) == [(False, False)] * 2


@pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())
def test_bits_through_norms_of_every_slope() -> None:
    torch.manual_seed(0)
    for convolution, norm, size in ((BinaryConv2d, nn.BatchNorm2d, (9, 9)), (BinaryConv1d, nn.BatchNorm1d, (40,))):
        model = shaken(nn.Sequential(convolution(5, 66, 3), norm(66), nn.ReLU(), convolution(66, 7, 3)))
        with torch.no_grad():
            model[1].weight[::5] = 0.0
            model[1].weight[1::5] *= 1e-8
            model[1].weight[2::5] *= 1e8
            model[3].norm.weight[::3] = 0.0
            model[3].norm.bias[::2] = 0.0
            model[3].norm.running_mean[::2] = 0.0  # compares with 0, which a ReLU gives often
        assert exchanged(model, torch.randn(6, 5, *size)) == [(False, True), (True, False)]


# -- thresholds --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NUMBERS, FINITE), min_size=1, max_size=20), st.sampled_from(["none", "relu", "clamp"]))
def test_the_least_input_is_enough_and_the_one_before_it_is_not(pairs: list[tuple[float, float]], after: str) -> None:
    tau, bias = torch.tensor(pairs, dtype=torch.float32).T
    functions = {"none": lambda y: y, "relu": torch.relu, "clamp": lambda y: y.clamp(-2, 3)}

    def function(y: Tensor) -> Tensor:
        result: Tensor = functions[after](y + bias)
        return result

    least = find_least_input(function, tau)
    possible = ~least.isnan()
    assert torch.equal(possible, function(torch.full_like(tau, torch.inf)) >= tau)
    assert (function(least) >= tau)[possible].all()
    before = least.nextafter(torch.tensor(-torch.inf))
    assert ((function(before) < tau) | (least == -torch.inf) | (before == least))[possible].all()


def test_thresholds_that_are_not_numbers_stay_so() -> None:
    assert find_least_input(lambda y: y + 1, torch.tensor([torch.nan])).isnan().all()
