"""Binary layers: every kernel of this processor, and PyTorch in their place, against a float convolution of ±1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.kernels import binary, dispatch
from tamis.kernels import binary_reference as reference
from tamis.kernels.binary import binary_conv2d, binary_linear, pack_input, pack_weight
from tamis.kernels.binary_arguments import Geometry, Operands

KERNELS = ["torch", *(dispatch.native().binary_kernels() if dispatch.native() else [])]
FORMS = ["alpha", "full", "alpha beta", "rank one"]
every_layer = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def forced(kernel: str) -> Iterator[None]:
    """Binary layers run in one kernel."""
    chosen = binary.kernel_name
    binary.kernel_name = lambda: kernel  # type: ignore[assignment]
    try:
        yield
    finally:
        binary.kernel_name = chosen


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def conv2d(named: dict[str, Any]) -> Tensor:
    """A layer of what `Operands` and `Geometry` name."""
    tensors = {name: value for name, value in named.items() if name in Operands._fields}
    numbers = {name: value for name, value in named.items() if name not in tensors}
    return binary_conv2d(Operands(**tensors | {"scales": tuple(tensors["scales"])}), Geometry(**numbers))


@dataclass
class Layer:
    """A layer with its inputs, and what it must give."""

    x: Tensor
    weight: Tensor
    thresholds: Tensor
    flips: Tensor
    scales: list[Tensor]
    groups: int = 1
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def run(self, x: Tensor | None = None, **more: object) -> Tensor:
        packed = pack_weight(self.weight, self.groups)
        geometry = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        compare = {"thresholds": self.thresholds, "flips": self.flips} if x is None else {}
        x = self.x if x is None else x
        named = {"x": x, "weight": packed, "scales": self.scales, "weight_shape": self.weight.shape}
        return conv2d(named | compare | geometry | more)

    def expected(self) -> Tensor:
        bits = (self.x >= self.thresholds[:, None, None]) ^ self.flips[:, None, None]
        signs = torch.where(self.weight >= 0, 1.0, -1.0).double()
        sums = nn.functional.conv2d(
            2 * bits.double() - 1, signs, None, self.stride, self.padding, self.dilation, self.groups
        )
        first, *others = self.scales
        scale = first if first.ndim == 3 else first[:, None, None]
        if len(others) == 1:
            scale = scale * others[0]
        if len(others) == 2:
            scale = (scale * others[0][:, None]) * others[1]
        return (sums.float() + 0.0) * scale  # a sum of nothing but zeros may be −0


def make(
    batch: int,
    channels: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    form: str = "alpha",
    seed: int = 0,
) -> Layer | None:
    """A random layer, or None where the kernel is larger than the padded image; channels and outputs are of a group."""
    height, width = (
        (length + 2 * p - d * (k - 1) - 1) // s + 1
        for length, p, d, k, s in zip(size, padding, dilation, kernel, stride, strict=True)
    )
    if height < 1 or width < 1:
        return None
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, channels * groups, *size, generator=draw)
    thresholds = torch.randn(channels * groups, generator=draw)
    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")])
    for tensor in (x, thresholds):  # what is compared with zero, with itself, and with nothing
        places = torch.rand(tensor.shape, generator=draw) < 0.1
        tensor[places] = odd[torch.randint(5, (int(places.sum()),), generator=draw)]
    flips = torch.rand(channels * groups, generator=draw) < 0.5
    weight = torch.randn(outputs * groups, channels, *kernel, generator=draw)
    weight[torch.rand(weight.shape, generator=draw) < 0.1] = 0
    shapes = {
        "alpha": [(outputs * groups,)],
        "full": [(outputs * groups, height, width)],
        "alpha beta": [(outputs * groups,), (height, width)],
        "rank one": [(outputs * groups,), (height,), (width,)],
    }
    scales = [torch.rand(shape, generator=draw) + 0.1 for shape in shapes[form]]
    return Layer(x, weight, thresholds, flips, scales, groups, stride, padding, dilation)


def pairs(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    outputs = draw(st.one_of(st.integers(1, 20), st.integers(60, 70)))
    layer = make(
        draw(st.integers(0, 3)),
        draw(st.one_of(st.integers(1, 20), st.integers(60, 200))),
        outputs,
        draw(st.one_of(pairs(1, 12), st.just((1, 1)))),
        draw(pairs(1, 3) if outputs > 20 else st.one_of(pairs(1, 3), pairs(1, 8))),  # or weights are a million
        draw(pairs(1, 3)),
        draw(pairs(0, 4)),
        draw(pairs(1, 3)),
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(st.sampled_from(FORMS)),
        draw(st.integers(0, 2**31)),
    )
    assume(layer is not None)
    assert layer is not None
    return layer


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    """Equal to the last bit, the sign of zero too."""
    return found.shape == wanted.shape and torch.equal(found.view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("kernel", KERNELS)
@every_layer
@given(layers(), st.integers(1, 3))
def test_every_geometry(kernel: str, layer: Layer, count: int) -> None:
    with forced(kernel), threads(count):
        assert same_bits(layer.run(), layer.expected())


@pytest.mark.parametrize("kernel", KERNELS)
@every_layer
@given(layers(), st.integers(0, 2**31))
def test_bits_between_layers(kernel: str, layer: Layer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    outputs = len(layer.weight)
    y = layer.expected()
    tau, f = torch.randn(outputs, generator=draw) * 9, torch.rand(outputs, generator=draw) < 0.5
    if y.numel():
        tau[0] = y[0, 0].flatten()[0]  # a threshold that is met
    with forced(kernel):
        bits = pack_input(layer.x, layer.thresholds, layer.flips, layer.groups)
        assert torch.equal(bits, reference.pack_bits(layer.x, layer.thresholds, layer.flips, layer.groups))
        assert same_bits(layer.run(bits), y)
        for groups in {1, layer.groups}:
            wanted = reference.pack_bits(y, tau, f, groups)
            more = {"out_thresholds": tau, "out_flips": f, "out_groups": groups}
            assert torch.equal(layer.run(**more), wanted)
            assert torch.equal(layer.run(bits, **more), wanted)


@cache
def several_blocks(form: str, channels: int, size: int) -> tuple[Layer, Tensor]:
    """A layer, and what every kernel must give of it."""
    layer = make(2, channels, 40, (size, size), (3, 3), padding=(1, 1), form=form)
    assert layer is not None
    return layer, layer.expected()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("channels", "size"), [(64, 23), (256, 14), (130, 7)])
def test_layers_of_several_blocks(kernel: str, form: str, channels: int, size: int) -> None:
    layer, expected = several_blocks(form, channels, size)
    with forced(kernel):
        for count in (1,) if kernel == "torch" else (1, 2, 3):  # PyTorch sees to its own threads
            with threads(count):
                assert same_bits(layer.run(), expected)


def test_results_larger_than_a_cache() -> None:
    layer = make(5, 8, 64, (60, 61), (1, 1))
    assert layer is not None
    expected = layer.expected()
    assert expected.numel() * 4 > 4 << 20
    for kernel in KERNELS:
        with forced(kernel), threads(2):
            assert same_bits(layer.run(), expected), kernel


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("batch", [0, 1, 3, 40])
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (100, 10), (300, 200)])
def test_linear(kernel: str, batch: int, channels: int, outputs: int) -> None:
    layer = make(batch, channels, outputs, (1, 1), (1, 1))
    assert layer is not None
    x, weight = layer.x.flatten(1), layer.weight.flatten(1)
    packed, vectors = pack_weight(weight), (layer.thresholds, layer.flips)
    operands = Operands(x, packed, tuple(layer.scales), *vectors)
    tau, f = torch.zeros(outputs), torch.arange(outputs) % 2 == 0
    with forced(kernel), threads(2):
        y = binary_linear(operands, weight.shape)
        assert same_bits(y, layer.expected().flatten(1))
        bits = binary_linear(operands._replace(out_thresholds=tau, out_flips=f), weight.shape)
        assert torch.equal(bits, reference.pack_bits(y[:, :, None, None], tau, f, 1))
        deeper = binary_linear(operands._replace(x=x.view(batch, 1, channels)), weight.shape)
        assert same_bits(deeper, y.view(batch, 1, outputs))


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 140), pairs(1, 4), st.integers(0, 2**31))
@settings(deadline=None, max_examples=50)
def test_packed_weights_hold_the_weights(
    groups: int, outputs: int, each: int, kernel: tuple[int, int], seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randint(-1, 2, (outputs * groups, each, *kernel), generator=draw).float()
    packed = pack_weight(weight, groups)
    signs = reference.unpack_weight(packed, outputs * groups, each, kernel)
    assert torch.equal(signs, torch.where(weight >= 0, 1.0, -1.0).double())
    assert torch.equal(ones_of(packed, outputs * groups, each, kernel), (weight >= 0).sum(1))


def ones_of(packed: Tensor, outputs: int, each: int, kernel: tuple[int, int]) -> Tensor:
    """The counts of ones in packed weights, (outputs, kh, kw), one after the other; what is past them must be 0."""
    groups, taps, rows = len(packed), kernel[0] * kernel[1], -(-kernel[0] * kernel[1] * -(-each // 64) // 3) * 3
    counts = torch.zeros(outputs, taps, dtype=torch.int64)
    for output in range(outputs):
        group, place = divmod(output, outputs // groups)
        words = [int(word) % 2**64 for word in packed[group, place // 8, rows:, place % 8]]
        assert len(words) == -(-taps // 4)
        found = [word // 65536**i % 65536 for word in words for i in range(4)]
        assert not any(found[taps:])
        counts[output] = torch.tensor(found[:taps])
    return counts.view(outputs, *kernel)


def test_512_channels_take_a_thirtieth_of_their_floats() -> None:
    weight = torch.randn(512, 512, 3, 3)
    assert pack_weight(weight).nbytes <= weight.nbytes / 30


@pytest.mark.parametrize("shape", [(8, 64, 1, 1), (16, 3, 3, 3), (512, 512, 3, 3)])
def test_packed_weights_begin_at_a_line_of_the_cache(shape: tuple[int, ...]) -> None:
    assert all(pack_weight(torch.randn(shape)).data_ptr() % 64 == 0 for _ in range(5))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("each", [40_000, 65_535, 65_536])
def test_counts_of_ones_near_the_largest_that_16_bits_hold(kernel: str, each: int) -> None:
    layer = make(1, each, 2, (1, 2), (1, 5), padding=(0, 2))
    assert layer is not None
    layer.weight = torch.full_like(layer.weight, 0.5)
    layer.weight[1, :, :, 3] = -0.5
    assert pack_weight(layer.weight).shape[2] == -(-5 * -(-each // 64) // 3) * 3 + (2 if each < 65_536 else 5)
    with forced(kernel):
        assert same_bits(layer.run(), layer.expected())


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_layout_of_memory_will_do(kernel: str) -> None:
    layer = make(2, 70, 9, (6, 5), (3, 3), padding=(1, 1), form="rank one")
    assert layer is not None
    wanted = layer.expected()
    layer.x = layer.x.to(memory_format=torch.channels_last)
    layer.thresholds = torch.stack([layer.thresholds, layer.thresholds], 1)[:, 0]
    layer.flips = torch.stack([layer.flips, layer.flips], 1)[:, 1]
    layer.scales = [torch.stack([scale, scale], 1)[:, 1] for scale in layer.scales]
    with forced(kernel):
        assert same_bits(layer.run(), wanted)
        assert same_bits(
            layer.run(pack_input(layer.x, layer.thresholds, layer.flips).transpose(3, 4).contiguous().mT), wanted
        )


def plain_layer() -> Layer:
    layer = make(2, 6, 4, (5, 5), (3, 3), padding=(1, 1), groups=2)
    assert layer is not None
    return layer


HOSTILE = {
    "images of three axes": lambda layer: {"x": layer.x[0]},
    "too few channels": lambda layer: {"x": layer.x[:, :-1]},
    "float64": lambda layer: {"x": layer.x.double()},
    "int32": lambda layer: {"x": layer.x.int()},
    "smaller than the kernel": lambda layer: {"x": layer.x[:, :, :1], "padding": (0, 0)},
    "no pixels": lambda layer: {"x": layer.x[:, :, :0], "padding": (3, 3)},
    "weights as they were": lambda layer: {"weight": layer.weight},
    "weights of other groups": lambda layer: {"weight": pack_weight(layer.weight, 1)},
    "weights of fewer taps": lambda layer: {"weight": pack_weight(layer.weight, 2)[:, :, :-1]},
    "weights of no groups": lambda layer: {"weight": pack_weight(layer.weight, 2)[:0]},
    "weights of one axis": lambda layer: {"weight": pack_weight(layer.weight, 2).flatten()},
    "another shape": lambda layer: {"weight_shape": (8, 6, 3, 1)},
    "a shape of three numbers": lambda layer: {"weight_shape": (8, 6, 3)},
    "a shape with zero": lambda layer: {"weight_shape": (0, 6, 3, 3)},
    "too many products": lambda layer: {"weight_shape": (8, 1 << 21, 3, 3)},
    "too few scales": lambda layer: {"scales": [layer.scales[0][:-1]]},
    "no scales": lambda layer: {"scales": []},
    "scales of another size": lambda layer: {"scales": [layer.scales[0], torch.ones(5, 4)]},
    "scales in float64": lambda layer: {"scales": [layer.scales[0].double()]},
    "no thresholds": lambda layer: {"thresholds": None},
    "too few thresholds": lambda layer: {"thresholds": layer.thresholds[:-1], "flips": layer.flips[:-1]},
    "thresholds in float64": lambda layer: {"thresholds": layer.thresholds.double()},
    "flips in uint8": lambda layer: {"flips": layer.flips.byte()},
    "too few flips": lambda layer: {"flips": layer.flips[:-1]},
    "stride 0": lambda layer: {"stride": (0, 0)},
    "padding −1": lambda layer: {"padding": (-1, -1)},
    "dilation 0": lambda layer: {"dilation": (1, 0)},
    "three strides": lambda layer: {"stride": (1, 1, 1)},
    "bits with thresholds": lambda layer: {"x": pack_input(layer.x, layer.thresholds, layer.flips, 2)},
    "bits of other groups": lambda layer: {
        "x": pack_input(layer.x, layer.thresholds, layer.flips, 1),
        "thresholds": None,
        "flips": None,
    },
    "thresholds of the result alone": lambda layer: {"out_thresholds": torch.zeros(8)},
    "too few thresholds of the result": lambda layer: {
        "out_thresholds": torch.zeros(7),
        "out_flips": torch.zeros(7, dtype=torch.bool),
    },
    "groups that do not divide": lambda layer: {
        "out_thresholds": torch.zeros(8),
        "out_flips": torch.zeros(8, dtype=torch.bool),
        "out_groups": 3,
    },
    "another device": lambda layer: {"thresholds": layer.thresholds.to("meta")},
}


@pytest.mark.parametrize("kernel", KERNELS[:2])
@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_does_not_fit_is_refused(kernel: str, change: object) -> None:
    layer = plain_layer()
    arguments = {
        "x": layer.x,
        "weight": pack_weight(layer.weight, 2),
        "scales": layer.scales,
        "weight_shape": layer.weight.shape,
        "thresholds": layer.thresholds,
        "flips": layer.flips,
        "padding": (1, 1),
    }
    with forced(kernel):
        assert same_bits(conv2d(arguments), layer.expected())
        with pytest.raises(InvalidInput, match="binary_conv2d"):
            conv2d(arguments | change(layer))  # type: ignore[operator]


def test_packing_refuses_what_does_not_fit() -> None:
    x, tau, f = torch.randn(1, 4, 2, 2), torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    for arguments in (
        (x[0], tau, f),
        (x, tau[1:], f[1:]),
        (x, tau, f[1:]),
        (x, tau, tau),
        (x.double(), tau, f),
        (x, tau, f, 3),
    ):
        with pytest.raises(InvalidInput, match="pack_input"):
            pack_input(*arguments)
    assert pack_input(x[:0], tau, f).shape == (0, 1, 1, 2, 2)
    for weight, groups in ((x[0], 1), (x[:0], 1), (x, 2), (x, 0)):
        with pytest.raises(InvalidInput, match="pack_weight"):
            pack_weight(weight, groups)


def test_the_extension_itself_checks_lengths_and_addresses() -> None:
    extension = dispatch.native()
    if extension is None:
        pytest.skip(dispatch.explain_native())
    good = [4 * 25, 4, 4, 0, 1 * 1 * 12 * 8, 8, 0, 0, 0, 8 * 25, 0, 0, 0, 8, 8, 8, 8 * 25]
    geometry = (8, 4, 1, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1, 1)
    addresses = [64 if length else 0 for length in good]
    for place in range(17):
        lengths = list(good)
        lengths[place] += 1
        wrong = [address or 64 * (place == i) for i, address in enumerate(addresses)]
        if place in (3, 10):  # bits in place of numbers, of the wrong length
            lengths[0 if place == 3 else 9] = wrong[0 if place == 3 else 9] = 0
        layer = extension.BinaryLayer(KERNELS[1], *geometry, lengths, True, True)
        if place in (7, 8, 6, 3, 10) or good[place]:
            with pytest.raises(ValueError, match="binary_conv2d got"):
                layer.run(1, wrong)
    layer = extension.BinaryLayer(KERNELS[1], *geometry, good, True, True)
    with pytest.raises(ValueError, match="address"):
        layer.run(1, [0] * 17)
    with pytest.raises(ValueError, match="address"):
        layer.run(1, [address + 1 if address else 0 for address in addresses])
    with pytest.raises(ValueError, match="address"):
        extension.BoundLayer(layer, addresses).run(1, 64, 0, 64)
    to_bits = [*good[:9], 0, 25, 8, 8, *good[13:]]
    with pytest.raises(ValueError, match="what follows on bits"):
        extension.BinaryLayer(KERNELS[1], *geometry, to_bits, True, True).run(1, [64 if n else 0 for n in to_bits])
    with pytest.raises(ValueError, match="no binary kernel"):
        extension.BinaryLayer("abacus", *geometry, good, True, True)
    for place, value in ((0, 0), (2, 3), (3, (1 << 40, 5)), (4, (9, 9)), (5, (0, 1)), (7, (1 << 40, 1))):
        wrong_geometry = list(geometry)
        wrong_geometry[place] = value
        with pytest.raises(ValueError, match="binary_conv2d"):
            extension.BinaryLayer(KERNELS[1], *wrong_geometry, good, True, True)


def test_a_kernel_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_KERNEL", "abacus")
    with pytest.raises(InvalidInput, match="TAMIS_KERNEL=abacus"):
        dispatch.binary_kernel()
    monkeypatch.setitem(sys.modules, "tamis._native", None)
    with pytest.raises(InvalidInput, match="not built"):
        dispatch.binary_kernel()
    monkeypatch.delenv("TAMIS_KERNEL")
    assert dispatch.binary_kernel() == ("torch", dispatch.explain_native())


def test_the_fastest_kernel_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAMIS_KERNEL", raising=False)
    name, why = dispatch.binary_kernel()
    assert name == (KERNELS[1] if len(KERNELS) > 1 else "torch")
    assert why


class Net(nn.Module):
    """Two layers that exchange bits."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        weights = [torch.randn(16, 8, 3, 3, generator=draw), torch.randn(4, 16, 3, 3, generator=draw)]
        self.shapes = [tuple(weight.shape) for weight in weights]
        for i, weight in enumerate(weights):
            self.register_buffer(f"weight{i}", pack_weight(weight))
            self.register_buffer(f"tau{i}", torch.randn(weight.shape[1], generator=draw))
            self.register_buffer(f"f{i}", torch.rand(weight.shape[1], generator=draw) < 0.5)
            self.register_buffer(f"alpha{i}", torch.rand(len(weight), generator=draw))

    def forward(self, x: Tensor) -> Tensor:
        vectors = (self.tau0, self.f0, self.tau1, self.f1)
        operands = Operands(torch.tanh(x), self.weight0, (self.alpha0,), *vectors)
        bits = binary_conv2d(operands, Geometry(self.shapes[0], padding=(1, 1)))
        return binary_conv2d(Operands(bits, self.weight1, (self.alpha1,)), Geometry(self.shapes[1])) + 1


