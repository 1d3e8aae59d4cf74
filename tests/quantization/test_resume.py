"""A run that is broken off after any layer goes on from there, and ends with the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.artifact import Compressed
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.progress import Progress

LAYERS = 4


@cache
def network() -> tuple[tamis.Network, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 3),
    ).eval()  # fmt: skip
    data = torch.randn(25, 2, 5, 5)
    return tamis.trace(module, data[:2]), data


class Killed(Exception):
    """What stands in for a kill."""


def quantized(
    settings: dict[str, Any], directory: Path | None, stop_after: int | None = None, **more: Any
) -> Compressed:
    def killing(progress: Progress) -> None:
        if progress.done == stop_after:
            raise Killed

    net, data = network()
    return tamis.quantize(net, more.pop("data", data), directory=directory, progress=killing, **settings, **more)


def saved(small: Compressed, path: Path) -> bytes:
    small.save(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"method": "gpfq", "levels": 3}, range(1, LAYERS + 1)),
        ({"levels": 4}, (1, 3)),
        ({"levels": 16, "biases": True}, (2, 4)),
    ],
)
def test_killed_after_every_layer(settings: dict[str, Any], layers: Iterable[int], tmp_path: Path) -> None:
    expected = saved(quantized(settings, None), tmp_path / "whole.tamis")
    for layer in layers:
        directory = tmp_path / str(layer)
        with pytest.raises(Killed):
            quantized(settings, directory, stop_after=layer)
        assert len(list(directory.glob("layer_*.pt"))) >= layer
        times = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
        assert saved(quantized(settings, directory), tmp_path / "again.tamis") == expected
        assert all(path.stat().st_mtime_ns == time for path, time in times.items())  # no layer was made twice


def test_killed_again_and_again(tmp_path: Path) -> None:
    expected = saved(quantized({"levels": 3}, None), tmp_path / "whole.tamis")
    for layer in range(1, LAYERS + 1):
        with pytest.raises(Killed):
            quantized({"levels": 3}, tmp_path / "parts", stop_after=layer)
    assert saved(quantized({"levels": 3}, tmp_path / "parts"), tmp_path / "again.tamis") == expected
    assert saved(quantized({"levels": 3}, tmp_path / "parts"), tmp_path / "finished.tamis") == expected


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        quantized({"levels": 3}, tmp_path / "parts", stop_after=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    for other in (
        {"levels": 4},
        {"levels": 3, "per": "layer"},
        {"levels": 3, "method": "gpfq"},
        {"levels": 3, "exclude": "0"},
    ):
        with pytest.raises(InvalidInput, match=r"comes from another run: .* name another place by directory="):
            quantized(other, tmp_path / "parts")
    with pytest.raises(InvalidInput, match="calibration"):
        quantized({"levels": 3}, tmp_path / "parts", data=network()[1] + 1e-3)
    assert {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()} == before


def test_another_network_is_refused(tmp_path: Path) -> None:
    net, data = network()
    with pytest.raises(Killed):
        quantized({"levels": 3}, tmp_path / "parts", stop_after=2)
    moved = net.with_params({"8.bias": net.params["8.bias"].detach() + 1})
    with pytest.raises(InvalidInput, match="comes from another run"):
        tamis.quantize(moved, data, levels=3, directory=tmp_path / "parts", progress=False)
    with pytest.raises(InvalidInput, match="comes from another run"):
        pruned = tamis.prune(net, 0.5, by="magnitude")
        tamis.quantize(net, data, levels=3, pruned=pruned, directory=tmp_path / "parts", progress=False)


def test_a_damaged_layer_is_named(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        quantized({"levels": 3}, tmp_path / "parts", stop_after=3)
    part = tmp_path / "parts" / "layer_0001.pt"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptArtifact, match=r"layer_0001\.pt' is damaged .* delete it"):
        quantized({"levels": 3}, tmp_path / "parts")
    part.unlink()
    expected = saved(quantized({"levels": 3}, None), tmp_path / "whole.tamis")
    assert saved(quantized({"levels": 3}, tmp_path / "parts"), tmp_path / "again.tamis") == expected
