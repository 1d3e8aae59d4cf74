"""Least squares on supports: normal equations, errors that never grow, and saliencies by brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.layerwise import least_squares as module
from tamis.layerwise.gram import Gram
from tamis.layerwise.least_squares import DAMPING, NormalEquations, add_ridge, fit_weights, fit_with_saliencies

quickly = settings(max_examples=30, deadline=None)


def gram_of(original: Tensor, small: Tensor) -> Gram:
    drift = original - small
    return Gram(small.mT @ small, small.mT @ drift, small.sum(1), drift.sum(1), small.shape[1])


def error(original: Tensor, small: Tensor, w: Tensor, v: Tensor, offset: Tensor | None = None) -> Tensor:
    """‖Yw + c − Ỹv‖² of every neuron."""
    beyond = 0 if offset is None else offset[:, None, :]
    return (original @ w.mT + beyond - small @ v.mT).square().sum(1)


@st.composite
def problems(draw: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows of both networks, original and present weights, supports: also few samples, dead features, no support."""
    count, samples = draw(st.integers(1, 2)), draw(st.integers(1, 8))
    neurons, features = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scale = 10.0 ** draw(st.integers(-4, 4))
    original = scale * normal(generator, count, samples, features)
    small = original + scale * draw(st.sampled_from([0.0, 0.1, 3.0])) * normal(generator, count, samples, features)
    kind = draw(st.sampled_from(["full", "dead", "twice", "all dead"]))
    if kind == "dead":
        small[:, :, 0] = 0
    if kind == "twice":
        small[:, :, -1] = small[:, :, 0]
    if kind == "all dead":
        small.zero_()
    w = normal(generator, count, neurons, features)
    kept = draw(st.lists(st.booleans(), min_size=w.numel(), max_size=w.numel()))
    keep = torch.tensor(kept).reshape(w.shape)
    present = (w + draw(st.sampled_from([0.0, 1.0])) * normal(generator, *w.shape)) * keep
    return original, small, w, present, keep


@given(problems(), st.sampled_from([1e-3, DAMPING, 10.0]))
@quickly
def test_normal_equations_hold_on_the_support(drawn: Any, damping: float) -> None:
    """(G_SS + εI) v_S = ((G + E) w)_S + ε v₀_S, and nothing outside."""
    original, small, w, present, keep = drawn
    gram = gram_of(original, small)
    found = fit_weights(w, present, keep, gram, damping)
    assert not found[~keep].any()
    mean = gram.inputs.diagonal(dim1=1, dim2=2).mean(1)
    ridge = torch.where(mean > 0, damping * mean, 1.0)
    for p, n in torch.cartesian_prod(torch.arange(len(w)), torch.arange(w.shape[1])).tolist():
        support = keep[p, n].nonzero()[:, 0]
        square = gram.inputs[p][support][:, support] + ridge[p] * torch.eye(len(support), dtype=w.dtype)
        right = ((gram.inputs[p] + gram.drift[p]) @ w[p, n])[support] + ridge[p] * present[p, n, support]
        torch.testing.assert_close(square @ found[p, n, support], right, rtol=1e-7, atol=1e-9 * float(ridge[p]))


@given(problems(), st.sampled_from([1e-6, DAMPING, 10.0]), st.booleans())
@quickly
def test_the_error_never_grows(drawn: Any, damping: float, has_offset: bool) -> None:
    original, small, w, present, keep = drawn
    offset = normal(torch.Generator().manual_seed(0), *w.shape[:2]) * original.abs().max() if has_offset else None
    before = error(original, small, w, present, offset)
    found = fit_weights(w, present, keep, gram_of(original, small), damping, offset)
    whole = error(original, small, w, 0 * w, offset)
    assert (error(original, small, w, found, offset) <= before + 1e-10 * (before + whole)).all()


@given(problems())
@quickly
def test_a_support_of_everything_is_none(drawn: Any) -> None:
    original, small, w, present, keep = drawn
    gram, everything = gram_of(original, small), torch.ones_like(keep)
    apart = everything.clone()
    apart[0, 0, 0] = False
    assert torch.equal(fit_weights(w, present, everything, gram), fit_weights(w, present, None, gram))
    piecewise = fit_weights(w, present, apart, gram)[0, 1:]  # the other neurons keep all, and are solved one by one
    torch.testing.assert_close(piecewise, fit_weights(w, present, None, gram)[0, 1:])