def test_export_passes_through() -> None:
    net, x = Net().eval(), torch.randn(2, 8, 6, 6)
    exported = torch.export.export(net, (x,))
    names = {str(node.target) for node in exported.graph.nodes}
    assert "tamis.binary_conv2d.default" in names
    assert torch.equal(exported.module()(x), net(x))


@pytest.mark.slow
def test_compile_passes_through() -> None:
    net, x = Net().eval(), torch.randn(2, 8, 6, 6)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), net(x))


def test_operators_keep_their_word() -> None:
    layer = plain_layer()
    packed = pack_weight(layer.weight, 2)
    pair = [1, 1]
    tau, f = torch.zeros(8), torch.zeros(8, dtype=torch.bool)
    checks = ("test_schema", "test_faketensor")
    for out in ((None, None, 1), (tau, f, 2)):
        arguments = (
            layer.x,
            packed,
            layer.scales,
            list(layer.weight.shape),
            layer.thresholds,
            layer.flips,
            pair,
            pair,
            pair,
        )
        torch.library.opcheck(torch.ops.tamis.binary_conv2d.default, (*arguments, *out), test_utils=checks)
    arguments = (layer.x, layer.thresholds, layer.flips, 2)
    torch.library.opcheck(torch.ops.tamis.binary_pack.default, arguments, test_utils=checks)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_environment_names_the_kernel_and_a_child_process_has_threads_of_its_own() -> None:
    if dispatch.native() is None:
        pytest.skip(dispatch.explain_native())
    # PyTorch itself may use no threads in a child, so the results are compared as bytes.
    code = """
import os, torch
from tamis.kernels import dispatch
from tamis.kernels.binary import Geometry, Operands, binary_conv2d, kernel_name, pack_weight
x, packed, shape = torch.randn(1, 64, 40, 40), pack_weight(torch.ones(64, 64, 3, 3)), (64, 64, 3, 3)
alpha, tau, f = torch.ones(64), torch.zeros(64), torch.zeros(64, dtype=torch.bool)
def run(x=x):
    operands, geometry = Operands(x, packed, (alpha,), tau, f), Geometry(shape, padding=(1, 1))
    return binary_conv2d(operands, geometry).numpy().tobytes()
torch.set_num_threads(2)
wanted = run()
child = os.fork()
if child == 0:
    os._exit(0 if run() == run() == wanted else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert run() == wanted
middle = torch.frombuffer(bytearray(run(torch.ones_like(x))), dtype=torch.float32).view(64, 40, 40)[:, 1:-1, 1:-1]
print(kernel_name(), dispatch.binary_kernel()[1], middle.unique().tolist())
"""
    environment = os.environ | {"TAMIS_KERNEL": "plain"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.startswith("plain plain is what TAMIS_KERNEL names")
    assert run.stdout.endswith("[576.0]\n")
