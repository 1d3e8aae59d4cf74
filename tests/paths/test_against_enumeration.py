"""Everything that is computed without enumerating paths, against the enumeration, on random small networks."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags
from torch import nn

import tamis
from tamis.errors import AssumptionViolated, InvalidInput

slow_tracing = settings(deadline=None, suppress_health_check=list(HealthCheck))


def traced(dag: Dag) -> tamis.Network:
    return tamis.trace(dag, dag.example())


def close(a: float, b: float, tolerance: float = 1e-9) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def check_norms(net: tamis.Network, liftings: dict[bool, tamis.Lifting]) -> None:
    for fold, lifted in liftings.items():
        for q in (0.5, 1, 2, 4):
            norms = tamis.path_norms(net, q, fold=fold)  # one pass for all r; `path_norm` is its `mixed`
            for r in (1, 2, math.inf):
                assert close(norms.mixed(r), lifted.norm(q, r))
        assert close(tamis.path_norm(net, 2, math.inf, fold=fold), lifted.norm(2, math.inf))
        input_part = tamis.path_norm(net, part="input", fold=fold)
        hidden_part = tamis.path_norm(net, part="hidden", fold=fold)
        assert close(input_part, float(lifted.phi[lifted.starts >= 0].abs().sum()))
        assert close(hidden_part, float(lifted.phi[lifted.starts < 0].abs().sum()))
    assert tamis.path_norm(net) <= tamis.path_norm(net, fold=False) * (1 + 1e-12)


def check_products(net: tamis.Network, liftings: list[tamis.Lifting]) -> None:
    """Norms output by output, and the product of layer norms above them."""
    for lifted in liftings:
        q = lifted.q
        per_output = tamis.path_norms(net, q)
        for v in range(lifted.outputs):
            own = lifted.phi[lifted.ends == v].abs() ** q
            assert close(float(per_output.values[v]) * math.exp(per_output.log_scale), float(own.sum()) ** (1 / q))
        for r in (1, math.inf):
            product = tamis.product_norm(net, q, r)
            assert close(product, lifted.product_norm(r))
            assert per_output.mixed(r) <= product * (1 + 1e-12)


def check_realization(net: tamis.Network, liftings: dict[bool, tamis.Lifting], x: torch.Tensor) -> None:
    """The outputs are Φ times the activations of paths."""
    for lifted in liftings.values():
        torch.testing.assert_close(lifted.realization(x), net(x).flatten(), rtol=1e-9, atol=1e-9)


def check_all(dag: Dag, seed: int) -> None:
    net, x = traced(dag), dag.example(1, seed)  # tracing and listing paths takes most of the time: once for all three
    liftings = {fold: tamis.lifting(net, x, fold=fold) for fold in (True, False)}
    check_norms(net, liftings)
    check_products(net, [tamis.lifting(net, q=0.5), liftings[True], tamis.lifting(net, q=2)])
    check_realization(net, liftings, x)


@settings(slow_tracing, max_examples=7)
@given(dags(), st.integers(0, 1000))
def test_norms_products_and_outputs_equal_the_enumerated_ones(dag: Dag, seed: int) -> None:
    check_all(dag, seed)


@pytest.mark.slow
@settings(slow_tracing, max_examples=150)
@given(dags(), st.integers(0, 1000))
def test_many_networks_equal_the_enumeration(dag: Dag, seed: int) -> None:
    check_all(dag, seed)


@settings(slow_tracing, max_examples=6)
@given(dags(most_steps=4))
def test_costs_are_the_norm_with_and_without_each_coordinate(dag: Dag) -> None:
    net = traced(dag)
    costs = tamis.path_costs(net)
    norm = tamis.lifting(net).norm(1, 1)
    assert set(costs.values) == set(net.trainable)
    for name, values in costs.values.items():
        param = net.params[name]
        assert values.shape == param.shape
        for i in range(0, param.numel(), max(1, param.numel() // 6)):
            without = param.clone()
            without.view(-1)[i] = 0
            difference = norm - tamis.lifting(net.with_params({name: without})).norm(1, 1)
            assert abs(float(values.view(-1)[i]) * math.exp(costs.log_scale) - difference) <= 1e-9 * norm


def test_a_shift_that_cancels_a_running_mean_has_its_cost() -> None:
    """Folded, the bias β − sμ is zero in every entry: without β a path of −sμ comes up, and the norm grows."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.BatchNorm1d(2, eps=0), nn.ReLU(), nn.Linear(2, 1, bias=False))
    net = tamis.trace(model.double().eval(), torch.zeros(1, 1, dtype=torch.float64))
    shift = torch.tensor([3.0, 0.0], dtype=torch.float64)
    last = torch.full((1, 2), 2.0, dtype=torch.float64)
    net = net.with_params({"1.bias": shift, "1.running_mean": shift, "3.weight": last})
    without = net.with_params({"1.bias": torch.zeros_like(shift)})
    expected = tamis.path_norm(net) - tamis.path_norm(without)
    assert expected == pytest.approx(-6) and tamis.path_costs(net).values["1.bias"].tolist() == pytest.approx([-6, 0])


def test_lifting_refuses_networks_with_too_many_paths() -> None:
    layers = [module for _ in range(8) for module in (torch.nn.Linear(10, 10), torch.nn.ReLU())]
    net = tamis.trace(torch.nn.Sequential(*layers), torch.zeros(1, 10))
    with pytest.raises(InvalidInput, match="more than 1,000,000 paths"):
        tamis.lifting(net)


def test_a_module_called_twice_is_refused_where_costs_would_be_wrong() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.relu(self.inner(x)))

    net = tamis.trace(Twice(), torch.zeros(1, 3))
    with pytest.raises(AssumptionViolated, match=r"'inner\.weight' is used again by 'aten\.linear' at inner"):
        tamis.path_costs(net)
    assert close(tamis.path_norm(net), tamis.lifting(net).norm(1, 1))


def test_a_module_called_twice_side_by_side_is_costed_exactly() -> None:
    class Siamese(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.inner(x)) + torch.relu(self.inner(-x)))

    net = tamis.trace(Siamese().double(), torch.zeros(1, 2, dtype=torch.float64))
    costs, norm = tamis.path_costs(net), tamis.path_norm(net)
    for name, values in costs.values.items():
        for i in range(values.numel()):
            without = net.params[name].clone()
            without.view(-1)[i] = 0
            assert close(float(values.view(-1)[i]), norm - tamis.path_norm(net.with_params({name: without})), 1e-9)


def test_closed_forms() -> None:
    """‖Φ‖ of two layers by hand: inputs through both, the first bias through the second, the last bias."""
    model = nn.Sequential(nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1)).double()
    model.load_state_dict(
        {
            "0.weight": torch.tensor([[1.0, -2.0], [0.5, 3.0]]),
            "0.bias": torch.tensor([-1.0, 4.0]),
            "2.weight": torch.tensor([[2.0, -0.5]]),
            "2.bias": torch.tensor([7.0]),
        }
    )
    net = tamis.trace(model, torch.zeros(1, 2, dtype=torch.float64))
    assert tamis.path_norm(net) == 2 * (1 + 2 + 1) + 0.5 * (0.5 + 3 + 4) + 7
    assert tamis.path_norm(net, part="hidden") == 2 * 1 + 0.5 * 4 + 7
    assert close(tamis.path_norm(net, q=2) ** 2, 4 * (1 + 4 + 1) + 0.25 * (0.25 + 9 + 16) + 49)
    assert tamis.path_costs(net).values["2.weight"].tolist() == [[8.0, 3.75]]
