"""Networks of every kind as XNOR-Nets."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import tamis
from tamis.binary.conversion import binarize
from tamis.binary.layers import BinaryConv1d, BinaryConv2d, BinaryLinear, binary_layers
from tamis.binary.scales import FORMS, SPATIAL_FORMS
from tamis.errors import InvalidInput
from tamis.training.models import MODELS, cnn1d, example_input, mlp, resnet20, vgg_small

KINDS = ["mlp", "digits_cnn", "vgg_small", "resnet20", "cnn1d", "mobilenet_small", "unet_small", "vit_tiny_test"]


def built(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name]()


@pytest.mark.parametrize("name", KINDS)
def test_a_network_is_made_binary_and_left_alone(name: str) -> None:
    model, x = built(name), example_input(name)
    state = copy.deepcopy(model.state_dict())
    modules = [type(module) for module in model.modules()]
    random = torch.get_rng_state()
    binary = binarize(model, example=x)
    assert torch.equal(torch.get_rng_state(), random)
    assert [type(module) for module in model.modules()] == modules and model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert binary(x).shape == copy.deepcopy(model)(x).shape
    owners = {parameter.data_ptr() for parameter in model.parameters()}
    assert not owners & {parameter.data_ptr() for parameter in binary.parameters()}
    for place, layer in binary_layers(binary).items():
        assert torch.equal(layer.weight, state[f"{place}.weight"])
        assert layer.form == "rank_one" and layer.training


def test_first_and_last_stay_real_and_everything_between_is_binary() -> None:
    layers = binary_layers(binarize(resnet20(), example=torch.zeros(1, 3, 32, 32)))
    assert list(layers) == [f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1, 2) for c in (1, 2)]
    assert all(isinstance(layer, BinaryConv2d) for layer in layers.values())
    assert layers["layer2.0.conv1"].output_size == (16, 16) and layers["layer3.2.conv2"].output_size == (8, 8)
    kinds = [type(layer) for layer in binary_layers(binarize(vgg_small(), example=torch.zeros(1, 3, 32, 32))).values()]
    assert kinds == [BinaryConv2d] * 5 + [BinaryLinear]
    assert list(binary_layers(binarize(mlp()))) == ["linear2"]
    signals = binary_layers(binarize(cnn1d(), example=torch.zeros(1, 1, 64)))
    assert {name: type(layer) for name, layer in signals.items()} == dict.fromkeys(
        ["features.4", "features.8"], BinaryConv1d
    )


def test_keep_takes_places_names_and_patterns() -> None:
    model, x = resnet20(), torch.zeros(1, 3, 32, 32)
    everything = list(binary_layers(binarize(model, keep=(), example=x)))
    assert everything[0] == "conv1" and everything[-1] == "linear" and len(everything) == 20
    assert list(binary_layers(binarize(model, keep="first", example=x))) == everything[1:]
    some = binary_layers(binarize(model, keep=("last", "layer1", "*.conv2"), example=x))
    assert list(some) == ["conv1", *(f"layer{s}.{b}.conv1" for s in (2, 3) for b in (0, 1, 2))]
    with pytest.raises(InvalidInput, match="keep names 'layer4', which matches no layer; there are conv1, layer1"):
        binarize(model, keep="layer4", example=x)
    with pytest.raises(InvalidInput, match=r"keep='\*' leaves no layer to binarize; there are conv1"):
        binarize(model, keep="*", example=x)


def test_places_are_those_of_execution_where_there_is_an_example() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.middle = nn.Linear(4, 4)
            self.stem = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.middle(self.stem(x)))

    assert list(binary_layers(binarize(Backwards(), keep="first", example=torch.zeros(1, 4)))) == ["head", "middle"]
    assert list(binary_layers(binarize(Backwards(), keep="first"))) == ["middle", "stem"]


@pytest.mark.parametrize("form", FORMS)
def test_an_example_is_needed_where_scales_have_rows_and_columns(form: str) -> None:
    if form in SPATIAL_FORMS:
        with pytest.raises(InvalidInput, match=rf"scale='{form}' has .* of 'layer1.0.conv1': give an example"):
            binarize(resnet20(), scale=form)
    else:
        assert len(binary_layers(binarize(resnet20(), scale=form))) == 18
    assert {layer.form for layer in binary_layers(binarize(mlp(), scale=form)).values()} == {form}


def test_what_the_layer_was_it_is() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grouped = nn.Conv2d(4, 8, 3, stride=2, padding=(1, 2), groups=2, dilation=2, bias=True)
            self.depthwise = nn.Conv2d(8, 8, (3, 1), padding="same", groups=8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.depthwise(self.grouped(x))

    model, x = Odd(), torch.randn(2, 4, 11, 9, generator=torch.Generator().manual_seed(0))
    binary = binarize(model, keep=(), example=x)
    assert binary(x).shape == model(x).shape
    grouped, depthwise = binary_layers(binary).values()
    assert grouped.bias is not None and torch.equal(grouped.bias, model.get_parameter("grouped.bias"))
    assert depthwise.bias is None


def test_modules_and_weights_that_are_shared_stay_so() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first_one = nn.Linear(4, 4)
            self.again = self.first_one
            self.tied = nn.Linear(4, 4)
            self.tied.weight = self.first_one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.tied(self.again(self.first_one(x)))

    binary = binarize(Shared(), keep=())
    assert binary.first_one is binary.again
    assert binary.tied.weight is binary.first_one.weight
    assert binary.tied is not binary.first_one


def test_a_layer_for_two_sizes_takes_a_scale_of_channels_only() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.conv(x))

    x = torch.zeros(2, 2, 8, 8)
    with pytest.raises(InvalidInput, match=r"'conv' is used more than once, .* choose scale='channel', or keep it"):
        binarize(Twice(), keep=(), example=x)
    assert binarize(Twice(), keep=(), example=x, scale="channel")(x).shape == (2, 2, 4, 4)


def test_what_cannot_be_is_refused_in_the_users_words() -> None:
    with pytest.raises(InvalidInput, match=r"binarize needs an nn\.Module, got str"):
        binarize("resnet20")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="ReLU has no linear or convolutional layer"):
        binarize(nn.ReLU())
    with pytest.raises(InvalidInput, match=r"'0' pads with padding_mode='circular'.*keep=\(…, '0'\)"):
        binarize(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")), keep=(), scale="channel")
    with pytest.raises(InvalidInput, match=r"CifarResNet does not take the example, of shape \(1, 1, 32, 32\)"):
        binarize(resnet20(), example=torch.zeros(1, 1, 32, 32))
    with pytest.raises(InvalidInput, match="scale must be one of"):
        binarize(mlp(), scale="rank1")
    with pytest.raises(InvalidInput, match="estimator must be one of"):
        binarize(mlp(), estimator="ste")
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert type(normed) is not nn.Linear  # a parametrized layer is of a class of its own, and stays as it is
    with pytest.raises(InvalidInput, match="no linear or convolutional layer"):
        binarize(normed)
    pruned = prune.identity(nn.Linear(2, 2), "weight")
    with pytest.raises(InvalidInput, match="the weight of '0' is no parameter of its own"):
        binarize(nn.Sequential(pruned))


def test_a_layer_alone_is_replaced_itself() -> None:
    layer = nn.Linear(4, 3).double().eval()
    binary = binarize(layer, keep=())
    assert isinstance(binary, BinaryLinear) and not binary.training
    assert binary(torch.zeros(2, 4, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("mlp", "clipped"),
        ("signals", "rsign"),
        pytest.param("vgg_small", "approx_sign", marks=pytest.mark.slow),
        pytest.param("resnet20", "clipped", marks=pytest.mark.slow),
    ],
)
def test_a_binary_network_is_traced_to_the_bit(name: str, estimator: str) -> None:
    if name == "signals":
        x = torch.randn(4, 2, 9)
        model: nn.Module = nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.Conv1d(4, 3, 3, padding=1), nn.Flatten(), nn.Linear(21, 2)
        )
    else:
        x, model = example_input(name, batch=4), built(name)
    binary = binarize(model, example=x, estimator=estimator)
    binary.train()(x)  # statistics of some data
    binary.eval()
    net = tamis.trace(binary, x)
    assert net.batched
    assert torch.equal(net(x[:3]), binary(x[:3]).detach())
    exported = torch.export.export(binary, (x,)).module()
    assert torch.equal(exported(x), binary(x))


def test_states_go_from_one_binary_network_to_another() -> None:
    x = example_input("resnet20")
    one, other = (binarize(built("resnet20", seed), example=x).eval() for seed in (0, 1))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))
