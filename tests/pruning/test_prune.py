"""`tamis.prune`: exact amounts, the criteria against their definitions, and the bound that Φ-pruning comes with."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.errors import AssumptionViolated, InvalidInput, InvalidParameters, UnsupportedOp
from tamis.pruning.random import random_scores

CRITERIA: tuple[Any, ...] = ("phi", "magnitude", "random")
SCOPES: tuple[Any, ...] = ("global", "layer")
slow_tracing = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


def three_layers(seed: int = 0) -> nn.Sequential:
    """Layers of 20, 15 and 6 weights, and 5, 3 and 2 biases."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return tamis.trace(three_layers(), torch.zeros(1, 4))


@pytest.fixture(scope="module")
def single() -> tamis.Network:
    return tamis.trace(nn.Linear(1, 1), torch.zeros(1, 1))


def pruned_counts(small: tamis.Compressed) -> dict[str, int]:
    return {name: int((~mask).sum()) for name, mask in small.masks.items()}


def equal_masks(first: tamis.Compressed, second: tamis.Compressed) -> bool:
    return first.masks.keys() == second.masks.keys() and all(
        torch.equal(first.masks[name], second.masks[name]) for name in first.masks
    )


# -- amounts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("amount", [0, 0.0, 1, 1.0, 7, 41, 0.1, 0.5, 0.8, 1 / 3, 1e-9, 1 - 1e-9])
def test_global_amounts_are_exact(net: tamis.Network, by: Any, amount: float | int) -> None:
    small = tamis.prune(net, amount, by)
    assert small.masks.total == 41
    assert small.masks.pruned == (amount if isinstance(amount, int) else round(amount * 41))


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("amount", [0, 0.0, 1, 1.0, 6, 0.1, 0.5, 0.8])
def test_layerwise_amounts_are_exact(net: tamis.Network, by: Any, amount: float | int) -> None:
    sizes = {"0.weight": 20, "2.weight": 15, "4.weight": 6}
    expected = {n: amount if isinstance(amount, int) else round(amount * size) for n, size in sizes.items()}
    assert pruned_counts(tamis.prune(net, amount, by, scope="layer")) == expected


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        ({"2.weight": 0.4}, {"0.weight": 0, "2.weight": 6, "4.weight": 0}),
        ({"0.weight": 3, "4": 1.0}, {"0.weight": 3, "2.weight": 0, "4.weight": 6}),
        ({"*": 0.5, "2.weight": 0.2}, {"0.weight": 10, "2.weight": 3, "4.weight": 3}),
        ({"2.weight": 0.2, "*.weight": 0.5}, {"0.weight": 10, "2.weight": 3, "4.weight": 3}),
        ({"[02]": 0.2, "4": 1}, {"0.weight": 4, "2.weight": 3, "4.weight": 1}),
        ({}, {"0.weight": 0, "2.weight": 0, "4.weight": 0}),
    ],
)
def test_amounts_for_some_layers(net: tamis.Network, scope: Any, amount: Any, expected: dict[str, int]) -> None:
    """By name or pattern, a name before a pattern, whatever the order."""
    assert pruned_counts(tamis.prune(net, amount, scope=scope)) == expected
    assert pruned_counts(tamis.prune(net, MappingProxyType(amount), scope=scope)) == expected


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.8, 1.0])
def test_the_final_layer_at_half_the_rate(net: tamis.Network, rate: float) -> None:
    """Thesis, E.1: p % of each layer and p/2 % of the last; globally, as many weights as that makes."""
    expected = {"0.weight": round(rate * 20), "2.weight": round(rate * 15), "4.weight": round(rate * 6 / 2)}
    assert pruned_counts(tamis.prune(net, rate, scope="layer", halve_final=True)) == expected
    assert tamis.prune(net, rate, halve_final=True).masks.pruned == sum(expected.values())
    left_out = tamis.prune(net, rate, scope="layer", halve_final=True, exclude="4")
    assert pruned_counts(left_out) == {"0.weight": round(rate * 20), "2.weight": round(rate * 15)}


def test_biases_count_as_weights_when_asked_for(net: tamis.Network) -> None:
    small = tamis.prune(net, 1.0, biases=True)
    assert small.masks.total == small.masks.pruned == 41 + 10
    assert all(not small.params[name].any() for name in net.trainable)
    halved = tamis.prune(net, 1.0, scope="layer", biases=True, halve_final=True)  # the last layer's weights, that is
    weights, biases = {"0.weight": 20, "2.weight": 15, "4.weight": 3}, {"0.bias": 5, "2.bias": 3, "4.bias": 2}
    assert pruned_counts(halved) == weights | biases


