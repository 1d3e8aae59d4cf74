"""What every theorem must keep to; a new one is tested by a case of it here, and found missing without."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import pairwise
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from torch import nn

import tamis
import tamis.bounds
from tamis.bounds import (
    Bound,
    Expert,
    L1InfConstants,
    accuracy_change,
    accuracy_change_by_difference,
    barron_klusowski,
    box_deviation,
    clopper_pearson,
    cross_entropy_gap,
    deviation_at_rank,
    deviation_quantile,
    difference_at_any_time,
    disagreement,
    e_ma_wu,
    error_rate,
    golowich,
    kakade,
    l1inf_classification,
    l1inf_lipschitz_loss,
    l1inf_lipschitz_vector_loss,
    l1inf_output,
    l1inf_rademacher,
    l1inf_regression,
    layer_product,
    lipschitz_input,
    lipschitz_parameters,
    margin_bound,
    neyshabur,
    occam,
    phi_pruning,
    rademacher_covering,
    rademacher_peeling,
    rate_at_any_time,
    sparse_regret,
    sufficient_bits,
    sufficient_bits_by_paths,
    two_temperature,
    xnor_regret,
)
from tamis.bounds.regret_penalties import Penalties
from tamis.bounds.shape import read_shape
from tamis.citations import CITATIONS


def network(*widths: int, bias: bool = False) -> tamis.Network:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return tamis.trace(nn.Sequential(*layers[:-1]), torch.zeros(1, widths[0]))


NET, SCALAR, TWO_LAYERS, LINEAR = network(4, 5, 5, 3, bias=True), network(4, 5, 5, 1), network(4, 5, 1), network(4, 1)
SMALL = tamis.prune(NET, 0.3, by="magnitude")
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
COMPLEXITY = rademacher_peeling(read_shape(NET), path_norm=tamis.path_norm(NET), sigma=100.0)

CASES: dict[Callable[..., Any], Callable[[], Bound]] = {
    accuracy_change: lambda: accuracy_change(5, 3, 100, 0.05),
    accuracy_change_by_difference: lambda: accuracy_change_by_difference(5, 3, 100, 0.05),
    box_deviation: lambda: box_deviation(NET, SMALL.network, X, 0.01)[0],
    cross_entropy_gap: lambda: cross_entropy_gap(COMPLEXITY, 1000),
    deviation_at_rank: lambda: deviation_at_rank(0.5, 200, 0.9, 0.05),
    deviation_quantile: lambda: deviation_quantile(torch.rand(200), 0.9, 0.05),
    difference_at_any_time: lambda: difference_at_any_time(5, 3, 100, 0.05),
    disagreement: lambda: disagreement(5, 100, 0.05),
    error_rate: lambda: error_rate(5, 100, 0.05),
    l1inf_lipschitz_vector_loss: lambda: l1inf_lipschitz_vector_loss(
        L1InfConstants(2, 0.5, (1.0, 2.0), 10), 1000, 0.05, 1.0, 2.0
    ),
    l1inf_classification: lambda: l1inf_classification(L1InfConstants(2, 0.5, (1.0, 2.0), 10), 1000, 0.05),
    l1inf_output: lambda: l1inf_output(2, 0.5, 1.0),
    l1inf_rademacher: lambda: l1inf_rademacher(2, 0.5, 1.0, 10, 1000),
    l1inf_lipschitz_loss: lambda: l1inf_lipschitz_loss(L1InfConstants(2, 0.5, (1.0,), 10), 1000, 0.05, 1.0, 2.0),
    l1inf_regression: lambda: l1inf_regression(L1InfConstants(2, 0.5, (1.0,), 10), 1000, 0.05, 1.0),
    layer_product: lambda: layer_product(NET),
    lipschitz_input: lambda: lipschitz_input(NET),
    lipschitz_parameters: lambda: lipschitz_parameters(NET, SMALL.network),
    margin_bound: lambda: margin_bound(COMPLEXITY, torch.randn(1000), 1000, 0.05),
    occam: lambda: occam(5, 1000, 100, 0.05),
    phi_pruning: lambda: phi_pruning(NET, SMALL.masks),
    rademacher_covering: lambda: rademacher_covering(read_shape(NET), path_norm=2.0, sigma=10.0),
    rademacher_peeling: lambda: COMPLEXITY,
    rate_at_any_time: lambda: rate_at_any_time("errors", 5, 100, 0.05),
    kakade: lambda: kakade(LINEAR, 10.0),
    e_ma_wu: lambda: e_ma_wu(TWO_LAYERS, 10.0),
    neyshabur: lambda: neyshabur(SCALAR, 10.0),
    golowich: lambda: golowich(SCALAR, 10.0),
    barron_klusowski: lambda: barron_klusowski(SCALAR, 10.0),
    sparse_regret: lambda: sparse_regret(Expert(3.0, 4.0), Penalties(0.1, 0.2), [1.0, 2.0], 0.5, 0.7, 3),
    xnor_regret: lambda: xnor_regret(Expert(3.0, 4.0), 0.2, 0.5, 0.7, 2, 3),
    sufficient_bits: lambda: sufficient_bits(TWO_LAYERS, 0.1),
    sufficient_bits_by_paths: lambda: sufficient_bits_by_paths(NET, 0.1),
    two_temperature: lambda: two_temperature(10, 1.0, 0.1, 0.5, 1000),
    clopper_pearson: lambda: clopper_pearson("errors", 5, 100, 0.05),
}


def theorems() -> set[str]:
    """Every public function of the room that says it returns a Bound, or one for each input."""
    found = set()
    for module in iter_modules(tamis.bounds.__path__):
        home = import_module(f"tamis.bounds.{module.name}")
        for name, value in vars(home).items():
            own = inspect.isfunction(value) and value.__module__ == home.__name__ and not name.startswith("_")
            if own and value.__annotations__.get("return") in ("Bound", "list[Bound]"):
                found |= {name} if "source" not in value.__annotations__ else set()  # what puts others together
    return found


def test_every_theorem_has_a_case() -> None:
    assert {function.__name__ for function in CASES} == theorems()


@cache
def bound_of(theorem: Callable[..., Any]) -> Bound:
    torch.manual_seed(1)
    return CASES[theorem]()


@pytest.mark.parametrize("theorem", CASES, ids=lambda function: function.__name__)
def test_a_bound_says_where_it_comes_from_and_how(theorem: Callable[..., Any]) -> None:
    bound = bound_of(theorem)
    assert bound.citation in CITATIONS and bound.source.partition(", ")[2], "the place in the work is missing"
    assert bound.citation in inspect.getdoc(theorem), "the docstring names the work"
    assert bound.terms and all(isinstance(value, (int, float)) for value in bound.terms.values())
    assert bound.assumptions or bound.checked, "a theorem has conditions"
    assert all(text and not text.endswith(".") for text in (*bound.assumptions, *bound.checked))
    assert isinstance(bound.informative, bool)


@pytest.mark.parametrize("theorem", CASES, ids=lambda function: function.__name__)
def test_the_value_and_its_logarithm_are_the_same_number(theorem: Callable[..., Any]) -> None:
    bound = bound_of(theorem)
    if bound.value > 0:
        assert math.isclose(math.log(bound.value), bound.log_value, rel_tol=1e-9, abs_tol=1e-9)
    else:
        assert bound.log_value == -math.inf


@pytest.mark.parametrize("theorem", CASES, ids=lambda function: function.__name__)
def test_the_same_case_gives_the_same_bound(theorem: Callable[..., Any]) -> None:
    once = bound_of(theorem)
    torch.manual_seed(1)
    assert CASES[theorem]() == once
