"""`tamis.repair` on whole networks: errors that never grow, masks and codes that stay, and what it refuses."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draws import normal
from hypothesis import HealthCheck, given, settings
from random_dags import Dag, dags
from torch import Tensor, nn

import tamis
from tamis.artifact import Codes
from tamis.errors import InvalidInput, InvalidParameters
from tamis.graph import Network, resolve
from tamis.layerwise.layers import Layer, find_layers
from tamis.training import Settings, evaluate, load_data, train
from tamis.training.models import digits_cnn

slow_tracing = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


class Mixed(nn.Module):
    """Convolutions with a bias or a batch-norm, grouped, transposed; a skip; linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
        self.hidden, self.head = nn.Linear(6, 5, bias=False), nn.Linear(5, 3)
        nn.init.normal_(self.norm.running_mean)  # type: ignore[arg-type]
        for layer in (self.first, self.up, self.head):
            nn.init.normal_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.norm(self.second(x)) + x)
        return self.head(torch.relu(self.hidden(torch.relu(self.up(x)).mean((2, 3)))))


@pytest.fixture(scope="module")
def net() -> Network:
    return tamis.trace(Mixed().eval(), torch.zeros(2, 2, 5, 5))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(50, 2, 5, 5, generator=torch.Generator().manual_seed(1)) + 0.3


def repaired(net: Network, small: tamis.Compressed, x: Any, **options: Any) -> tamis.Compressed:
    return tamis.repair(net, small, x, progress=False, **options)


def layers_of(net: Network) -> tuple[Layer, ...]:
    return find_layers(net, None, None, "joint", done="tested")


def all_values(net: Network, params: Mapping[str, Tensor], x: Tensor) -> dict[str, Any]:
    values: dict[str, Any] = {**params, **net.constants, net.inputs[0]: x}
    with torch.no_grad():
        for node in net.nodes:
            args, kwargs = (resolve(part, values.__getitem__) for part in (node.args, node.kwargs))
            values[node.name] = node.target(*args, **kwargs)
    return values


def error_at(net: Network, layer: Layer, params: Mapping[str, Tensor], x: Tensor, original: Mapping[str, Any]) -> float:
    """How far a layer's outputs, with the mean that a batch-norm then takes off, are from the original ones."""
    outputs = []
    for each, values in ((net.params, original), (params, all_values(net, params, x))):
        value = values[layer.node.name]
        if layer.shift is not None and layer.shift.sign < 0:
            value = value - each[layer.shift.name].reshape(-1, *[1] * layer.spatial_axes)
        outputs.append(value.double())
    return float((outputs[0] - outputs[1]).square().sum())


def check_errors(net: Network, small: tamis.Compressed, result: tamis.Compressed, x: Tensor, slack: float) -> None:
    """Layer by layer, with all before it repaired: the error after, and before."""
    params, original = dict(small.params), all_values(net, net.params, x)
    for layer in layers_of(net):
        before = error_at(net, layer, params, x, original)
        names = {layer.weight} | ({layer.shift.name} if layer.shift else set())
        params |= {name: result.params[name] for name in names}
        after, whole = (
            error_at(net, layer, params, x, original),
            error_at(net, layer, {**params, layer.weight: 0 * params[layer.weight]}, x, original),
        )
        assert after <= before + slack * (before + whole), layer.weight
    assert all(torch.equal(params[name], value) for name, value in result.params.items())


def small_networks(net: Network, x: Tensor) -> dict[str, tamis.Compressed]:
    pruned = tamis.prune(net, 0.5, by="magnitude")
    quantized = tamis.quantize(net, x, levels=5, method="msq", progress=False)
    return {
        "as it was": tamis.Compressed(net),
        "pruned": pruned,
        "pruned away": tamis.prune(net, 1.0, by="magnitude", include="second"),
        "biases pruned": tamis.prune(net, 0.5, by="random", biases=True),
        "quantized": quantized,
        "quantized per layer": tamis.quantize(net, x, levels=5, method="msq", per="layer", progress=False),
        "biases quantized": tamis.quantize(net, x, levels=5, method="gpfq", biases=True, progress=False),
        "pruned and quantized": tamis.quantize(pruned, x, levels=5, method="msq", progress=False),
        "quantized and pruned": tamis.prune(quantized, 0.3, by="magnitude"),
        "repaired": repaired(net, pruned, x),
        "quantized by optq": tamis.quantize(net, x, progress=False),
    }


