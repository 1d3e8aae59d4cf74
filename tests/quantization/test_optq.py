"""OPTQ against the published column updates; coordinate descent and scales against their optimality conditions."""

from __future__ import annotations

import pytest
import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.kernels import Grid
from tamis.layerwise import Gram, add_ridge
from tamis.layerwise.least_squares import DAMPING
from tamis.quantization.feedback import choose_levels
from tamis.quantization.msq import msq
from tamis.quantization.objective import Objective
from tamis.quantization.optq import lower_factor, optq
from tamis.quantization.problem import sort_largest_first

seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 90), st.integers(1, 60))
some = settings(deadline=None, max_examples=25)


def gram_of(y: Tensor, moved: Tensor) -> Gram:
    """Of rows (problems, samples, features), by the definition."""
    drift = y - moved
    return Gram(moved.mT @ moved, moved.mT @ drift, moved.sum(1), drift.sum(1), moved.shape[1])


def layer(seed: int, problems: int, neurons: int, features: int, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights and correlated rows of both networks."""
    draw = torch.Generator().manual_seed(seed)
    y = normal(draw, problems, samples, 1) + normal(draw, problems, samples, features)
    return normal(draw, problems, neurons, features), y, y + 0.2 * normal(draw, problems, samples, features)


def column_updates(weights: Tensor, hessian: Tensor, levels: Tensor) -> Tensor:
    """OPTQ as published: round a column, and move the columns after it by a row of the Cholesky factor of H⁻¹."""
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    rest, indices = weights.clone(), []
    for t in range(weights.shape[1]):
        index = (rest[:, t, None] - levels).abs().argmin(1)
        error = (rest[:, t] - levels[index]) / upper[t, t]
        rest[:, t + 1 :] -= error[:, None] * upper[t, None, t + 1 :]
        indices.append(index)
    return torch.stack(indices, 1)


@some
@given(seeds, sizes)
def test_the_recursion_is_the_published_algorithm_on_corrected_weights(seed: int, size: tuple[int, ...]) -> None:
    weights, y, moved = layer(seed, *size)
    gram = gram_of(y, moved)
    recursion = optq(weights, gram)
    levels = torch.linspace(-2, 2, 5, dtype=torch.float64)
    found = choose_levels(recursion, Grid(torch.ones(size[:2], dtype=torch.float64), levels))
    for problem in range(size[0]):
        mean = gram.inputs[problem].diagonal().mean()
        hessian = gram.inputs[problem] + DAMPING * mean * torch.eye(size[2], dtype=torch.float64)
        expected = column_updates(recursion.target[problem], hessian, levels)
        assert torch.equal(found[problem].long(), expected)


@some
@given(seeds, sizes)
def test_corrected_weights_solve_least_squares(seed: int, size: tuple[int, ...]) -> None:
    """They minimise ‖Yw − Ỹv‖² + ε‖v − w‖²: the gradient is zero there."""
    weights, y, moved = layer(seed, *size)
    gram = gram_of(y, moved)
    corrected = optq(weights, gram).target
    ridge = (add_ridge(gram.inputs) - gram.inputs).diagonal(dim1=1, dim2=2)[:, None, :]
    residual = y @ weights.mT - moved @ corrected.mT
    gradient = -(moved.mT @ residual).mT + ridge * (corrected - weights)
    assert gradient.abs().max() < 1e-9 * (gram.inputs.abs().max() + 1) * (weights.abs().max() + 1)


def test_without_drift_nothing_is_corrected() -> None:
    weights, y, _ = layer(0, 2, 3, 8, 20)
    assert torch.equal(optq(weights, gram_of(y, y)).target, weights)


@some
@given(seeds, st.integers(1, 3), st.integers(1, 70))
def test_the_factor_is_lower_triangular_and_a_root(seed: int, problems: int, features: int) -> None:
    rows = normal(torch.Generator().manual_seed(seed), problems, features + 3, features)
    matrix = add_ridge(rows.mT @ rows)
    factor = lower_factor(matrix)
    assert torch.equal(factor, factor.tril()) and (factor.diagonal(dim1=1, dim2=2) > 0).all()
    assert torch.allclose(factor.mT @ factor, matrix, rtol=1e-10, atol=1e-10 * float(matrix.abs().max()))


@some
@given(seeds, sizes)
def test_the_objective_is_what_the_rows_say(seed: int, size: tuple[int, ...]) -> None:
    weights, y, moved = layer(seed, *size)
    objective = Objective.of(weights, gram_of(y, moved))
    q = normal(torch.Generator().manual_seed(seed + 1), *weights.shape)
    literal = (y @ weights.mT - moved @ q.mT).square().sum(1) - (y @ weights.mT).square().sum(1)
    assert torch.allclose(objective.error(q), literal, rtol=1e-9, atol=1e-9 * float(objective.inputs.abs().max()))
    above, below = objective.scale_terms(q)
    factor = (above / below)[:, :, None]
    for nearby in (0.99, 1.01):
        assert (objective.error(factor * q) <= objective.error(nearby * factor * q) + 1e-9).all()
    twice = objective.repeat_neurons(2).error(torch.cat([q, 2 * q], 1))
    assert torch.allclose(twice, torch.cat([objective.error(q), objective.error(2 * q)], 1))


@some
@given(seeds, sizes)
def test_descent_never_raises_the_error_and_ends_where_no_single_weight_can_do_better(
    seed: int, size: tuple[int, ...]
) -> None:
    weights, y, moved = layer(seed, *size)
    moved[:, :, 0] = 0.0  # a dead feature keeps its weight
    objective = Objective.of(weights, gram_of(y, moved))
    levels = torch.linspace(-2, 2, 4, dtype=torch.float64)
    grid = Grid(torch.ones(size[:2], dtype=torch.float64), levels)
    indices = choose_levels(msq(weights, gram_of(y, moved)), grid)
    first, before = indices, objective.error(levels[indices])
    for _ in range(200):
        indices = choose_levels(objective.descent(levels[indices]), grid)
        after = objective.error(levels[indices])
        assert (after <= before + 1e-9 * (1 + before.abs())).all()
        if torch.equal(after, before):
            break
        before = after
    else:
        pytest.fail("coordinate descent does not end")
    assert torch.equal(indices[:, :, 0], first[:, :, 0])
    residual = y @ weights.mT - moved @ levels[indices].mT  # problems, samples, neurons
    for t in range(1, size[2]):
        without = residual[:, :, :, None] + moved[:, :, t, None, None] * levels[indices[:, None, :, t, None]]
        costs = (without - moved[:, :, t, None, None] * levels).square().sum(1)  # problems, neurons, levels
        own = costs.gather(2, indices[:, :, t, None].long())[:, :, 0]
        assert (own <= costs.amin(2) + 1e-9 * (1 + costs.amax(2))).all()


def test_msq_is_the_nearest_level_whatever_the_data() -> None:
    weights, y, moved = layer(3, 2, 4, 30, 5)
    levels = torch.tensor([-1.5, -0.2, 0.1, 0.9], dtype=torch.float64)
    found = choose_levels(msq(weights, gram_of(y, moved)), Grid(torch.full((2, 4), 0.7, dtype=torch.float64), levels))
    assert torch.equal(found.long(), (weights[..., None] - 0.7 * levels).abs().argmin(3))


def test_norms_that_differ_by_rounding_alone_keep_their_order() -> None:
    norms = torch.tensor([[1.0, 1.0 + 1e-12, 3.0, 0.0, -1e-18, 2.0, 1.0 - 1e-9, 1e-9]], dtype=torch.float64)
    assert sort_largest_first(norms).tolist() == [[2, 5, 0, 1, 6, 7, 3, 4]]
