"""`tamis.prune(..., by="obs")`: exact counts, its rounds written out by hand, and what it is worth on real networks."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from draws import normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pretrained import pretrained
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.errors import DataNotFound, InvalidInput, InvalidParameters
from tamis.graph import Network
from tamis.pruning.obs import ROUNDS
from tamis.training import Data, Settings, evaluate, load_data, train
from tamis.training.models import digits_cnn

slow_tracing = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


def three_layers() -> nn.Sequential:
    """Layers of 20, 15 and 6 weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture(scope="module")
def net() -> Network:
    return tamis.trace(three_layers(), torch.zeros(1, 4))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(60, 4, generator=torch.Generator().manual_seed(1)) + 0.3


def surgery(net: Any, amount: Any, x: Any, **options: Any) -> tamis.Compressed:
    return tamis.prune(net, amount, by="obs", calibration=x, progress=False, **options)


def pruned_counts(small: tamis.Compressed) -> dict[str, int]:
    return {name: int((~mask).sum()) for name, mask in small.masks.items()}


# -- amounts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "amount",
    [0, 7, 41, 0.5, 1 / 3, 1e-9, 1.0, *(pytest.param(amount, marks=pytest.mark.slow) for amount in (0.0, 1, 0.1, 0.8))],
)
def test_global_amounts_are_exact(net: Network, x: Tensor, amount: float | int) -> None:
    """And shared out among layers as magnitudes would."""
    small = surgery(net, amount, x)
    assert small.masks.total == 41
    assert small.masks.pruned == (amount if isinstance(amount, int) else round(amount * 41))
    assert pruned_counts(small) == pruned_counts(tamis.prune(net, amount, by="magnitude"))


@pytest.mark.parametrize("amount", [0, 1, 6, 0.1, 0.5, 0.8, 1.0])
def test_layerwise_amounts_are_exact(net: Network, x: Tensor, amount: float | int) -> None:
    sizes = {"0.weight": 20, "2.weight": 15, "4.weight": 6}
    expected = {n: amount if isinstance(amount, int) else round(amount * size) for n, size in sizes.items()}
    assert pruned_counts(surgery(net, amount, x, scope="layer")) == expected


@given(st.integers(0, 20), st.integers(0, 15), st.integers(0, 6))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_counts(net: Network, x: Tensor, first: int, second: int, third: int) -> None:
    counts = {"0.weight": first, "2.weight": second, "4.weight": third}
    small = surgery(net, counts, x)
    assert pruned_counts(small) == counts
    for name, mask in small.masks.items():
        assert not small.params[name][~mask].any()


def test_some_layers(net: Network, x: Tensor) -> None:
    small = surgery(net, 0.5, x, include="2")
    changed = {name for name, value in small.params.items() if not torch.equal(value, net.params[name])}
    assert pruned_counts(small) == {"2.weight": 8} and changed == {"2.weight", "2.bias"}
    halved = surgery(net, 0.5, x, scope="layer", halve_final=True)
    assert pruned_counts(halved)["4.weight"] == 2


def test_names_are_no_patterns(x: Tensor) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of = nn.ModuleDict({"a*": nn.Linear(4, 4), "ab": nn.Linear(4, 4), "c[d]": nn.Linear(4, 2)})

        def forward(self, x: Tensor) -> Tensor:
            return self.of["c[d]"](torch.relu(self.of["ab"](torch.relu(self.of["a*"](x)))))

    net = tamis.trace(Named(), torch.randn(2, 4))
    data = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    both = pruned_counts(surgery(net, 0.5, data, exclude="of.ab"))
    assert both.keys() == {"of.a*.weight", "of.c[d].weight"} and sum(both.values()) == 12
    left = pruned_counts(surgery(net, 0.5, data, exclude=["of.c[d].weight", "of.ab"]))
    assert left == {"of.a*.weight": 8}


def test_nothing_pruned_is_nothing_changed(x: Tensor) -> None:
    for dtype in (torch.float32, torch.float64):
        net = tamis.trace(three_layers().to(dtype), x[:1].to(dtype))
        small = surgery(net, 0, x.to(dtype))
        assert all(torch.equal(small.params[name], value) for name, value in net.params.items())
        assert all(bool(mask.all()) for mask in small.masks.values())


def test_further_pruning(net: Network, x: Tensor) -> None:
    """Of a network that is pruned already: so much of what is left, and what is pruned stays pruned."""
    once = tamis.prune(net, {"0.weight": 8, "2.weight": 5}, by="magnitude")
    twice = surgery(once, 0.5, x, scope="layer")
    assert pruned_counts(twice) == {"0.weight": 8 + 6, "2.weight": 5 + 5, "4.weight": 3}
    for name, mask in once.masks.items():
        assert not (twice.masks[name] & ~mask).any()
    assert [step["by"] for step in twice.recipe] == ["magnitude", "obs"]
    everywhere = surgery(surgery(net, 11, x), 10, x)
    assert everywhere.masks.pruned == 21