KINDS = (
    "as it was",
    "pruned",
    "pruned away",
    "biases pruned",
    "quantized",
    "quantized per layer",
    "biases quantized",
    "pruned and quantized",
    "quantized and pruned",
    "repaired",
    "quantized by optq",
)


@pytest.fixture(scope="module")
def smalls(net: Network, x: Tensor) -> dict[str, tamis.Compressed]:
    return small_networks(net, x)


@pytest.fixture(scope="module")
def results(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed]) -> Callable[[str], tamis.Compressed]:
    """Each of them repaired, once for all tests."""
    return cache(lambda kind: repaired(net, smalls[kind], x))


# Without the correction, masks and codes are treated as with it: one of each kind.
PLAIN = ("as it was", "pruned", "biases pruned", "quantized", "biases quantized")
CASES = [
    *((kind, True) for kind in KINDS),
    *(pytest.param(kind, False, marks=() if kind in PLAIN else pytest.mark.slow) for kind in KINDS),
]


@pytest.mark.parametrize(("kind", "bias_correction"), CASES)
def test_no_error_grows_and_masks_and_codes_stay(
    net: Network, x: Tensor, smalls: dict[str, tamis.Compressed], results: Any, kind: str, bias_correction: bool
) -> None:
    small = smalls[kind]
    result = results(kind) if bias_correction else repaired(net, small, x, bias_correction=False)
    check_errors(net, small, result, x, slack=1e-6)
    assert result.masks.keys() == small.masks.keys() and result.codes.keys() == small.codes.keys()
    for name, mask in small.masks.items():
        assert torch.equal(result.masks[name], mask) and not result.params[name][~mask].any()
    for name, code in small.codes.items():
        found = result.codes[name]
        assert torch.equal(found.indices, code.indices) and torch.equal(found.levels, code.levels)
        assert torch.equal(result.params[name], found.values(small.masks.get(name)))
    assert all(value.dtype is net.params[name].dtype for name, value in result.params.items())
    tamis.Compressed(result.network, result.masks, result.recipe, result.codes)  # which checks all of it


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_error_is_that_of_the_network(net: Network, x: Tensor, results: Any, kind: str) -> None:
    """What was measured on the way is what the network that comes out does."""
    result = results(kind)
    step = result.recipe[-1]
    assert step["step"] == "repair" and list(step["layers"]) == [layer.weight for layer in layers_of(net)]
    expected = net(x)
    relative = float((result.network(x) - expected).norm() / (expected - net.params["head.bias"]).norm())
    if "bias" not in kind and kind != "repaired" and "optq" not in kind:  # of these, see test_walk.py
        assert step["layers"]["head.weight"]["error"] == pytest.approx(relative, rel=1e-4, abs=1e-6)
    for name, figures in step["layers"].items():
        assert figures["zeros"] == pytest.approx(float((result.params[name] == 0).double().mean()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_network_itself_stays_bit_for_bit(dtype: torch.dtype, x: Tensor) -> None:
    net = tamis.trace(Mixed().eval().to(dtype), x[:2].to(dtype))
    copies = net.with_params({name: value.clone() for name, value in net.params.items()})
    for same in (net, copies):
        result = repaired(net, tamis.Compressed(same), x.to(dtype))
        assert all(torch.equal(result.params[name], value) for name, value in net.params.items())
        assert all(figures["error"] == 0 for figures in result.recipe[-1]["layers"].values())


@slow_tracing
@given(dags())
def test_no_error_grows_in_any_network(module: Dag) -> None:
    x = module.example(9)
    net = tamis.trace(module, x)
    small = tamis.prune(net, 0.5, by="magnitude")
    check_errors(net, small, repaired(net, small, x), x, slack=1e-9)


def test_normal_equations_of_one_layer() -> None:
    """With a bias, weights and bias are fitted together: the same as by centred data, or by a constant feature."""
    generator = torch.Generator().manual_seed(0)
    x = normal(generator, 40, 6) + 1
    module = nn.Linear(6, 3).double()
    net = tamis.trace(module, x)
    small = tamis.prune(net, 9, by="magnitude")
    result = repaired(net, small, x, damping=1e-12)
    for n in range(3):
        support = small.masks["weight"][n].nonzero()[:, 0]
        design = torch.cat([x[:, support], torch.ones(40, 1, dtype=x.dtype)], 1)
        best = torch.linalg.lstsq(design, net(x)[:, n : n + 1]).solution[:, 0]
        torch.testing.assert_close(result.params["weight"][n, support], best[:-1], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(result.params["bias"][n], best[-1], rtol=1e-6, atol=1e-8)


def test_means_are_kept() -> None:
    """Of every layer with a bias or a batch-norm, where the bias may change."""
    x = torch.randn(60, 2, 5, 5, dtype=torch.float64)
    net = tamis.trace(Mixed().eval().double(), x)
    result = repaired(net, tamis.prune(net, 0.6, by="magnitude"), x)
    original, now = all_values(net, net.params, x), all_values(net, result.params, x)
    for layer in layers_of(net):
        if layer.shift is None:
            continue
        difference = original[layer.node.name] - now[layer.node.name]
        axes = [0, *range(2, 2 + layer.spatial_axes)]
        if layer.shift.sign < 0:
            moved = net.params[layer.shift.name] - result.params[layer.shift.name]
            difference = difference - moved.reshape(-1, *[1] * layer.spatial_axes)
        torch.testing.assert_close(difference.mean(axes), 0 * difference.mean(axes), rtol=0, atol=1e-9)


def test_scales_are_the_least_squares_ones() -> None:
    x = normal(torch.Generator().manual_seed(0), 40, 6)
    net = tamis.trace(nn.Linear(6, 3, bias=False).double(), x)
    w = net.params["weight"]
    for shape in ((3, 1), (1, 1)):
        codes = Codes((w > 0).to(torch.uint8), torch.tensor([-1.0, 1.0]).double(), torch.full(shape, 0.3).double())
        small = tamis.Compressed(net.with_params({"weight": codes.values()}), codes={"weight": codes})
        result = repaired(net, small, x)
        signs = torch.where(w > 0, 1.0, -1.0).double()
        wanted, given_ = x @ w.T, x @ signs.T
        axes = (0,) if shape == (3, 1) else (0, 1)
        best = (wanted * given_).sum(axes) / given_.square().sum(axes)
        torch.testing.assert_close(result.codes["weight"].scales.flatten(), best.reshape(-1))


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (3, 6), (1, 2)])
def test_units_within_a_channel(shape: tuple[int, ...]) -> None:
    """Scales of several units in one neuron depend on each other; still no error grows."""
    generator = torch.Generator().manual_seed(0)
    shared = normal(generator, 40, 1)
    x = shared + 0.1 * normal(generator, 40, 6)  # nearly the same six times, so that units are far from independent
    net = tamis.trace(nn.Linear(6, 3, bias=False).double(), x)
    w = net.params["weight"]
    scales = torch.rand(shape, generator=generator).double() + 0.1
    codes = Codes((w > 0).to(torch.uint8), torch.tensor([-1.0, 1.0]).double(), scales)
    small = tamis.Compressed(net.with_params({"weight": codes.values()}), codes={"weight": codes})
    result = repaired(net, small, x)
    check_errors(net, small, result, x, slack=1e-9)
    assert result.codes["weight"].scales.shape == shape


def test_include_and_exclude(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed]) -> None:
    small = smalls["pruned"]
    result = repaired(net, small, x, include=["first", "head"], exclude="head")
    changed = {name for name, value in result.params.items() if not torch.equal(value, small.params[name])}
    assert changed == {"first.weight", "first.bias"}
    assert list(result.recipe[-1]["layers"]) == ["first.weight"]


