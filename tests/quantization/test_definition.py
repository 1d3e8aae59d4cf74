"""GPFQ's codes against its definition, (2) and (3) of the paper, written out in literal.py."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from draws import normal
from quantization.literal import along_the_path, check_gpfq, columns, inputs_of_layers, median_radii, places_of
from torch import Tensor, nn

import tamis
from tamis.artifact import Compressed
from tamis.kernels import BLOCK, Grid
from tamis.layerwise import DenseLayout, Gram, LayerRows, PairedRows
from tamis.quantization.along_data import RowsProblem, quantize_along_data
from tamis.quantization.alphabet import make_equispaced
from tamis.quantization.feedback import choose_levels
from tamis.quantization.gpfq import gpfq, gpfq_along_data, gpfq_by_definition, is_cheaper_along_data
from tamis.quantization.units import Units

GEOMETRIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 5)), (9,)),
    "linear on tokens": (lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), (4, 5)),
    "conv1d": (lambda: _hidden(nn.Conv1d(4, 5, 3, stride=2, padding=2, dilation=2), nn.Conv1d(2, 4, 2)), (2, 13)),
    "conv2d": (lambda: _hidden(nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(2, 4, 3)), (2, 6, 7)),
    "conv3d": (lambda: _hidden(nn.Conv3d(3, 2, 2, padding=1), nn.Conv3d(1, 3, (2, 1, 2))), (1, 3, 3, 4)),
    "1 × 1": (lambda: _hidden(nn.Conv2d(4, 5, 1), nn.Conv2d(3, 4, 1, stride=2)), (3, 5, 4)),
    "grouped": (lambda: _hidden(nn.Conv2d(4, 6, (3, 2), groups=2, padding=(2, 0)), nn.Conv2d(2, 4, 1)), (2, 5, 4)),
    "depthwise": (lambda: _hidden(nn.Conv2d(4, 8, 3, groups=4, padding=1), nn.Conv2d(2, 4, 1)), (2, 5, 5)),
    "dilated": (lambda: _hidden(nn.Conv2d(3, 4, 3, dilation=(2, 1)), nn.Conv2d(2, 3, 1)), (2, 8, 5)),
    "strided": (lambda: _hidden(nn.Conv2d(3, 4, 3, stride=(1, 2), padding=1), nn.Conv2d(2, 3, 1)), (2, 6, 6)),
    "asymmetric": (lambda: _hidden(nn.Conv2d(3, 4, (4, 3), padding=(0, 2)), nn.Conv2d(2, 3, 1)), (2, 5, 3)),
    "same": (lambda: _hidden(nn.Conv2d(3, 4, (4, 2), padding="same"), nn.Conv2d(2, 3, 1)), (2, 5, 4)),
    "same, dilated": (lambda: _hidden(nn.Conv1d(3, 4, 4, padding="same", dilation=3), nn.Conv1d(2, 3, 1)), (2, 9)),
    "circular": (
        lambda: _hidden(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Conv2d(2, 3, 1)),
        (2, 4, 4),
    ),
    "transposed1d": (lambda: _hidden(nn.ConvTranspose1d(4, 3, 3, stride=2, padding=1), nn.Conv1d(2, 4, 1)), (2, 5)),
    "transposed2d": (
        lambda: _hidden(
            nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2),
            nn.Conv2d(2, 4, 1),
        ),
        (2, 3, 3),
    ),
    "transposed3d": (
        lambda: _hidden(nn.ConvTranspose3d(2, 2, 2, dilation=(2, 1, 1)), nn.ConvTranspose3d(1, 2, 1)),
        (1, 2, 3, 2),
    ),
    "transposed, cut": (lambda: _hidden(nn.ConvTranspose2d(3, 2, 2, padding=2), nn.Conv2d(2, 3, 1)), (2, 5, 6)),
}
# Of these, `layerwise/test_layer_matrices.py` tests the patches, which are all that differs.
OTHER_PATCHES = ("conv3d", "1 × 1", "dilated", "strided", "asymmetric", "same, dilated", "transposed1d", "transposed3d")
every_geometry = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in OTHER_PATCHES else n for n in GEOMETRIES]
)
ALPHABETS: dict[str, Any] = {str(count): count for count in (2, 3, 4, 5, 8, 16)} | {
    "asymmetric": [-0.7, 0.0, 0.05, 0.3],
    "without zero": [-0.25, 0.1, 0.35],
    "positive": [0.05, 0.3],
}


def _hidden(layer: nn.Module, before: nn.Module) -> nn.Module:
    return nn.Sequential(before, nn.ReLU(), layer)


def gaussian(samples: int, *shape: int) -> Tensor:
    return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def correlated(samples: int, *shape: int) -> Tensor:
    """Entries that are nearly the same, far from zero."""
    return 2 + gaussian(samples, *[1 for _ in shape]) + 0.05 * gaussian(samples, *shape)


@cache
def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    make, shape = GEOMETRIES[name]
    return make().to(dtype).eval(), shape


TRACED: dict[nn.Module, tamis.Network] = {}


def traced(module: nn.Module, data: Tensor) -> tamis.Network:
    """Traced once: that takes longer than all the rest."""
    if module not in TRACED:
        TRACED[module] = tamis.trace(module, data[:2] if len(data) > 1 else data.expand(2, *data.shape[1:]))
    return TRACED[module]


def quantized(module: nn.Module, data: Tensor, **settings: Any) -> Compressed:
    return tamis.quantize(traced(module, data), data, method="gpfq", progress=False, **settings)


def assert_defined(module: nn.Module, small: Compressed, data: Tensor, levels: Any, c_alpha: Any, **how: Any) -> None:
    """Every choice is a best one; of levels that tie, any is."""
    single = next(module.parameters()).dtype is torch.float32
    indices = {name: codes.indices for name, codes in small.codes.items()}
    alphabet = make_equispaced(levels).levels if isinstance(levels, int) else levels
    steps = check_gpfq(module, small.params, indices, data, alphabet, c_alpha, **how)
    assert steps
    for step in steps.values():
        assert step.worst < (1e-5 if single else 1e-12)
        assert step.wrong <= (0.02 * step.total if single else 0)


@every_geometry
def test_every_kind_of_layer_first_and_hidden(name: str) -> None:
    module, shape = made(name)
    data = gaussian(7, *shape)
    small = quantized(module, data, levels=4, c_alpha=2.0)
    assert_defined(module, small, data, 4, 2.0)


@every_geometry
def test_one_kernel_at_a_time_with_one_scale_a_layer_and_correlated_data(name: str) -> None:
    module, shape = made(name)
    data = correlated(7, *shape)
    small = quantized(module, data, levels=3, c_alpha=3.0, per="layer", conv="per_channel")
    assert_defined(module, small, data, 3, 3.0, per="layer", conv="per_channel")


@pytest.mark.parametrize("name", ["linear", "conv2d", "grouped", "transposed2d"])
@pytest.mark.parametrize("per", ["layer", "channel"])
def test_biases_as_weights_of_a_constant_input(name: str, per: Any) -> None:
    module, shape = made(name)
    data = gaussian(7, *shape)
    small = quantized(module, data, levels=8, c_alpha=2.5, per=per, biases=True)
    assert set(small.codes) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert_defined(module, small, data, 8, 2.5, per=per, biases=True)


@pytest.mark.parametrize("name", ["linear", "conv2d", "depthwise", "transposed2d"])
@pytest.mark.parametrize("how", [{}, {"biases": True}, {"conv": "per_channel", "per": "layer"}])
def test_largest_inputs_first(name: str, how: dict[str, Any]) -> None:
    module, shape = made(name)
    data = gaussian(7, *shape) * torch.linspace(0.3, 2, shape[-1])
    small = quantized(module, data, levels=3, c_alpha=2.0, order="norm", **how)
    assert_defined(module, small, data, 3, 2.0, order="norm", **how)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_every_alphabet(alphabet: str) -> None:
    module, shape = made("linear")
    data, levels = gaussian(30, *shape), ALPHABETS[alphabet]
    c_alpha = 3.0 if isinstance(levels, int) else None
    small = quantized(module, data, levels=levels, c_alpha=c_alpha)
    assert_defined(module, small, data, levels, c_alpha)


@pytest.mark.parametrize("data", [gaussian, correlated])
@pytest.mark.parametrize("name", ["linear", "conv2d", "transposed2d"])
def test_float32_networks(name: str, data: Callable[..., Tensor]) -> None:
    module, shape = made(name, torch.float32)
    inputs = data(40, *shape).float()
    small = quantized(module, inputs, levels=4, c_alpha=2.0)
    assert small.codes["0.weight"].scales.dtype is torch.float32
    assert_defined(module, small, inputs, 4, 2.0)


def test_more_features_than_a_block_and_than_samples() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2 * BLOCK + 10, BLOCK + 6), nn.ReLU(), nn.Linear(BLOCK + 6, 3)).double()
    for samples in (3, 2 * BLOCK + 20):
        data = gaussian(samples, 2 * BLOCK + 10)
        small = quantized(module, data, levels=3, c_alpha=2.0)
        assert_defined(module, small, data, 3, 2.0)


def test_features_that_are_always_zero_are_rounded_by_themselves() -> None:
    module, shape = deepcopy(made("linear"))
    with torch.no_grad():
        module[0].bias[3:6] = -1e3  # dead after the ReLU
    data = gaussian(20, *shape)
    data[:, [0, 4]] = 0.0
    small = quantized(module, data, levels=4, c_alpha=2.0)
    assert_defined(module, small, data, 4, 2.0)
    for name, dead in {"0.weight": [0, 4], "2.weight": [3, 4, 5]}.items():
        codes, weight = small.codes[name], module.get_parameter(name).detach()
        distance = (codes.levels * codes.scales[:, :, None] - weight[:, :, None]).abs()
        assert torch.equal(codes.indices[:, dead].long(), distance.argmin(2)[:, dead])


def test_data_of_zeros_alone() -> None:
    module, shape = made("linear")
    small = quantized(module, torch.zeros(6, *shape, dtype=torch.float64), levels=4, c_alpha=2.0)
    assert_defined(module, small, torch.zeros(6, *shape, dtype=torch.float64), 4, 2.0)


@pytest.mark.parametrize("samples", [1, 2])
def test_few_samples(samples: int) -> None:
    module, shape = made("linear")
    data = gaussian(samples, *shape)
    assert_defined(module, quantized(module, data, levels=3, c_alpha=2.0), data, 3, 2.0)


def test_a_single_feature() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    data = gaussian(10, 1)
    assert_defined(module, quantized(module, data, levels=4, c_alpha=2.0), data, 4, 2.0)


@pytest.mark.parametrize("per", ["layer", "channel"])
@pytest.mark.parametrize("name", ["linear", "conv2d", "grouped", "depthwise", "transposed2d"])
def test_the_scale_is_c_alpha_times_the_median(name: str, per: Any) -> None:
    module, shape = made(name)
    small = quantized(module, gaussian(4, *shape), levels=3, c_alpha=2.5, per=per)
    for layer in ("0", "2"):
        weight, places = module.get_parameter(f"{layer}.weight"), places_of(module.get_submodule(layer))
        scales = small.codes[f"{layer}.weight"].scales
        assert scales.numel() == (1 if per == "layer" else len(places))
        expected = 2.5 * median_radii(weight, places, per)
        assert torch.equal(scales.flatten().expand(len(places)), expected)
    whole = 2.5 * np.median(module.get_parameter("0.weight").detach().abs().numpy())
    assert per == "channel" or float(small.codes["0.weight"].scales) == whole


def test_the_columns_of_the_oracle_give_the_layers_outputs() -> None:
    for name in GEOMETRIES:
        module, shape = made(name)
        for key, inputs in inputs_of_layers(module, gaussian(3, *shape)).items():
            layer = module.get_submodule(key)
            places = places_of(layer)
            rows = columns(layer, inputs, places)[:, 0]
            outputs = torch.einsum("cf,cfs->cs", layer.weight.detach().flatten()[places[:, 0]], rows)
            axis = -1 if isinstance(layer, nn.Linear) else -(layer.weight.dim() - 1)
            expected = layer(inputs).detach().movedim(axis, 0).flatten(1) - layer.bias.detach()[:, None]
            assert torch.allclose(outputs, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("samples", "how"),
    [
        *((5, {}), (40, {}), (40, {"order": "norm"}), (5, {"per": "layer"})),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((5, {"order": "norm"}), (40, {"per": "layer"}))),
    ],
)
def test_wide_layers_along_the_data(samples: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a layer has many features, GPFQ carries u along instead of summing Gram matrices: the same choices."""
    monkeypatch.setattr("tamis.quantization.layer_quantizer.MANY_FEATURES", 1)
    monkeypatch.setattr("tamis.quantization.layer_quantizer.is_cheaper_along_data", lambda *sizes: True)
    module, _ = wide()
    data = gaussian(samples, 150)
    data[:, 20] = 0.0
    small = quantized(module, data, levels=3, c_alpha=2.0, **how)
    assert_defined(module, small, data, 3, 2.0, **how)
    for settings in ({"c_alpha": 2.0}, {}, {"bias_correction": True, "c_alpha": 2.0}):
        monkeypatch.setattr("tamis.quantization.layer_quantizer.is_cheaper_along_data", lambda *sizes: True)
        small = quantized(module, data, levels=3, **how, **settings)
        monkeypatch.setattr("tamis.quantization.layer_quantizer.is_cheaper_along_data", lambda *sizes: False)
        other = quantized(module, data, levels=3, **how, **settings)
        assert all(torch.equal(small.codes[name].indices, other.codes[name].indices) for name in small.codes)
        assert all(torch.allclose(small.params[name], other.params[name], atol=1e-12) for name in small.params)


