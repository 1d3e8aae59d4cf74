"""The forms of a scale, entry by entry."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from tamis.binary.scales import FORMS, SPATIAL_FORMS, analytic_scale, begin_factors, compute_scale, factor_shapes
from tamis.errors import InvalidInput

CHANNELS, ROWS, COLUMNS = 3, 4, 5


def drawn(form: str, size: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = factor_shapes(form, CHANNELS, size)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def entry(form: str, factors: dict[str, Tensor], o: int, h: int, w: int) -> np.float32:
    """The scale of one output, multiplied in float32 in the order that the file names."""
    size = {name: np.abs(factor.numpy()) for name, factor in factors.items()}
    if form == "channel":
        return np.float32(size["alpha"][o])
    if form == "full":
        return np.float32(size["alpha"][o, h, w])
    if form == "spatial":
        return np.float32(size["alpha"][o] * size["beta"][h, w])
    return np.float32((size["alpha"][o] * size["beta"][h]) * size["gamma"][w])


@pytest.mark.parametrize("form", ["channel", *SPATIAL_FORMS])
def test_a_scale_is_the_product_of_sizes(form: str) -> None:
    factors = drawn(form, (ROWS, COLUMNS))
    scale = compute_scale(list(factors.values()), 2).expand(CHANNELS, ROWS, COLUMNS)
    for o, h, w in product(range(CHANNELS), range(ROWS), range(COLUMNS)):
        assert scale[o, h, w].item() == float(entry(form, factors, o, h, w))


def test_numbers_of_scales_are_those_of_the_four_cases() -> None:
    shapes = {form: factor_shapes(form, CHANNELS, (ROWS, COLUMNS)) for form in FORMS}
    assert shapes == {
        "analytic": {},
        "channel": {"alpha": (3,)},
        "full": {"alpha": (3, 4, 5)},
        "spatial": {"alpha": (3,), "beta": (4, 5)},
        "rank_one": {"alpha": (3,), "beta": (4,), "gamma": (5,)},
    }
    assert factor_shapes("rank_one", 3, (5,)) == factor_shapes("spatial", 3, (5,)) == {"alpha": (3,), "beta": (5,)}
    assert all(factor_shapes(form, 3, ()) == {"alpha": (3,)} for form in FORMS if form != "analytic")


def test_one_axis_has_a_scale_for_each_place() -> None:
    factors = drawn("rank_one", (COLUMNS,))
    alpha, beta = (factor.abs() for factor in factors.values())
    assert torch.equal(compute_scale(list(factors.values()), 1), alpha[:, None] * beta)
    assert compute_scale([torch.ones(3)], 0).shape == (3,)


def test_the_analytic_scale_is_nearest_to_the_weights() -> None:
    """The optimality condition of min_α ‖W − α sign(W)‖², and no α around it does better."""
    weight = torch.randn(4, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    signs = torch.where(weight >= 0, 1.0, -1.0).double()
    best = analytic_scale(weight)
    for o in range(4):
        residual = weight[o] - best[o] * signs[o]
        assert float((residual * signs[o]).sum()) == pytest.approx(0, abs=1e-12)
        for other in (0.9, 1.1):
            assert residual.norm() < (weight[o] - other * best[o] * signs[o]).norm()


@pytest.mark.parametrize("form", ["channel", *SPATIAL_FORMS])
def test_every_form_begins_at_the_analytic_scale_and_positive(form: str) -> None:
    weight = torch.randn(CHANNELS, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    weight[1] = 0
    factors = drawn(form, (ROWS, COLUMNS))
    begin_factors(factors, weight)
    scale = compute_scale(list(factors.values()), 2).expand(CHANNELS, ROWS, COLUMNS)
    assert (scale > 0).all()
    expected = weight.double().abs().mean((1, 2, 3)).float()
    for o in (0, 2):
        assert torch.equal(scale[o], expected[o].expand(ROWS, COLUMNS))


def test_a_form_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInput, match="one of analytic, channel, full, spatial, rank_one, got 'rank-one'"):
        factor_shapes("rank-one", 3, (4, 5))
