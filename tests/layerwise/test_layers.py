"""Which layers are found in which networks, how they are described, and where a change of their means can go."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from hypothesis import HealthCheck, given, settings
from quantization.networks import network
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput
from tamis.graph import Network, Node
from tamis.layerwise.layer_matrices import ConvolutionLayout, DenseLayout, TransposedConvolutionLayout
from tamis.layerwise.layers import Layer, Shift, find_layers
from tamis.training.models import MODELS, example_input

SMALL = ("mlp", "cnn1d", "resnet", "gcn")  # those that quantizers are tested on
LARGER = ("digits_cnn", "vgg_small", "unet_small", "mobilenet_small", "vit_tiny_test", "densenet_small")
slow_tracing = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def traced(name: str) -> tuple[nn.Module, Network]:
    if name in SMALL:
        net, model, _ = network(name)
        return model, net
    model = MODELS[name]()
    return model, tamis.trace(model, example_input(name))


def found(model: nn.Module, example: Any, **choices: Any) -> tuple[Layer, ...]:
    return layers_of(tamis.trace(model.eval(), example), **choices)


def layers_of(net: Network, include: Any = None, exclude: Any = None, conv: Any = "joint") -> tuple[Layer, ...]:
    return find_layers(net, include, exclude, conv, done="tested")


def modules_with_weights(model: nn.Module) -> list[str]:
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    return [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kinds)]


class Of(nn.Module):
    """A function of the input and of parameters."""

    def __init__(self, function: Any, **weights: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        for name, shape in weights.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *[getattr(self, name) for name, _ in self.named_parameters(recurse=False)])


# -- networks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)])
def test_every_weight_of_the_models_is_found(name: str) -> None:
    """Once, in the order in which data comes by, with the module's own bias or the batch-norm after it."""
    model, net = traced(name)
    layers = layers_of(net)
    names = [layer.weight for layer in layers]
    assert sorted(names) == sorted(modules_with_weights(model))
    places = {node.name: place for place, node in enumerate(net.nodes)}
    assert [places[layer.node.name] for layer in layers] == sorted(places[layer.node.name] for layer in layers)
    for layer in layers:
        assert layer.layout.shape == tuple(net.params[layer.weight].shape)
        assert math.prod(layer.layout.shape) == layer.layout.problems * layer.layout.neurons * layer.layout.features


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in (*SMALL, *LARGER)])
def test_every_weight_of_large_models_is_found(name: str) -> None:
    model, net = traced(name)
    assert {layer.weight for layer in layers_of(net)} == set(modules_with_weights(model))


def test_kinds_of_layers() -> None:
    """And every weight is found, in the order in which data comes by, with the bias of its own module."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Conv2d(4, 4, 3, groups=4, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        nn.Linear(4, 3),
    )
    layers = found(model, torch.zeros(2, 2, 6, 6))
    assert [layer.weight for layer in layers] == [f"{i}.weight" for i in (0, 1, 3, 4)]
    assert [layer.bias for layer in layers] == ["0.bias", None, "3.bias", "4.bias"]
    kinds = [type(layer.layout) for layer in layers]
    assert kinds == [ConvolutionLayout, ConvolutionLayout, TransposedConvolutionLayout, DenseLayout]
    assert [layer.layout.groups for layer in layers] == [1, 4, 1, 1] and layers[1].layout.shape == (4, 1, 3, 3)


def test_shifts_of_a_resnet() -> None:
    """Of every convolution the batch-norm that follows, of the last layer its bias."""
    layers = layers_of(traced("resnet")[1])
    assert all(layer.shift is not None for layer in layers)
    *convolutions, last = layers
    for layer in convolutions:
        assert layer.shift is not None and layer.bias is None
        assert layer.shift.sign == -1 and layer.shift.name.endswith("running_mean")
    assert last.shift == Shift(str(last.bias), +1)


def test_per_channel_changes_convolutions_only() -> None:
    _, net = traced("cnn1d")
    for joint, apart in zip(layers_of(net), layers_of(net, conv="per_channel"), strict=True):
        assert (joint.weight, joint.shift) == (apart.weight, apart.shift)
        shape = joint.layout.shape
        assert apart.layout.features == (shape[1] if len(shape) == 2 else math.prod(shape[2:]))
        assert joint.layout.features == math.prod(shape[1:])


# -- operations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (4, 4, 4)], ids=str)
def test_matmul(shape: tuple[int, ...]) -> None:
    (layer,) = found(Of(lambda x, w: x @ w, w=(4, 3)), torch.zeros(2, *shape))
    assert (
        isinstance(layer.layout, DenseLayout) and layer.layout.transposed and layer.bias is None and layer.shift is None
    )


def test_addmm() -> None:
    (layer,) = found(Of(lambda x, b, w: torch.addmm(b, x, w), b=(3,), w=(4, 3)), torch.zeros(2, 4))
    assert (layer.weight, layer.bias, layer.shift) == ("w", "b", Shift("b", 1)) and layer.layout.features == 4


@pytest.mark.parametrize("shape", [(), (1,), (1, 3)], ids=str)
def test_a_bias_without_a_number_for_each_output_takes_up_nothing(shape: tuple[int, ...]) -> None:
    net = tamis.trace(Of(lambda x, b, w: torch.addmm(b, x, w), b=shape, w=(4, 3)), torch.zeros(2, 4))
    (layer,) = layers_of(net)
    assert layer.weight == "w" and layer.bias is None and layer.shift is None
    x = torch.randn(40, 4)
    small = tamis.repair(net, tamis.prune(net, 6, by="magnitude"), x, progress=False)
    assert torch.equal(small.params["b"], net.params["b"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, b, w: torch.addmm(b, x, w, alpha=2),
        lambda x, b, w: torch.addmm(b, x, w, beta=0.5),
        lambda x, b, w: torch.addmm(2 * b, x, w),
        lambda x, b, w: x + b.sum() + w.sum(),
        lambda x, b, w: (w.T @ x.T).T + b,
    ],
)
def test_what_is_no_layer(function: Any) -> None:
    with pytest.raises(InvalidInput, match=r"nothing can be tested: .* no linear or convolution layer"):
        found(Of(function, b=(4,), w=(4, 4)), torch.zeros(2, 4))


def test_products_of_data_with_data_are_no_layers() -> None:
    """Attention's: only the projections are."""

    def attention(x: Tensor, w: Tensor) -> Tensor:
        q = x @ w
        return torch.softmax(q @ x.transpose(1, 2), 2) @ x

    (layer,) = found(Of(attention, w=(4, 4)), torch.zeros(2, 3, 4))
    assert layer.weight == "w"