def test_biases_that_are_pruned_stay_so(net: Network, x: Tensor) -> None:
    once = tamis.prune(net, 0.5, by="random", biases=True)
    twice = surgery(once, 0.3, x)
    for name, mask in once.masks.items():
        assert not twice.params[name][~mask].any()
    inner = twice.recipe[-1]["layers"]["4.weight"]["error"]
    expected = once.network(x)
    whole = expected - once.params["4.bias"]
    assert inner == pytest.approx(float((twice.network(x) - expected).norm() / whole.norm()), rel=1e-4)


# -- what goes, and what is left of it -------------------------------------------------------------------------------


def by_hand(x: Tensor, w: Tensor, count: int, damping: float = 0.01) -> tuple[Tensor, Tensor]:
    """Optimal brain surgeon on one linear layer without a bias, with dense inverses, one neuron after the other."""
    square = x.T @ x
    ridge = damping * square.diagonal().mean() * torch.eye(len(square), dtype=w.dtype)
    keep, weights = torch.ones_like(w, dtype=torch.bool), w.clone()
    for turn in range(1, ROUNDS + 1):
        going = int(keep.sum()) - round(w.numel() * ((w.numel() - count) / w.numel()) ** (turn / ROUNDS))
        if not going:
            continue
        costs = torch.full_like(w, torch.inf)
        for n in range(len(w)):
            s = keep[n].nonzero()[:, 0]
            if len(s):
                costs[n, s] = weights[n, s] ** 2 / torch.linalg.inv((square + ridge)[s][:, s]).diagonal()
        keep.view(-1)[costs.flatten().argsort(stable=True)[:going]] = False
        for n in range(len(w)):
            s, before = keep[n].nonzero()[:, 0], weights[n] * keep[n]
            right = (square @ w[n] + ridge @ before)[s]
            weights[n] = 0
            if len(s):
                weights[n, s] = torch.linalg.solve((square + ridge)[s][:, s], right)
    return weights, keep


@cache
def one_layer() -> Network:
    return tamis.trace(nn.Linear(6, 4, bias=False).double(), torch.zeros(2, 6, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 5, 12, 23, 24])
