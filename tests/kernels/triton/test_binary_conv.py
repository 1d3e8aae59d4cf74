"""Binary layers on a GPU against PyTorch, to the bit; with TRITON_INTERPRET=1, as Triton interprets them on the CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tamis.kernels import binary_reference as reference
from tamis.kernels.binary import binary_conv2d, pack_input, pack_weight
from tamis.kernels.binary_arguments import Geometry as LayerGeometry
from tamis.kernels.binary_arguments import Operands

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("there is no GPU here, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

from tamis.kernels.triton import binary_conv  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
FORMS = ["alpha", "full", "alpha beta", "rank one"]


@dataclass
class Geometry:
    batch: int
    channels: int  # of a group, as are the outputs
    outputs: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def result(self) -> tuple[int, int]:
        height, width = (
            (length + 2 * p - d * (k - 1) - 1) // s + 1
            for length, p, d, k, s in zip(self.size, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        )
        return height, width


GEOMETRIES = [
    Geometry(2, 64, 8, (6, 5), (3, 3), padding=(1, 1)),
    Geometry(1, 130, 9, (4, 4), (3, 3), padding=(1, 1)),
    Geometry(1, 3, 70, (9, 7), (5, 2), stride=(2, 3), padding=(2, 0)),
    Geometry(2, 20, 12, (7, 8), (3, 3), padding=(3, 4), dilation=(2, 3)),
    Geometry(1, 65, 5, (5, 5), (2, 2), stride=(2, 1), groups=3),
    Geometry(2, 1, 1, (5, 6), (3, 3), padding=(1, 1), groups=10),
    Geometry(7, 200, 66, (1, 1), (1, 1)),
    Geometry(3, 64, 4, (1, 1), (3, 3), padding=(1, 1)),
    Geometry(1, 2, 3, (2, 2), (1, 1), padding=(3, 2), stride=(2, 2)),
    Geometry(0, 8, 4, (3, 3), (1, 1)),
]


def drawn(geometry: Geometry, form: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """Inputs, τ, f, weights and scales; some numbers are 0, −0, infinite or none."""
    draw = torch.Generator().manual_seed(seed)
    channels, outputs = geometry.channels * geometry.groups, geometry.outputs * geometry.groups
    x = torch.randn(geometry.batch, channels, *geometry.size, generator=draw)
    thresholds = torch.randn(channels, generator=draw)
    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")])
    for tensor in (x, thresholds):
        places = torch.rand(tensor.shape, generator=draw) < 0.1
        tensor[places] = odd[torch.randint(5, (int(places.sum()),), generator=draw)]
    flips = torch.rand(channels, generator=draw) < 0.5
    weight = torch.randn(outputs, geometry.channels, *geometry.kernel, generator=draw)
    height, width = geometry.result()
    shapes = {
        "alpha": [(outputs,)],
        "full": [(outputs, height, width)],
        "alpha beta": [(outputs,), (height, width)],
        "rank one": [(outputs,), (height,), (width,)],
    }
    scales = [torch.randn(shape, generator=draw) for shape in shapes[form]]
    return x, thresholds, flips, weight, scales


def on(device: str, tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]


def geometry_of(geometry: Geometry, weight: Tensor, out_groups: int = 1) -> LayerGeometry:
    around = (geometry.stride, geometry.padding, geometry.dilation)
    return LayerGeometry(tuple(weight.shape), *around, out_groups)


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    """Equal to the last bit, the sign of zero too."""
    return found.shape == wanted.shape and torch.equal(found.cpu().view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_every_geometry(geometry: Geometry, form: str) -> None:
    x, thresholds, flips, weight, scales = drawn(geometry, form, seed=0)
    groups, around = geometry.groups, geometry_of(geometry, weight)
    bits, packed = reference.pack_bits(x, thresholds, flips, groups), reference.pack_weight(weight, groups)
    found_bits = binary_conv.pack_bits(*on(DEVICE, [x, thresholds, flips]), groups)
    assert torch.equal(found_bits.cpu(), bits)
    wanted = reference.conv2d(bits, packed, scales, around)
    moved = on(DEVICE, scales)
    found = binary_conv.conv2d(found_bits, packed.to(DEVICE), moved, around)
    assert same_bits(found, wanted)


@pytest.mark.parametrize("most", [binary_conv.MOST_WORDS, 0])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("geometry", "form"),
    [
        (Geometry(2, 64, 130, (5, 4), (3, 3), padding=(1, 1)), "alpha"),
        (Geometry(1, 70, 128, (4, 9), (1, 1)), "rank one"),
        (Geometry(1, 64, 6, (5, 4), (3, 3), padding=(1, 1)), "full"),
        (Geometry(1, 9, 64, (3, 3), (3, 3), padding=(1, 1), groups=2), "alpha beta"),
    ],
    ids=str,
)
def test_bits_between_layers(
    geometry: Geometry, form: str, groups: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary_conv, "MOST_WORDS", most)
    x, thresholds, flips, weight, scales = drawn(geometry, form, seed=1)
    bits, packed = (
        reference.pack_bits(x, thresholds, flips, geometry.groups),
        reference.pack_weight(weight, geometry.groups),
    )
    around = geometry_of(geometry, weight, groups)
    y = reference.conv2d(bits, packed, scales, around)
    draw = torch.Generator().manual_seed(2)
    tau, f = torch.randn(len(weight), generator=draw) * 9, torch.rand(len(weight), generator=draw) < 0.5
    tau[0] = y[0, 0, 0, 0]  # a threshold that is met
    tau[1] = float("nan")
    layer = on(DEVICE, [bits, packed])
    found = binary_conv.conv2d(*layer, on(DEVICE, scales), around, tau.to(DEVICE), f.to(DEVICE))
    assert torch.equal(found.cpu(), reference.pack_bits(y, tau, f, groups))


def test_inputs_that_are_not_contiguous() -> None:
    geometry = Geometry(2, 64, 8, (6, 5), (3, 3))
    x, thresholds, flips, _, _ = drawn(geometry, "alpha", seed=3)
    wanted = reference.pack_bits(x, thresholds, flips, 1)
    turned = x.to(DEVICE).to(memory_format=torch.channels_last)
    assert torch.equal(binary_conv.pack_bits(turned, thresholds.to(DEVICE), flips.to(DEVICE), 1).cpu(), wanted)


@pytest.mark.parametrize("tile", [*binary_conv.TILES, (1, 32, 1)], ids=str)
def test_every_tile(tile: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_conv, "_tile", lambda *_: tile)
    geometry = Geometry(1, 64, 13, (13, 11), (3, 3), padding=(1, 1))
    x, thresholds, flips, weight, scales = drawn(geometry, "alpha", seed=4)
    bits, packed = reference.pack_bits(x, thresholds, flips, 1), reference.pack_weight(weight, 1)
    around = geometry_of(geometry, weight)
    wanted = reference.conv2d(bits, packed, scales, around)
    found = binary_conv.conv2d(*on(DEVICE, [bits, packed]), on(DEVICE, scales), around)
    assert same_bits(found, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_layers_of_tensors_on_a_gpu() -> None:
    geometry = Geometry(2, 64, 70, (6, 5), (3, 3), padding=(1, 1))
    x, thresholds, flips, weight, scales = drawn(geometry, "alpha", seed=5)
    tau, f = torch.zeros(70), torch.ones(70, dtype=torch.bool)

    def layer(device: str, **more: Tensor) -> Tensor:
        packed = pack_weight(weight.to(device))
        compare = (thresholds.to(device), flips.to(device))
        moved = {name: tensor.to(device) for name, tensor in more.items()}
        operands = Operands(x.to(device), packed, tuple(on(device, scales)), *compare, **moved)
        found = binary_conv2d(operands, LayerGeometry(tuple(weight.shape), padding=(1, 1)))
        return found.cpu()

    assert same_bits(layer("cuda"), layer("cpu"))
    assert torch.equal(layer("cuda", out_thresholds=tau, out_flips=f), layer("cpu", out_thresholds=tau, out_flips=f))
    bits = pack_input(x.cuda(), thresholds.cuda(), flips.cuda())
    assert torch.equal(bits.cpu(), pack_input(x, thresholds, flips))
