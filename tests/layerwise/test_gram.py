"""Sums over batches against the literal products of all rows, written out in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.layerwise import gram as module
from tamis.layerwise.gram import Gram
from tamis.layerwise.layer_matrices import (
    ConvolutionLayout,
    DenseLayout,
    Geometry,
    MatrixLayout,
    TransposedConvolutionLayout,
)

CPU = torch.device("cpu")
quickly = settings(max_examples=15, deadline=None)
SQUARE = Geometry((1, 1), (1, 1, 1, 1), (1, 1))
LAYERS: dict[str, tuple[MatrixLayout, tuple[int, ...]]] = {
    "linear": (DenseLayout.of((3, 5), transposed=False), (5,)),
    "tokens": (DenseLayout.of((5, 3), transposed=True), (4, 5)),
    "lagged": (ConvolutionLayout.of((4, 2, 3, 3), 1, SQUARE, False), (2, 6, 5)),
    "groups": (ConvolutionLayout.of((4, 1, 3, 3), 2, SQUARE, False), (2, 6, 5)),
    "per channel": (ConvolutionLayout.of((4, 3, 3, 3), 1, SQUARE, True), (3, 5, 5)),
    "strides": (ConvolutionLayout.of((4, 2, 3, 3), 1, Geometry((2, 2), (0,) * 4, (1, 1)), False), (2, 6, 5)),
    "transposed": (
        TransposedConvolutionLayout.of((2, 3, 2, 2), 1, Geometry((1, 1), (1,) * 4, (1, 1)), (2, 2), False),
        (2, 3, 3),
    ),
}


def literal(form: MatrixLayout, original: Tensor, small: Tensor) -> Gram:
    """G, E and the sums by their definitions."""
    y, small_rows = form.to_rows(original.double()), form.to_rows(small.double())
    drift = y - small_rows
    squares = (small_rows.mT @ small_rows, small_rows.mT @ drift)
    return Gram(*squares, small_rows.sum(1), drift.sum(1), small_rows.shape[1])


def drawn_inputs(name: str, samples: int, seed: int = 0) -> tuple[MatrixLayout, Tensor, Tensor]:
    """A form, with inputs of its layer in both networks, whose means are not zero."""
    form, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(seed)
    original = normal(generator, samples, *shape) + 1
    return form, original, original + 0.1 * normal(generator, samples, *shape) - 0.05


def summed(form: MatrixLayout, pairs: list[tuple[Tensor, Tensor]]) -> Gram:
    total = Gram.empty(form, CPU)
    for original, small in pairs:
        total = total.add_batch(form, small, original - small)
    return total


def assert_equal(found: Gram, expected: Gram, **tolerance: Any) -> None:
    assert found.count == expected.count
    for name in ("inputs", "drift", "input_sums", "drift_sums"):
        assert getattr(found, name).dtype is torch.float64
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **tolerance, msg=name)


@pytest.mark.parametrize("name", LAYERS)
@given(cuts=st.lists(st.integers(0, 12), max_size=4))
@quickly
def test_sums_are_the_products_of_all_rows_however_they_are_cut(name: str, cuts: list[int]) -> None:
    form, original, small = drawn_inputs(name, 12)
    bounds = [0, *sorted(cuts), 12]
    pieces = [slice(a, b) for a, b in pairwise(bounds) if b > a]
    pairs = [(original[piece], small[piece]) for piece in pieces]
    assert_equal(summed(form, pairs), literal(form, original, small))
    halves = [summed(form, pairs[::2]), summed(form, pairs[1::2])]
    assert_equal(halves[0] + halves[1], literal(form, original, small))


@pytest.mark.parametrize("name", LAYERS)
def test_without_drift_there_is_none(name: str) -> None:
    form, original, _ = drawn_inputs(name, 3)
    gram = Gram.empty(form, CPU).add_batch(form, original, None)
    assert_equal(gram, literal(form, original, original))
    assert not gram.drift.any() and not gram.drift_sums.any()


@pytest.mark.parametrize("name", LAYERS)
def test_without_a_batch(name: str) -> None:
    form, original, small = drawn_inputs(name, 1)
    if name != "tokens":  # whose first axis is one of samples
        assert not form.has_batch(original[0])
    gram = Gram.empty(form, CPU).add_batch(form, small[0], original[0] - small[0])
    assert_equal(gram, literal(form, original, small))


@pytest.mark.parametrize("name", LAYERS)
def test_pieces_of_a_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that take too much memory come a few samples at a time."""
    form, original, small = drawn_inputs(name, 7)
    monkeypatch.setattr(module, "LARGEST_CHUNK", 2 * form.to_rows(small[:1]).nbytes)
    assert_equal(summed(form, [(original, small)]), literal(form, original, small))
    monkeypatch.setattr(module, "LARGEST_CHUNK", 1)
    assert_equal(summed(form, [(original, small)]), literal(form, original, small))