def test_files_for_activations_change_nothing(
    net: Network, x: Tensor, smalls: dict[str, tamis.Compressed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are removed, also where a listener raises, while its error is still being looked at."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected = repaired(net, smalls["pruned"], x)
    found = repaired(net, smalls["pruned"], x, activation_budget=0)
    assert found.recipe == expected.recipe
    assert all(torch.equal(found.params[name], value) for name, value in expected.params.items())
    assert not list(tmp_path.iterdir())

    def listener(now: object) -> None:
        assert list(tmp_path.iterdir())
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough") as raised:
        tamis.repair(net, smalls["pruned"], x, activation_budget=0, progress=listener)
    assert raised.traceback and not list(tmp_path.iterdir())


def test_a_module_with_an_example(x: Tensor) -> None:
    module = Mixed()
    small = tamis.prune(module, 0.5, by="magnitude", example=x[:1])
    result = tamis.repair(module, small, x, example=x[:1], progress=False)
    assert module.training and [step["step"] for step in result.recipe] == ["prune", "repair"]
    with pytest.raises(InvalidInput, match="repair needs an example of the input of Mixed: pass example="):
        tamis.repair(module, small, x)


def test_saved_and_loaded(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed], tmp_path: Path) -> None:
    """A file can be repaired, and what is repaired saved."""
    smalls["pruned and quantized"].save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", Mixed())
    result, expected = repaired(net, loaded, x), repaired(net, smalls["pruned and quantized"], x)
    assert all(torch.equal(result.params[name], value) for name, value in expected.params.items())
    result.save(tmp_path / "repaired.tamis")
    again = tamis.load(tmp_path / "repaired.tamis", net)
    assert all(torch.equal(again.params[name], value) for name, value in expected.params.items())


def test_progress_is_told(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed]) -> None:
    told: list[Any] = []
    result = tamis.repair(net, smalls["pruned"], x, progress=told.append)
    assert [(now.task, now.done, now.total) for now in told] == [("repair", n, 5) for n in range(1, 6)]
    assert [now.figures["error"] for now in told] == [each["error"] for each in result.recipe[-1]["layers"].values()]


