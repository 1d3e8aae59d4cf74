"""What others run: a plain module, a .pt2 file and an .onnx file, each computing what the network does."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import tamis
from tamis.artifact import export as module_of_export
from tamis.artifact.compressed import Compressed
from tamis.artifact.export import to_module
from tamis.errors import InvalidInput, TamisError
from tamis.training.models import resnet20


class Residual(nn.Module):
    """Convolutions, batch-norm, a skip, a grouped and a transposed convolution, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = torch.relu(y + self.second(y))
        return self.head(self.up(nn.functional.max_pool2d(y, 2)).mean((2, 3)))


class Attention(nn.Module):
    """Tokens, attention, layer norms; the output layer shares the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.out = nn.Linear(8, 12)
        self.out.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.block(self.tokens(x)))
        return result


class Several(nn.Module):
    """Two inputs, outputs in containers, tied layers, constants, buffers that are not in the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("offset", torch.arange(4.0))
        self.register_buffer("hidden", torch.ones(4) / 3, persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        z = self.one(x) * self.hidden + torch.relu(self.two(y)) + self.offset
        return {"z": z, "both": [z.sum(1), (x - y, None)]}


class Unbatched(nn.Module):
    """Mixes samples, so that the whole input is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("adjacency", torch.tensor([[0.5, 0.5], [0.25, 0.75]]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(self.adjacency @ x))


def examples(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    module, inputs = {
        "residual": (Residual, lambda: (torch.randn(2, 3, 8, 8),)),
        "attention": (Attention, lambda: (torch.randint(12, (2, 5)),)),
        "several": (Several, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
        "unbatched": (Unbatched, lambda: (torch.randn(2, 3),)),
        "double": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double(), lambda: (torch.randn(2, 4).double(),)),
    }[name]
    made = module()
    for layer in made.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return made.eval(), inputs()


every_example = pytest.mark.parametrize("name", ["residual", "attention", "several", "unbatched", "double"])


@cache
def compressed(name: str) -> tuple[Compressed, nn.Module, tuple[Tensor, ...]]:
    """A pruned network, the module with its weights, and inputs."""
    module, inputs = examples(name)
    small = tamis.prune(tamis.trace(module, inputs), 0.5, by="magnitude")
    return small, small.apply_to(module), inputs


def resized(inputs: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    return tuple(torch.cat([value] * batch)[:batch] for value in inputs)


def leaves(outputs: Any) -> list[Any]:
    return pytree.tree_leaves(outputs)


def assert_same(one: Any, other: Any) -> None:
    """But for the last bits: where tensors stand in memory can change the order that sums are taken in."""
    assert pytree.tree_structure(one) == pytree.tree_structure(other)
    for a, b in zip(leaves(one), leaves(other), strict=True):
        assert (a is b is None) or torch.allclose(a, b, rtol=1e-5, atol=1e-5)


# -- modules -------------------------------------------------------------------------------------------------------


@every_example
def test_the_module_computes_what_the_network_does(name: str) -> None:
    small, model, inputs = compressed(name)
    module = small.to_module()
    for batch in (1, 2, 5) if small.network.batched else (len(inputs[0]),):
        some = resized(inputs, batch)
        assert_same(module(*some), small.network(*some))
        assert_same(module.train()(*some), small.network(*some))
        assert_same(module(*some), model(*some))


@every_example
def test_its_state_is_that_of_the_users_model(name: str) -> None:
    small, model, _ = compressed(name)
    module = small.to_module()
    state, own = model.state_dict(), module.state_dict()
    assert own.keys() == state.keys() and all(torch.equal(own[key], state[key]) for key in state)
    assert [key for key, _ in module.named_parameters()] == [key for key, _ in model.named_parameters()]
    model.load_state_dict(own)
    module.load_state_dict(state)


@every_example
def test_it_can_be_copied_and_pickled(name: str) -> None:
    small, _, inputs = compressed(name)
    module = small.to_module()
    expected = module(*inputs)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same(other(*inputs), expected)


def test_it_is_the_callers_own() -> None:
    small, _, inputs = compressed("residual")
    before, module = small.network(*inputs), small.to_module()
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    assert_same(small.network(*inputs), before)
    other = small.to_module()
    loss = other(*inputs).square().sum()
    loss.backward()
    assert all(value.grad is not None for value in other.parameters())


def test_tied_weights_stay_tied() -> None:
    module = compressed("attention")[0].to_module()
    assert module.get_parameter("out.weight") is module.get_parameter("tokens.weight")


def test_names_that_are_no_words() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module.add_module("a-b 1", nn.Linear(2, 2))
    module.add_module("forward_", nn.Linear(2, 2))
    net = tamis.trace(module, torch.zeros(2, 2))
    x = torch.randn(3, 2)
    assert torch.equal(to_module(net)(x), net(x))
    assert to_module(net).state_dict().keys() == module.state_dict().keys()


def test_a_saved_module_needs_no_tamis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, _, inputs = compressed("residual")
    module, expected = small.to_module(), small.network(*inputs).detach()
    assert "tamis" not in module.code  # nor does it call an operation that only an import of tamis registers
    torch.save(module, tmp_path / "module.pt")
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "tamis"]:
            patch.setitem(sys.modules, name, None)  # whoever imports it now is refused
        with pytest.raises(ImportError):
            import tamis.artifact  # noqa: F401
        loaded = torch.load(tmp_path / "module.pt", weights_only=False)
        assert torch.equal(loaded(*inputs), expected)


@dataclass
class Result:
    value: Tensor


def test_outputs_that_no_plain_module_returns() -> None:
    class Strange(nn.Module):
        def forward(self, x: Tensor) -> Result:
            return Result(x + 1)

    pytree.register_dataclass(Result)
    net = tamis.trace(Strange(), torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="the network returns a Result, which no plain module can"):
        to_module(net)


# -- files ---------------------------------------------------------------------------------------------------------


@every_example
def test_pt2_files(name: str, tmp_path: Path) -> None:
    small, _, inputs = compressed(name)
    small.export(tmp_path / "small.pt2")
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.pt2"]
    loaded = torch.export.load(tmp_path / "small.pt2")
    assert set(loaded.state_dict) >= small.network.params.keys()
    module = loaded.module()
    for batch in (1, 2, 7) if small.network.batched else (len(inputs[0]),):
        some = resized(inputs, batch)
        for found, expected in zip(leaves(module(*some)), leaves(small.network(*some)), strict=True):
            assert found is expected is None or torch.allclose(found, expected, atol=1e-6)


slow = [pytest.param(name, marks=pytest.mark.slow) for name in ("attention", "several", "unbatched")]


@pytest.mark.parametrize("name", ["residual", *slow])
def test_onnx_files(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    small, _, inputs = compressed(name)
    small.export(str(tmp_path / "small.onnx"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(small.network.inputs)
    for batch in (1, 2, 7) if small.network.batched else (len(inputs[0]),):
        some = resized(inputs, batch)
        given = {key: value.numpy() for key, value in zip(small.network.inputs, some, strict=True)}
        expected = [value for value in leaves(small.network(*some)) if value is not None]
        for found, wanted in zip(session.run(None, given), expected, strict=True):
            assert torch.allclose(torch.from_numpy(found), wanted.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_resnet20(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = tamis.prune(resnet20(), 0.9, example=torch.zeros(2, 3, 32, 32))
    small.export(tmp_path / f"small{suffix}")
    assert (tmp_path / f"small{suffix}").stat().st_size > 10**6


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    net = compressed("double")[0].network
    other = net.with_params({"0.weight": net.params["0.weight"] + 1e-3})
    program = module_of_export._export_program(other)
    monkeypatch.setattr(module_of_export, "_export_program", lambda net: program)
    (tmp_path / "small.onnx").write_text("what was there")
    with pytest.raises(TamisError, match=r"small\.onnx' was not written: on random inputs, it differs .* by \d"):
        module_of_export.export(net, tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").read_text() == "what was there"
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.onnx"]


def test_what_onnx_does_not_know_is_refused_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")

    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x)

    net = tamis.trace(Unknown(), torch.zeros(2, 3))
    with pytest.raises(TamisError, match=r"was not written: the network cannot be written as ONNX"):
        module_of_export.export(net, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = compressed("double")[0]
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidInput, match=rf"needs {missing}: pip install 'tamis\[onnx\]'"):
        small.export(tmp_path / "x.onnx")
    small.export(tmp_path / "x.pt2")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.pt2"]


@pytest.mark.parametrize("name", ["small.pt", "small", "small.ONNX"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"\.pt2 and \.onnx files, got '.*{name}'"):
        compressed("double")[0].export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_loaded_file_exports_too(tmp_path: Path) -> None:
    small, model, inputs = compressed("residual")
    small.save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", model)
    assert_same(loaded.to_module()(*inputs), small.network(*inputs))