@pytest.mark.parametrize("by", ["phi", "magnitude"])
def test_equal_weights_go_by_name_and_index(by: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    for value in model.parameters():
        nn.init.constant_(value, -0.5)
    net = tamis.trace(model, torch.zeros(1, 2))
    for count in range(9):
        small = tamis.prune(net, count, by)
        kept = torch.cat([small.masks["0.weight"].flatten(), small.masks["2.weight"].flatten()])
        assert torch.equal(kept, torch.arange(8) >= count)


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize(("amount", "left"), [(0, 1), (1, 0), (0.4, 1), (0.6, 0), (1.0, 0)])
def test_a_layer_of_one_weight(single: tamis.Network, by: Any, amount: float | int, left: int) -> None:
    small = tamis.prune(single, amount, by, scope="layer")
    assert int(small.masks["weight"].sum()) == left


# -- what is not an amount, a criterion, a scope, a network --------------------------------------------------------


@pytest.mark.parametrize("amount", [-0.1, 1.1, math.nan, math.inf, -math.inf])
def test_fractions_out_of_range(net: tamis.Network, amount: float) -> None:
    for given_ in (amount, {"0": amount}):
        with pytest.raises(InvalidInput, match=f"amount={amount} is not a fraction between 0.0 and 1.0"):
            tamis.prune(net, given_)


@pytest.mark.parametrize("amount", [-1, 42, 10**30])
def test_counts_out_of_range(net: tamis.Network, amount: int) -> None:
    with pytest.raises(InvalidInput, match=f"amount={amount} .* the network has: between 0 and 41"):
        tamis.prune(net, amount)
    with pytest.raises(InvalidInput, match=f"amount={amount} .* '0.weight' has: between 0 and 20"):
        tamis.prune(net, amount, scope="layer")


@pytest.mark.parametrize("amount", [True, False, "0.5", None, [0.5], torch.tensor(0.5)])
def test_amounts_of_another_kind(net: tamis.Network, amount: Any) -> None:
    with pytest.raises(InvalidInput, match=r"must be a fraction \(float\) or a count \(int\), got "):
        tamis.prune(net, amount)


def test_wrong_words(net: tamis.Network) -> None:
    with pytest.raises(InvalidInput, match="by='phy' is not a criterion; these are: phi, magnitude, random"):
        tamis.prune(net, 0.5, by="phy")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="scope='all' must be one of: global, layer"):
        tamis.prune(net, 0.5, scope="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"amount names 'fc', which matches no parameter to prune; .* 0\.weight"):
        tamis.prune(net, {"fc": 0.5})
    with pytest.raises(InvalidInput, match=r"amount names '0\.weight' twice, as '0' and as '\*'"):
        tamis.prune(net, {"0": 0.5, "*": 0.1})
    with pytest.raises(InvalidInput, match="halve_final halves a rate, and amount=3 is a count"):
        tamis.prune(net, 3, halve_final=True)
    with pytest.raises(InvalidInput, match="halve_final and an amount for each layer exclude each other"):
        tamis.prune(net, {"0": 0.5}, halve_final=True)


def test_a_module_needs_an_example() -> None:
    with pytest.raises(InvalidInput, match="prune needs an example of the input of Sequential: pass example="):
        tamis.prune(three_layers(), 0.5)
    with pytest.raises(InvalidInput, match="prune needs a Network, a Compressed or a module, got dict"):
        tamis.prune({}, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite(net: tamis.Network, by: Any, value: float) -> None:
    weight = net.params["2.weight"].clone()
    weight[1, 2] = value
    with pytest.raises(InvalidParameters, match=rf"'2\.weight' .* first at \(1, 2\): {value}"):
        tamis.prune(net.with_params({"2.weight": weight}), 0.5, by)


def test_phi_refuses_what_has_no_path_lifting() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2))
    with pytest.raises(UnsupportedOp, match=r"'aten\.gelu' at 1"):
        tamis.prune(model, 0.5, example=torch.zeros(1, 4))
    twice = nn.Linear(3, 3)
    with pytest.raises(AssumptionViolated, match=r"'0\.weight' is used again"):
        tamis.prune(nn.Sequential(twice, nn.ReLU(), twice), 0.5, example=torch.zeros(1, 3))
    assert tamis.prune(model, 0.5, by="magnitude", example=torch.zeros(1, 4)).masks.pruned == 9


# -- what comes out, and what stays as it was ----------------------------------------------------------------------


