"""Layers with what follows them: every kernel against the same steps, one by one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.kernels import binary, dispatch
from tamis.kernels.binary import pack_input, pack_weight
from tamis.kernels.binary_arguments import Geometry
from tamis.kernels.binary_call import MOST_SHAPES, CachedBinaryConv2d

NATIVE = dispatch.native()
pytestmark = pytest.mark.skipif(NATIVE is None, reason=dispatch.explain_native())
KERNELS = NATIVE.binary_kernels() if NATIVE else []


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(binary, "kernel_name", lambda: request.param)
    yield request.param


def few_bits(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Numbers with which sums and products are exact in float64."""
    return torch.randint(-2048, 2049, shape, generator=draw) / 1024


class Case:
    """A layer, and what its result is before anything follows."""

    def __init__(self, outputs: int, channels: int, size: tuple[int, int], kernel: int, seed: int = 0) -> None:
        self.draw = draw = torch.Generator().manual_seed(seed)
        self.x = torch.randn(2, channels, *size, generator=draw)
        self.weight = torch.randn(outputs, channels, kernel, kernel, generator=draw)
        self.tau, self.flips = torch.randn(channels, generator=draw), torch.rand(channels, generator=draw) < 0.5
        self.alpha = few_bits((outputs,), draw)
        bits = (self.x >= self.tau[:, None, None]) ^ self.flips[:, None, None]
        sums = nn.functional.conv2d(2 * bits.double() - 1, self.weight.sign().double(), padding=kernel // 2)
        self.product = (sums.float() + 0.0) * self.alpha[:, None, None]
        self.bias, self.slope, self.shift = (few_bits((outputs,), draw) for _ in range(3))
        self.added = few_bits(tuple(self.product.shape), draw)
        self.geometry = Geometry(tuple(self.weight.shape), (1, 1), (kernel // 2,) * 2, (1, 1))

    def tensors(self, *after: Tensor | None) -> tuple[Tensor | None, ...]:
        return pack_weight(self.weight), self.tau, self.flips, None, None, *after, self.alpha


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(KERNELS or [""]),
    st.sampled_from(
        [(64, 56, (7, 9), 3), (20, 70, (5, 5), 3), (33, 9, (1, 1), 1), (5, 3, (16, 16), 1), (40, 8, (3, 1), 1)]
    ),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.integers(0, 2**31),
)
def test_what_follows(name: str, sizes: tuple[int, int, tuple[int, int], int], steps: list[bool], seed: int) -> None:
    biased, sloped, adding, relu, once = steps
    case = Case(*sizes, seed)
    wanted = case.product
    if biased:
        wanted = wanted + case.bias[:, None, None]
    if sloped:
        slope, shift = case.slope[:, None, None], case.shift[:, None, None]
        wanted = (wanted.double() * slope.double() + shift.double()).float() if once else (wanted * slope) + shift
    if adding:
        wanted = wanted + case.added
    wanted = wanted.relu() if relu else wanted
    layer = CachedBinaryConv2d(case.geometry, one_rounding=once, relu=relu)
    after = (case.bias if biased else None, *((case.slope, case.shift) if sloped else (None, None)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary, "kernel_name", lambda: name)
        found = layer(case.x, case.added if adding else None, case.tensors(*after))
    assert found is not None and torch.equal(found, wanted)


def test_what_is_not_a_number_stays_through_a_relu(kernel: str) -> None:
    case = Case(20, 5, (5, 5), 3)
    case.added[0, 0, 0, 0], case.added[1, 19, 4, 4] = torch.nan, -torch.inf
    found = CachedBinaryConv2d(case.geometry, relu=True)(case.x, case.added, case.tensors(None, None, None))
    assert found is not None
    assert torch.equal(found.nan_to_num(7), (case.product + case.added).relu().nan_to_num(7))


def test_other_tensors_in_the_place_of_known_ones_are_seen(kernel: str) -> None:
    case, other = Case(8, 6, (4, 4), 3), Case(8, 6, (4, 4), 3, seed=1)
    layer = CachedBinaryConv2d(case.geometry)
    for one in (case, case, other, case):
        found = layer(one.x, None, one.tensors(None, None, None))
        assert found is not None and torch.equal(found, one.product)
    tensors = case.tensors(None, None, None)
    layer(case.x, None, tensors)
    case.alpha.data = 2 * case.alpha  # the same tensor, somewhere else
    found = layer(case.x, None, tensors)
    assert found is not None and torch.equal(found, 2 * case.product)
    case.alpha.data = torch.ones(3)
    with pytest.raises(InvalidInput, match="needs scales"):
        layer(case.x, None, tensors)


def test_bits_and_inputs_of_many_shapes(kernel: str) -> None:
    case = Case(8, 6, (4, 4), 3)
    layer, tensors = CachedBinaryConv2d(case.geometry), case.tensors(None, None, None)
    found = layer(pack_input(case.x, case.tau, case.flips), None, tensors)
    assert found is not None and torch.equal(found, case.product)
    for batch in range(2 * MOST_SHAPES):
        many = layer(case.x[:1].expand(batch + 1, -1, -1, -1), None, tensors)
        assert many is not None and torch.equal(many, case.product[:1].expand_as(many))
    assert len(layer._calls) <= MOST_SHAPES


def test_what_it_cannot_run_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(8, 6, (4, 4), 3)
    layer, tensors = CachedBinaryConv2d(case.geometry), case.tensors(None, None, None)
    for added in (case.added[:1], case.added.double(), case.added.to("meta")):
        assert layer(case.x, added, tensors) is None
    assert layer(case.x.to("meta"), None, tensors) is None
    assert layer(case.x[:0], None, tensors) is None
    assert CachedBinaryConv2d(case.geometry)(case.x, None, (*tensors[:8], tensors[8].to("meta"))) is None  # type: ignore[union-attr]
    with pytest.raises(InvalidInput, match="followed by float32 numbers of 8 channels"):
        CachedBinaryConv2d(case.geometry)(case.x, None, case.tensors(torch.ones(7), None, None))
    monkeypatch.setattr(binary, "kernel_name", lambda: "torch")
    assert layer(case.x, None, tensors) is None


def test_copies_have_no_addresses() -> None:
    case = Case(8, 6, (4, 4), 3)
    layer, tensors = CachedBinaryConv2d(case.geometry), case.tensors(None, None, None)
    layer(case.x, None, tensors)
    assert layer._calls
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert not again._calls
        assert torch.equal(again(case.x, None, tensors), case.product)
