"""Codes: scale × level, against exact arithmetic; and what they refuse."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from any_tensors import FLOATS, any_codes, quantized_tensors, raw, same, same_codes, shapes, units_of, zeroed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.artifact.codes import Codes
from tamis.artifact.encodings import Decoded, shortest
from tamis.artifact.encodings.levels import Levels
from tamis.errors import InvalidInput

FLOORS = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-125, torch.float32: 2.0**-125, torch.float64: 2.0**-1021}
many = settings(max_examples=25, deadline=None)
TERNARY = torch.tensor([-1.0, 0.0, 1.0])


def nearest(exact: Fraction, dtype: torch.dtype) -> Tensor:
    """The number of a type nearest to an exact one, the even of two: among the neighbours of a guess."""
    guess = torch.tensor(float(exact), dtype=torch.float64).to(dtype)
    far = torch.tensor(float("inf"), dtype=dtype)
    if dtype is torch.float64:
        return guess  # Python rounds fractions correctly
    around = [guess, *(torch.nextafter(guess, side) for side in (far, -far))]
    return min(around, key=lambda each: (abs(Fraction(float(each)) - exact), raw(each)[0] % 2))


@many
@given(st.sampled_from(FLOATS), st.sampled_from([2, 3, 5, 16, 257]), st.integers(0, 2**32), st.data())
def test_values_are_the_exact_products_rounded_once(
    dtype: torch.dtype, number: int, seed: int, data: st.DataObject
) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    units = data.draw(units_of(shape))
    codes, floor = any_codes(dtype, number, shape, units, seed), FLOORS[dtype]
    values = codes.values()
    assert values.dtype is dtype and tuple(values.shape) == shape and values.is_contiguous()
    for place in product(*map(range, shape)):
        unit = tuple(i // (n // u) for i, u, n in zip(place, units, shape, strict=True))
        scale, level = float(codes.scales[unit]), float(codes.levels[int(codes.indices[place])])
        expected = nearest(Fraction(scale) * Fraction(level), dtype)
        if scale < floor or abs(level) < floor or abs(float(expected)) < floor:
            expected = torch.zeros((), dtype=dtype)
        assert raw(values[place]) == raw(expected), (scale, level, place)


@many
@given(quantized_tensors())
def test_a_thread_that_flushes_denormals_computes_the_same_bits(content: Decoded) -> None:
    codes = content.codes
    assert codes is not None
    stored = Levels().encode(content)
    assert stored is not None
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        values = Codes(codes.indices, codes.levels, codes.scales).values(content.mask)
        again = Levels().decode(stored, tuple(content.tensor.shape), content.tensor.dtype)
    finally:
        torch.set_flush_denormal(False)
    assert same(values, content.tensor) and same(again.tensor, content.tensor) and same_codes(again.codes, codes)


@many
@given(quantized_tensors())
def test_there_is_no_negative_zero_and_masked_entries_are_zero(content: Decoded) -> None:
    codes = content.codes
    assert codes is not None
    values = codes.values()
    assert not (values.signbit() & (values == 0)).any()
    mask = codes.indices % 2 == 0
    assert same(codes.values(mask), zeroed(values, mask))
    pruned = codes.apply_mask(mask)
    assert not pruned.indices[~mask].any() and torch.equal(pruned.indices[mask], codes.indices[mask])
    assert pruned.indices.dtype is codes.indices.dtype


def test_a_level_of_minus_zero_becomes_plus_zero() -> None:
    levels = torch.tensor([-1.0, -0.0, 1.0])
    codes = Codes(torch.tensor([1], dtype=torch.uint8), levels, torch.ones(1))
    assert not codes.levels[1].signbit() and not codes.values().signbit().any()
    assert levels[1].signbit(), "what was passed is left as it is"
    half = Codes(
        torch.tensor([0], dtype=torch.uint8), torch.tensor([-(2.0**-20), 1]).half(), torch.tensor([2.0**-20]).half()
    )
    assert raw(half.values()) == b"\0\0", "nor does a product that is too small become −0.0"


@pytest.mark.parametrize("flushing", [False, True])
def test_small_factors_count_as_zero_whatever_the_thread_does_with_them(flushing: bool) -> None:
    levels, scales = torch.tensor([-(2.0**100), 2.0**-127, 2.0]), torch.tensor([2.0**-127, 1.0, 2.0**-125, 2.0**27])
    indices = torch.arange(3, dtype=torch.uint8).repeat(4, 1)
    if not torch.set_flush_denormal(flushing):
        pytest.skip("this processor does not flush denormals")
    try:
        values = Codes(indices, levels, scales.reshape(4, 1)).values()
    finally:
        torch.set_flush_denormal(False)
    expected = [[0, 0, 0], [-(2.0**100), 0, 2], [-(2.0**-25), 0, 2.0**-124], [-(2.0**127), 0, 2.0**28]]
    assert same(values, torch.tensor(expected) + 0.0)


def test_blocks_of_rows() -> None:
    """As in a transposed convolution of two groups, whose weight is [C_in, C_out / g, k]."""
    scales = torch.tensor([[[1.0], [2.0], [4.0]], [[8.0], [16.0], [32.0]]])
    codes = Codes(torch.ones(4, 3, 2, dtype=torch.uint8), torch.tensor([0.0, 1.0]), scales)
    assert torch.equal(codes.values(), torch.stack([scales[0], scales[0], scales[1], scales[1]]).expand(4, 3, 2))


def test_bits_copies_and_words() -> None:
    codes = Codes(torch.zeros(4, 6, dtype=torch.uint8), TERNARY, torch.ones(4, 1))
    assert codes.bits == pytest.approx(1.584962500721156) and repr(codes) == "Codes((4, 6), 3 levels, 4 scales)"
    assert codes.to("cpu") is codes and codes.to(torch.device("cpu")) is codes
    copy = codes.clone()
    assert same_codes(copy, codes)
    for value in (copy.indices, copy.levels, copy.scales):
        value.zero_()
    assert codes.levels.tolist() == [-1, 0, 1] and codes.scales.tolist() == [[1]] * 4


def test_indices_of_any_layout_and_gradients() -> None:
    indices = torch.arange(6, dtype=torch.uint8).reshape(2, 3).T % 3
    codes = Codes(indices, torch.nn.Parameter(TERNARY), torch.nn.Parameter(torch.ones(3, 2)[:, ::2]))
    values = codes.values()
    assert torch.equal(values, TERNARY[indices.long()]) and values.is_contiguous() and not values.requires_grad
    name, stored = shortest(Decoded(values, None, codes))
    assert torch.equal(Levels().decode(stored, (3, 2), torch.float32).tensor, values) and name == "levels"


@given(shapes(), st.data())
def test_scales_that_divide(shape: tuple[int, ...], data: st.DataObject) -> None:
    units = tuple(data.draw(st.integers(0, length + 1)) for length in shape)
    indices = torch.zeros(shape, dtype=torch.uint8)
    if all(u == n or (u == 1 and n == 0) or (u and n and n % u == 0) for u, n in zip(units, shape, strict=True)):
        assert Codes(indices, TERNARY, torch.ones(units)).values().shape == shape
    else:
        with pytest.raises(InvalidInput, match="lengths that divide those of the indices"):
            Codes(indices, TERNARY, torch.ones(units))


BYTES, ONE = torch.tensor([0, 1, 2], dtype=torch.uint8), torch.ones(1)


@pytest.mark.parametrize(
    ("indices", "levels", "scales", "message"),
    [
        ([0], TERNARY, ONE, "the indices of codes must be a tensor, got list"),
        (BYTES, TERNARY.int(), ONE, r"a row of float16, .* got torch.int32 of shape \(3,\)"),
        (BYTES, TERNARY.reshape(1, 3), ONE, r"a row of float16, .* got torch.float32 of shape \(1, 3\)"),
        (BYTES, TERNARY.to(torch.float8_e5m2), ONE, r"got torch.float8_e5m2"),
        (BYTES, TERNARY[:1], ONE, "2 to 65536 levels, got 1"),
        (BYTES.int(), torch.arange(65537.0), ONE, "2 to 65536 levels, got 65537"),
        (BYTES, TERNARY.flip(0), ONE, "finite and ascending, but level 1 is 0.0 after 1.0"),
        (BYTES, torch.tensor([-1.0, -0.0, 0.0]), ONE, "finite and ascending, but level 2 is 0.0 after -0.0"),
        (BYTES, torch.tensor([0.0, 1.0, torch.inf]), ONE, "level 2 is inf"),
        (BYTES, torch.tensor([torch.nan, 1.0, 2.0]), ONE, "level 0 is nan"),
        (BYTES, TERNARY, ONE.double(), "scales must be of the levels' torch.float32, got torch.float64"),
        (BYTES, TERNARY, torch.ones(2), r"scales of shape \(2,\) do not fit indices of shape \(3,\)"),
        (BYTES, TERNARY, torch.ones(1, 1), r"scales of shape \(1, 1\) do not fit indices of shape \(3,\)"),
        (BYTES, TERNARY, torch.tensor([0.0]), "positive and finite, but there is 0.0"),
        (BYTES, TERNARY, torch.tensor([1.0, -2.0, 1.0]), "positive and finite, but there is -2.0"),
        (BYTES, TERNARY, torch.tensor([torch.nan]), "positive and finite, but there is nan"),
        (BYTES, TERNARY * 3e38, torch.tensor([2.0]), "the scale 2.0 times the level .*e[+]38 is inf in torch.float32"),
        (BYTES.int(), TERNARY, ONE, "indices of 3 levels must be torch.uint8, got torch.int32"),
        (BYTES, torch.arange(257.0), ONE, "indices of 257 levels must be torch.int32, got torch.uint8"),
        (BYTES + 1, TERNARY, ONE, "indices must be 0 to 2, of 3 levels, but go from 1 to 3"),
        (BYTES.int() - 1, torch.arange(257.0), ONE, "indices must be 0 to 256, of 257 levels, but go from -1 to 1"),
        (BYTES.to("meta"), TERNARY, ONE, "indices are on meta, levels on cpu, scales on cpu"),
    ],
)
def test_what_cannot_be_codes(indices: Any, levels: Any, scales: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Codes(indices, levels, scales)
