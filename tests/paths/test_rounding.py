"""Every bound that is computed from paths against rational arithmetic, at all scales that floats have.

Each case is a small network with weights whose exponents are spread over a range (see `SCALES`), zeros and extremes of
the type among them, and a second one: pruned, with flipped signs, unrelated, moved by a last digit, or one with a dead
chain. A case compares about seventeen bounds.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from exact_paths import F1, SCALES, Chain, Exact, Params, at_least, distance, drawn, exact, forged, fractions, log2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.bounds import layer_product, lipschitz_input, lipschitz_parameters, phi_pruning
from tamis.errors import InvalidInput, InvalidParameters
from tamis.paths import scaled
from tamis.paths.passes import Operation

KINDS = ("plain", "residual", "concatenation", "pool", "batch-norm")
CHANGES = ("pruned", "flipped", "unrelated", "moved", "dead chain")
WIDTH, DEPTH = 2, 2


@cache
def traced(kind: str, dtype: torch.dtype, depth: int = DEPTH) -> tamis.Network:
    torch.manual_seed(0)
    return tamis.trace(Chain(WIDTH, depth, kind).to(dtype).eval(), torch.zeros(1, WIDTH, dtype=dtype))


def drawn_params(net: tamis.Network, scale: str, generator: torch.Generator) -> Params:
    dtype = net.params["head.weight"].dtype
    floats = {name: value for name, value in net.params.items() if value.is_floating_point()}
    params = {name: drawn(generator, value.shape, scale, dtype) for name, value in floats.items()}
    return {name: value.abs() if name.endswith("running_var") else value for name, value in params.items()}


def changed(params: Params, change: str, scale: str, generator: torch.Generator) -> Params:
    result = {name: value.clone() for name, value in params.items()}
    for name, value in result.items():
        if name.startswith("norms"):
            continue
        where = torch.rand(value.shape, generator=generator) < 0.4
        if change == "pruned":
            result[name] = value.masked_fill(where, 0.0)
        elif change == "flipped":
            result[name] = torch.where(where, -value, value)
        elif change == "unrelated":
            result[name] = drawn(generator, value.shape, scale, value.dtype)
        elif change == "moved":
            result[name] = torch.where(where, torch.nextafter(value, torch.zeros_like(value)), value)
    if change == "dead chain":
        largest = 3e38 if params["head.weight"].dtype is torch.float32 else 1e308
        _kill_first_neurons(result, largest)
    return result


def _kill_first_neurons(params: Params, largest: float) -> None:
    """The first neuron of each layer reads itself alone, by a huge weight, is never active, and nobody reads it."""
    layers = sorted({name.rsplit(".", 1)[0] for name in params if name.startswith("layers")})
    for i, layer in enumerate(layers):
        weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
        own = weight[0, 0].sign() * largest
        if i:
            weight[:, 0] = 0
            weight[0] = 0
            weight[0, 0] = own
        bias[0] = 0 if i else -largest
    params["head.weight"][:, 0] = 0


def case(kind: str, seed: int) -> None:
    """One pair of networks, and every bound of them."""
    generator = torch.Generator().manual_seed(seed)
    scale = list(SCALES)[seed % len(SCALES)]
    change = CHANGES[(seed // len(SCALES)) % len(CHANGES)]
    dtype = torch.float32 if scale in ("float32", "ordinary") and seed % 2 else torch.float64
    blank = traced(kind, dtype)
    mine = drawn_params(blank, scale, generator)
    theirs = changed(mine, change, scale, generator)
    x = drawn(generator, (1, WIDTH), scale, dtype)
    net, other = blank.with_params(mine), blank.with_params(theirs)
    exact_net, exact_other = exact(kind, DEPTH, mine), exact(kind, DEPTH, theirs)
    try:
        check_norms(net, exact_net, accurate=kind != "batch-norm")
        check_metric(net, other, exact_net, exact_other, x)
        check_pruning(net, mine, kind, generator)
    except InvalidParameters as error:  # s·w of a folded batch-norm that float64 cannot hold is refused
        assert kind == "batch-norm" and "leaves float64's range" in str(error)


def check_norms(net: tamis.Network, oracle: Exact, accurate: bool) -> None:
    ones = [F1] * WIDTH
    total, inputs, products = sum(oracle.norms(ones)), oracle.input_norms(WIDTH), oracle.products(WIDTH)
    assert at_least(lipschitz_input(net).log_value, sum(inputs))
    assert at_least(lipschitz_input(net, math.inf).log_value, max(inputs))
    assert at_least(lipschitz_input(net).terms["log_path_norm"], total)
    assert at_least(layer_product(net).log_value, sum(products))
    assert at_least(layer_product(net, r=math.inf).log_value, max(products))
    if accurate:
        assert close(tamis.path_norm(net, log=True), total)
        assert close(tamis.path_norm(net, part="input", log=True), sum(inputs))
        assert close(tamis.product_norm(net, log=True), sum(products))


def check_metric(net: tamis.Network, other: tamis.Network, mine: Exact, theirs: Exact, x: Tensor) -> None:
    apart = distance(mine, theirs, WIDTH)
    for pair in ((net, other), (other, net)):
        assert at_least(float(tamis.path_metric(*pair, log=True)), apart)
        bound = lipschitz_parameters(*pair, radius=2.64, trivial=1.0)
        assert at_least(bound.log_value, apart * Fraction(2.64))
        assert Fraction(bound.value) >= apart * Fraction(2.64) if bound.value < math.inf else True
    (point,) = fractions(x)
    outputs = zip(mine.realization(point), theirs.realization(point), strict=True)
    moved = sum((abs(a - b) for a, b in outputs), Fraction(0))
    assert at_least(float(tamis.path_metric(net, other, x, log=True)[0]), moved)
    assert tamis.path_metric(net, net, log=True) == -math.inf


def check_pruning(net: tamis.Network, params: Params, kind: str, generator: torch.Generator) -> None:
    """(3.19) for a mask of the first layer's weights and the head's."""
    names = ("layers.0.weight", "head.weight")
    masks = {name: torch.rand(params[name].shape, generator=generator) < 0.5 for name in names}
    ones = [F1] * WIDTH
    whole = sum(exact(kind, DEPTH, params).norms(ones))
    costs = Fraction(0)
    for name, mask in masks.items():
        for place in (~mask).nonzero().tolist():
            without = {**params, name: params[name].clone()}
            without[name][tuple(place)] = 0
            costs += whole - sum(exact(kind, DEPTH, without).norms(ones))
    assert at_least(phi_pruning(net, masks).log_value, costs)


def close(computed_log: float, exact_value: Fraction, tolerance: float = 1e-9) -> bool:
    if exact_value == 0 or computed_log == -math.inf:
        return exact_value == 0 and computed_log == -math.inf
    return abs(computed_log / math.log(2) - log2(exact_value)) < tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_no_bound_is_below_the_exact_value(kind: str) -> None:
    for seed in range(KINDS.index(kind), 25, 8):  # at least three scales and three changes; all of them by all kinds
        case(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_bound_is_below_the_exact_value_many_times(kind: str) -> None:
    for seed in range(75):
        case(kind, seed)


# -- parts and all at once -----------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(dags(), st.sampled_from([3, 300]))
def test_every_operation_gives_the_same_in_parts(dag: Dag, reach: int) -> None:
    """Never at once, in parts as narrow as 2^±3, so that each operation meets many parts of data and weights."""
    net = tamis.trace(dag, dag.example())
    other = net.with_params({name: net.params[name].flip(0) for name in net.trainable})

    def everything() -> list[float]:
        norms = [tamis.path_norm(net, q, r) for q in (1, 2.5) for r in (1, 2)]
        costs = tamis.path_costs(net)
        sums = [float(values.abs().sum()) * math.exp(costs.log_scale) for values in costs.values.values()]
        return [*norms, tamis.product_norm(net), float(tamis.path_metric(net, other)), *sums]

    at_once = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operation, "_at_once", lambda *arguments: None)
        patch.setattr(scaled, "REACH", reach)
        patch.setattr(scaled, "LOWEST", 2.0**-reach)
        patch.setattr(scaled, "HIGHEST", 2.0**reach)
        in_parts = everything()
    assert in_parts == pytest.approx(at_once, rel=1e-9, abs=1e-12 * at_once[0])


# -- what was once wrong -------------------------------------------------------------------------------------------


@cache
def two_neurons() -> tamis.Network:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    return tamis.trace(model, torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("power", [5, 160, 200, 300, 308])
def test_a_tiny_weight_before_a_huge_one(power: int) -> None:
    small, large = (torch.tensor([[10.0**p]], dtype=torch.float64) for p in (-power, power))
    net = two_neurons().with_params({"0.weight": small, "2.weight": large})
    for q in (0.5, 1, 2, 4):
        assert tamis.path_norm(net, q) == pytest.approx(1, rel=1e-9)
        assert tamis.product_norm(net, q) == pytest.approx(1, rel=1e-9)
    assert 1 <= lipschitz_input(net).value < 1 + 1e-9
    costs = tamis.path_costs(net)
    for values in costs.values.values():
        assert float(values) * math.exp(costs.log_scale) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("power", [-200, 200])
def test_the_power_of_a_weight_far_from_one_is_that_of_its_exponent_too(power: int) -> None:
    """√((3·10^p)² + (4·10^p)²) is 5·10^p, although no square is a float64."""
    weight = 10.0**power * torch.tensor([[3.0, -4.0]], dtype=torch.float64)
    net = tamis.trace(nn.Linear(2, 1, bias=False).double(), torch.zeros(1, 2, dtype=torch.float64))
    assert tamis.path_norm(net.with_params({"weight": weight}), q=2) == pytest.approx(5 * 10.0**power, rel=1e-12)


def test_a_dead_output_does_not_change_the_unit_of_the_others() -> None:
    net = two_outputs().with_params({"weight": torch.tensor([[3.0], [0.0]], dtype=torch.float64)})
    norms = tamis.path_norms(net)
    assert norms.log_scale == 0 and norms.values.tolist() == [3.0, 0.0]


def without_chain(other: tamis.Network, hidden: int = 12) -> tamis.Network:
    """The same function, the dead neurons' weights set to zero."""
    params = {name: value.clone() for name, value in other.params.items()}
    for i in range(hidden):
        params[f"{2 * i}.bias"][0] = 0
        if i:
            params[f"{2 * i}.weight"][0] = 0
    return other.with_params(params)