# -- data that says little -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pruned", "quantized", "biases pruned"])
@pytest.mark.parametrize("data", ["one", "twice the same", "zeros", "constant", "dead channel"])
def test_little_data(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed], kind: str, data: str) -> None:
    given_ = {
        "one": x[:1],
        "twice the same": x[:1].expand(17, -1, -1, -1),
        "zeros": 0 * x,
        "constant": torch.full_like(x, 0.37),
        "dead channel": x * torch.tensor([0.0, 1.0])[:, None, None],
    }[data]
    result = repaired(net, smalls[kind], given_)
    assert all(bool(value.isfinite().all()) for value in result.params.values() if value.is_floating_point())
    check_errors(net, smalls[kind], result, given_, slack=1e-6)


def test_large_products_of_data_that_never_varies() -> None:
    """Products in float32 leave rounding errors where the centred Gram matrix is zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 3))
    net = tamis.trace(model, torch.zeros(1, 8, 20, 20))
    small = tamis.prune(net, 0.5, by="magnitude")
    x = torch.full((20, 8, 20, 20), 1.3)
    for result in (repaired(net, small, x), tamis.prune(net, 0.5, by="obs", calibration=x, progress=False)):
        for name, value in result.params.items():
            assert value.isfinite().all() and value.abs().max() < 10 * net.params[name].abs().max() + 10


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damping", [0, -1, math.nan, math.inf, True, "0.1", None])
def test_no_damping(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed], damping: Any) -> None:
    with pytest.raises(InvalidInput, match=f"damping={damping!r} must be a positive number"):
        repaired(net, smalls["pruned"], x, damping=damping)


def test_damping_of_other_kinds_of_numbers(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed]) -> None:
    for damping in (1, np.float32(0.5), 1e-30):
        assert repaired(net, smalls["pruned"], x, damping=damping).recipe[-1]["damping"] == float(damping)


def test_not_made_from_the_network(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed]) -> None:
    other = tamis.trace(nn.Sequential(nn.Flatten(), nn.Linear(50, 3)), x[:1])
    with pytest.raises(InvalidInput, match=r"repair needs two .* same graph, got Network\(.*made from the first"):
        repaired(other, smalls["pruned"], x)
    with pytest.raises(InvalidInput, match=r"repair needs a Compressed, as tamis\.prune gives it, got Network"):
        tamis.repair(net, net, x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="repair needs a Network, a Compressed or a module, got str"):
        tamis.repair("net", smalls["pruned"], x)  # type: ignore[arg-type]


def test_weights_that_are_not_finite(net: Network, x: Tensor, smalls: dict[str, tamis.Compressed]) -> None:
    spoilt = net.with_params({"head.weight": net.params["head.weight"] * math.nan})
    with pytest.raises(InvalidParameters, match=r"'head.weight' .* not finite"):
        repaired(spoilt, smalls["pruned"], x)


def test_calibration_that_will_not_do(net: Network, smalls: dict[str, tamis.Compressed]) -> None:
    with pytest.raises(InvalidInput, match="calibration batch 1: input 'x' must have shape"):
        repaired(net, smalls["pruned"], torch.zeros(3, 2, 6, 6))
    with pytest.raises(InvalidInput, match="there is no calibration data"):
        repaired(net, smalls["pruned"], [])


# -- on real data --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_repair_gives_back_accuracy() -> None:
    torch.manual_seed(0)
    data, test = load_data("digits:train"), load_data("digits:test")
    model = train(digits_cnn(), data, Settings(epochs=15), progress=False).model.eval()
    net = tamis.trace(model, data.example)
    small = tamis.prune(net, 0.8, by="magnitude")
    better = repaired(net, small, "digits:train")
    accuracy = {name: evaluate(each.apply_to(model), test) for name, each in (("before", small), ("after", better))}
    assert accuracy["after"] > max(accuracy["before"], 0.9), accuracy
