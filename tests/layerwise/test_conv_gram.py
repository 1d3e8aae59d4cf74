"""Gram matrices of patches from rows that most windows share, against the patches themselves."""

from __future__ import annotations

from typing import Any

import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.layerwise.conv_gram import ConvRowBatch
from tamis.layerwise.layer_matrices import ConvolutionLayout, Geometry

quickly = settings(max_examples=40, deadline=None)


@st.composite
def layers(draw: Any) -> tuple[ConvolutionLayout, tuple[int, ...]]:
    """A convolution to which lags apply, and a shape of its inputs."""
    rank = draw(st.integers(1, 3))
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    window = (draw(st.integers(2, 4)), *[draw(st.integers(1, 3)) for _ in range(rank - 1)])
    dilation = tuple(draw(st.integers(1, 3 if axis == 0 else 2)) for axis in range(rank))
    stride = (1, *[draw(st.integers(1, 3)) for _ in range(rank - 1)])
    sides = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank)]
    least = [
        2 * dilation[0] * (window[0] - 1) + 1,
        *[d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)][1:],
    ]
    sizes = [max(1, n - sum(side)) + draw(st.integers(0, 2)) for n, side in zip(least, sides, strict=True)]
    padding = tuple(part for side in reversed(sides) for part in side)
    geometry = Geometry(stride, padding, dilation)
    form = ConvolutionLayout.of((groups, each, *window), groups, geometry, draw(st.booleans()))
    batch = [draw(st.integers(1, 2))] if draw(st.booleans()) else []
    return form, (*batch, groups * each, *sizes)


@given(layers(), st.integers(0, 2**20))
@quickly
def test_products_and_sums_are_those_of_the_patches(drawn: Any, seed: int) -> None:
    form, shape = drawn
    generator = torch.Generator().manual_seed(seed)
    x, y = normal(generator, *shape), normal(generator, *shape)
    assert ConvRowBatch.is_applicable(form, x)
    lagged, other = ConvRowBatch(form, x, torch.float64), ConvRowBatch(form, y, torch.float64)
    rows, others = form.to_rows(x), form.to_rows(y)
    assert lagged.count == rows.shape[1]
    torch.testing.assert_close(lagged.sums(), rows.sum(1))
    torch.testing.assert_close(lagged.gram(), rows.mT @ rows)
    torch.testing.assert_close(lagged.gram(other), rows.mT @ others)
    torch.testing.assert_close(other.gram(lagged), others.mT @ rows)


@given(layers(), st.sampled_from([torch.float32, torch.float64]))
@quickly
def test_features_that_are_always_zero_have_zeros_exactly(drawn: Any, dtype: torch.dtype) -> None:
    """In small images with much padding some weights only ever see the border; a dead channel, none at all."""
    form, shape = drawn
    x = normal(torch.Generator().manual_seed(0), *shape).to(dtype)
    channels = x if form.has_batch(x) else x[None]
    channels[:, 0] = 0
    dead = ~form.to_rows(x).any(1)
    lagged = ConvRowBatch(form, x, dtype)
    gram, sums = lagged.gram(), lagged.sums()
    assert dead.any()
    assert not gram[dead].any() and not gram.mT[dead].any() and not sums[dead].any()
    assert (gram.diagonal(dim1=1, dim2=2)[~dead] > 0).all()


def test_where_lags_apply() -> None:
    def form(window: tuple[int, ...], stride: int, dilation: int, side: int = 0) -> ConvolutionLayout:
        geometry = Geometry((stride, 1), (0, 0, side, side), (dilation, 1))
        return ConvolutionLayout.of((1, 1, *window), 1, geometry, False)

    def applies(rows: int, *args: Any, **kwargs: Any) -> bool:
        return ConvRowBatch.is_applicable(form(*args, **kwargs), torch.zeros(1, rows, 4))

    assert applies(5, (3, 3), 1, 1) and not applies(4, (3, 3), 1, 1) and applies(3, (3, 3), 1, 1, side=1)
    assert applies(9, (3, 1), 1, 2) and not applies(8, (3, 1), 1, 2)
    assert not applies(50, (3, 3), 2, 1) and not applies(50, (1, 3), 1, 1)
