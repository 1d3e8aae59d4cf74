"""Small networks and little data, so that a whole run takes a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from traces import TraceMemory

import tamis.reports.comparison
from tamis.training.models import mlp

DATA, TEST = "digits:train[:200]", "digits:test[:100]"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # the page's latencies are not what is tested


@pytest.fixture(scope="session")
def memory() -> TraceMemory:
    return TraceMemory()


@pytest.fixture(scope="module", autouse=True)
def traces(memory: TraceMemory) -> Iterator[TraceMemory]:
    """Most of a small run is spent on tracing its network, which is the same one in nearly all of them."""
    with memory.in_use():
        yield memory


@pytest.fixture(scope="session")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((64, 16, 16, 10))


@pytest.fixture
def quick() -> dict[str, Any]:
    """What every call of `compress` has beside the model, the recipe and the folder."""
    return {"data": DATA, "test": TEST, "progress": False}
