"""Rounding with feedback: the kernel and its stand-in against the recursion written out, and against each other."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from draws import normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.kernels import dispatch
from tamis.kernels.feedback import BLOCK, FeedbackBlock, Grid, choose_block
from tamis.quantization.feedback import Recursion, choose_levels

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LEVELS = [2, 3, 4, 16, 17, 256, 300]
seeds = st.integers(0, 2**32 - 1)
hidden_or_not = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def require_extension() -> None:
    if dispatch.native() is None:
        pytest.skip(dispatch.explain_native())


@pytest.fixture(params=["native", "stand-in"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    else:
        require_extension()


def random_problem(
    seed: int, problems: int, features: int, neurons: int, levels: int, dtype: torch.dtype
) -> tuple[Recursion, Grid]:
    """Start and target close to each other, a coupling that keeps z bounded, and unevenly spaced levels."""
    draw = torch.Generator().manual_seed(seed)
    target = normal(draw, problems, neurons, features)
    start = target + normal(draw, problems, neurons, features) / 10
    coupling = normal(draw, problems, features, features) / features**0.5
    spaced = torch.linspace(-2, 2, levels, dtype=torch.float64) + torch.rand(levels, generator=draw) / levels
    scales = torch.rand(problems, neurons, generator=draw, dtype=torch.float64) + 0.5
    return Recursion(start, target, coupling), Grid(scales.to(dtype), spaced.to(dtype))


def random_mask(seed: int, *shape: int) -> Tensor:
    """Of some rows nothing is kept, of some everything, and of others a part."""
    draw = torch.Generator().manual_seed(seed)
    kept = torch.randint(0, 5, shape[:-1], generator=draw)[..., None] / 4
    return torch.rand(shape, generator=draw) < kept


def by_hand(recursion: Recursion, grid: Grid, keep: Tensor | None = None) -> Tensor:
    """The recursion for one neuron after the other; of two nearest levels, the lower one."""
    problems, neurons, features = recursion.start.shape
    indices = torch.empty(problems, neurons, features, dtype=torch.int32)
    for p in range(problems):
        for neuron in range(neurons):
            errors: list[float] = []
            levels = grid.levels * grid.scales[p, neuron]
            exact = [float(level) * float(grid.scales[p, neuron]) for level in grid.levels]
            for t in range(features):
                z = float(recursion.start[p, neuron, t])
                if recursion.coupling is not None:
                    z += sum(float(recursion.coupling[p, t, j]) * error for j, error in enumerate(errors))
                index = min(range(len(exact)), key=lambda i: abs(exact[i] - z))
                value = float(levels[index])
                if keep is not None and not keep[p, neuron, t]:
                    index, value = 0, 0.0
                indices[p, neuron, t] = index
                errors.append(float(recursion.target[p, neuron, t]) - value)
    return indices


@pytest.mark.usefixtures("form")
@settings(hidden_or_not, max_examples=8)
@given(
    seeds,
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 10),
    st.sampled_from(LEVELS[:5]),
    st.booleans(),
    st.booleans(),
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_recursion(
    dtype: torch.dtype, seed: int, problems: int, features: int, neurons: int, levels: int, coupled: bool, masked: bool
) -> None:
    recursion, grid = random_problem(seed, problems, features, neurons, levels, dtype)
    if not coupled:
        recursion = Recursion(recursion.start, recursion.target, None)
    keep = random_mask(seed, problems, neurons, features) if masked else None
    result = choose_levels(recursion, grid, keep)
    assert result.dtype is torch.int32
    assert result.tolist() == by_hand(recursion, grid, keep).tolist()


@pytest.mark.usefixtures("form")
@settings(hidden_or_not, max_examples=5)
@given(seeds, st.integers(BLOCK + 1, 2 * BLOCK + 5))
def test_pruned_weights_are_heard_of_in_later_blocks(seed: int, features: int) -> None:
    recursion, grid = random_problem(seed, 1, features, 3, 3, torch.float32)
    keep = random_mask(seed, 1, 3, features)
    keep[0, 0] = False
    assert choose_levels(recursion, grid, keep).tolist() == by_hand(recursion, grid, keep).tolist()
    assert torch.equal(choose_levels(recursion, grid, torch.ones_like(keep)), choose_levels(recursion, grid))


@dataclass(frozen=True)
class FakeTeam:
    """One after the other instead of side by side: each adds to what those before it have; the last has the sum."""

    size: int
    rank: int
    so_far: Tensor

    def summed(self, figures: Tensor) -> Tensor:
        return figures + self.so_far


@pytest.mark.usefixtures("form")
@settings(hidden_or_not, max_examples=12)
@given(seeds, st.integers(1, 3), st.integers(1, 2 * BLOCK), st.integers(1, 20), st.booleans(), st.booleans())
@pytest.mark.parametrize("size", [2, 3])
def test_a_team_chooses_what_one_process_does(
    size: int, seed: int, problems: int, features: int, neurons: int, coupled: bool, masked: bool
) -> None:
    recursion, grid = random_problem(seed, problems, features, neurons, 4, torch.float32)
    if not coupled:
        recursion = Recursion(recursion.start, recursion.target, None)
    keep = random_mask(seed, problems, neurons, features) if masked else None
    together = torch.zeros(problems, neurons, features, dtype=torch.int32)
    for rank in range(size):
        together = choose_levels(recursion, grid, keep, FakeTeam(size, rank, together))
    assert together.dtype is torch.int32
    assert torch.equal(together, choose_levels(recursion, grid, keep))
    assert torch.equal(together, choose_levels(recursion, grid, keep, FakeTeam(1, 0, together)))


@settings(hidden_or_not, max_examples=25)
@given(
    seeds,
    st.integers(1, 50),
    st.integers(1, 3 * BLOCK),
    st.integers(1, 80),
    st.sampled_from(LEVELS),
    st.sampled_from(DTYPES),
    st.booleans(),
)
def test_kernel_and_stand_in_agree(
    seed: int, problems: int, features: int, neurons: int, levels: int, dtype: torch.dtype, masked: bool
) -> None:
    require_extension()
    problems = min(problems, 1 + 100_000 // (features * (neurons + features)))
    recursion, grid = random_problem(seed, problems, features, neurons, levels, dtype)
    keep = random_mask(seed, problems, neurons, features) if masked else None
    native = choose_levels(recursion, grid, keep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tamis._native", None)
        assert torch.equal(native, choose_levels(recursion, grid, keep))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_coupling_every_tie_and_every_oddity_ends_alike(dtype: torch.dtype, levels: int) -> None:
    """Nothing is added up here, so that the results are equal to the bit: on the middles, beside them, far away."""
    _, grid = random_problem(0, 2, 1, 3, levels, dtype)
    middles = grid.middles * 2  # exactly halfway, for a scale of 2
    odd = torch.tensor([0.0, -0.0, 1e300, -1e300, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    row = torch.cat([middles, torch.nextafter(middles, middles + 1), torch.nextafter(middles, middles - 1), odd])
    start = row.expand(2, 3, -1).clone()
    start[1] += normal(torch.Generator().manual_seed(0), *start[1].shape)
    grid = Grid(torch.tensor([2.0, 0.5, 0.7]).to(dtype).expand(2, 3), grid.levels)
    uncoupled = choose_levels(Recursion(start, start, None), grid)
    assert uncoupled[0, 0, : levels - 1].tolist() == list(range(levels - 1))
    # A product with an infinite error is not a number even where the coupling is zero: every feature is a problem of
    # its own, therefore.
    features = start.shape[2]
    indices = torch.empty(features, 1, 3, dtype=torch.int32)
    for p in range(2):
        alone = Grid(grid.scales[p].expand(features, 3), grid.levels)
        steps = start[p].T[:, None].contiguous()
        block = FeedbackBlock(steps, steps, torch.zeros(features, 1, 1, dtype=torch.float64))
        choose_block(block, alone, indices, torch.empty(features, 1, 3, dtype=torch.float64))
        assert indices[:, 0].T.tolist() == uncoupled[p].tolist()


@pytest.mark.usefixtures("form")
@settings(hidden_or_not, max_examples=30)
@given(seeds, st.sampled_from(LEVELS), st.integers(-30, 14), st.booleans())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_errors_are_left_by_the_levels_as_they_are_stored(
    dtype: torch.dtype, seed: int, levels: int, exponent: int, masked: bool
) -> None:
    """Down to scales whose levels have no full precision in float16, and up to those that are infinite there.

    Where a weight is pruned, its whole target is left.
    """
    recursion, grid = random_problem(seed, 2, 5, 11, levels, dtype)
    scales = (grid.scales.double() * 2.0**exponent).to(dtype)
    scales = torch.where(scales > 0, scales, 2.0**-24)
    start, target = (value.mT * 2.0**exponent for value in (recursion.start, recursion.target))
    indices, errors = torch.empty(start.shape, dtype=torch.int32), torch.empty(start.shape, dtype=torch.float64)
    keep = random_mask(seed, 2, 11, 5).mT if masked else torch.ones(start.shape, dtype=torch.bool)
    grid = Grid(scales, grid.levels)
    block = FeedbackBlock(start, target, recursion.coupling, keep if masked else None)
    choose_block(block, grid, indices, errors)
    assert torch.equal(errors, target - Grid(scales[:, None], grid.levels).values(indices).where(keep, 0.0))
    assert not indices[~keep].any()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("neurons", [1, 5])
def test_nothing_it_is_given_changes(neurons: int) -> None:
    """With a single neuron, features first is how it lies in memory: a step must not write there."""
    recursion, grid = random_problem(0, 4, 70, neurons, 3, torch.float32)
    same = Recursion(recursion.target, recursion.target, recursion.coupling)
    keep = random_mask(0, 4, neurons, 70)
    given = (same.target, same.coupling, grid.scales, grid.levels, keep)
    before = [value.clone() for value in given]
    first = choose_levels(same, grid, keep)
    assert all(map(torch.equal, before, given))
    apart = Recursion(same.target.clone(), same.target.clone(), same.coupling)
    assert torch.equal(first, choose_levels(apart, grid, keep))


@pytest.mark.usefixtures("form")
def test_how_tensors_lie_in_memory_does_not_matter() -> None:
    recursion, grid = random_problem(1, 3, 2 * BLOCK + 5, 37, 4, torch.float32)

    def turned(value: Tensor) -> Tensor:
        return value.mT.contiguous().mT

    def spread(value: Tensor) -> Tensor:
        return torch.stack([value, value], -1)[..., 0]

    keep = random_mask(1, 3, 37, 2 * BLOCK + 5)
    expected, pruned = choose_levels(recursion, grid), choose_levels(recursion, grid, keep)
    for moved in (turned, spread):
        same = Recursion(*(moved(value) for value in (recursion.start, recursion.target, recursion.coupling)))
        same_grid = Grid(moved(grid.scales), spread(grid.levels))
        assert torch.equal(choose_levels(same, same_grid), expected)
        assert torch.equal(choose_levels(same, same_grid, moved(keep)), pruned)
    assert torch.equal(
        choose_levels(recursion.repeat_neurons(2), Grid(grid.scales.repeat(1, 2), grid.levels))[:, 37:], expected
    )


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_to_round(shape: tuple[int, int, int]) -> None:
    problems, neurons, features = shape
    recursion, grid = random_problem(0, problems, features or 1, neurons, 3, torch.float32)
    start, target, coupling = (
        value[..., :features] for value in (recursion.start, recursion.target, recursion.coupling)
    )
    nothing = Recursion(start, target, coupling[:, :features])
    assert choose_levels(nothing, grid).shape == shape
    assert choose_levels(nothing, grid, torch.ones(shape, dtype=torch.bool)).shape == shape


@pytest.mark.parametrize("neurons", [1, 7, 8, 31, 33, 100])
def test_the_kernel_leaves_the_memory_around_its_results_alone(neurons: int) -> None:
    require_extension()
    recursion, grid = random_problem(2, 2, 9, neurons, 3, torch.float32)
    around = (2, 11, neurons + 20)
    indices, errors = torch.full(around, 77, dtype=torch.int32), torch.full(around, 77.0, dtype=torch.float64)
    inside = (slice(None), slice(1, 10), slice(10, 10 + neurons))
    block = FeedbackBlock(recursion.start.mT, recursion.target.mT, recursion.coupling)
    choose_block(block, grid, indices[inside], errors[inside])
    assert torch.equal(indices[inside].mT, choose_levels(recursion, grid))
    indices[inside], errors[inside] = 77, 77.0
    assert (indices == 77).all() and (errors == 77).all()


def test_the_kernel_itself_refuses_what_does_not_fit() -> None:
    require_extension()
    fits = {
        "start": np.zeros((2, 3, 4)),
        "target": np.zeros((2, 3, 4)),
        "coupling": np.zeros((2, 3, 3)),
        "scales": np.ones((2, 4)),
        "levels": np.array([-1.0, 1.0]),
        "middles": np.array([0.0]),
        "dtype": "float32",
        "indices": np.zeros((2, 3, 4), dtype=np.int32),
        "errors": np.zeros((2, 3, 4)),
        "keep": np.ones((2, 3, 4), dtype=bool),
    }
    feedback = dispatch.native().feedback
    feedback(**fits)
    for name, wrong, why in [
        ("target", np.zeros((2, 3, 5)), "shapes do not agree"),
        ("coupling", np.zeros((2, 3, 2)), "shapes do not agree"),
        ("indices", np.zeros((1, 3, 4), dtype=np.int32), "shapes do not agree"),
        ("errors", np.zeros((2, 2, 4)), "shapes do not agree"),
        ("keep", np.ones((2, 4, 3), dtype=bool), "shapes do not agree"),
        ("errors", np.zeros((2, 4, 3)).transpose(0, 2, 1), "side by side"),
        ("scales", np.ones((2, 3)), "one scale for each neuron"),
        ("middles", np.zeros(2), "one middle less"),
        ("dtype", "int8", "rounds levels to"),
    ]:
        with pytest.raises(ValueError, match=why):
            feedback(**{**fits, name: wrong})
    for name, wrong_type in [("start", np.float32), ("keep", np.uint8)]:
        with pytest.raises(TypeError):
            feedback(**{**fits, name: np.zeros((2, 3, 4), dtype=wrong_type)})
    long = {name: np.zeros((1, BLOCK + 1, 1)) for name in ("start", "target", "errors")}
    long |= {"coupling": np.zeros((1, BLOCK + 1, BLOCK + 1)), "indices": np.zeros((1, BLOCK + 1, 1), dtype=np.int32)}
    with pytest.raises(ValueError, match="more features than fit one block"):
        feedback(**{**fits, **long, "scales": np.ones((1, 1)), "keep": None})
