"""Small networks and little data, so that a whole run takes a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_runs import in_an_empty_directory  # noqa: F401 (a fixture)
from torch import nn

import tamis.reports.comparison
from tamis.training.models import mlp

DATA, TEST = "digits:train[:200]", "digits:test[:100]"


@pytest.fixture(autouse=True, scope="session")
def latencies_take_no_more_time_than_they_must() -> Iterator[None]:
    """Also in what is made once for all tests of a file, before the folder of the first of them is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # how long is not what is tested
        yield


@pytest.fixture(scope="session")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((64, 16, 16, 10))


@pytest.fixture
def quick() -> dict[str, Any]:
    """What every call of `compress` has beside the model, the recipe and the folder."""
    return {"data": DATA, "test": TEST, "progress": False}