def test_a_dead_chain_hides_nothing_and_spoils_nothing() -> None:
    net, other = forged()
    clean = without_chain(other)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    apart = (net(x) - other(x)).abs().sum(1).double()
    assert float(apart.min()) > 25
    assert bool((tamis.path_metric(net, other, x) >= apart * (1 - 1e-6)).all())
    assert tamis.path_metric(net, other) == pytest.approx(tamis.path_metric(net, clean), rel=1e-9)
    assert tamis.path_metric(other, net) == pytest.approx(tamis.path_metric(clean, net), rel=1e-9)
    assert tamis.path_norm(other) == pytest.approx(tamis.path_norm(clean), rel=1e-9)


def test_costs_beside_a_dead_chain() -> None:
    _, other = forged()
    costs, clean = tamis.path_costs(other), tamis.path_costs(without_chain(other))
    for name, values in clean.values.items():
        living = values > 0
        assert bool(living.any())
        mine = costs.values[name] * math.exp(costs.log_scale)
        torch.testing.assert_close(mine[living], (values * math.exp(clean.log_scale))[living], rtol=1e-9, atol=0)


def test_a_number_in_the_code_that_no_part_can_hold_is_refused() -> None:
    class Shrunk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * 1e-300

    net = tamis.trace(Shrunk().double(), torch.zeros(1, 2, dtype=torch.float64))
    tiny = net.with_params({name: value * 1e-200 for name, value in net.params.items()})
    with pytest.raises(InvalidParameters, match=r"the number 1e-300 of 'aten\.mul\.Tensor' .* make it a parameter"):
        tamis.path_norm(tiny, log=True)


