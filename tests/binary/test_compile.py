"""Compiled networks give what trained layers give in evaluation, bit for bit, in 1/30 of the memory."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from tamis.binary import BinaryConv1d, BinaryConv2d, BinaryLinear, binarize, compile, train_binary
from tamis.binary.estimators import ESTIMATORS
from tamis.binary.packed_layers import PackedConv1d, PackedConv2d, PackedLinear, packed_layers
from tamis.binary.scales import FORMS
from tamis.binary.two_stage import with_real_weights
from tamis.errors import InvalidInput
from tamis.kernels import dispatch, pack_weight
from tamis.training import Settings, load_data
from tamis.training.models import digits_cnn, mlp, resnet20


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """With statistics and parameters as after some training: slopes of both signs, and zero among them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(draw(parameter) * 0.3)
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.copy_(draw(module.running_mean) * 0.3)
                module.running_var.copy_(draw(module.running_var).abs() + 0.1)
                module.weight.copy_(draw(module.weight))
                module.weight[0] = 0.0
    return model


def check_equal(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """The compiled model, after comparing what it gives."""
    compiled = compile(model)
    with torch.no_grad():
        for x in inputs:
            expected = copy.deepcopy(model).eval()(x)
            assert torch.equal(compiled(x), expected)
    return compiled


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, int]]:
    """Arguments of a convolution, and the rows and columns of an image that it fits."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    sizes = {name: (draw(st.integers(1, 3)), draw(st.integers(1, 3))) for name in ("kernel_size", "stride", "dilation")}
    padding = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(sizes["kernel_size"], sizes["dilation"], padding, strict=True)]
    rows, columns = (max(length, 1) + draw(st.integers(0, 6)) for length in least)
    return {
        "in_channels": groups * draw(st.sampled_from([1, 3, 8, 64, 65])),
        "out_channels": groups * draw(st.sampled_from([1, 5, 8, 17])),
        **sizes,
        "padding": padding,
        "groups": groups,
        "bias": draw(st.booleans()),
        "scale": draw(st.sampled_from(FORMS)),
        "estimator": draw(st.sampled_from(ESTIMATORS)),
    }, (rows, columns)


# -- single layers -----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(convolutions(), st.integers(0, 2**31))
def test_convolutions_of_every_geometry(case: tuple[dict[str, Any], tuple[int, int]], seed: int) -> None:
    arguments, size = case
    torch.manual_seed(seed)
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    like = nn.Conv2d(**{name: arguments[name] for name in names})
    x = torch.randn(2, arguments["in_channels"], *size)
    layer = shaken(BinaryConv2d(**arguments, output_size=tuple(like(x).shape[2:])), seed)
    assert isinstance(check_equal(layer, x), PackedConv2d)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_signals_and_linear_layers(form: str, estimator: str) -> None:
    torch.manual_seed(1)
    options: dict[str, Any] = {"scale": form, "estimator": estimator, "bias": True}
    signals = BinaryConv1d(6, 10, 5, stride=2, padding=3, dilation=2, groups=2, **options, output_size=9)
    assert isinstance(check_equal(shaken(signals), torch.randn(3, 6, 19)), PackedConv1d)
    linear = shaken(BinaryLinear(130, 20, **options))
    shapes = ((4, 130), (2, 3, 130), (2, 1, 3, 130))
    assert isinstance(check_equal(linear, *(torch.randn(shape) for shape in shapes)), PackedLinear)


def test_a_number_at_its_threshold_and_what_is_not_a_number() -> None:
    torch.manual_seed(0)
    layer = shaken(BinaryConv2d(8, 4, 1)).eval()
    assert isinstance(layer, BinaryConv2d)
    compiled = compile(layer)
    assert isinstance(compiled, PackedConv2d)
    tau = compiled.thresholds.nan_to_num(neginf=0.0)
    edges = [tau, tau.nextafter(torch.tensor(torch.inf)), tau.nextafter(torch.tensor(-torch.inf))]
    edges += [torch.full((8,), value) for value in (torch.nan, torch.inf, -torch.inf, 0.0, -0.0)]
    x = torch.stack(edges)[:, :, None, None]
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("kernel", ["torch", "plain"])
def test_without_the_extension_and_in_the_plainest_kernel(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "plain" and dispatch.native() is None:
        pytest.skip("the extension is not built")
    monkeypatch.setattr("tamis.kernels.binary.kernel_name", lambda: kernel)
    model = nn.Sequential(BinaryConv2d(70, 9, 3, stride=2, padding=1, bias=True), nn.ReLU(), BinaryConv2d(9, 5, 3))
    check_equal(shaken(model), torch.randn(2, 70, 9, 7))


# -- networks ----------------------------------------------------------------------------------------------------------


def vgg() -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, epilogue in ((3, 16), (16, 16), (16, 24), (24, 24)):
        layers += [nn.Conv2d(channels, epilogue, 3, padding=1), nn.BatchNorm2d(epilogue), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if channels == epilogue else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * 9, 32), nn.ReLU(), nn.Linear(32, 10))


def one_dimensional() -> nn.Sequential:
    first = [nn.Conv1d(2, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 3, stride=2)]
    second = [nn.ReLU(), nn.Conv1d(24, 24, 3, groups=4), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5)]
    return nn.Sequential(*first, *second)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (vgg, (3, 12, 12)),
        (lambda: mlp((64, 70, 33, 10), batch_norm=True), (1, 8, 8)),
        (one_dimensional, (2, 40)),
        (digits_cnn, (1, 8, 8)),
    ],
)
@pytest.mark.parametrize("scale", FORMS)
def test_networks(model: Any, shape: tuple[int, ...], scale: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, *shape)
    binary = shaken(binarize(model(), example=x, scale=scale))
    compiled = check_equal(binary, x, x[:1])
    assert compiled(x).std() > 0
    assert packed_layers(compiled) and type(compiled) is type(binary)


def test_a_residual_network_whose_shortcuts_are_binary_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    compiled = check_equal(shaken(binarize(resnet20(), example=x)), x)
    assert len(packed_layers(compiled)) >= 18


def test_a_layer_that_is_used_twice_and_weights_that_are_tied() -> None:
    torch.manual_seed(0)
    shared, other = BinaryConv2d(6, 6, 3, padding=1), BinaryConv2d(6, 6, 3, padding=1)
    other.weight = shared.weight
    model = shaken(nn.Sequential(shared, nn.BatchNorm2d(6), shared, nn.BatchNorm2d(6), other))
    compiled = check_equal(model, torch.randn(2, 6, 5, 5))
    assert isinstance(compiled, nn.Sequential) and compiled[0] is compiled[2]


def test_a_network_trained_on_digits_answers_the_same_on_every_test_image() -> None:
    torch.manual_seed(0)
    data, test = load_data("digits:train[:500]"), load_data("digits:test")
    binary = binarize(digits_cnn(12), example=data.example)
    how = Settings(epochs=3, batch=50, optimizer="adamw", learning_rate=5e-3, weight_decay=0.0)
    trained = train_binary(binary, data, how, first=how, test=test, progress=False)
    compiled, x = compile(trained.model), test.normalised()
    with torch.no_grad():
        scores, expected = compiled(x), trained.model(x)
    assert torch.equal(scores, expected)
    accuracy = float((scores.argmax(1) == test.labels).float().mean())
    assert accuracy == pytest.approx(trained.history[-1].test_accuracy) and accuracy > 0.5


# -- what a compiled network is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["channel", "rank_one", "spatial", "analytic"])
def test_512_channels_take_a_thirtieth_of_their_floats(scale: str) -> None:
    layer = BinaryConv2d(512, 512, 3, padding=1, scale=scale, output_size=14)
    compiled = compile(layer)
    assert not [*compiled.parameters()]
    assert torch.equal(compiled.bits, pack_weight(layer.weight))
    assert sum(value.nbytes for value in compiled.buffers()) <= layer.weight.nbytes / 30
    assert sum(value.nbytes for value in compiled.state_dict().values()) <= layer.weight.nbytes / 30


def test_the_model_is_left_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(BinaryConv2d(4, 6, 3), nn.Dropout(), BinaryConv2d(6, 4, 1), nn.ReLU()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = compile(model)
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in compiled.modules())
    assert [type(module) for module in model] == [BinaryConv2d, nn.Dropout, BinaryConv2d, nn.ReLU]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        model[0].weight.neg_()
        x = torch.randn(2, 4, 5, 5)
        assert not torch.equal(model.eval()(x), compiled(x))


def test_it_can_be_copied_pickled_and_given_its_state_again() -> None:
    torch.manual_seed(0)
    model = shaken(nn.Sequential(BinaryLinear(20, 70), nn.ReLU(), BinaryLinear(70, 5, bias=True)))
    x = torch.randn(4, 20)
    compiled = check_equal(model, x)
    other = compile(shaken(copy.deepcopy(model), seed=7))
    other.load_state_dict(compiled.state_dict())
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), other):
        assert torch.equal(again(x), compiled(x))


@pytest.mark.slow
def test_torch_export_and_torch_compile_pass_it_through() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 3, 6, 6)
    compiled = check_equal(shaken(binarize(vgg()[:10], keep="first", example=x)), x)  # two binary layers of three
    program = torch.export.export(compiled, (x,), dynamic_shapes=({0: Dim("batch")},))
    operations = {str(node.target) for node in program.graph.nodes}
    assert "tamis.binary_conv2d.default" in operations
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    assert all(torch.equal(loaded(x[:size]), compiled(x[:size])) for size in (2, 3))
    whole = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(whole(x), compiled(x))


class ReadingAlong(nn.Module):
    """Reads a parameter besides calling a layer."""

    def __init__(self, read: Callable[[ReadingAlong], Tensor]) -> None:
        super().__init__()
        self.layer, self.tied, self.read = BinaryLinear(6, 6, bias=True), nn.Linear(6, 6), read

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.read(self)


def test_a_bias_and_a_weight_that_is_tied_may_be_read() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 6)
    check_equal(shaken(ReadingAlong(lambda model: model.layer.bias)), x)
    model = ReadingAlong(lambda model: model.tied.weight)
    model.tied.weight = model.layer.weight
    check_equal(shaken(model), x)


# -- what is refused ---------------------------------------------------------------------------------------------------


def hooked() -> nn.Module:
    model = nn.Sequential(BinaryLinear(3, 2))
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (nn.Linear(2, 2), "Linear has no binary layer: make some with tamis.binary.binarize"),
        (with_real_weights(nn.Sequential(BinaryLinear(3, 2))), "'0' has real weights, as in the first stage"),
        (nn.Sequential(BinaryLinear(3, 2)).double(), "'0' computes in torch.float64, compiled layers in float32"),
        (hooked(), "'0' has forward hooks"),
        (
            ReadingAlong(lambda model: model.layer.weight),
            "reads 'layer.weight', which 'layer' does not have",
        ),
        (ReadingAlong(lambda model: model.layer.norm.weight), "reads 'layer.norm.weight', which 'layer' does not have"),
        (nn.Sequential(BinaryLinear(1 << 22, 1)), "'0' has 4,194,304 weights a filter"),
    ],
)
def test_errors_name_the_layer(model: nn.Module, part: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        compile(model)
    assert part in str(raised.value)


def test_an_input_of_another_size_than_the_scale_is_refused() -> None:
    compiled = compile(BinaryConv2d(3, 4, 3, scale="rank_one", output_size=5))
    assert compiled(torch.randn(1, 3, 7, 7)).shape == (1, 4, 5, 5)
    with pytest.raises(InvalidInput, match="needs scales of shapes"):
        compiled(torch.randn(1, 3, 8, 8))
    with pytest.raises(InvalidInput, match="needs float32"):
        compiled(torch.randn(3, 7, 7))