@pytest.mark.parametrize("by", CRITERIA)
def test_nothing_that_was_passed_in_changes(by: Any) -> None:
    model, x = three_layers().train(), torch.randn(3, 4)
    model[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.random.get_rng_state()
    net = tamis.trace(model, x)
    small = tamis.prune(model, 0.5, by, biases=True, example=x)
    masks = {name: mask.clone() for name, mask in small.masks.items()}
    for scope in SCOPES:
        tamis.prune(small, 0.5, by, scope)
        tamis.prune(net, 0.5, by, scope)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(net.params[name], value) for name, value in before.items())
    assert model.training and not model[0].weight.requires_grad and model[0].weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert all(torch.equal(small.masks[name], mask) for name, mask in masks.items()) and len(small.recipe) == 1


def test_the_recipe_keeps_its_own_copy_of_the_amount(net: tamis.Network) -> None:
    amount = {"0": 0.5}
    small = tamis.prune(net, amount)
    amount["0"] = 0.75
    assert small.recipe[0]["amount"] == {"0": 0.5}


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("scope", SCOPES)
def test_pruned_weights_are_plus_zero_and_the_others_untouched(net: tamis.Network, by: Any, scope: Any) -> None:
    small = tamis.prune(net, 0.7, by, scope)
    assert any((net.params[name][~mask] < 0).any() for name, mask in small.masks.items())
    for name, mask in small.masks.items():
        value, before = small.params[name], net.params[name]
        assert torch.equal(value[mask], before[mask])
        assert not value[~mask].any() and not torch.signbit(value[~mask]).any()
    untouched = net.params.keys() - small.masks.keys()
    assert untouched and all(torch.equal(small.params[name], net.params[name]) for name in untouched)


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("scope", SCOPES)
def test_the_same_call_gives_the_same_masks(net: tamis.Network, by: Any, scope: Any) -> None:
    first, second = (tamis.prune(net, 0.6, by, scope, seed=3) for _ in range(2))
    assert equal_masks(first, second)
    assert first.recipe == second.recipe == ({"step": "prune", "by": by, "scope": scope, "amount": 0.6, "seed": 3},)
    if scope == "global":  # a module is traced for either alike
        from_module = tamis.prune(three_layers(), 0.6, by, scope, seed=3, example=torch.zeros(1, 4))
        assert equal_masks(first, from_module)


def test_random_pruning_follows_its_seed_alone(net: tamis.Network) -> None:
    first = tamis.prune(net, 0.5, "random", seed=1)
    torch.manual_seed(99)
    assert equal_masks(first, tamis.prune(net, 0.5, "random", seed=1))
    assert equal_masks(first, tamis.prune(tamis.rescale(net), 0.5, "random", seed=1))
    assert not equal_masks(first, tamis.prune(net, 0.5, "random", seed=2))
    scores: list[dict[str, Tensor]] = [{}, {}]
    random_scores(net, ["4.weight", "0.weight"], 5)(scores[0].__setitem__)
    random_scores(net, ["0.weight", "4.weight"], 5)(scores[1].__setitem__)
    assert all(torch.equal(scores[0][name], scores[1][name]) for name in ("0.weight", "4.weight"))


def test_random_pruning_is_uniform() -> None:
    """Each weight is pruned in about a third of the draws: 150 ± 5 standard deviations."""
    net = tamis.trace(nn.Linear(5, 6), torch.zeros(1, 5))
    times = sum((~tamis.prune(net, 10, "random", seed=seed).masks["weight"]).long() for seed in range(450))
    assert isinstance(times, Tensor) and int(times.sum()) == 4500
    assert (times - 150).abs().max() <= 5 * (450 * (1 / 3) * (2 / 3)) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    net = tamis.trace(three_layers().to(dtype), torch.zeros(1, 4, dtype=dtype))
    for by in CRITERIA:
        small = tamis.prune(net, 0.5, by)
        assert small.masks.pruned == 20 and small.params["0.weight"].dtype is dtype


def test_channels_last_weights_are_pruned_alike() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2))
    nn.init.constant_(model[0].weight, 0.5)
    plain = tamis.prune(model, 0.3, "magnitude", example=torch.zeros(1, 3, 5, 5))
    other = tamis.prune(model.to(memory_format=torch.channels_last), 0.3, "magnitude", example=torch.zeros(1, 3, 5, 5))
    assert equal_masks(plain, other)


