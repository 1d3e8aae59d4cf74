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
from tamis.errors import InvalidInput
from tamis.quantization.alphabet import make_equispaced
from tamis.quantization.cross_validation import Comparison, cross_validate
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
    radii = make_equispaced(count).radii(weight if per == "channel" else weight.reshape(1, -1))
    codes = small.codes["0.weight"]
    assert torch.equal(codes.scales[:, 0], radii * torch.tensor(CANDIDATES, dtype=torch.float64)[best])
    whole = quantized(module, data, method="msq", per=per, levels=count, c_alpha=CANDIDATES)
    assert torch.equal(whole.codes["0.weight"].levels, codes.levels)


@pytest.mark.parametrize("count", [3, 8])
def test_the_last_choice_is_made_from_all_of_the_data(count: int) -> None:
    module, data = small_layer(count)
    small = quantized(module, data, method="gpfq", levels=count, c_alpha=CANDIDATES)
    weight = module[0].weight.detach()
    multiples = small.codes["0.weight"].scales[:, 0] / make_equispaced(count).radii(weight)
    for neuron, multiple in enumerate(multiples.tolist()):
        alone = quantized(module, data, method="gpfq", levels=count, c_alpha=round(multiple, 9))
        assert torch.equal(small.codes["0.weight"].indices[neuron], alone.codes["0.weight"].indices[neuron])


def test_fewer_than_five_batches_are_all_used_for_both() -> None:
    module, data = small_layer()
    batches = list(data.split(10))
    errors = literal_errors(module, data, data, "gpfq", "channel", 3, CANDIDATES)
    small = quantized(module, batches, method="gpfq", levels=3, c_alpha=CANDIDATES)
    radii = make_equispaced(3).radii(module[0].weight.detach())
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
    assert torch.equal(fixed.codes["0.weight"].scales[:, 0], 2.0 * make_equispaced(4).radii(weight))


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


# -- over whole networks -------------------------------------------------------------------------------------------


def by_hand(module: nn.Module, parts: list[tuple[list[Tensor], Tensor]], **settings: Any) -> tuple[float, float]:
    """The relative error of the outputs and the share of inputs with the same largest one, over (rest, held out)."""
    change = size = agreeing = inputs = 0.0
    for rest, held_out in parts:
        wanted, got = traced(module)(held_out), quantized(module, rest, **settings).network(held_out)
        change, size = change + float((wanted - got).square().sum()), size + float(wanted.square().sum())
        agreeing += int((wanted.argmax(1) == got.argmax(1)).sum())
        inputs += len(held_out)
    return (change / size) ** 0.5, agreeing / inputs


@pytest.mark.parametrize("rounds", [1, 5])
def test_trials_are_networks_compared_on_the_parts_left_aside(rounds: int) -> None:
    module, data = small_layer()
    batches, told = list(data.split(4)), list[Any]()  # ten, of which 0 and 5 are the first part
    parts = [
        ([batch for number, batch in enumerate(batches) if number % 5 != part], torch.cat(batches[part::5]))
        for part in range(rounds)
    ]
    trials = cross_validate(
        traced(module), batches, (2, 8), (1.0, 3.0), rounds=rounds, method="msq", progress=told.append
    )
    assert [(trial.levels, trial.c_alpha) for trial in trials] == [(2, 1.0), (2, 3.0), (8, 1.0), (8, 3.0)]
    for trial in trials:
        expected = by_hand(module, parts, levels=trial.levels, c_alpha=trial.c_alpha, method="msq")
        assert (trial.error, trial.agreement) == pytest.approx(expected, rel=1e-9)
    assert [(now.done, now.total) for now in told] == [(number, 4 * rounds) for number in range(1, 4 * rounds + 1)]
    assert told[-1].figures["error"] == trials[-1].error


def test_from_ternary_weights_to_four_bits_are_compared_by_default() -> None:
    module, data = small_layer()
    trials = cross_validate(traced(module), data, method="msq", progress=False)
    assert [(trial.levels, trial.c_alpha) for trial in trials] == [(count, None) for count in (3, 4, 8, 16)]
    assert trials[-1].error < trials[0].error


def test_two_batches_are_two_parts_and_a_module_is_traced() -> None:
    module, data = small_layer()
    halves = list(data.split(20))
    (trial,) = cross_validate(module, halves, (4,), rounds=3, example=data[:2], include=iter(["0"]), progress=False)
    parts = [([halves[1]], halves[0]), ([halves[0]], halves[1]), ([halves[1]], halves[0])]
    assert (trial.error, trial.agreement) == pytest.approx(by_hand(module, parts, levels=4), rel=1e-9)
    assert trial.c_alpha is None


def test_outputs_that_are_all_zero_have_an_error_of_zero_or_one() -> None:
    assert Comparison(0.0, 0.0, 3, 3).error == 0.0 and Comparison(1e-9, 0.0, 3, 3).error == 1.0
    assert (Comparison(1.0, 4.0, 1, 2) + Comparison(3.0, 12.0, 2, 2)) == Comparison(4.0, 16.0, 3, 4)


@pytest.mark.parametrize("method", ["msq", "optq"])
def test_a_global_search_takes_the_one_multiple_that_does_best(method: Any) -> None:
    module, data = small_layer(3)
    candidates = (0.5, 2.0, 6.0)
    small = quantized(module, data, levels=3, method=method, c_alpha=candidates, search="global")
    trials = cross_validate(traced(module), data, (3,), candidates, method=method, progress=False)
    best = min(trials, key=lambda trial: trial.error).c_alpha
    assert small.recipe[-1]["c_alpha"] == [best] and small.recipe[-1]["search"] == "global"
    alone = quantized(module, data, levels=3, method=method, c_alpha=best)
    assert torch.equal(small.params["0.weight"], alone.params["0.weight"])
    assert len({trial.error for trial in trials}) == 3


def test_what_cannot_be_compared_is_refused() -> None:
    module, data = small_layer()
    for rounds in (0, 6, True, 1.0):
        with pytest.raises(InvalidInput, match=f"rounds={rounds} must be a whole number from 1 to 5"):
            cross_validate(traced(module), data, rounds=rounds)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"chooses among several: pass levels=\(3,\)"):
        cross_validate(traced(module), data, 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"chooses among several: pass c_alpha=\(2\.0,\)"):
        cross_validate(traced(module), data, (3,), 2.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs two batches of calibration data or more"):
        cross_validate(traced(module), [data], (3,))
    with pytest.raises(InvalidInput, match="activation_budget=-1 must be a number of bytes"):
        cross_validate(traced(module), data, (3,), activation_budget=-1)
