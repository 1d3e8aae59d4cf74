"""What follows a layer is one pass with it, and gives the same bits; where it cannot be, it stays as it is."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from tamis.binary import BinaryConv1d, BinaryConv2d, BinaryLinear, binarize, compile
from tamis.binary.packed_layers import PackedLayer, packed_layers
from tamis.kernels import dispatch
from tamis.training.models.resnet import BasicBlock, Bottleneck, ResNet

needs_extension = pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """With parameters and statistics of both signs, and slopes of zero among them."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            drawn = torch.randn(value.shape, generator=draw)
            value.copy_(drawn.abs() + 0.1 if name.endswith("running_var") else drawn)
        for norm in (module for module in model.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))):
            norm.weight[0] = 0.0
    return model.eval()


class Block(nn.Module):
    """Two layers beside a shortcut; how they are put together is given."""

    def __init__(self, together: Callable[[Block, Tensor], Tensor], channels: int = 6) -> None:
        super().__init__()
        self.first, self.second = (BinaryConv2d(channels, channels, 3, padding=1, bias=True) for _ in range(2))
        self.norm, self.last_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu, self.relu_in_place = nn.ReLU(), nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(BinaryConv2d(channels, channels, 1), nn.BatchNorm2d(channels))
        self.together = together

    def forward(self, x: Tensor) -> Tensor:
        return self.together(self, x)

    def main(self, x: Tensor) -> Tensor:
        result: Tensor = self.last_norm(self.second(self.relu(self.norm(self.first(x)))))
        return result


def sides(block: Block, x: Tensor) -> tuple[Tensor, Tensor]:
    return block.main(x), block.shortcut(x)


FUSED: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "sum and relu": lambda block, x: block.relu(block.main(x) + x),
    "the other way round": lambda block, x: block.relu(x + block.main(x)),
    "without relu": lambda block, x: block.main(x) + x,
    "torch.add, F.relu": lambda block, x: F.relu(torch.add(block.main(x), x)),
    "methods": lambda block, x: block.main(x).add(x).relu(),
    "in place": lambda block, x: block.relu_in_place(operator.iadd(block.main(x), x)),
    "methods in place": lambda block, x: block.main(x).add_(x).relu_(),
    "a shortcut that is computed after it": lambda block, x: block.relu(operator.add(*sides(block, x))),
    "without a norm": lambda block, x: block.relu(block.second(block.relu(block.first(x))) + x),
    "a shape that grows": lambda block, x: block.relu(block.main(x) + x.mean((2, 3), keepdim=True)),
    "a number of each channel": lambda block, x: block.main(x) + block.shortcut[1].bias[:, None, None],
}
KEPT: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "added to itself": lambda block, x: (lambda y: y + y)(block.main(x)),
    "read twice": lambda block, x: (lambda y: (y + x) * y)(block.main(x)),
    "times": lambda block, x: torch.add(block.main(x), x, alpha=2),
    "a number": lambda block, x: block.main(x) + 1.5,
    "a shortcut changed in between": lambda block, x: block.main(x) + block.relu_in_place(x * 1),
    "what changes in place": lambda block, x: operator.iadd(x * 2, block.main(x)),
}