def test_one_layer_by_hand(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    x = normal(generator, 30, 6) @ normal(generator, 6, 6)
    net = one_layer().with_params({"weight": normal(generator, 4, 6)})
    small = surgery(net, count, x)
    weights, keep = by_hand(x, net.params["weight"], count)
    assert torch.equal(small.masks["weight"], keep)
    torch.testing.assert_close(small.params["weight"], weights)


def test_a_bias_is_the_same_as_centred_data() -> None:
    x = normal(torch.Generator().manual_seed(0), 30, 6) + 2
    net = tamis.trace(nn.Linear(6, 4).double(), x)
    small = surgery(net, 12, x)
    weights, keep = by_hand(x - x.mean(0), net.params["weight"], 12)
    assert torch.equal(small.masks["weight"], keep)
    torch.testing.assert_close(small.params["weight"], weights)
    torch.testing.assert_close(small.network(x).mean(0), net(x).mean(0))


def test_one_weight_goes_where_the_error_grows_least() -> None:
    """By trying every one of them, the others refitted by repair."""
    x = normal(torch.Generator().manual_seed(3), 30, 4) @ normal(torch.Generator().manual_seed(4), 4, 4)
    net = tamis.trace(nn.Linear(4, 3, bias=False).double(), x)
    errors = {}
    for place in range(12):
        mask = torch.ones(12, dtype=torch.bool)
        mask[place] = False
        kept = {"weight": mask.reshape(3, 4)}
        start = tamis.Compressed(net).pruned(kept, {"step": "prune"})
        tried = tamis.repair(net, start, x, damping=1e-9, progress=False)
        errors[place] = float((tried.network(x) - net(x)).square().sum())
    (gone,) = (~surgery(net, 1, x).masks["weight"]).flatten().nonzero()[:, 0].tolist()
    assert gone == min(errors, key=errors.__getitem__)


@slow_tracing
@given(dags())
def test_any_network(module: Dag) -> None:
    x = module.example(9)
    net = tamis.trace(module, x)
    small = surgery(net, 0.5, x)
    assert small.masks.pruned == round(0.5 * small.masks.total)
    tamis.Compressed(small.network, small.masks)  # which checks that what is pruned is zero
    assert all(bool(value.isfinite().all()) for value in small.params.values())


def test_dead_inputs_go_first() -> None:
    """A weight that no data meets costs no more than its ridge."""
    x = normal(torch.Generator().manual_seed(0), 30, 5)
    x[:, 2] = 0
    net = tamis.trace(nn.Linear(5, 4, bias=False).double(), x)
    weights = torch.linspace(0.5, 1, 20, dtype=torch.float64).reshape(4, 5)
    light = net.with_params({"weight": weights * torch.tensor([1.0, 1, 0.1, 1, 1]).double()})
    assert not surgery(light, 4, x).masks["weight"][:, 2].any()


def test_the_recipe_says_what_was_done(net: Network, x: Tensor) -> None:
    step = surgery(net, 0.5, x, include=["0", "2"]).recipe[-1]
    assert (step["step"], step["by"], step["amount"], step["calibration"]) == ("prune", "obs", 0.5, "Tensor")
    assert list(step["layers"]) == ["0.weight", "2.weight"]
    for figures in step["layers"].values():
        assert 0 < figures["error"] < 1 and 0 < figures["zeros"] < 1


def test_it_is_saved_and_loaded(net: Network, x: Tensor, tmp_path: Path) -> None:
    small = surgery(net, 0.5, x)
    small.save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", net)
    assert all(torch.equal(loaded.params[name], value) for name, value in small.params.items())
    assert all(torch.equal(loaded.masks[name], mask) for name, mask in small.masks.items())


# -- errors --------------------------------------------------------------------------------------------------------


def test_it_needs_data(net: Network, x: Tensor) -> None:
    with pytest.raises(InvalidInput, match="by='obs' chooses weights by what data makes of them: pass calibration="):
        tamis.prune(net, 0.5, by="obs")
    with pytest.raises(InvalidInput, match="by='phi' looks at no data: leave out calibration="):
        tamis.prune(net, 0.5, calibration=x)
    with pytest.raises(InvalidInput, match="by='obs' prunes weights only: leave out biases=True"):
        surgery(net, 0.5, x, biases=True)
    with pytest.raises(InvalidInput, match="calibration batch 1: input 'input' must have shape"):
        surgery(net, 0.5, torch.zeros(3, 5))


def test_wrong_amounts(net: Network, x: Tensor) -> None:
    with pytest.raises(InvalidInput, match="between 0 and 41"):
        surgery(net, 42, x)
    with pytest.raises(InvalidInput, match="amount names '7', which matches no parameter"):
        surgery(net, {"7": 0.5}, x)
    with pytest.raises(InvalidParameters, match="not finite"):
        surgery(net.with_params({"0.weight": net.params["0.weight"] * torch.nan}), 0.5, x)


def test_weights_of_other_products() -> None:
    """Those that can be pruned by magnitude, but are no rows times a matrix."""

    class Contraction(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.layer = nn.Parameter(torch.randn(3, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.einsum("bij,jk->bki", x, self.weight))

    net = tamis.trace(Contraction(), torch.zeros(2, 3, 3))
    with pytest.raises(InvalidInput, match=r"'weight' matches no parameter that can be pruned by 'obs'; these can: "):
        surgery(net, 0.5, torch.randn(9, 3, 3))
    assert pruned_counts(surgery(net, 0.5, torch.randn(9, 3, 3), exclude="weight")) == {"layer.weight": 3}


# -- on real data --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_better_than_magnitude_and_repair() -> None:
    """On a network that was trained: the error of what comes out, on data of both kinds."""
    torch.manual_seed(0)
    data, test = load_data("digits:train"), load_data("digits:test")
    model = train(digits_cnn(), data, Settings(epochs=15), progress=False).model.eval()
    net = tamis.trace(model, data.example)
    magnitude = tamis.repair(net, tamis.prune(net, 0.8, by="magnitude"), data, progress=False)
    obs = surgery(net, 0.8, data)
    assert magnitude.masks.pruned == obs.masks.pruned
    for inputs in (data.normalised(), test.normalised()):
        expected = net(inputs)
        errors = [float((small.network(inputs) - expected).norm() / expected.norm()) for small in (obs, magnitude)]
        assert errors[0] < errors[1]


def cifar10(part: str) -> Data:
    """Some of it; a test skips where it is not at hand, but for CI."""
    try:
        return load_data(f"cifar10:{part}")
    except DataNotFound as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(("amount", "least"), [(0.7, 0.908), (0.8, 0.888), (0.9, 0.80)])
def test_resnet20_without_training(amount: float, least: float) -> None:
    """5,000 images, no label looked at: a published network keeps most of its accuracy."""
    model, data = pretrained("resnet20").eval(), cifar10("train[:5000]")
    small = tamis.prune(model, amount, by="obs", calibration=data, example=data.example, progress=False)
    accuracy = evaluate(small.apply_to(model), cifar10("test"))
    print(f"{amount:.0%} pruned: {accuracy:.2%}")
    assert small.masks.pruned == round(amount * small.masks.total)
    assert accuracy >= least
