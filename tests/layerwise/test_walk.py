"""A walk through two networks against full forward passes of both, layer after layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from draws import normal
from hypothesis import HealthCheck, given, settings
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput
from tamis.graph import Network, Node, resolve
from tamis.layerwise.bias_correction import correct_bias
from tamis.layerwise.journal import LayerJournal, LayerOutcome
from tamis.layerwise.layers import Layer, find_layers
from tamis.layerwise.walk import ACTIVATION_BUDGET, Walk
from tamis.training import Team
from tamis.training.models import MODELS, example_input

TEAM = Team(torch.device("cpu"))
slow_tracing = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


class Coarse:
    """A treatment: weights in steps of ¼, the means kept; notes what it was shown."""

    def __init__(self, original: Mapping[str, Tensor], corrects: bool = True) -> None:
        self.original, self.corrects = original, corrects
        self.shown: dict[str, tuple[Any, dict[str, Tensor]]] = {}

    def takes_rows(self, layer: Layer) -> bool:
        return False

    def __call__(self, layer: Layer, seen: Any, params: Mapping[str, Tensor]) -> LayerOutcome:
        sums = seen.grams()
        self.shown[layer.weight] = (sums, dict(params))
        weight = (4 * params[layer.weight]).round() / 4
        moved = correct_bias(layer, sums.all.means(), self.original, weight) if self.corrects else {}
        return LayerOutcome({layer.weight: weight, **moved}, figures={"zeros": 0.0})


def layers_of(net: Network) -> tuple[Layer, ...]:
    return find_layers(net, None, None, "joint", done="tested")


def walked(
    net: Network,
    small: Mapping[str, Tensor],
    calibration: Any,
    treatment: Coarse,
    layers: tuple[Layer, ...] | None = None,
    budget: int = ACTIVATION_BUDGET,
    hold_out: bool = False,
) -> tuple[Walk, dict[str, dict[str, Any]]]:
    walk = Walk(net, small, calibration, hold_out, budget, TEAM)
    treated = walk.transform(layers_of(net) if layers is None else layers, treatment, LayerJournal(None, {}, TEAM))
    return walk, {layer.weight: outcome.figures for layer, outcome in treated}


def all_values(net: Network, params: Mapping[str, Tensor], *inputs: Tensor) -> dict[str, Any]:
    """What every node gives in a forward pass."""
    values: dict[str, Any] = {**params, **net.constants, **dict(zip(net.inputs, inputs, strict=True))}
    with torch.no_grad():
        for node in net.nodes:
            args, kwargs = (resolve(part, values.__getitem__) for part in (node.args, node.kwargs))
            values[node.name] = node.target(*args, **kwargs)
    return values


def coarse(value: Tensor) -> Tensor:
    return (2 * value).round() / 2


def residual() -> nn.Module:
    """Convolutions with and without batch-norms and biases, a skip, a split, a linear layer."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Conv2d(2, 4, 3, padding=1)
            self.second, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
            self.up = nn.ConvTranspose2d(2, 3, 2, stride=2)
            self.head = nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            x = torch.relu(self.norm(self.second(x)) + x)
            left, right = x.chunk(2, dim=1)
            return self.head(torch.relu(self.up(left * 2 + right)).mean((2, 3)))

    module = Residual().double().eval()
    with torch.no_grad():
        module.norm.running_mean.normal_()  # type: ignore[union-attr]
        module.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return module


@pytest.fixture(scope="module")
def net() -> Network:
    return tamis.trace(residual(), torch.zeros(2, 2, 6, 6, dtype=torch.float64))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return normal(torch.Generator().manual_seed(1), 23, 2, 6, 6) + 0.5


# -- what runs, and how often --------------------------------------------------------------------------------------


def counting(net: Network) -> tuple[Network, tuple[Layer, ...], Counter[str]]:
    """The network, and its layers, with a count of how often each node runs."""
    count: Counter[str] = Counter()

    def counted(node: Node) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            count[node.name] += 1
            return node.target(*args, **kwargs)

        return run

    nodes = {node.name: replace(node, target=counted(node)) for node in net.nodes}
    layers = tuple(replace(layer, node=nodes[layer.node.name]) for layer in layers_of(net))
    return net.replace(nodes=tuple(nodes.values())), layers, count


def reached(net: Network, changed: set[str]) -> set[str]:
    """Nodes that read a parameter that changes, or another such node."""
    found: set[str] = set()
    for node in net.nodes:
        if not (changed | found).isdisjoint(node.references):
            found.add(node.name)
    return found


@pytest.mark.parametrize("budget", [0, ACTIVATION_BUDGET], ids=["files", "memory"])
def test_every_node_runs_once_for_each_batch_and_network(net: Network, x: Tensor, budget: int) -> None:
    """And once for both networks where they do not differ yet. After the last layer nothing runs any more."""
    counted, layers, count = counting(net)
    batches = [x[:10], x[10:20], x[20:]]
    walked(counted, {}, batches, Coarse(net.params), layers, budget)
    last = [node.name for node in net.nodes].index(layers[-1].node.name)
    twice = reached(net, {layer.weight for layer in layers})
    for place, node in enumerate(net.nodes):
        expected = 0 if place > last else 2 * 3 if node.name in twice else 3
        assert count[node.name] == expected, node.name


