"""What every quantizer promises: weights on its levels, nothing else touched, the same result from the same call."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from quantization.networks import NETWORKS, network
from torch import Tensor, nn

import tamis
from tamis.artifact import Compressed
from tamis.errors import InvalidInput
from tamis.layerwise import add_ridge
from tamis.quantization import Method, Recursion
from tamis.quantization.msq import msq
from tamis.quantization.quantizer import METHODS
from tamis.testing import check_quantizer

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
every_method = pytest.mark.parametrize("method", METHODS)


@cache
def traced() -> tuple[tamis.Network, nn.Module, Tensor]:
    """A layer, a grouped convolution, a transposed one and a linear one, with biases and a batch-norm."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2, groups=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        nn.Flatten(),
        nn.Linear(128, 5),
    ).eval()
    data = torch.randn(30, 2, 5, 5)
    return tamis.trace(module, data[:2]), module, data


def quantized(method: Any, data: Any = None, **settings: Any) -> Compressed:
    net, _, own = traced()
    return tamis.quantize(net, own if data is None else data, method=method, progress=False, **settings)


def assert_on_levels(small: Compressed) -> None:
    for name, codes in small.codes.items():
        kept = small.masks.get(name)
        assert torch.equal(small.params[name], codes.values(kept))
        assert codes.indices.shape == small.params[name].shape


def assert_same(one: Compressed, other: Compressed) -> None:
    assert set(one.codes) == set(other.codes)
    for name in one.codes:
        assert torch.equal(one.codes[name].indices, other.codes[name].indices), name
    for name, value in one.params.items():
        assert torch.equal(value, other.params[name]), name


# Those that differ in size and wiring alone are slow; `traced` above has the layers that these three do not.
KINDS = ("mlp", "cnn1d", "gcn")
WHOLE = [(method, name) for method in METHODS for name in KINDS]
LARGER = [pytest.param("gpfq", name, marks=pytest.mark.slow) for name in NETWORKS if name not in KINDS]


# That of msq is checked as the example of `check_quantizer`.
@pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.slow) if m == "msq" else m for m in METHODS])
def test_it_keeps_the_contract(method: Any) -> None:
    check_quantizer(method)


@pytest.mark.parametrize(("method", "name"), [*WHOLE, *LARGER])
def test_every_weight_of_a_whole_network_is_put_on_levels_saved_and_loaded(
    method: Any, name: str, tmp_path: Any
) -> None:
    net, module, data = network(name)
    small = tamis.quantize(net, data, levels=4, method=method, progress=False, c_alpha=[1.5, 2.5])
    expected = {f"{key}.weight" for key, layer in module.named_modules() if isinstance(layer, LAYERS)}
    assert set(small.codes) == expected == set(small.recipe[-1]["layers"])
    assert_on_levels(small)
    outputs = small.network(data).detach()
    assert outputs.isfinite().all() and torch.equal(outputs, small.apply_to(module)(data).detach())
    assert all(0 <= each["error"] < 2 for each in small.recipe[-1]["layers"].values())
    small.save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", net)
    assert_same(small, loaded)
    assert all(torch.equal(small.codes[key].scales, loaded.codes[key].scales) for key in small.codes)
    assert loaded.recipe == small.recipe and small.nbytes == (tmp_path / "small.tamis").stat().st_size


@cache
def with_zeros(dtype: torch.dtype) -> tuple[tamis.Network, Tensor]:
    """Two layers, the second of which has no weight, and an input for them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).to(dtype)
    with torch.no_grad():
        module[0].weight[1] = 0.0
        module[0].weight[2, 1:] = 0.0  # the median is zero
        module[2].weight.zero_()
    data = torch.randn(20, 6).to(dtype)
    return tamis.trace(module, data), data


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_zeros_and_few_that_are_not(method: Any, dtype: torch.dtype) -> None:
    net, data = with_zeros(dtype)
    for per in ("layer", "channel"):
        for count in (2, 3):
            small = tamis.quantize(net, data, count, method, per, progress=False)  # type: ignore[arg-type]
            assert_on_levels(small)
            assert small.params["2.weight"].abs().max() < 1e-4
            assert per == "layer" or small.params["0.weight"][1].abs().max() < 1e-4
            assert count == 2 or not small.params["2.weight"].any()
            assert small.params["0.weight"][2, 0] != 0


@every_method
@pytest.mark.parametrize("levels", [4, [-0.3, 0.1, 0.2]])
def test_pruned_weights_stay_zero_whatever_the_levels(method: Any, levels: Any) -> None:
    net, _, data = traced()
    pruned = tamis.prune(net, 0.6, by="magnitude")
    small, chained = (
        tamis.quantize(start, data, levels, method, progress=False, **how)
        for start, how in ((pruned, {}), (net, {"pruned": pruned}))
    )
    for each in (small, chained):
        assert set(each.masks) == set(pruned.masks)
        assert all(torch.equal(each.masks[name], mask) for name, mask in pruned.masks.items())
        assert all(not each.params[name][~mask].any() for name, mask in pruned.masks.items())
        assert_on_levels(each)
        assert [step["step"] for step in each.recipe] == ["prune", "quantize"]


@every_method
def test_one_scale_for_the_layer_or_one_for_each_channel(method: Any) -> None:
    for per in ("layer", "channel"):
        small = quantized(method, levels=3, per=per)
        shapes = {name: tuple(codes.scales.shape) for name, codes in small.codes.items()}
        channel = {"0.weight": (4, 1, 1, 1), "2.weight": (4, 1, 1, 1), "5.weight": (1, 2, 1, 1), "7.weight": (5, 1)}
        assert shapes == (channel if per == "channel" else {k: (1,) * len(v) for k, v in channel.items()})


@every_method
def test_biases_are_put_on_the_levels_of_their_channel(method: Any) -> None:
    for per in ("layer", "channel"):
        small = quantized(method, levels=16, per=per, biases=True)
        assert {"0.bias", "5.bias", "7.bias"} <= set(small.codes)
        assert_on_levels(small)
        for layer in ("0", "5", "7"):
            scales = small.codes[f"{layer}.weight"].scales.flatten()
            assert torch.equal(small.codes[f"{layer}.bias"].scales, scales)


def refit(weights: Tensor, gram: Any) -> Recursion:
    """w + (G + εI)⁻¹ E w, each weight to its nearest level: a method as a user writes it."""
    moved = torch.linalg.solve(add_ridge(gram.inputs), gram.drift @ weights.mT).mT
    start = (weights + moved).contiguous()
    return Recursion(start, start, coupling=None)


def test_an_object_is_taken_in_the_place_of_a_name() -> None:
    small = quantized(Method(refit), levels=4, search="global", c_alpha=[1.5, 2.5])
    assert_on_levels(small)
    assert small.recipe[-1]["method"] == "refit" and len(small.recipe[-1]["c_alpha"]) == 1
    assert_same(quantized(Method(msq), levels=4), quantized("msq", levels=4))


def test_an_object_that_is_no_quantizer_is_told_what_it_lacks() -> None:
    with pytest.raises(InvalidInput, match="is not a quantizer: it has no name, recursion, along_data, improves"):
        quantized(3)
    with pytest.raises(InvalidInput, match="order='best' of the quantizer refit must be 'natural' or 'norm'"):
        quantized(Method(refit, order="best"))  # type: ignore[arg-type]