def check(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """The compiled model, after comparing what it gives."""
    compiled = compile(model)
    with torch.no_grad():
        for x in inputs:
            assert torch.equal(compiled(x.clone()), copy.deepcopy(model).eval()(x.clone()))
    return compiled


@needs_extension
@pytest.mark.parametrize("together", FUSED.values(), ids=FUSED)
def test_sums_are_part_of_a_layer(together: Any) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(shaken(Block(together)))
    compiled = check(block, torch.randn(2, 6, 5, 7), torch.randn(1, 6, 17, 16), torch.randn(3, 6, 1, 1))
    assert isinstance(compiled[0], fx.GraphModule) and type(compiled[0]).__name__ == "Block"
    assert not [node for node in compiled[0].graph.nodes if "add" in str(node.target)]
    last = compiled[0].second
    assert isinstance(last, PackedLayer) and last.reads_bits and compiled[0].first.gives_bits


@pytest.mark.parametrize("together", KEPT.values(), ids=KEPT)
def test_other_sums_stay(together: Any) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(shaken(Block(together)))
    compiled = check(block, torch.randn(2, 6, 5, 7))
    assert type(compiled[0]) is Block


def test_the_model_itself_stays_of_its_class() -> None:
    model = shaken(Block(FUSED["sum and relu"]))
    assert type(check(model, torch.randn(2, 6, 5, 5))) is Block


@needs_extension
def test_a_norm_that_is_read_elsewhere_stays() -> None:
    model = nn.Sequential(shaken(Block(lambda block, x: block.main(x) + block.norm.bias[:, None, None])))
    compiled = check(model, torch.randn(2, 6, 5, 5))
    assert isinstance(compiled[0].norm, nn.BatchNorm2d) and not compiled[0].first.gives_bits


class Offset(nn.Module):
    """Adds what it is given to a layer's output."""

    def __init__(self, layer: nn.Module, offset: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.offset = layer, offset

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + self.offset(x)
        return result


@pytest.mark.parametrize(
    "offset",
    [
        lambda x: x.flatten()[:5],
        lambda x: x.sum(),
        lambda x: x.sum().reshape(1),
        lambda x: x.flatten()[:5].reshape(1, 5),
        lambda x: x.flatten()[:20].reshape(1, 1, 4, 5),
        lambda x: x.shape[0],
    ],
)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (BinaryLinear(70, 5), (4, 70)),
        (BinaryConv1d(70, 4, 3, padding=1), (2, 70, 5)),
        (BinaryConv2d(70, 4, 3, padding=1), (2, 70, 4, 5)),
    ],
)
def test_what_is_broadcast_is_added_too(layer: nn.Module, shape: tuple[int, ...], offset: Any) -> None:
    torch.manual_seed(0)
    compiled = check(nn.Sequential(shaken(Offset(copy.deepcopy(layer), offset))), x := torch.randn(shape))
    assert torch.equal(compiled(x), compiled(x.requires_grad_()))


class Shortcut(nn.Module):
    """Holds more than it uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = BinaryConv2d(6, 6, 3, padding=1), nn.Tanh()
        self.factor, self.scale = 3.0, nn.Parameter(torch.ones(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + x
        return result


class Reading(nn.Module):
    """Needs something of a block besides calling it."""

    def __init__(self, read: Callable[[Shortcut, Tensor], Tensor]) -> None:
        super().__init__()
        self.block, self.read = Shortcut(), read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.block, self.block(x))


def times_factor(block: Shortcut, y: Tensor) -> Tensor:
    return y * block.factor


def test_a_rewritten_block_keeps_its_plain_attributes() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 5)
    compiled = check(shaken(Reading(times_factor)), x)
    assert isinstance(compiled.block, fx.GraphModule)
    with torch.no_grad():
        for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
            assert torch.equal(again(x), compiled(x))


def test_a_block_that_others_reach_into_stays() -> None:
    torch.manual_seed(0)
    for read in (lambda block, y: y * block.scale, lambda block, y: block.spare(y)):
        compiled = check(shaken(Reading(read)), torch.randn(2, 6, 5, 5))
        assert type(compiled.block) is Shortcut


class Masked(Block):
    """Has an input that a graph would take for given."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        y = self.main(x) + x
        return y if mask is None else y * mask


def test_blocks_with_hooks_or_other_inputs_stay() -> None:
    torch.manual_seed(0)
    together = FUSED["sum and relu"]
    hooked, inside = shaken(Block(together)), shaken(Block(together))
    hooked.register_forward_hook(lambda _module, _given, result: result * 2)
    inside.last_norm.register_forward_hook(lambda _module, _given, result: result * 2)
    for block in (hooked, inside, shaken(Masked(together))):
        assert type(check(nn.Sequential(block), torch.randn(2, 6, 5, 5))[0]) is type(block)
    twice = shaken(Block(together))
    assert type(check(nn.Sequential(twice, twice), torch.randn(2, 6, 5, 5))[0]) is Block