@pytest.mark.parametrize("panel", [1, 3, 128])
@pytest.mark.parametrize("name", LAYERS)
def test_panels(name: str, panel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PANEL", panel)
    form, original, small = drawn_inputs(name, 7)
    gram = summed(form, [(original, small)])
    assert_equal(gram, literal(form, original, small))
    rows = form.to_rows(small)
    torch.testing.assert_close(module.symmetric_product(rows), rows.mT @ rows)
    torch.testing.assert_close(
        module.lower_product(rows, form.to_rows(original)).tril(), (rows.mT @ form.to_rows(original)).tril()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", LAYERS)
def test_lower_precision(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are exact in float64; large ones are as good as float32."""
    form, original, small = drawn_inputs(name, 12)
    original, small = original.to(dtype), small.to(dtype)
    drift = original - small
    expected = literal(form, (small.double() + drift.double()), small)
    assert_equal(Gram.empty(form, CPU).add_batch(form, small, drift), expected, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(module, "SMALL_PRODUCT", 0)
    found = Gram.empty(form, CPU).add_batch(form, small, drift)
    scale = float(expected.inputs.abs().max())
    assert_equal(found, expected, rtol=0, atol=1e-5 * scale)
    assert not torch.equal(found.inputs, expected.inputs) or dtype is not torch.float32


def test_float64_stays_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_PRODUCT", 0)
    for name in LAYERS:
        form, original, small = drawn_inputs(name, 5)
        assert_equal(summed(form, [(original, small)]), literal(form, original, small), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_centred(name: str) -> None:
    """The same as of rows minus their means."""
    form, original, small = drawn_inputs(name, 9)
    y, rows = form.to_rows(original), form.to_rows(small)
    y, rows = (each - each.mean(1, keepdim=True) for each in (y, rows))
    centred = summed(form, [(original, small)]).centre()
    torch.testing.assert_close(centred.inputs, rows.mT @ rows)
    torch.testing.assert_close(centred.drift, rows.mT @ (y - rows))
    nothing = Gram.empty(form, CPU)
    assert nothing.centre() is nothing


@pytest.mark.parametrize("name", LAYERS)
def test_means(name: str) -> None:
    form, original, small = drawn_inputs(name, 9)
    means = summed(form, [(original, small)]).means()
    torch.testing.assert_close(means.original, form.to_rows(original).mean(1))
    torch.testing.assert_close(means.small, form.to_rows(small).mean(1))


@pytest.mark.parametrize("name", LAYERS)
def test_with_a_constant(name: str) -> None:
    """The same as of rows with a 1 at their end, in both networks."""
    form, original, small = drawn_inputs(name, 9)
    y, rows = (
        torch.cat([each, torch.ones_like(each[..., :1])], 2) for each in (form.to_rows(original), form.to_rows(small))
    )
    found = summed(form, [(original, small)]).with_constant()
    drift = y - rows
    assert_equal(found, Gram(rows.mT @ rows, rows.mT @ drift, rows.sum(1), drift.sum(1), rows.shape[1]))


@pytest.mark.parametrize("name", LAYERS)
def test_in_another_order(name: str) -> None:
    """The same as of rows whose features stand in that order, one of its own in each problem."""
    form, original, small = drawn_inputs(name, 9)
    generator = torch.Generator().manual_seed(1)
    places = torch.stack([torch.randperm(form.features, generator=generator) for _ in range(form.problems)])
    y, rows = (
        each.gather(2, places[:, None, :].expand_as(each)) for each in (form.to_rows(original), form.to_rows(small))
    )
    found = summed(form, [(original, small)]).reorder(places)
    drift = y - rows
    assert_equal(found, Gram(rows.mT @ rows, rows.mT @ drift, rows.sum(1), drift.sum(1), rows.shape[1]))


def test_of_constant_inputs_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the products are taken in: what never varies has no variance, from which scales would be fitted."""
    monkeypatch.setattr(module, "SMALL_PRODUCT", 0)
    form = ConvolutionLayout.of((4, 8, 3, 3), 1, SQUARE, False)
    inputs = torch.full((20, 8, 20, 20), 0.37)
    inner = ConvolutionLayout.of((4, 8, 3, 3), 1, Geometry((1, 1), (0,) * 4, (1, 1)), False)
    assert not Gram.empty(form, CPU).add_batch(inner, inputs, None).centre().inputs.any()