# -- pruning again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("then", CRITERIA)
def test_pruning_twice(net: tamis.Network, by: Any, then: Any, scope: Any) -> None:
    """What is pruned stays pruned; the second amount is of what is left; the recipe has both steps."""
    once = tamis.prune(net, 0.5, by, scope)
    twice = tamis.prune(once, 0.5, then, scope, seed=1)
    sizes = [41] if scope == "global" else [20, 15, 6]
    first = [round(0.5 * n) for n in sizes]
    assert once.masks.pruned == sum(first)
    assert twice.masks.pruned == sum(k + round(0.5 * (n - k)) for n, k in zip(sizes, first, strict=True))
    assert all(not (twice.masks[name] & ~once.masks[name]).any() for name in twice.masks)
    assert [(step["by"], step["amount"]) for step in twice.recipe] == [(by, 0.5), (then, 0.5)]
    count = tamis.prune(once, 2, then)
    assert count.masks.pruned == once.masks.pruned + 2
    with pytest.raises(InvalidInput, match=f"between 0 and {41 - once.masks.pruned} weights"):
        tamis.prune(once, 41 - once.masks.pruned + 1, then)


def test_pruning_other_parameters_next(net: tamis.Network) -> None:
    once = tamis.prune(net, 4, include="0")
    twice = tamis.prune(once, 1.0, "magnitude", include="4")
    assert pruned_counts(twice) == {"0.weight": 4, "4.weight": 6}
    assert torch.equal(twice.masks["0.weight"], once.masks["0.weight"])
    whole = tamis.prune(twice, 1.0, biases=True)
    assert whole.masks.pruned == whole.masks.total == 51
    assert tamis.prune(whole, 1.0).masks.pruned == 51


def test_magnitude_pruning_in_steps_is_magnitude_pruning(net: tamis.Network) -> None:
    in_steps = tamis.prune(tamis.prune(net, 9, "magnitude"), 11, "magnitude")
    assert equal_masks(in_steps, tamis.prune(net, 20, "magnitude"))


# -- the criteria by their definitions -----------------------------------------------------------------------------


@slow_tracing
@given(dags(), st.floats(0, 1))
def test_magnitude_is_a_sort_of_absolute_values(dag: Dag, amount: float) -> None:
    net = tamis.trace(dag, dag.example())
    for scope in SCOPES:
        small = tamis.prune(net, amount, "magnitude", scope)
        groups = [[name] for name in small.masks] if scope == "layer" else [list(small.masks)]
        for names in groups:
            entries = [(abs(v), n, i) for n in names for i, v in enumerate(net.params[n].flatten().tolist())]
            expected = {(n, i) for _, n, i in sorted(entries)[: round(amount * len(entries))]}
            pruned = {(n, i) for n in names for i in (~small.masks[n].flatten()).nonzero().flatten().tolist()}
            assert pruned == expected


def enumerated_costs(net: tamis.Network, name: str) -> Tensor:
    """(3.16) literally: the norm of the enumerated path-lifting, with and without each coordinate."""
    whole, param = tamis.lifting(net).norm(1, 1), net.params[name]
    costs = torch.empty_like(param)
    for i in range(param.numel()):
        without = param.clone()
        without.view(-1)[i] = 0
        costs.view(-1)[i] = whole - tamis.lifting(net.with_params({name: without})).norm(1, 1)
    return costs


@slow_tracing
@given(dags(most_steps=3), st.floats(0, 1))
def test_phi_prunes_the_coordinates_of_smallest_cost(dag: Dag, amount: float) -> None:
    assume(sum(value.numel() for value in dag.parameters() if value.dim() > 1) <= 60)
    net = tamis.trace(dag, dag.example())
    both = {scope: tamis.prune(net, amount, "phi", scope).masks for scope in SCOPES}
    costs = {name: enumerated_costs(net, name) for name in both["global"]}
    tolerance = 1e-9 * tamis.path_norm(net)  # costs that are equal but for rounding may go in any order
    for scope, masks in both.items():
        groups = [[name] for name in costs] if scope == "layer" else [list(costs)]
        for names in groups:
            kept = torch.cat([masks[name].flatten() for name in names])
            cost = torch.cat([costs[name].flatten() for name in names])
            assert int((~kept).sum()) == round(amount * len(kept))
            if kept.any() and not kept.all():
                assert cost[~kept].max() <= cost[kept].min() + tolerance