@given(problems())
@quickly
def test_what_fits_already_stays_bit_for_bit(drawn: Any) -> None:
    """Same inputs, same weights: also where G is singular, or not quite symmetric by rounding."""
    original, _, w, _, keep = drawn
    gram = gram_of(original, original)
    assert torch.equal(fit_weights(w, w, None, gram), w)
    assert torch.equal(fit_weights(w * keep, w * keep, keep, gram), w * keep)


def test_weights_that_the_data_says_nothing_about_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = normal(generator, 1, 9, 4)
    rows[:, :, 1] = 0
    w, present = normal(generator, 1, 3, 4), normal(generator, 1, 3, 4)
    found = fit_weights(w, present, None, gram_of(rows, rows))
    assert torch.equal(found[:, :, 1], present[:, :, 1]) and (found[:, :, 0] != present[:, :, 0]).all()


# -- saliencies ----------------------------------------------------------------------------------------------------


def penalised(gram: Gram, w: Tensor, v: Tensor, anchor: Tensor, ridge: float) -> float:
    """‖Yw − Ỹv‖² + ε‖v − v₀‖², but for what does not depend on v."""
    target = (gram.inputs[0] + gram.drift[0]) @ w
    return float(v @ gram.inputs[0] @ v - 2 * v @ target + ridge * (v - anchor).square().sum())


def minimum(gram: Gram, w: Tensor, anchor: Tensor, support: Tensor, ridge: float) -> float:
    """The least of it over vectors on a support, by a dense solve."""
    v = torch.zeros_like(w)
    square = gram.inputs[0][support][:, support] + ridge * torch.eye(len(support), dtype=w.dtype)
    right = ((gram.inputs[0] + gram.drift[0]) @ w + ridge * anchor)[support]
    v[support] = torch.linalg.solve(square, right)
    return penalised(gram, w, v, anchor, ridge)


def saliencies(original: Tensor, present: Tensor, keep: Tensor, gram: Gram) -> Tensor:
    return fit_with_saliencies(original, present, keep, gram, NormalEquations.of(gram))[1]


@given(problems())
@quickly
def test_saliencies_are_what_the_optimum_grows_by(drawn: Any) -> None:
    """Each weight removed in turn, the others free to move, the ridge included."""
    original, small, w, present, keep = (part[:1] for part in drawn)
    gram = gram_of(original, small)
    found = saliencies(w, present, keep, gram)
    mean = float(gram.inputs[0].diagonal().mean())
    ridge = DAMPING * mean if mean > 0 else 1.0
    assert torch.isinf(found[~keep]).all() and (found[keep] >= 0).all()
    for n in range(w.shape[1]):
        support = keep[0, n].nonzero()[:, 0]
        best = minimum(gram, w[0, n], present[0, n], support, ridge)
        for i in support.tolist():
            rest = support[support != i]
            without = minimum(gram, w[0, n], present[0, n], rest, ridge)
            size = abs(best) + abs(without) + ridge
            torch.testing.assert_close(float(found[0, n, i]), without - best, rtol=1e-6, atol=1e-9 * size)


def test_saliencies_of_independent_inputs() -> None:
    """With orthogonal features: v_i² (G_ii + ε)."""
    gram = gram_of(*[torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))[None]] * 2)
    weights = torch.tensor([[[1.0, -1.0, 0.5]]], dtype=torch.float64)
    ridge = DAMPING * 14 / 3
    expected = torch.tensor([[[1.0 + ridge, 4 + ridge, 0.25 * (9 + ridge)]]], dtype=torch.float64)
    every = torch.ones_like(weights, dtype=torch.bool)
    torch.testing.assert_close(saliencies(weights, weights, every, gram), expected)


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    original, small, w = normal(generator, 2, 30, 6), normal(generator, 2, 30, 6), normal(generator, 2, 9, 6)
    keep = torch.rand(w.shape, generator=generator) < 0.5
    gram = gram_of(original, small)
    whole = fit_weights(w, w * keep, keep, gram), saliencies(w, w * keep, keep, gram)
    monkeypatch.setattr(module, "CACHED_SYSTEMS", 8 * 36 * 2)
    torch.testing.assert_close(fit_weights(w, w * keep, keep, gram), whole[0])
    torch.testing.assert_close(saliencies(w, w * keep, keep, gram), whole[1])


@given(problems())
@quickly
def test_fits_with_saliencies_are_the_fits(drawn: Any) -> None:
    original, small, w, present, keep = drawn
    gram = gram_of(original, small)
    weights, _ = fit_with_saliencies(w, present, keep, gram, NormalEquations.of(gram))
    torch.testing.assert_close(weights, fit_weights(w, present, keep, gram))