def test_fixed_matrices_are_no_weights() -> None:
    """What is in no optimizer's hands: a filter kept as a buffer."""

    class Filtered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("fixed", torch.randn(4, 3))
            self.constant = torch.randn(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layer(x)) @ self.fixed @ self.constant

    assert [layer.weight for layer in found(Filtered(), torch.zeros(2, 4))] == ["layer.weight"]


# -- tied, computed, chosen ----------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight
        self.second.bias = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.second(F.relu(self.first(x)))))


def test_tied_weights_are_chosen_where_data_meets_them_first() -> None:
    net = tamis.trace(Tied(), torch.zeros(1, 4))
    first, last = layers_of(net)
    assert first.weight == "first.weight" and first.node.module == "first" and last.weight == "last.weight"
    assert first.bias == "first.bias" and first.shift is None  # which others read, too
    (alone,) = layers_of(net, include="second")
    assert alone.weight == "first.weight"


def test_a_tied_embedding_is_refused() -> None:
    """It would already have been read, with its old values, when the layer comes."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner, self.out = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
            self.out.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.relu(self.inner(self.words(x))))

    example = torch.zeros(2, 3, dtype=torch.int64)
    net = tamis.trace(Words(), example)
    with pytest.raises(InvalidInput, match=r"'words.weight' cannot be tested: 'aten.embedding.default' at words reads"):
        layers_of(net)
    assert [layer.weight for layer in layers_of(net, exclude="words.weight")] == ["inner.weight"]
    assert [layer.weight for layer in layers_of(net, exclude="out")] == ["inner.weight"]


def test_a_weight_that_something_was_computed_from_before_is_refused() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        size = w.abs().sum()
        return F.linear(x, w) / size

    with pytest.raises(InvalidInput, match=r"'w' cannot be tested: 'aten.abs.default' at .* reads it before the layer"):
        found(Of(function, w=(4, 4)), torch.zeros(1, 4))


def test_weights_under_a_parametrization_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    net = tamis.trace(model, torch.zeros(1, 4))
    name = r"'2\.parametrizations\.weight\.original[01]'"
    with pytest.raises(InvalidInput, match=rf"{name} cannot be tested: the weight at 2.* is computed from it; bake .*"):
        layers_of(net)
    (layer,) = layers_of(net, exclude="2")
    assert layer.weight == "0.weight"


def test_include_and_exclude() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    net = tamis.trace(model, torch.zeros(1, 4))

    def names(**choices: Any) -> list[str]:
        return [layer.weight for layer in layers_of(net, **choices)]

    assert names() == ["0.weight", "2.weight", "4.weight"]
    assert names(include=["4", "0.*"]) == ["0.weight", "4.weight"]
    assert names(exclude="2.weight") == ["0.weight", "4.weight"]
    assert names(include="[02]", exclude="0") == ["2.weight"]
    with pytest.raises(InvalidInput, match=r"'1' matches no parameter that can be tested; these can: "):
        names(include="1")
    with pytest.raises(InvalidInput, match=r"'0\.bias' matches no parameter"):
        names(exclude="0.bias")
    with pytest.raises(InvalidInput, match="nothing is left to be tested"):
        names(exclude="*")
    with pytest.raises(InvalidInput, match="conv must be 'joint' or 'per_channel', got 'both'"):
        names(conv="both")


# -- shifts --------------------------------------------------------------------------------------------------------


def normed(channels: int, kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    norm = kind(channels).double().eval()
    with torch.no_grad():
        for value in norm.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, dtype=value.dtype) + 0.5)
    return norm


def moved_and_undone(net: Network, layer: Layer) -> tuple[Network, Network]:
    """The network with a constant added to each output channel of a layer; and with the shift set to take it up."""
    constant = normal(torch.Generator().manual_seed(0), layer.layout.channels)
    assert layer.shift is not None

    def moved(*args: Any, **kwargs: Any) -> Tensor:
        return layer.node.target(*args, **kwargs) + constant.reshape(-1, *[1] * layer.spatial_axes)

    nodes = tuple(Node(node.name, moved, node.args, node.kwargs) if node is layer.node else node for node in net.nodes)
    spoilt = net.replace(nodes=nodes)
    shift = {layer.shift.name: net.params[layer.shift.name] - layer.shift.sign * constant}
    return spoilt, spoilt.with_params(shift)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(4, 3), (4,)),
        (nn.Linear(4, 3), (2, 4)),
        (nn.Conv1d(2, 4, 3, groups=2), (2, 5)),
        (nn.Conv2d(2, 4, 3, padding="same"), (2, 5, 4)),
        (nn.Conv3d(2, 4, 2), (2, 3, 3, 3)),
        (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), (4, 3, 3)),
        (nn.Sequential(nn.Linear(4, 3, bias=False), normed(3, nn.BatchNorm1d)), (4,)),
        (nn.Sequential(nn.Conv1d(2, 3, 2, bias=False), normed(3, nn.BatchNorm1d)), (2, 4)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, bias=False, groups=2), normed(4)), (2, 5, 4)),
        (nn.Sequential(nn.Conv2d(2, 4, 3), normed(4)), (2, 5, 4)),
        (nn.Sequential(nn.Conv3d(2, 3, 2, bias=False), normed(3, nn.BatchNorm3d)), (2, 3, 3, 3)),
        (nn.Sequential(nn.ConvTranspose2d(4, 3, 2, bias=False), normed(3)), (4, 3, 3)),
    ],
)
def test_the_shift_undoes_a_constant(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = normal(torch.Generator().manual_seed(1), 3, *shape)
    net = tamis.trace(model.double().eval(), x)
    (layer,) = layers_of(net)
    spoilt, undone = moved_and_undone(net, layer)
    assert not torch.allclose(spoilt(x), net(x))
    torch.testing.assert_close(undone(x), net(x))


@slow_tracing
@given(dags())
def test_the_shift_undoes_a_constant_in_any_network(module: Dag) -> None:
    x = module.example(3)
    net = tamis.trace(module, x)
    for layer in layers_of(net):
        if layer.shift is not None:
            torch.testing.assert_close(moved_and_undone(net, layer)[1](x), net(x))


def test_where_nothing_can_take_up_a_shift() -> None:
    """The batch-norm's channels are not the layer's, something else reads the outputs, or another the means."""

    class TwoReaders(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.norm(y) + y

    class TwoLayers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(2, 3, 1, bias=False), nn.Conv2d(3, 3, 1, bias=False)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.second(self.norm(self.first(x))))

    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.conv(x)
            return self.norm(y), y

    class SideBySide(nn.Module):
        """One trace for all of them."""

        def __init__(self, *parts: nn.Module) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, x: Tensor) -> list[Any]:
            return [part(x) for part in self.parts]

    images = SideBySide(
        TwoReaders(),
        TwoLayers(),
        Returned(),
        nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.ReLU(), nn.BatchNorm2d(3)),
    )
    lines = SideBySide(
        nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3)),  # of the axis before
    )
    of_the_batch = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3, track_running_stats=False))
    for model, example, count in (
        (images, torch.zeros(2, 2, 4, 4), 5),
        (of_the_batch, torch.zeros(2, 2, 4, 4), 1),
        (lines, torch.zeros(2, 3, 4), 2),
    ):
        layers = found(model, example)
        assert len(layers) == count and not [layer.weight for layer in layers if layer.shift is not None]


def test_without_a_batch_the_batch_norm_has_another_axis() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm1d(4))  # of the rows of the image
    net = tamis.trace(model.eval(), torch.zeros(3, 4, 5))
    assert not net.batched and [layer.shift for layer in layers_of(net)] == [None]