def test_copies_of_the_same_weights_change_nothing(net: Network, x: Tensor) -> None:
    counted, layers, count = counting(net)
    copies = {name: value.clone() for name, value in net.params.items()}
    walked(counted, copies, [x[:10], x[10:]], Coarse(net.params), layers[-1:])
    assert all(count[node.name] in (2, 4) for node in net.nodes if node.name in count)
    assert sum(count[node.name] == 4 for node in net.nodes) == 1  # the last layer, of which the error is measured


@pytest.mark.parametrize("first", [1, 2])
def test_from_the_first_difference_on_both_run(net: Network, x: Tensor, first: int) -> None:
    layers = layers_of(net)
    counted, counted_layers, count = counting(net)
    start = {layers[first].weight: coarse(net.params[layers[first].weight])}
    walked(counted, start, [x], Coarse(net.params), counted_layers[first + 1 :])
    twice = reached(net, {layer.weight for layer in layers[first:]})
    assert {name for name, times in count.items() if times == 2} == twice & count.keys()


# -- what is seen --------------------------------------------------------------------------------------------------


def check_sums(net: Network, layers: tuple[Layer, ...], treatment: Coarse, x: tuple[Tensor, ...]) -> None:
    """At each layer, the Gram matrices are those of its inputs in full passes of both networks."""
    original = all_values(net, net.params, *x)
    for layer in layers:
        sums, params = treatment.shown[layer.weight]
        small = all_values(net, params, *x)
        rows, y = layer.layout.to_rows(small[layer.inputs]), layer.layout.to_rows(original[layer.inputs])
        assert sums.all.count == rows.shape[1]
        tolerance = {"rtol": 1e-9, "atol": 1e-9 * float(1 + rows.square().sum(1).max() + y.square().sum(1).max())}
        torch.testing.assert_close(sums.all.inputs, rows.mT @ rows, **tolerance)
        torch.testing.assert_close(sums.all.drift, rows.mT @ (y - rows), **tolerance)
        torch.testing.assert_close(sums.all.input_sums, rows.sum(1), **tolerance)
        torch.testing.assert_close(sums.all.drift_sums, (y - rows).sum(1), **tolerance)


def literal_errors(
    net: Network, layers: tuple[Layer, ...], treatment: Coarse, walk: Walk, x: tuple[Tensor, ...]
) -> dict[str, float]:
    """‖Yw − Ỹq‖/‖Yw‖ of each layer, the shift of the means included, from full passes."""
    errors = {}
    original = all_values(net, net.params, *x)
    small = all_values(net, walk.params, *x)  # what comes later does not change what comes before
    for layer in layers:
        difference, whole = original[layer.node.name] - small[layer.node.name], original[layer.node.name]
        axes = [1] * layer.spatial_axes
        if layer.bias is not None:
            whole = whole - net.params[layer.bias].reshape(-1, *axes)
        if layer.shift is not None and layer.shift.name != layer.bias:
            moved = layer.shift.sign * (walk.params[layer.shift.name] - net.params[layer.shift.name])
            difference = difference - moved.reshape(-1, *axes)
        errors[layer.weight] = float(difference.norm() / whole.norm())
    return errors


def start_of(net: Network) -> dict[str, Tensor]:
    """A small network that differs from the start, in every weight."""
    return {layer.weight: coarse(net.params[layer.weight]) for layer in layers_of(net)}


@pytest.mark.parametrize("started", [False, True], ids=["same", "changed"])
@pytest.mark.parametrize("corrects", [False, True], ids=["plain", "corrected"])
def test_inputs_and_errors_are_those_of_full_passes(net: Network, x: Tensor, started: bool, corrects: bool) -> None:
    treatment, layers = Coarse(net.params, corrects), layers_of(net)
    walk, figures = walked(net, start_of(net) if started else {}, x, treatment)
    check_sums(net, layers, treatment, (x,))
    expected = literal_errors(net, layers, treatment, walk, (x,))
    assert {name: each["error"] for name, each in figures.items()} == pytest.approx(expected, rel=1e-9)
    assert list(figures) == [layer.weight for layer in layers]


@slow_tracing
@given(dags(most_steps=6))
def test_inputs_and_errors_in_any_network(module: Dag) -> None:
    x = module.example(7)
    net = tamis.trace(module, x)
    treatment, layers = Coarse(net.params), layers_of(net)
    walk, figures = walked(net, {}, x, treatment)
    check_sums(net, layers, treatment, (x,))
    for name, error in literal_errors(net, layers, treatment, walk, (x,)).items():
        assert figures[name]["error"] == pytest.approx(error, rel=1e-6, abs=1e-9) or error != error


