"""Randomised networks: draws, their gradients, the divergence from the prior, the bound, and what is stored."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import torch
from bright_blocks import tiny_data
from scipy.special import betaincinv
from torch import Tensor
from torch.nn import functional

from experiments import short_codes_randomised
from experiments.short_codes import PUBLISHED, STORED
from experiments.short_codes_network import Shape, ShortNetwork, prepare
from experiments.short_codes_randomised import (
    DELTA,
    DELTA_OF_DRAWS,
    LEVELS,
    SHAPE,
    certify_draws,
    choose_prior_density,
    compute_law,
    count_bits_by_part,
    count_errors_of_draws,
    load_laws,
    maurer_constant,
    randomised_bound,
    save_laws,
    store_odds,
)
from experiments.short_codes_randomised_training import (
    RandomisedPlan,
    compute_densities,
    compute_outputs_of_draws,
    count_waves,
    divergence,
    repeat_edges,
    train_odds,
)
from experiments.short_codes_training import spread_bank
from tamis.errors import DataNotFound
from tamis.training import Data

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

TINY = Shape(1, (3, 4), ((3, 9), (3, 5)), (2, 1), 2, kept=True, stem=3, shrink=2)
PLAIN = Shape(1, (3,), ((3, 5),), (2,), 2)


def some_laws(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    named = ShortNetwork(shape).named_parameters()
    return {name: torch.randn(3, *value.shape, generator=generator).softmax(dim=0) for name, value in named}


def certain_laws(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.stack([(value == level).float() for level in (-1, 0, 1)]) for name, value in weights.items()}


def ternary_weights(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    named = ShortNetwork(shape).named_parameters()
    return {name: torch.randint(-1, 2, value.shape, generator=generator).float() for name, value in named}


@pytest.mark.parametrize("shape", [TINY, PLAIN])
def test_a_draw_from_certain_laws_is_the_network(shape: Shape) -> None:
    net, weights, images = ShortNetwork(shape), ternary_weights(shape), prepare(tiny_data(8).inputs)
    net.load_state_dict(weights)
    banks = [spread_bank(stage) for stage in net.each_stage]
    with torch.no_grad():
        drawn = compute_outputs_of_draws(net, banks, list(certain_laws(weights).values()), net.stem(images))
        assert torch.allclose(drawn, net(images), atol=1e-4)


def test_weights_are_drawn_from_their_laws() -> None:
    """The mean output for one image, over draws of a network of a few weights, against all networks."""
    shape = Shape(1, (1,), ((1, 1),), (2,), 1)
    net, laws = ShortNetwork(shape), some_laws(shape, seed=3)
    laws["readout.weight"] = certain_laws({"w": ternary_weights(shape)["readout.weight"]})["w"]
    image = net.stem(prepare(tiny_data(1).inputs))
    banks, law = [spread_bank(stage) for stage in net.each_stage], laws["stages.0.weight"]
    expected = torch.zeros(10)
    with torch.no_grad():
        net.readout.weight.copy_(ternary_weights(shape)["readout.weight"])
        for levels in product(range(3), repeat=law[0].numel()):
            chance = math.prod(float(law[level].flatten()[place]) for place, level in enumerate(levels))
            net.each_stage[0].weight.copy_(torch.tensor(levels).reshape(law[0].shape) - 1.0)
            expected += chance * net(prepare(tiny_data(1).inputs))[0]
        torch.manual_seed(0)
        draws = compute_outputs_of_draws(net, banks, list(laws.values()), image.expand(20_000, -1, -1, -1))
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - expected).abs() <= 4.5 * error + 1e-5).all()
    assert (draws.std(dim=0) > 0).any()


def test_images_do_not_share_a_network() -> None:
    net, laws = ShortNetwork(TINY), some_laws(TINY)
    values = net.stem(prepare(tiny_data(1).inputs)).expand(5, -1, -1, -1)
    with torch.no_grad():
        outputs = compute_outputs_of_draws(
            net, [spread_bank(stage) for stage in net.each_stage], list(laws.values()), values
        )
    assert len(outputs.unique(dim=0)) == 5


def test_the_gradient_is_that_of_the_expected_loss() -> None:
    """For a loss that is quadratic in the outputs of a read-out, mean + ε · deviation has the exact mean gradient."""
    shape = Shape(1, (), (), (), 2)
    net, laws = ShortNetwork(shape), [law.double().float() for law in some_laws(shape).values()]
    odds = laws[0].log().requires_grad_()
    values = net.stem(prepare(tiny_data(1).inputs))
    features = functional.pad(net.readout.features(values)[0], (0, 1), value=1.0)
    law = odds.softmax(dim=0)
    mean = (law[2] - law[0]) @ features
    variance = (1 - law[1] - (law[2] - law[0]).square()) @ features.square()
    (exact,) = torch.autograd.grad((mean.square() + variance).sum(), odds)
    torch.manual_seed(0)
    outputs = compute_outputs_of_draws(net, [], [odds.softmax(dim=0)], values.expand(40_000, -1, -1, -1))
    (found,) = torch.autograd.grad(outputs.square().sum() / len(outputs), odds)
    assert torch.allclose(found, exact, atol=0.03 * float(exact.abs().max()))


def test_edges_are_repeated() -> None:
    values = torch.randn(2, 3, 4, 5)
    for margin in (1, 2):
        assert torch.equal(repeat_edges(values, margin), functional.pad(values, [margin] * 4, mode="replicate"))


@pytest.mark.parametrize("waves", [1, 3])
def test_divergence_is_the_sum_over_weights(waves: int) -> None:
    law = torch.randn(3, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(dim=0)
    density = compute_densities(law, waves)
    expected = 0.0
    for row, column in product(range(4), range(7)):
        own = [1 - float(law[1, r, c]) for r in range(4) for c in range(7) if c % waves == column % waves]
        rho = sum(own) / len(own)
        assert float(density[column % waves]) == pytest.approx(rho)
        for value, prior in zip(law[:, row, column].tolist(), (rho / 2, 1 - rho, rho / 2), strict=True):
            expected += value * math.log2(value / prior)
    assert float(divergence(law, waves)) == pytest.approx(expected)
    assert (
        float(divergence(law, waves, density * 0.7)) > expected
    )  # no prior of equal signs is nearer than the mean law
    certain = torch.stack([torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2, 2)])
    assert float(divergence(certain, 1, torch.tensor([0.5]))) == pytest.approx(4.0)


def test_a_law_that_is_the_prior_costs_nothing() -> None:
    law = torch.tensor([0.05, 0.9, 0.05], dtype=torch.float64)[:, None, None].expand(3, 4, 6)
    assert float(divergence(law, 2)) == pytest.approx(0.0, abs=1e-9)


def test_stored_laws_are_the_trained_ones_but_for_steps(tmp_path: Path) -> None:
    odds = {name: 3 * law.log() for name, law in some_laws(TINY).items()}
    save_laws(tmp_path / "new" / "laws.npz", odds)
    found = load_laws(tmp_path / "new" / "laws.npz")
    assert list(found) == list(odds)
    for name, law in found.items():
        assert torch.equal(law, compute_law(store_odds(odds[name])))
        assert torch.allclose(law.sum(dim=0), torch.ones_like(law[0]))
        assert (law - odds[name].double().softmax(dim=0)).abs().max() < 0.04


def test_priors_are_among_the_levels_and_the_nearest() -> None:
    levels = torch.exp2(-torch.arange(1, LEVELS + 1) / 3).double()
    for waves, law in ((1, some_laws(TINY)["stages.0.weight"]), (5, some_laws(TINY)["stages.1.weight"])):
        density = choose_prior_density(law.double(), waves)
        away = (levels.log()[:, None] - compute_densities(law.double(), waves).log()).abs()
        assert torch.allclose(density, levels[away.argmin(dim=0)])
    never = torch.stack([torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2, 2)]).double()
    assert choose_prior_density(never, 1).tolist() == [pytest.approx(2 ** (-LEVELS / 3))]


def test_bits_name_the_prior() -> None:
    laws = {name: law.double() for name, law in some_laws(TINY).items()}
    bits = count_bits_by_part(laws, count_waves(ShortNetwork(TINY)))
    assert bits["prior"] == 5 * (9 + 5 + 4)
    assert bits["architecture"] == 10
    for (name, law), waves in zip(laws.items(), (9, 5, 4), strict=True):
        assert bits[name] >= float(divergence(law, waves))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 30, 100])
def test_the_constant_of_maurer_is_the_sum(n: int) -> None:
    heads = [Fraction(k, n) for k in range(n + 1)]
    exact = sum(math.comb(n, k) * heads[k] ** k * (1 - heads[k]) ** (n - k) for k in range(n + 1))
    assert exact <= Fraction(maurer_constant(n)) <= exact * (1 + Fraction(1, 10**10))


def test_the_constant_of_maurer_is_below_what_it_is_quoted_as() -> None:
    for n in (8, 1000, 50_000):
        assert math.sqrt(n) <= maurer_constant(n) <= 2 * math.sqrt(n) < n + 1
        assert maurer_constant(n) == pytest.approx(math.sqrt(math.pi * n / 2) + 2 / 3, abs=0.05)


def test_counts_that_are_stored_give_the_bound_again() -> None:
    stored = STORED.parent / "short_codes_randomised.json"
    again = short_codes_randomised.run_counted(STORED / "cifar10_randomised.npz", stored)
    figures = json.loads(stored.read_text())["figures"]
    assert again["bound"] == pytest.approx(figures["bound"], rel=1e-9) and again["counted by"] == figures["counted by"]
    assert figures["bound"] < figures["bound, all together"] < PUBLISHED["cifar10"]


def test_the_bound_is_the_theorem() -> None:
    errors, draws, bits, n = 3_600, 10_000, 70.0, 1_000
    bound = randomised_bound(errors, draws, bits, n)
    rate = bound.terms["training error"]
    assert rate == pytest.approx(betaincinv(errors + 1, draws - errors, 1 - DELTA_OF_DRAWS))
    allowed = (bits * math.log(2) + math.log(maurer_constant(n) / DELTA)) / n
    p = bound.value
    assert rate * math.log(rate / p) + (1 - rate) * math.log((1 - rate) / (1 - p)) == pytest.approx(allowed)
    assert p > rate
    assert bound.informative
    assert randomised_bound(errors, draws, 2 * bits, n).value > p > randomised_bound(errors, 10 * draws, bits, n).value
    assert not randomised_bound(draws, draws, bits, n).informative


def test_the_bound_holds_in_simulation() -> None:
    """Two classifiers of error rate 0.3, of which Q is the better one on the data: in at most 5% of trials it fails."""
    generator = torch.Generator().manual_seed(0)
    failures, n, trials = 0, 100, 1000
    enough = bisect_left(range(20 * n), True, key=lambda k: randomised_bound(k, 20 * n, 1.0, n).value >= 0.3)
    assert randomised_bound(enough - 1, 20 * n, 1.0, n).value < 0.3 <= randomised_bound(enough, 20 * n, 1.0, n).value
    for _ in range(trials):
        errors = (torch.rand(2, n, generator=generator) < 0.3).sum(dim=1)
        best = float(errors.min()) / n
        counted = int((torch.rand(20 * n, generator=generator) < best).sum())
        failures += counted < enough  # the bound grows with the errors counted
    assert failures / trials <= 0.05


def test_certificate_counts_draws_and_bits() -> None:
    data, weights = tiny_data(60), ternary_weights(TINY)
    laws = {name: law.double() for name, law in certain_laws(weights).items()}
    net = ShortNetwork(TINY)
    net.load_state_dict(weights)
    with torch.no_grad():
        wrong = int((net(prepare(data.inputs)).argmax(dim=1) != data.labels).sum())
    assert count_errors_of_draws(TINY, laws, data, 3) == 3 * wrong
    figures = certify_draws(TINY, laws, data, 3, data)
    assert figures["errors of draws"] == 3 * wrong
    assert figures["draws"] == 180
    assert figures["bits"] == sum(figures["bits by part"].values())
    assert figures["bound"] == randomised_bound(3 * wrong, 180, figures["bits"], 60).value
    assert figures["test error"] == wrong / 60


def test_training_learns_and_is_priced() -> None:
    data, found = tiny_data(), []
    for price in (1e-4, 3e-2):
        torch.manual_seed(0)
        plan = RandomisedPlan(PLAIN, price=price, late_price=price, batch=32, nothing=1.0)
        laws = {name: compute_law(store_odds(odds)) for name, odds in train_odds(plan, data, 150).items()}
        bits = sum(count_bits_by_part(laws, count_waves(ShortNetwork(PLAIN))).values())
        found.append((laws, bits))
    assert count_errors_of_draws(PLAIN, found[0][0], data, 4) / (4 * len(data)) < 0.3
    assert found[1][1] < found[0][1]


def test_a_run_trains_stores_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = RandomisedPlan(PLAIN, batch=32, nothing=1.0)
    monkeypatch.setattr(short_codes_randomised, "load_data", lambda spec: tiny_data())
    monkeypatch.setattr(short_codes_randomised, "SHAPE", PLAIN)
    first = short_codes_randomised.run(tmp_path / "laws.npz", plan, "cpu", 5, 2)
    again = short_codes_randomised.run(tmp_path / "laws.npz", None, "cpu", 0, 2)
    assert first == again


def test_shown_line_has_both_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"published": 0.582, "training error": 0.357, "training error at most": 0.359, "test error": 0.37}
    short_codes_randomised.show({**rates, "bound": 0.58, "bound, all together": 0.58101, "bits": 7148.1})
    assert "58.00     58.11   58.20     35.70    35.90   37.00    7148" in capsys.readouterr().out


def test_stored_figures_are_those_of_the_stored_laws() -> None:
    figures = json.loads((STORED.parent / "short_codes_randomised.json").read_text())["figures"]
    bits = count_bits_by_part(load_laws(STORED / "cifar10_randomised.npz"), count_waves(ShortNetwork(SHAPE)))
    assert figures["bits by part"] == pytest.approx(bits)
    bound = randomised_bound(
        figures["errors of draws"], figures["draws"], sum(bits.values()), figures["training samples"]
    )
    assert figures["bound"] == pytest.approx(bound.value)
    assert figures["draws"] % figures["training samples"] == 0
    assert bound.value < PUBLISHED["cifar10"]


@pytest.mark.slow
def test_stored_laws_err_as_often_again() -> None:
    figures = json.loads((STORED.parent / "short_codes_randomised.json").read_text())["figures"]
    try:
        train = short_codes_randomised.load_data("cifar10:train")
    except DataNotFound as error:
        pytest.skip(str(error))
    torch.manual_seed(1)
    chosen = torch.randperm(len(train))[:5000]
    some = Data(train.inputs[chosen], train.labels[chosen], "a tenth", classes=10)
    rate = count_errors_of_draws(SHAPE, load_laws(STORED / "cifar10_randomised.npz"), some, 2) / (2 * len(some))
    assert abs(rate - figures["training error"]) < 0.03  # four standard deviations of 5000 images
