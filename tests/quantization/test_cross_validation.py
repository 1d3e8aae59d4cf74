"""The choice of C_α: the best of the candidates on held-out data, recomputed for a small layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from draws import normal
from torch import Tensor, nn

import tamis
from tamis.artifact import Compressed
from tamis.quantization.alphabet import equispaced
from tamis.quantization.plan import FRACTIONS_OF_RADIUS, MULTIPLES

CANDIDATES = (1.0, 1.5, 2.0, 3.0, 4.5)


@cache
def small_layer(seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5)).double(), normal(draw, 40, 7) + normal(draw, 40, 1)


def folds(data: Tensor) -> tuple[Tensor, Tensor]:
    """40 samples are five batches of 8, of which the second is held out."""
    return torch.cat([data[:8], data[16:]]), data[8:16]


def quantized(module: nn.Module, data: Any, **settings: Any) -> Compressed:
    return tamis.quantize(traced(module), data, progress=False, **settings)


@cache
def traced(module: nn.Module) -> tamis.Network:
    return tamis.trace(module, torch.zeros(2, 7, dtype=torch.float64))


def literal_errors(
    module: nn.Module, data: Tensor, held_out: Tensor, method: Any, per: Any, count: int, candidates: Any
) -> Tensor:
    """‖X(w − q)‖² on held-out data of what is chosen from the other with each candidate: (candidates, neurons)."""
    weight = module[0].weight.detach()
    errors = []
    for candidate in candidates:
        small = quantized(module, data, method=method, per=per, levels=count, c_alpha=candidate, bias_correction=False)
        errors.append((held_out @ (weight - small.params["0.weight"]).T).square().sum(0))
    return torch.stack(errors)


@pytest.mark.parametrize("method", ["gpfq", "msq"])
@pytest.mark.parametrize("per", ["channel", "layer"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_every_unit_takes_the_candidate_that_is_best_on_held_out_data(method: Any, per: Any, count: int) -> None:
    module, data = small_layer(count)
    errors = literal_errors(module, *folds(data), method, per, count, CANDIDATES)
    best = (errors if per == "channel" else errors.sum(1, keepdim=True)).argmin(0)
    small = quantized(module, data, method=method, per=per, levels=count, c_alpha=CANDIDATES)
    weight = module[0].weight.detach()
    radii = equispaced(count).radii(weight if per == "channel" else weight.reshape(1, -1))
    codes = small.codes["0.weight"]
    assert torch.equal(codes.scales[:, 0], radii * torch.tensor(CANDIDATES, dtype=torch.float64)[best])
    whole = quantized(module, data, method="msq", per=per, levels=count, c_alpha=CANDIDATES)
    assert torch.equal(whole.codes["0.weight"].levels, codes.levels)


@pytest.mark.parametrize("count", [3, 8])
def test_the_last_choice_is_made_from_all_of_the_data(count: int) -> None:
    module, data = small_layer(count)
    small = quantized(module, data, method="gpfq", levels=count, c_alpha=CANDIDATES)
    weight = module[0].weight.detach()
    multiples = small.codes["0.weight"].scales[:, 0] / equispaced(count).radii(weight)
    for neuron, multiple in enumerate(multiples.tolist()):
        alone = quantized(module, data, method="gpfq", levels=count, c_alpha=round(multiple, 9))
        assert torch.equal(small.codes["0.weight"].indices[neuron], alone.codes["0.weight"].indices[neuron])


def test_fewer_than_five_batches_are_all_used_for_both() -> None:
    module, data = small_layer()
    batches = list(data.split(10))
    errors = literal_errors(module, data, data, "gpfq", "channel", 3, CANDIDATES)
    small = quantized(module, batches, method="gpfq", levels=3, c_alpha=CANDIDATES)
    radii = equispaced(3).radii(module[0].weight.detach())
    expected = radii * torch.tensor(CANDIDATES, dtype=torch.float64)[errors.argmin(0)]
    assert torch.equal(small.codes["0.weight"].scales[:, 0], expected)


@pytest.mark.parametrize(
    ("radius", "candidates"),
    [("median", MULTIPLES), ("max", FRACTIONS_OF_RADIUS), ("least_squares", FRACTIONS_OF_RADIUS)],
)
@pytest.mark.parametrize("method", ["gpfq", "msq", "optq"])
def test_none_is_our_own_list(method: Any, radius: Any, candidates: tuple[float, ...]) -> None:
    module, data = small_layer()
    one, other = (
        quantized(module, data, method=method, levels=4, radius=radius, c_alpha=c) for c in (None, list(candidates))
    )
    assert torch.equal(one.params["0.weight"], other.params["0.weight"])
    assert one.recipe[-1]["c_alpha"] == list(candidates)


def test_the_scales_of_optq_are_stationary_where_they_are_fitted() -> None:
    """No other factor of a neuron's levels does better on the centred data; with a given C_α they stay as given."""
    module, data = small_layer()
    weight, centred = module[0].weight.detach(), data - data.mean(0)
    small = quantized(module, data, levels=4)
    outputs, own = centred @ weight.T, centred @ small.params["0.weight"].T
    factors = (outputs * own).sum(0) / own.square().sum(0)
    assert torch.allclose(factors, torch.ones(5, dtype=torch.float64), atol=1e-9)
    fixed = quantized(module, data, levels=4, c_alpha=2.0)
    assert torch.equal(fixed.codes["0.weight"].scales[:, 0], 2.0 * equispaced(4).radii(weight))


def test_optq_is_at_a_best_level_given_the_others() -> None:
    """At a fixed scale, after its passes, changing one weight seldom helps; and never a lot."""
    module, data = small_layer(1)
    weight, centred = module[0].weight.detach(), data - data.mean(0)
    small = quantized(module, data, levels=4, c_alpha=2.5)
    codes, q = small.codes["0.weight"], small.params["0.weight"]
    error = (centred @ (weight - q).T).square().sum(0)
    for t in range(7):
        for level in range(4):
            other = q.clone()
            other[:, t] = codes.levels[level] * codes.scales[:, 0]
            assert ((centred @ (weight - other).T).square().sum(0) >= error - 1e-9).all()


@pytest.mark.parametrize("c_alpha", [0, -1.0, float("nan"), float("inf"), "a", [], [1.0, 0.0], [1.0, None]])
def test_bad_multiples_are_refused(c_alpha: Any) -> None:
    module, data = small_layer()
    with pytest.raises(tamis.errors.InvalidInput, match=r"c_alpha=.* must be a positive number"):
        quantized(module, data, c_alpha=c_alpha)


def test_levels_as_they_are_have_no_multiple() -> None:
    module, data = small_layer()
    with pytest.raises(tamis.errors.InvalidInput, match=r"are meant as they are: leave out c_alpha=2\.0"):
        quantized(module, data, levels=[-0.5, 0.0, 0.5], c_alpha=2.0)