@pytest.mark.parametrize(
    "name", ["gcn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("vit_tiny_test", "digits_cnn"))]
)
def test_inputs_and_errors_of_models(name: str) -> None:
    torch.manual_seed(0)
    x = example_input(name, 6).double()
    x = x[0] if name == "gcn" else x
    net = tamis.trace(MODELS[name]().double(), x)
    treatment, layers = Coarse(net.params), layers_of(net)
    walk, figures = walked(net, {}, x, treatment)
    check_sums(net, layers, treatment, (x,))
    expected = literal_errors(net, layers, treatment, walk, (x,))
    assert {name: each["error"] for name, each in figures.items()} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_tied_weights_are_the_new_ones_wherever_they_come_again() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.second(torch.relu(self.first(x)))))

    x = normal(torch.Generator().manual_seed(0), 20, 4)
    net = tamis.trace(Tied().double(), x)
    treatment, layers = Coarse(net.params), layers_of(net)
    walk, figures = walked(net, {}, x, treatment)
    check_sums(net, layers, treatment, (x,))
    assert len(layers) == 2
    expected = literal_errors(net, layers, treatment, walk, (x,))
    assert {name: each["error"] for name, each in figures.items()} == pytest.approx(expected, rel=1e-9)


# -- batches -------------------------------------------------------------------------------------------------------


def test_how_batches_are_cut_does_not_matter(net: Network, x: Tensor) -> None:
    walk, figures = walked(net, {}, x, Coarse(net.params))
    for size in (1, 4, 23):
        other, again = walked(net, {}, list(x.split(size)), Coarse(net.params))
        for name, value in walk.params.items():
            torch.testing.assert_close(other.params[name], value, rtol=1e-9, atol=1e-9)
        for name, each in figures.items():
            assert again[name]["error"] == pytest.approx(each["error"], rel=1e-9)


@pytest.mark.parametrize("budget", [0, 2000, 100_000])
def test_files_change_nothing_bit_for_bit(net: Network, x: Tensor, budget: int) -> None:
    walk, figures = walked(net, {}, x, Coarse(net.params))
    other, again = walked(net, {}, x, Coarse(net.params), budget=budget)
    assert figures == again and all(torch.equal(other.params[name], value) for name, value in walk.params.items())


def test_one_batch_in_five_is_held_out(net: Network, x: Tensor) -> None:
    treatment = Coarse(net.params)
    walked(net, {}, list(x[:22].split(2)), treatment, hold_out=True)
    layer = layers_of(net)[0]
    sums, _ = treatment.shown[layer.weight]
    held_out = torch.cat([x[2:4], x[12:14]])
    chosen_from = torch.cat([x[:2], x[4:12], x[14:22]])
    for gram, data in ((sums.held_out, held_out), (sums.chosen_from, chosen_from)):
        rows = layer.layout.to_rows(data)
        assert gram.count == rows.shape[1]
        torch.testing.assert_close(gram.inputs, rows.mT @ rows)
    treatment = Coarse(net.params)
    walked(net, {}, [x], treatment, hold_out=True)
    assert treatment.shown[layer.weight][0].held_out is None


def test_batches_are_asked_for_once(net: Network, x: Tensor) -> None:
    """A loader that draws anew each time it is gone through, or can be gone through once."""
    times = 0

    def batches() -> Iterator[Tensor]:
        nonlocal times
        times += 1
        yield from x.split(5)

    _, figures = walked(net, {}, batches(), Coarse(net.params))
    assert times == 1 and len(figures) == 4


def test_neither_the_network_nor_the_data_is_changed(net: Network, x: Tensor) -> None:
    before, data = {name: value.clone() for name, value in net.params.items()}, x.clone()
    walked(net, {}, x, Coarse(net.params), budget=0)
    assert torch.equal(x, data) and all(torch.equal(net.params[name], value) for name, value in before.items())


# -- numbers -------------------------------------------------------------------------------------------------------


def test_inputs_that_overflow(net: Network, x: Tensor) -> None:
    with pytest.raises(
        InvalidInput, match=r"the inputs of 'first.weight' are not finite .* or too large to be squared"
    ):
        walked(net, {}, 1e160 * x, Coarse(net.params))


def test_outputs_that_overflow() -> None:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, 3e38)
    net = tamis.trace(model, torch.zeros(1, 2))
    with pytest.raises(InvalidInput, match="the outputs of 'weight' are not finite numbers on the calibration data"):
        walked(net, {}, torch.full((3, 2), 100.0), Coarse(net.params))


def test_a_layer_that_sees_nothing_but_zeros(net: Network) -> None:
    _, figures = walked(net, {}, torch.zeros(4, 2, 6, 6, dtype=torch.float64), Coarse(net.params))
    assert figures["first.weight"]["error"] == 0


# -- a small network that was shifted before -------------------------------------------------------------------------


@pytest.mark.parametrize("shift", ["first.bias", "norm.running_mean"])
def test_errors_where_biases_and_means_differ_from_the_start(net: Network, x: Tensor, shift: str) -> None:
    """Those of the original network count, not those that the small one began with."""
    start = {shift: net.params[shift] + 0.7}
    treatment, layers = Coarse(net.params), layers_of(net)
    walk, figures = walked(net, start, x, treatment)
    expected = literal_errors(net, layers, treatment, walk, (x,))
    assert {name: each["error"] for name, each in figures.items()} == pytest.approx(expected, rel=1e-9)
