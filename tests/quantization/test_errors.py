"""What `tamis.quantize` refuses: a message that says what was wrong, and nothing left in the directory."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput, TamisError

DATA = torch.randn(20, 2, 4, 4, generator=torch.Generator().manual_seed(0))


@cache
def net() -> tamis.Network:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    return tamis.trace(module, DATA[:2])


def with_entry(value: float) -> Tensor:
    data = DATA.clone()
    data[7, 1, 2, 3] = value
    return data


BAD_DATA: dict[str, tuple[Any, str]] = {
    "NaN": (with_entry(float("nan")), r"calibration batch 2: input '.*' has 1 entries .* first at \(3, 1, 2, 3\): nan"),
    "inf": (with_entry(float("inf")), "not finite"),
    "empty loader": ([], "no calibration data"),
    "no samples": (DATA[:0], "no calibration data"),
    "an empty batch": ([DATA, DATA[:0]], "calibration batch 2 is empty"),
    "wrong shape": (torch.randn(5, 3, 4, 4), "calibration batch 1"),
    "later wrong shape": ([DATA, torch.randn(5, 2, 9, 9)], "calibration batch 2"),
    "wrong kind": (7, "calibration must be a tensor, a dataset or its name, or a DataLoader, got int"),
    "ambiguous dict batches": ([{"a": DATA, "b": DATA}], "calibration: the network takes "),
}
BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "gptq"}, "method='gptq' is not a quantizer; these are: msq, gpfq, optq"),
    "per": ({"per": "row"}, "per='row' must be 'layer' or 'channel'"),
    "order": ({"order": "random"}, "order='random' must be 'natural' or 'norm'"),
    "conv": ({"conv": "both"}, "conv must be 'joint' or 'per_channel', got 'both'"),
    "biases": ({"biases": True, "conv": "per_channel"}, "biases=True needs conv='joint'"),
    "levels and bits": ({"levels": 3, "bits": 2}, "either levels or bits"),
    "one level": ({"levels": 1}, "levels=1 must be a whole number"),
    "bits": ({"bits": 0}, "bits=0 must be a whole number from 1 to 16"),
    "radius": ({"radius": "mean"}, "radius must be median, max, least_squares or given, got 'mean'"),
    "c_alpha": ({"c_alpha": -1}, "c_alpha=-1 must be a positive number"),
    "include": ({"include": "fc"}, "'fc' matches no parameter that can be quantized"),
    "exclude all": ({"exclude": ["0", "3"]}, "nothing is left to be quantized"),
    "pruned": ({"pruned": 0.5}, "pruned must be a Compressed, as tamis.prune gives it, got float"),
    "levels that are one in float32": ({"levels": [0.1, 0.1 + 1e-12]}, "ascending"),
    "levels that are infinite in float32": ({"levels": [0.0, 1e300]}, "finite"),
}


def assert_refused(data: Any, message: str, directory: Path, kind: type[TamisError] = InvalidInput, **how: Any) -> None:
    with pytest.raises(kind, match=message):
        tamis.quantize(net(), data, directory=directory, progress=False, **how)
    assert not directory.exists() or not list(directory.iterdir())


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(case: str, tmp_path: Path) -> None:
    for method in ("gpfq", "optq"):
        assert_refused(*BAD_DATA[case], tmp_path / "parts", method=method)


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case: str, tmp_path: Path) -> None:
    settings, message = BAD_ARGUMENTS[case]
    assert_refused(DATA, message, tmp_path / "parts", **settings)


def test_a_network_with_nothing_to_quantize(tmp_path: Path) -> None:
    plain = tamis.trace(nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()).eval(), DATA[:2])
    with pytest.raises(InvalidInput, match=r"nothing can be quantized: .* no linear or convolution layer"):
        tamis.quantize(plain, DATA, directory=tmp_path / "parts", progress=False)
    assert not (tmp_path / "parts").exists()


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    weight = net().params["3.weight"].detach().clone()
    weight[1, 2] = float("nan")
    broken = net().with_params({"3.weight": weight})
    with pytest.raises(TamisError, match=r"3\.weight"):
        tamis.quantize(broken, DATA, directory=tmp_path / "parts", progress=False)
    assert not (tmp_path / "parts").exists()


def test_a_loader_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def batches() -> Any:
        yield DATA
        raise OSError("the disk is gone")

    with pytest.raises(InvalidInput, match="calibration failed: OSError: the disk is gone"):
        tamis.quantize(net(), batches(), directory=tmp_path / "parts", progress=False)
    assert not (tmp_path / "parts").exists()


def test_data_whose_squares_overflow_in_float32() -> None:
    small = tamis.quantize(net(), DATA.double() * 1e37, progress=False)
    assert all(torch.isfinite(value).all() for value in small.params.values())


def test_activations_that_overflow_on_the_way_name_the_layer() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    data = torch.randn(10, 3)
    big = {f"{layer}.weight": torch.full((3, 3), 3e25) for layer in (0, 1, 2)}
    huge = tamis.trace(module, data[:2]).with_params(big)
    with pytest.raises(InvalidInput, match=r"the (inputs|outputs) of '\d\.weight' are not finite"):
        tamis.quantize(huge, data, levels=3, progress=False)