def test_phi_by_hand() -> None:
    """y = 2 relu(x₁ − 2 x₂) − relu(3 x₁ + x₂ / 2): each weight's cost is what flows through it on |θ| from ones."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    model.load_state_dict(
        {"0.weight": torch.tensor([[1.0, -2.0], [3.0, 0.5]]), "2.weight": torch.tensor([[2.0, -1.0]])}
    )  # costs: 2·1, 2·2, 1·3, 1·0.5 and 2·3, 1·3.5
    order = [("0.weight", 3), ("0.weight", 0), ("0.weight", 2), ("2.weight", 1), ("0.weight", 1), ("2.weight", 0)]
    net = tamis.trace(model, torch.zeros(1, 2))
    for count in range(7):
        small = tamis.prune(net, count)
        pruned = {(n, i) for n in small.masks for i in (~small.masks[n].flatten()).nonzero().flatten().tolist()}
        assert pruned == set(order[:count])


# -- networks beyond float64 ---------------------------------------------------------------------------------------


def deep(layers: int, power: int, width: int = 4) -> tamis.Network:
    """A network with its first layer's bias and weights times 2^power, which a network of power 0 mirrors exactly."""
    torch.manual_seed(4)
    parts: list[nn.Module] = [nn.Linear(width, width)]
    parts += [part for _ in range(layers - 1) for part in (nn.ReLU(), nn.Linear(width, width, bias=False))]
    model = nn.Sequential(*parts).double()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2.0**power)
    return tamis.trace(model, torch.zeros(1, width, dtype=torch.float64))


@pytest.mark.parametrize(("layers", "power"), [(6, 200), (7, -200), (5, 900)])
def test_where_the_path_norm_overflows_the_masks_are_those_of_the_scaled_network(layers: int, power: int) -> None:
    """All costs of the one are 2^(layers · power) times those of the other."""
    net, mirror = deep(layers, power), deep(layers, 0)
    assert abs(tamis.path_norm(net, log=True)) > 708 > abs(tamis.path_norm(mirror, log=True))
    for scope in SCOPES:
        small, expected = tamis.prune(net, 0.5, scope=scope), tamis.prune(mirror, 0.5, scope=scope)
        assert equal_masks(small, expected) and small.masks.pruned == layers * 8


# -- the bound -----------------------------------------------------------------------------------------------------


@slow_tracing
@given(dags(), st.floats(0, 1), st.sampled_from(SCOPES), st.integers(0, 2**20))
def test_costs_bound_what_pruning_changes(dag: Dag, amount: float, scope: Any, seed: int) -> None:
    """(3.19) and (3.18), for any set of pruned weights: and the path-metric is never above the sum of costs."""
    net = tamis.trace(dag, dag.example())
    costs, rounding = tamis.path_costs(net), 1e-9 * tamis.path_norm(net)
    x = dag.example(8, seed) * torch.logspace(-2, 2, 8, dtype=torch.float64).view(-1, 1, 1, 1)
    outputs, reach = net(x), x.abs().flatten(1).amax(1).clamp(min=1)
    for by in CRITERIA:
        small = tamis.prune(net, amount, by, scope)
        total = sum(float(costs.values[n][~mask].sum()) for n, mask in small.masks.items()) * math.exp(costs.log_scale)
        metric = tamis.path_metric(net, small.network)
        assert metric <= total + rounding
        change = (outputs - small.network(x)).abs().sum(1)
        assert (change <= (total + rounding) * reach).all()
        assert (change <= (metric + rounding) * reach).all()
        assert (change <= tamis.path_metric(net, small.network, x) + rounding * reach).all()


@pytest.mark.parametrize("seed", [None, 1.5, "x", True, -1, 2**63])
def test_a_seed_is_a_whole_number(net: tamis.Network, seed: Any) -> None:
    with pytest.raises(InvalidInput, match=r"seed=.* must be a whole number"):
        tamis.prune(net, 1, by="magnitude", seed=seed)


def test_numbers_of_numpy_will_do() -> None:
    net = tamis.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    small = tamis.prune(net, np.int64(3), by="random", seed=np.int32(4))
    assert small.masks.pruned == 3 and small.recipe[0]["amount"] == 3 and type(small.recipe[0]["seed"]) is int
    assert tamis.prune(net, np.float32(0.5)).masks.pruned == 2
    assert small.nbytes > 0  # a recipe that JSON takes


def test_phi_says_what_to_do_where_it_cannot() -> None:
    net = tamis.trace(nn.Sequential(nn.Linear(2, 2), nn.GELU()), torch.zeros(1, 2))
    with pytest.raises(UnsupportedOp, match=r"'aten.gelu' at 1 is not; prune by 'magnitude' or 'random' instead"):
        tamis.prune(net, 0.5)
