"""Lines are the bits of PyTorch's batch normalization, or are not used."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tamis.binary import batchnorm_affine as module
from tamis.binary.batchnorm_affine import find_affine
from tamis.kernels import dispatch

needs_extension = pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())


def drawn(norm: nn.BatchNorm1d | nn.BatchNorm2d, seed: int = 0) -> nn.BatchNorm1d | nn.BatchNorm2d:
    draw = torch.Generator().manual_seed(seed)
    assert norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        for tensor in (*norm.parameters(), norm.running_mean):
            tensor.copy_(torch.randn(tensor.shape, generator=draw))
        norm.running_var.copy_(torch.rand(norm.num_features, generator=draw) + 0.01)
    return norm.eval()


@needs_extension
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 70), st.tuples(st.integers(1, 20), st.integers(1, 20)), st.integers(1, 3), st.integers(0, 2**31))
def test_images_of_every_size_and_layout(channels: int, size: tuple[int, int], batch: int, seed: int) -> None:
    norm = drawn(nn.BatchNorm2d(channels), seed)
    affine = find_affine(norm)
    assert affine is not None
    x = torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(seed)) * 10
    with torch.no_grad():
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            assert torch.equal(affine(given), norm(given))


@needs_extension
def test_signals_features_and_norms_without_parameters() -> None:
    norm, x = drawn(nn.BatchNorm1d(9)), torch.randn(4, 9, 21)
    affine = find_affine(norm)
    assert affine is not None
    with torch.no_grad():
        assert torch.equal(affine(x[:, :, None])[:, :, 0], norm(x))
        assert torch.equal(affine(x[:, :, None, :1])[..., 0, 0], norm(x[..., 0].contiguous()))
    plain = drawn(nn.BatchNorm2d(5, affine=False))
    affine, images = find_affine(plain), torch.randn(2, 5, 3, 7)
    assert affine is not None and torch.equal(affine(images), plain(images))


@needs_extension
def test_a_slope_of_zero_and_large_ones() -> None:
    norm = drawn(nn.BatchNorm2d(4))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.0, -0.0, 1e6, 1e-9]))
        affine = find_affine(norm)
        assert affine is not None and affine.slope[:2].abs().max() == 0
        x = torch.randn(2, 4, 5, 5) * 1e4
        assert torch.equal(affine(x), norm(x))


def test_what_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = drawn(nn.BatchNorm2d(3))
    hooked.register_forward_hook(lambda *_: None)
    infinite = drawn(nn.BatchNorm2d(3))
    with torch.no_grad():
        infinite.bias[1] = torch.inf
    others = [
        nn.BatchNorm2d(3).train(),
        nn.BatchNorm2d(3, track_running_stats=False).eval(),
        nn.BatchNorm2d(3).double().eval(),
        nn.BatchNorm2d(3, device="meta").eval(),
        nn.BatchNorm3d(3).eval(),
        nn.LayerNorm(3),
        hooked,
        infinite,
    ]
    assert [find_affine(norm) for norm in others] == [None] * len(others)
    monkeypatch.setattr(module, "_rounds_once", lambda: None)
    assert find_affine(drawn(nn.BatchNorm2d(3))) is None
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tamis._native", None)
    assert find_affine(drawn(nn.BatchNorm2d(3))) is None


@needs_extension
def test_the_other_way_to_round_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = drawn(nn.BatchNorm2d(40))
    affine = find_affine(norm)
    assert affine is not None
    monkeypatch.setattr(module, "_rounds_once", lambda: not affine.one_rounding)
    assert find_affine(norm) is None


@needs_extension
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 70), st.booleans(), st.integers(0, 2**31))
def test_the_kernel_rounds_once_or_twice(channels: int, batch: int, entries: int, once: bool, seed: int) -> None:
    native, draw = dispatch.native(), np.random.default_rng(seed)
    assert native is not None
    x = draw.standard_normal((batch * channels, entries), np.float32)
    x.flat[0], x.flat[-1] = draw.choice([np.nan, np.inf, -np.inf, -0.0, 1e30], 2)
    slope, shift = draw.standard_normal((2, channels), np.float32)
    found, pooled = np.empty_like(x), np.empty_like(x)
    native.affine(x, slope, shift, found, 2, once)
    # The pooling of single entries is the same computation in another kernel.
    one, images = (1, 1), (len(x), 1, entries)
    native.max_pool(x.reshape(images), one, one, (0, 0), one, pooled.reshape(images), 1, slope, shift, once, False)
    assert found.tobytes() == pooled.tobytes()
    if not once:
        slopes, shifts = np.tile(slope, batch)[:, None], np.tile(shift, batch)[:, None]
        np.testing.assert_array_equal(found, x * slopes + shifts)


@needs_extension
def test_the_kernel_refuses_sizes_that_do_not_agree() -> None:
    native = dispatch.native()
    assert native is not None
    x, ones = np.zeros((4, 3), np.float32), np.ones(2, np.float32)
    for slope, shift, out in (
        (ones, ones, np.zeros((4, 2), np.float32)),
        (ones, ones[:1], np.zeros_like(x)),
        (ones[:0], ones[:0], np.zeros_like(x)),
        (np.ones(3, np.float32), np.ones(3, np.float32), np.zeros_like(x)),
    ):
        with pytest.raises(ValueError, match="affine got sizes that do not agree"):
            native.affine(x, slope, shift, out, 1, True)
    with pytest.raises(ValueError, match="cannot write over what it reads"):
        native.affine(x, ones, ones, x, 1, True)
