"""Values put where a mask is true: the kernel and its stand-in against a loop."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.kernels.mask_expansion import expand

TYPES = [np.uint8, np.int16, np.int32, np.int64, np.float32]
hidden_or_not = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["native", "stand-in"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    elif dispatch.native() is None:
        pytest.skip(dispatch.explain_native())


def by_hand(values: list[int], mask: list[bool]) -> list[int]:
    left = iter(values)
    return [next(left) if kept else 0 for kept in mask]


@pytest.mark.usefixtures("form")
@hidden_or_not
@given(st.sampled_from(TYPES), st.integers(0, 400), st.sampled_from([0, 0.03, 0.2, 0.9, 1]), st.integers(0, 2**32 - 1))
def test_every_value_finds_its_place(dtype: type, entries: int, density: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    mask = draw.random(entries) < density
    values = draw.integers(1, 100, np.count_nonzero(mask)).astype(dtype)
    result = expand(values, mask)
    assert result.dtype == dtype
    assert result.tolist() == by_hand(values.tolist(), mask.tolist())


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("density", [0.2, 1.0])
@pytest.mark.parametrize("dtype", TYPES)
def test_results_larger_than_a_cache(dtype: type, density: float) -> None:
    draw = np.random.default_rng(0)
    mask = draw.random(300_007) < density
    values = draw.integers(1, 100, np.count_nonzero(mask)).astype(dtype)
    assert expand(values, mask).tolist() == by_hand(values.tolist(), mask.tolist())


@pytest.mark.usefixtures("form")
def test_a_wrong_number_of_values_is_refused() -> None:
    mask = np.arange(100) % 3 == 0
    for count in (0, 1, 33, 35, 1000):
        with pytest.raises(InvalidInput, match=f"{count} values for 34 kept entries"):
            expand(np.ones(count, dtype=np.float32), mask)


BYTES = [[255], [2], [0, 128], [0, 1, 2, 127, 254, 255]]  # what a boolean of numpy can be found to hold


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("choices", BYTES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_byte_but_0_is_true(dtype: type, choices: list[int]) -> None:
    draw = np.random.default_rng(0)
    for entries in [*range(140), 1000, 300_007]:
        chosen = draw.choice(np.array(choices, dtype=np.uint8), entries)
        values = np.arange(1, np.count_nonzero(chosen) + 1).astype(dtype)
        expected = np.zeros(entries, dtype=dtype)
        expected[chosen != 0] = values
        assert np.array_equal(expand(values, chosen.view(np.bool_)), expected)


@pytest.mark.parametrize("choices", BYTES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_kernel_leaves_the_memory_around_its_result_alone(dtype: type, choices: list[int]) -> None:
    extension = dispatch.native()
    if extension is None:
        pytest.skip(dispatch.explain_native())
    draw = np.random.default_rng(0)
    for entries in [*range(140), 1000]:
        chosen = draw.choice(np.array(choices, dtype=np.uint8), entries)
        values = np.arange(1, np.count_nonzero(chosen) + 1).astype(dtype)
        around = np.full(entries + 600, 77, dtype=dtype)
        extension.expand(values, chosen.view(np.bool_), around[300 : 300 + entries])
        assert (around[:300] == 77).all() and (around[300 + entries :] == 77).all()
        assert around[300 : 300 + entries].tolist() == by_hand(values.tolist(), (chosen != 0).tolist())


def test_the_kernel_itself_reads_and_writes_within_bounds() -> None:
    extension = dispatch.native()
    if extension is None:
        pytest.skip(dispatch.explain_native())
    for dtype in TYPES:
        mask, out = np.ones(100, dtype=np.bool_), np.zeros(100, dtype=dtype)
        with pytest.raises(ValueError, match="fewer values"):
            extension.expand(np.ones(99, dtype=dtype), mask, out)
        with pytest.raises(ValueError, match="more values"):
            extension.expand(np.ones(101, dtype=dtype), mask, out)
        with pytest.raises(ValueError, match="of its length"):
            extension.expand(np.ones(100, dtype=dtype), mask[:50], out)
    with pytest.raises(ValueError, match="type of the result"):
        extension.expand(np.ones(100, dtype=np.float32), mask, np.zeros(100, dtype=np.float64))