def test_a_folded_batch_norm_beyond_float64_is_refused_by_name() -> None:
    net = traced("batch-norm", torch.float64)
    huge = {name: torch.full_like(net.params[name], 1e200) for name in ("layers.0.weight", "norms.0.weight")}
    with pytest.raises(InvalidParameters, match=r"leaves float64's range: a batch-norm's scale"):
        tamis.path_norm(net.with_params(huge))


class BesideABlockedLayer(nn.Module):
    """A batch-norm whose folded scale overflows, behind a layer of zeros, beside a layer that counts."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first, self.second, self.beside = (nn.Linear(1, 1, bias=False) for _ in range(3))
        self.norm = nn.BatchNorm1d(1)
        self.double()
        for layer, weight in ((self.first, 0.0), (self.second, 1e200), (self.beside, scale), (self.norm, 1e200)):
            nn.init.constant_(layer.weight, weight)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.second(torch.relu(self.first(x)))) + self.beside(x)
        return result


def test_zero_times_infinity_is_not_taken_for_zero() -> None:
    x = torch.ones(1, 1, dtype=torch.float64)
    nets = [tamis.trace(BesideABlockedLayer(scale).eval(), x) for scale in (1.0, 2.0)]
    calls = [
        lambda: tamis.path_norm(nets[0]),
        lambda: tamis.path_metric(*nets),
        lambda: tamis.path_metric(*nets, log=True),
        lambda: tamis.path_metric(*nets, x=x),
        lambda: lipschitz_input(nets[0]).value,
    ]
    for call in calls:
        with pytest.raises(InvalidParameters, match=r"leaves float64's range: a batch-norm's scale"):
            call()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_no_pass_goes_on_with_what_is_not_finite(wrong: float, count: int) -> None:
    with pytest.raises(InvalidParameters, match="not finite"):
        scaled.split_into_parts([(torch.tensor([1.0, wrong], dtype=torch.float64), 0)] * count, 0)


@cache
def two_outputs() -> tamis.Network:
    layer = nn.Linear(1, 2, bias=False).double()
    layer.weight.data[:, 0] = torch.tensor([1.0, 0.99], dtype=torch.float64)
    return tamis.trace(layer, torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("r", [1e-300, 1e-3, 0.5, 500.0, 1100.0, 1e9])
def test_norms_over_outputs_for_every_exponent(r: float) -> None:
    exact = math.log1p(0.99**r) / r  # of (1 + 0.99^r)^(1/r)
    assert tamis.path_norm(two_outputs(), r=r, log=True) == pytest.approx(exact, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("exponents", "what"), [({"r": 5e-324}, "r = 5e-324"), ({"q": 1e-19}, "q = 1e-19")])
def test_exponents_that_float64_cannot_hold_are_refused(exponents: dict[str, float], what: str) -> None:
    wide = tamis.trace(nn.Linear(2, 1).double(), torch.zeros(1, 2, dtype=torch.float64))
    with pytest.raises(InvalidInput, match=f"{what} is too small"):
        tamis.path_norm(two_outputs() if "r" in exponents else wide, log=True, **exponents)