@given(problems(), st.sampled_from([1e-3, DAMPING, 10.0]))
@quickly
def test_by_way_of_what_is_gone_or_of_what_is_kept(drawn: Any, damping: float) -> None:
    """The two ways to the same solutions, for all neurons alike; no support and a whole one among them."""
    original, small, w, present, keep = drawn
    gram = gram_of(original, small)
    system, found = NormalEquations.of(gram, damping), []
    assert all(system.well_conditioned)
    for few in (-1.0, 1.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "FEW", few)
            parts = [type(part).__name__ for _, _, part in system.factorize(keep)]
            assert set(parts) == {"_SupportSystem" if few < 0 else "_ComplementSystem"}
            found.append(fit_with_saliencies(w, present, keep, gram, system))
    size = float(found[0][0].abs().max())
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-9, atol=1e-10 * size)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-7, atol=1e-9 * size**2 * float(system.square.max()))


def test_whole_supports_share_a_factorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred neurons that keep all their weights, no system is factorised but the one of the layer."""
    generator = torch.Generator().manual_seed(0)
    rows, w = normal(generator, 1, 30, 6), normal(generator, 1, 100, 6)
    gram, keep = gram_of(rows, rows), torch.ones(1, 100, 6, dtype=torch.bool)
    system = NormalEquations.of(gram)
    sizes, factorise = [], torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda matrix: sizes.append(matrix.numel()) or factorise(matrix))
    fit_with_saliencies(w, w, keep, gram, system)
    assert sum(sizes) == 36


# -- the ridge -----------------------------------------------------------------------------------------------------


def test_the_ridge_is_a_fraction_of_the_mean_square() -> None:
    square = normal(torch.Generator().manual_seed(0), 2, 8, 4)
    inputs = torch.stack([square[0].T @ square[0], torch.zeros(4, 4, dtype=torch.float64)])
    expected = inputs[0] + 0.25 * inputs[0].diagonal().mean() * torch.eye(4, dtype=torch.float64)
    found = add_ridge(inputs, 0.25)
    torch.testing.assert_close(found[0], expected)
    assert torch.equal(found[1], torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("noise", [1e-7, -1e-7])
def test_the_ridge_outweighs_rounding(noise: float) -> None:
    """Inputs that never vary, centred, leave rounding errors of either sign: no factorisation may fail on them."""
    generator = torch.Generator().manual_seed(0)
    wrong = noise * normal(generator, 3, 6, 6).abs()
    inputs = wrong + wrong.mT
    factors = torch.linalg.cholesky_ex(add_ridge(inputs))
    assert not factors.info.any()
    gram = Gram(inputs, 0 * inputs, inputs[:, 0], inputs[:, 0], 5)
    w = normal(generator, 3, 2, 6)
    keep = torch.rand(w.shape, generator=generator) < 0.5
    assert fit_weights(w, w * keep, keep, gram).isfinite().all() and fit_weights(w, 0 * w, None, gram).isfinite().all()
    assert (saliencies(w, w * keep, keep, gram)[keep] >= 0).all()


@pytest.mark.parametrize("damping", [1e-300, 1e-20, 1e-12])
def test_hardly_any_damping(damping: float) -> None:
    """A singular G and a ridge below its rounding errors: still an answer, which is the least-squares one."""
    generator = torch.Generator().manual_seed(0)
    rows = normal(generator, 1, 4, 8)
    w, keep = normal(generator, 1, 3, 8), torch.ones(1, 3, 8, dtype=torch.bool)
    keep[:, :, 0] = False
    found = fit_weights(w, w * keep, keep, gram_of(rows, rows), damping)
    torch.testing.assert_close(rows @ found.mT, rows @ w.mT, rtol=1e-4, atol=1e-4)
    assert NormalEquations.of(gram_of(rows, rows), damping).well_conditioned == [
        False
    ]  # where an inverse would be mostly rounding error


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_not_finite(value: float) -> None:
    inputs = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    inputs[1, 2, 2] = value
    with pytest.raises(InvalidInput, match="NaN or infinite: look for such values"):
        add_ridge(inputs)


def test_a_ridge_that_underflows_is_raised_all_the_same() -> None:
    inputs = torch.full((1, 3, 3), 1e-30, dtype=torch.float64)
    assert not torch.linalg.cholesky_ex(add_ridge(inputs, 1e-300)).info.any()