@cache
def wide() -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(150, 70), nn.ReLU(), nn.Linear(70, 3)).double(), (150,)


@pytest.mark.parametrize("same", [True, False])
def test_three_forms_of_one_algorithm(same: bool) -> None:
    """From Gram matrices, along the data block by block, and one feature at a time: the same choices as by trying."""
    draw = torch.Generator().manual_seed(3)
    for features, samples in ((1, 5), (64, 9), (65, 200), (150, 30)):
        weights, y = normal(draw, 2, 4, features), normal(draw, 2, samples, features) + normal(draw, 2, samples, 1)
        y[0, :, features // 2] = 0.0
        moved = y if same else y + 0.3 * normal(draw, 2, samples, features) * (y != 0)
        levels = torch.tensor([-1.5, -0.5, 0.1, 1.0], dtype=torch.float64)
        scales = 0.5 + torch.rand(2, 4, generator=draw, dtype=torch.float64)
        grid = Grid(scales, levels)
        by_definition = gpfq_by_definition(weights, y, moved, grid)
        assert torch.equal(gpfq_along_data(weights, y, moved, grid), by_definition)
        drift = y - moved
        gram = Gram(moved.mT @ moved, moved.mT @ drift, moved.sum(1), drift.sum(1), samples)
        assert torch.equal(choose_levels(gpfq(weights, gram), grid), by_definition)
        for problem in range(2):
            rows = (each[problem].T.expand(4, -1, -1) for each in (y, moved))
            scaled = scales[problem, :, None] * levels
            step = along_the_path(weights[problem], *rows, scaled, by_definition[problem].long())
            assert step.wrong == 0


def test_the_cheaper_form_is_the_one_with_fewer_operations() -> None:
    """6cmNn along the data against 2mN² + 2cN²n: divided by 2N, with every case of equality in the range."""
    equal = 0
    for samples, features, neurons, candidates in product(range(1, 8), repeat=4):
        along = 3 * candidates * samples * neurons
        from_gram = features * (samples + candidates * neurons)
        assert is_cheaper_along_data(samples, features, neurons, candidates) is (along < from_gram)
        equal += along == from_gram
    assert equal > 10


@pytest.mark.parametrize("more", [0, 1])
def test_products_are_taken_in_float64_where_they_are_few(more: int) -> None:
    """Up to 2²⁸ multiplications, of samples, features and neurons; from there in float32, as the network is."""
    seen = []

    def choose(weights: Tensor, original: Tensor, small: Tensor, grid: Grid) -> Tensor:
        seen.append((original.dtype, small.dtype))
        return torch.zeros(weights.shape, dtype=torch.int32)

    neurons, samples = 2**14, 2**14 + more
    layout = DenseLayout.of((neurons, 1), transposed=False)
    inputs = torch.zeros(1, samples, 1)
    rows = LayerRows(None, PairedRows(inputs, inputs), None)  # type: ignore[arg-type]
    weights = torch.zeros(1, neurons, 1, dtype=torch.float64)
    problem = RowsProblem(weights, rows, Units(layout, "layer"), torch.tensor([-1.0, 1.0]), "natural", False)
    quantize_along_data(choose, problem, torch.ones(1, 1, dtype=torch.float64))
    assert seen == [(torch.float32 if more else torch.float64,) * 2]