@needs_extension
def test_norms_and_relus_in_a_row() -> None:
    torch.manual_seed(0)
    images = nn.Sequential(BinaryConv2d(5, 20, 3, bias=True), nn.BatchNorm2d(20), nn.ReLU(), nn.AvgPool2d(2))
    compiled = check(shaken(images), torch.randn(2, 5, 9, 9))
    assert [type(module) for module in compiled[1:3]] == [nn.Identity] * 2
    assert compiled[0].relu and compiled[0].slope is not None
    signals = nn.Sequential(BinaryConv1d(5, 20, 3), nn.BatchNorm1d(20), nn.Tanh())
    assert type(check(shaken(signals), torch.randn(2, 5, 9))[1]) is nn.Identity
    relu = nn.ReLU()
    shared = nn.Sequential(BinaryConv2d(5, 5, 1), relu, nn.Tanh(), relu)
    assert type(check(shaken(shared), torch.randn(2, 5, 9, 9))[1]) is nn.ReLU


@needs_extension
def test_a_norm_after_a_linear_layer_may_be_of_another_axis() -> None:
    torch.manual_seed(0)
    model = shaken(nn.Sequential(BinaryLinear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), BinaryLinear(6, 5)))
    compiled = check(model, torch.randn(4, 8), torch.randn(3, 6, 8))
    assert type(compiled[1]) is nn.Identity and not compiled[0].gives_bits


def narrow_resnet(block: type[BasicBlock] | type[Bottleneck]) -> ResNet:
    """A ResNet of stages as deep as (1, 2, 1, 1) blocks, with fewer channels than any that has a name."""
    with torch.device("meta"):
        model = ResNet(block, (1, 2, 1, 1), 7)
    wide = block.expansion
    model.conv1, model.bn1 = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(16)
    model.layer1 = nn.Sequential(block(16, 16, 1))
    model.layer2 = nn.Sequential(block(16 * wide, 72, 2), block(72 * wide, 72, 1))
    model.layer3, model.layer4 = nn.Sequential(block(72 * wide, 24, 2)), nn.Sequential(block(24 * wide, 24, 2))
    model.fc = nn.Linear(24 * wide, 7)
    return model


@needs_extension
def test_residual_networks() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 33, 33)
    for block in (BasicBlock, Bottleneck):
        model = shaken(binarize(narrow_resnet(block), example=x))
        compiled = check(model, x, x[:1], x.contiguous(memory_format=torch.channels_last))
        layers = packed_layers(compiled)
        assert layers["layer2.0.conv1"].gives_bits and layers["layer2.0.conv2"].reads_bits
        assert sum(layer.relu for layer in layers.values()) == 5
        assert not any(isinstance(module, nn.BatchNorm2d) for module in compiled.children())
        with torch.no_grad():
            expected = compiled(x)
            for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
                assert torch.equal(again(x), expected)


@pytest.mark.slow
def test_export_and_compile_pass_blocks_through() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 8, 8)
    compiled = check(nn.Sequential(shaken(Block(FUSED["sum and relu"]))), x)
    with torch.no_grad():
        assert torch.equal(torch.export.export(compiled, (x,)).module()(x), compiled(x))
        assert torch.equal(torch.compile(compiled, backend="aot_eager", fullgraph=True)(x), compiled(x))


def test_gradients_of_what_follows_are_there() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(6, 6, 1), shaken(Block(FUSED["sum and relu"])), nn.Flatten())
    compiled, x = compile(model), torch.randn(2, 6, 8, 8)
    compiled(x).sum().backward()
    assert compiled[0].weight.grad is not None and compiled[0].weight.grad.abs().sum() > 0
    norm = compiled[1].second.norm if dispatch.native() else compiled[1].last_norm
    assert norm.weight.grad is not None


def test_without_the_extension_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block, x = nn.Sequential(shaken(Block(FUSED["sum and relu"]))), torch.randn(2, 6, 5, 7)
    fast = compile(block)
    with torch.no_grad():
        wanted = fast(x)
        monkeypatch.setattr("tamis.kernels.binary.kernel_name", lambda: "torch")
        assert torch.equal(fast(x), wanted)
        assert torch.equal(compile(block)(x), wanted)
